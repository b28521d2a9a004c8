"""Run the library's jobs on several devices and print how far their numbers are from one's.

``XLA_FLAGS=--xla_force_host_platform_device_count=8 python devices.py virtual FILE`` compares those
of 8 virtual ones with those of the first alone, which it saves; ``python devices.py 0 FILE PORT``
and ``python devices.py 1 FILE PORT`` compare theirs with these as two processes.
"""

import pickle
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import lim_jax as lim
from lim_jax.adjoint.cone import cone_mass
from lim_jax.network import attention, tiles
from lim_jax.training.balancing import balanced_objective
from lim_jax.training.dynamics import density_dynamics

jax.config.update("jax_enable_x64", True)
LENGTH, WIDTH, EXAMPLES, SMALL_TILE = 24, 6, 8, 8
GRID = lim.token_grid(LENGTH)


@jax.jit
def network():
    keys = jax.random.split(jax.random.key(0), 6)
    make = jax.vmap(lambda key: lim.TransformerField.init(WIDTH, heads=2, key=key))
    readout = lim.LinearReadout.init(WIDTH, 5, key=keys[3])
    x = jax.random.normal(keys[4], (EXAMPLES, LENGTH, WIDTH))
    labels = jax.random.randint(keys[5], (EXAMPLES, LENGTH), 0, 5)
    return (lim.ResidualFlow(make(keys[:2]), step=lim.split), readout), (
        x,
        jax.nn.one_hot(labels, 5),
    )


def loss(model, x, y):
    return lim.cross_entropy(model[1](model[0](x, GRID), GRID), y, GRID)


def mass(model, batch):
    first = jax.tree.map(lambda leaf: leaf[0], model[0].layers.attention)
    return jax.vmap(lambda x: cone_mass(first, x, GRID, "frobenius"))(batch[0])


def balanced_gradient(model, batch):
    return jax.grad(lambda m: balanced_objective(loss, m, batch, GRID, strength=1.0))(model)


JOBS = {
    "density": lambda model, batch: lim.influence(loss, model, batch, GRID).density,
    "algorithm 1": balanced_gradient,
    "mdot": lambda model, batch: density_dynamics(loss, model, batch, GRID).rate,
    "cone mass": mass,
}


def dense_and_tiled():
    """Every job, and the density once more in small tiles of attention."""
    for name in JOBS:
        yield name, "dense"
    tiles.TILE = attention.DENSE = SMALL_TILE
    jax.clear_caches()
    yield "density", "tiled"


def largest_difference(found, expected):
    gaps = [
        float(np.max(np.abs(np.asarray(a) - b) / np.max(np.abs(b))))
        for a, b in zip(jax.tree.leaves(found), expected, strict=True)
    ]
    return max(gaps)


def virtual(file):
    """Spread examples over all devices, or examples and context, after one device alone."""
    mesh = jax.make_mesh((2, 4), ("data", "context"), axis_types=(AxisType.Auto,) * 2)
    specs = PartitionSpec(("data", "context")), PartitionSpec("data", "context")
    (model, batch), numbers = network(), {}
    for name, attends in dense_and_tiled():
        job = jax.jit(JOBS[name])
        alone = jax.tree.leaves(job(model, batch))
        assert {leaf.sharding.num_devices for leaf in alone} == {1}
        numbers[name, attends] = [np.asarray(leaf) for leaf in alone]
        for spec in specs:
            spread = jax.device_put(batch, NamedSharding(mesh, spec))
            found = job(model, spread)
            gap = largest_difference(found, numbers[name, attends])
            assert len(jax.tree.leaves(found)[0].sharding.device_set) == 8
            assert gap < 1e-12, (name, attends, spec, gap)
            print(name, attends, spec, gap)
    Path(file).write_bytes(pickle.dumps(numbers))


def process(index, file, port):
    """Each process holds half of the examples; both end with the numbers of one."""
    expected = pickle.loads(Path(file).read_bytes())
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    model, batch = jax.tree.map(np.asarray, network())
    half = slice(index * EXAMPLES // 2, (index + 1) * EXAMPLES // 2)
    spread, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    shared = jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(spread, leaf[half]), batch
    )
    model = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(whole, leaf), model)
    for name in ("density", "algorithm 1"):
        found = jax.jit(JOBS[name], out_shardings=whole)(model, shared)
        local = jax.tree.map(lambda leaf: leaf.addressable_data(0), found)
        gap = largest_difference(local, expected[name, "dense"])
        assert gap < 1e-12, (name, gap)
        print(name, gap)


if __name__ == "__main__":
    role, file, *port = sys.argv[1:]
    virtual(file) if role == "virtual" else process(int(role), file, *port)
