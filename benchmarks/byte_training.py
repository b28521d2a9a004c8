"""A small network of bytes that has learnt from a text, for programs that measure or draw one."""

import equinox as eqx
import jax
import optax

from lim_jax.loss import teacher_forcing
from lim_jax.models import CausalLM, sample_windows

# Of Adam.
STEPS = 300
BATCH = 16
RATE = 3e-3


def train(model: CausalLM, text: jax.Array, length: int, key: jax.Array) -> CausalLM:
    """Train a network by Adam under uniform teacher forcing, on random windows of a text."""
    adam = optax.adam(RATE)

    def risk(model, windows):
        """Return the mean loss over windows."""
        x, y = jax.vmap(model.example, in_axes=(0, None))(windows, teacher_forcing(length))
        return jax.vmap(model.loss)(x, y).mean()

    @eqx.filter_jit
    def update(model, state, key):
        """Take one step of Adam on windows that are drawn by the key."""
        windows = sample_windows(text, length, BATCH, key=key)
        change, state = adam.update(jax.grad(risk)(model, windows), state)
        return eqx.apply_updates(model, change), state

    state = adam.init(eqx.filter(model, eqx.is_array))
    for step in range(STEPS):
        model, state = update(model, state, jax.random.fold_in(key, step))
    return model
