# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Several devices: spread examples, or a context that no device holds
#
# Nothing in the library asks where arrays lie. Lay a batch out over a mesh and call as before; hand
# attention a ring where one context is too long for one device. The eight devices here are virtual,
# parts of one CPU, so nothing gets faster: what is shown is that the numbers stay the same, and
# what a device has to hold. Half a minute on a laptop.

# %%
import os

import jax

# Both before JAX starts; leave them out on real devices. Devices that wait for one another hold a
# thread each, of which there would be no more than devices.
jax.config.update("jax_num_cpu_devices", 8)
os.environ.setdefault("NPROC", "64")

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import lim_jax as lim
from lim_jax.network import RingAttention
from lim_jax.training.density_objectives import balanced_objective

WIDTH, WORDS = 16, 11
keys = jax.random.split(jax.random.key(0), 6)


def network():
    """Two split layers and a readout."""
    make = jax.vmap(lambda key: lim.TransformerField.init(WIDTH, heads=2, key=key))
    flow = lim.ResidualFlow(make(keys[:2]), horizon=2.0, step=lim.split)
    return flow, lim.LinearReadout.init(WIDTH, WORDS, key=keys[2])


def objective_of(grid):
    """The influence of next-word losses, and Algorithm 1's objective."""

    def loss(model, x, y):
        return lim.cross_entropy(model[1](model[0](x, grid), grid), y, grid)

    def influence(model, batch):
        return lim.influence(loss, model, batch, grid)

    def gradient(model, batch):
        return jax.grad(lambda m: balanced_objective(loss, m, batch, grid, strength=1.0))(model)

    return influence, gradient


def example_batch(examples, length):
    """States and labels."""
    x = jax.random.normal(keys[3], (examples, length, WIDTH))
    return x, jax.random.randint(keys[4], (examples, length), 0, WORDS)


# %% [markdown]
# ## Spread examples
#
# Examples are independent: a spread batch costs one sum of energies between the devices.

# %%
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
grid, model = lim.token_grid(64), network()
influence, gradient = objective_of(grid)
batch = example_batch(16, 64)
spread = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
here, there = (jax.jit(influence)(model, some).density for some in (batch, spread))
print("devices that hold the batch:", len(spread[0].sharding.device_set))
print(f"densities differ by {jnp.abs(here - there).max():.0e}")
np.testing.assert_allclose(there, here, rtol=1e-4)

# %% [markdown]
# ## A context that no device holds
#
# With `RingAttention` each device holds the queries, keys and values of its own stretch of the
# context, and those of one neighbour as they pass. Algorithm 1's gradient stays the same, and so
# does the influence that it differentiates; the memory of a device falls as devices are added.


# %%
def with_attention(model, attend):
    """Return the network with another function in place of its attention's."""
    attention = dataclasses.replace(model[0].layers.attention, attend=attend)
    return eqx.tree_at(lambda model: model[0].layers.attention, model, attention)


LENGTH = 512
batch = example_batch(1, LENGTH)
_, gradient = objective_of(lim.token_grid(LENGTH))
memory, gradients = {}, {}
for devices in (1, 8):
    mesh = jax.make_mesh(
        (devices,), ("context",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )
    on_all = jax.device_put(
        with_attention(model, RingAttention(mesh, "context")), NamedSharding(mesh, PartitionSpec())
    )
    some = jax.device_put(batch, NamedSharding(mesh, PartitionSpec(None, "context")))
    compiled = jax.jit(gradient).lower(on_all, some).compile()
    memory[devices] = compiled.memory_analysis().temp_size_in_bytes / 2**20
    gradients[devices] = jax.tree.map(np.asarray, compiled(on_all, some))
for one, shared in zip(*map(jax.tree.leaves, gradients.values()), strict=True):
    np.testing.assert_allclose(shared, one, rtol=0, atol=1e-4 * np.abs(one).max())
print({devices: f"{size:.1f} MiB" for devices, size in memory.items()})
assert memory[8] < memory[1] / 4

# %%
figure, axes = plt.subplots(layout="constrained")
axes.loglog(memory.keys(), memory.values(), "o", base=2)
axes.set(xlabel="devices in the ring", ylabel="temporary memory of one (MiB)")
axes.set_title(f"Algorithm 1 on one context of {LENGTH} tokens", fontsize=10)
plt.show()
