"""Products in bfloat16, however weights are held and whatever is asked of them."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compiler
from jax.sharding import AxisType
from reference import publishers

from lim_jax import models
from lim_jax.grid import token_grid
from lim_jax.models.generation import extend_logits, prefill_logits

WINDOW = jnp.array([3, 1, 4, 1, 5, 9, 2, 6])
LENGTH = 7
KNOWN = 5
GRID = token_grid(LENGTH, "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return publishers.write(tmp_path_factory.mktemp("weights"), publishers.CONFIGS["llama"])


@eqx.filter_jit
def logits_and_gradient(model):
    x, y = model.example(WINDOW, jnp.full(LENGTH, 1 / LENGTH, "float32"))

    def loss(x):
        state = model.flow(x, GRID)
        return model.terminal_loss(state, y), state

    gradient, state = jax.grad(loss, has_aux=True)(x)
    return model.readout(state, GRID), gradient


def logits_and_energies(model):
    logits, gradient = map(np.asarray, logits_and_gradient(model))
    return logits, LENGTH**2 * (gradient**2).sum(axis=1)


@pytest.fixture(scope="module")
def exact(folder):
    """In float32."""
    return logits_and_energies(models.load(folder))


def in_a_ring(folder, compute):
    """Over the devices of a mesh, here one, weights are spread, and so is the context."""
    axes = "model", "context"
    mesh = jax.make_mesh((1, 1), axes, axis_types=(AxisType.Auto,) * 2)
    return logits_and_energies(models.load(folder, mesh=mesh, compute=compute))


def walked(folder, compute):
    """The energies alone, a layer at a time."""
    return None, models.energies_of_ids(models.open(folder, compute=compute), [WINDOW])[0]


@eqx.filter_jit
def next_logits(model):
    first, kept = prefill_logits(model, WINDOW[:-1], jnp.array(KNOWN))
    assert kept is not None
    one = jnp.array(1)
    more = WINDOW[KNOWN : KNOWN + 1]
    return jnp.stack([first, extend_logits(model, more, one, jnp.array(KNOWN), kept, GRID)[0]])


def decoded(folder, compute):
    """Logits after the first ids, and after one more by the keys and values that are kept."""
    return next_logits(models.load(folder, compute=compute)), None


@pytest.mark.slow
@pytest.mark.parametrize("job", [in_a_ring, walked, decoded])
def test_products_are_of_bfloat16(job, exact, folder, monkeypatch):
    programs = []
    compiled = compiler.compile_or_get_cached

    def listed(backend, module, *others, **named):
        programs.append(str(module))
        return compiled(backend, module, *others, **named)

    monkeypatch.setattr(compiler, "compile_or_get_cached", listed)
    found = job(folder, "bfloat16")
    pattern = r"dot_general.* : \(.*x(\w+)>, .*x(\w+)>\) -> .*x(\w+)>"
    types = re.findall(pattern, "".join(programs))
    of_half = types.count(("bf16", "bf16", "f32"))
    assert of_half > 20
    # A walk has the value of the loss too: a mean of the places', which is in float32.
    assert len(types) - of_half == (job is walked)
    for one, other in zip(found, exact, strict=True):
        if one is not None:
            other = other[KNOWN - 1 : KNOWN + 1] if len(one) == 2 else other
            assert 1e-5 < np.abs(one - other).max() / np.abs(other).max() < 0.05
