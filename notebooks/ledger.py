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
import jax
import numpy as np

import lim_jax as lim
from lim_jax.adjoint.certificate import certificate_table
from lim_jax.adjoint.ledger import CHANNELS, channels
from lim_jax.explanations.account import HOPS
from lim_jax.loss import last_token
from lim_jax.models import byte_model, sample_windows, standard_library_text, train
from lim_jax.plots import certificate_margins, channel_energies, hop_energies

LENGTH = 32
keys = jax.random.split(jax.random.key(0), 4)
text = standard_library_text()
start = byte_model(LENGTH, width=16, heads=2, depth=3, key=keys[0])
model, losses = train(start, text, LENGTH, steps=80, key=keys[1])
print(f"{losses[:10].mean():.2f} nats a byte at first, {losses[-10:].mean():.2f} at the end")

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
