# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Why does a position matter? The ledger and the hops
#
# The influence of a position is the energy of its adjoint. That adjoint is a sum, and the sum can
# be kept: by the operator of a layer that wrote it last (residual path, future cone of attention,
# local operators), and by how many times attention was taken on the way back from the loss. Both
# splits are exact. Half a minute on a laptop.

# %%
import equinox as eqx
import jax
import numpy as np
import optax

import lim_jax as lim
from lim_jax.adjoint.certificate import certificate_table
from lim_jax.adjoint.ledger import CHANNELS, channels
from lim_jax.explanations.account import HOPS
from lim_jax.loss import last_token, teacher_forcing
from lim_jax.models import byte_model, sample_windows, standard_library_text
from lim_jax.plots import certificate_margins, channel_energies, hop_energies

LENGTH, STEPS, BATCH = 32, 80, 16
keys = jax.random.split(jax.random.key(0), 4)
text = standard_library_text()
model = byte_model(LENGTH, width=16, heads=2, depth=3, key=keys[0])
adam = optax.adam(3e-3)


def risk(model, windows):
    x, y = jax.vmap(model.example, in_axes=(0, None))(windows, teacher_forcing(LENGTH))
    return jax.vmap(model.loss)(x, y).mean()


@eqx.filter_jit
def update(model, state, key):
    windows = sample_windows(text, LENGTH, BATCH, key=key)
    value, gradient = jax.value_and_grad(risk)(model, windows)
    change, state = adam.update(gradient, state)
    return eqx.apply_updates(model, change), state, value


state, losses = adam.init(model), []
for step in range(STEPS):
    model, state, value = update(model, state, jax.random.fold_in(keys[1], step))
    losses.append(value)
first, last = np.mean(losses[:10]), np.mean(losses[-10:])
print(f"{first:.2f} nats a byte at first, {last:.2f} at the end")

# %% [markdown]
# ## One context, exactly
#
# `channels` sweeps once from the loss back to the input. The three channels sum to the adjoint that
# `jax.grad` gives, divided by the position's weight $1/L$ (adjoints are densities), to rounding.

# %%
grid = lim.token_grid(LENGTH)
window = sample_windows(text, LENGTH, 1, key=keys[2])[0]
x, y = model.example(window, last_token(LENGTH))
ledger = channels(model.flow, model.terminal_loss, (x, y), grid)
adjoint = LENGTH * jax.jit(jax.grad(model.loss))(x, y)
gap = np.abs(ledger.vectors.sum(axis=0) - adjoint).max() / np.abs(adjoint).max()
print(f"the channels' sum is the adjoint to {gap:.0e}")
assert gap < 1e-5
for name, vectors in zip(CHANNELS, ledger.vectors, strict=True):
    print(f"{name}: {float((vectors**2).sum(axis=1) @ grid.weights):.3f} of energy")

# %% [markdown]
# ## Many contexts
#
# `explain` averages over contexts and judges the paper's criteria. The loss asks from the last
# token only, whose own influence dominates: the certificates compare regions, and a second density
# leaves that token out.

# %%
windows = sample_windows(text, LENGTH, 24, key=keys[2])
regions = lim.boundary_regions(grid, 0.2)
result = lim.explanations.explain(
    model, windows, last_token(LENGTH), regions, key=keys[3], certificates="all"
)
channel_energies(result, "Byte-level network, last-token loss")

# %% [markdown]
# Energies of parts need not sum to that of the whole: channels may oppose or help each other, which
# is what the lowest axes show.
#
# By hops the picture is another one. No hop stays where the loss asks; one hop is what the last
# token reads directly; two and more is what it reads from tokens that had read it.

# %%
hop_energies(result, "Byte-level network, last-token loss")

# %%
shares = np.asarray(result.hop_energies) @ np.asarray(grid.weights)
for name, share in zip(HOPS, shares / shares.sum(), strict=True):
    print(f"{name}: {share:.0%} of the parts' energy")
assert np.asarray(result.hop_energies)[0, :-1].max() == 0  # without a hop only the last token

# %% [markdown]
# ## What the paper's propositions say of it
#
# A certificate has the premises and inequalities of a proposition, its margin on these data, and
# whether it could have held at all. Vacuous is a verdict too: then nothing on the other side could
# have made it hold, and the proposition says nothing here. Two criteria are dear to compute:
# without `certificates="all"` they are computed only where they could hold.

# %%
print(certificate_table(result.certificates))
certificate_margins(result.certificates, "Byte-level network, last-token loss")
