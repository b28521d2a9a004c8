"""Run the library's jobs on several devices and print how far their numbers are from one's.

``NPROC=64 XLA_FLAGS=--xla_force_host_platform_device_count=8 python devices.py virtual FOLDER``
compares those of 8 virtual ones with those of NumPy, which it saves; ``ring`` in place of
``virtual`` compares those of keys and values that go round a ring, ``weights`` those of a network
that is read onto them, ``weights,virtual,ring`` all in one process; ``python devices.py 0 FOLDER
PORT`` and ``python devices.py 1 FOLDER PORT`` compare theirs with these as two processes.

Layers are attention, where positions meet; ``notebooks/devices.py`` spreads layers of all parts.
"""

import pickle
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import spread_weights
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from reference.as_users import temporary_bytes
from reference.networks import randomised

import lim_jax as lim
from lim_jax.adjoint.cone import cone_mass
from lim_jax.network import CausalAttention, attention, tiles
from lim_jax.network.ring import RingAttention
from lim_jax.training.density_objectives import Penalty, balanced_objective, risk_and_penalty
from lim_jax.training.dynamics import density_dynamics
from lim_jax.training.estimators import Estimator, balanced_density

jax.config.update("jax_enable_x64", True)
LENGTH = 24
WIDTH = 6
EXAMPLES = 8
SMALL_TILE = 8
GRID = lim.token_grid(LENGTH)


def shapes(attend=attention.causal_attention):
    """Of two layers, a readout, and a batch of states and labels."""

    def made():
        keys = jax.random.split(jax.random.key(0), 2)
        make = jax.vmap(lambda key: CausalAttention.init(WIDTH, heads=2, attend=attend, key=key))
        readout = lim.LinearReadout.init(WIDTH, 5, key=keys[0])
        batch = jnp.zeros((EXAMPLES, LENGTH, WIDTH)), jnp.zeros((EXAMPLES, LENGTH, 5))
        return (lim.ResidualFlow(make(keys)), readout), batch

    return jax.eval_shape(made)


def network():
    """Of these shapes, drawn on the host: to draw them by JAX takes a program."""
    model, (x, y) = randomised(shapes(), 0)
    return model, (2 * x, jax.device_put(np.eye(5)[np.asarray(y).argmax(axis=-1)]))


def loss(model, x, y):
    return lim.cross_entropy(model[1](model[0](x, GRID), GRID), y, GRID)


def mass(model, batch):
    first = jax.tree.map(lambda leaf: leaf[0], model[0].layers)
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
    """All jobs, and the density once more in small tiles of attention, two heads at a time."""
    yield tuple(JOBS), "dense"
    tiles.TILE = attention.DENSE = SMALL_TILE
    tiles.CACHE = 2 * SMALL_TILE**2 // jax.device_count()
    jax.clear_caches()
    yield ("density",), "tiled"


def saved(folder, attend=attention.causal_attention):
    """The network and batch of `virtual` with another way to attend, and one device's numbers."""
    arrays, numbers = pickle.loads(Path(folder, "one").read_bytes())
    return jax.tree.unflatten(jax.tree.structure(shapes(attend)), arrays), numbers


def each(*names):
    """The jobs of these names, a program for each: all in one take longer to compile."""
    return {name: jax.jit(JOBS[name]) for name in names}


def largest_difference(found, expected):
    gaps = [
        float(np.max(np.abs(np.asarray(a) - b) / np.max(np.abs(b))))
        for a, b in zip(jax.tree.leaves(found), expected, strict=True)
    ]
    return max(gaps)


def virtual(folder):
    """Spread examples and context over all devices; examples alone are of the two processes.

    Beside those of one device, which are saved.
    """
    mesh = jax.make_mesh((2, 4), ("data", "context"), axis_types=(AxisType.Auto,) * 2)
    both = NamedSharding(mesh, PartitionSpec("data", "context"))
    model, batch = network()
    numbers = {}
    spread = jax.device_put(batch, both)
    for names, attends in dense_and_tiled():
        for name, job in each(*names).items():
            numbers[name, attends] = jax.tree.leaves(job(model, batch))
            found = job(model, spread)
            gap = largest_difference(found, numbers[name, attends])
            assert len(jax.tree.leaves(found)[0].sharding.device_set) == 8
            assert gap < 1e-12, (name, attends, gap)
            print(name, attends, gap)
    assert largest_difference(numbers["density", "tiled"], numbers["density", "dense"]) < 1e-12
    mapped(model, batch)
    mapped_penalty(model, batch, numbers["algorithm 1", "dense"])
    arrays = list(map(np.asarray, jax.tree.leaves((model, batch))))
    Path(folder, "one").write_bytes(pickle.dumps((arrays, numbers)))


def mapped(model, batch):
    """By `jax.shard_map` on 2 and 8 devices: a loss of class numbers, which are checked."""
    x, y = batch
    numbers = y.argmax(axis=-1)

    def risk(model, x, y):
        return jax.vmap(loss, in_axes=(None, 0, 0))(model, x, y).mean()

    expected = list(map(np.asarray, jax.tree.leaves(jax.jit(jax.grad(risk))(model, x, numbers))))
    whole = PartitionSpec()
    shared = PartitionSpec("data")
    for count, check in ((8, False), (2, True)):
        mesh = jax.make_mesh(
            (count,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
        )
        over = partial(jax.shard_map, mesh=mesh, in_specs=(whole, shared, shared), out_specs=whole)
        spread = over(lambda *at: jax.lax.pmean(risk(*at), "data"), check_vma=check)
        job = jax.jit(jax.grad(spread))
        gap = largest_difference(job(model, x, numbers), expected)
        assert gap < 1e-12, (count, check, gap)
        print("mapped", count, check, gap)
    try:
        jax.block_until_ready(job(model, x, numbers.at[-1, 2].set(5)))
    except Exception as error:
        assert "class numbers from 0 to 4" in str(error), error
        print("refused on the last device")


def mapped_penalty(model, batch, expected):
    """Algorithm 1 of a density that devices share: its gradient outside, and inside, apart."""

    def statistic(*of_batch):
        return jax.lax.pmean(balanced_density.statistic(*of_batch), "data")

    shared = Penalty(estimate=Estimator(statistic, balanced_density.density))

    def outside(model, *batch):
        found = balanced_objective(loss, model, batch, GRID, shared, strength=1.0)
        return jax.lax.pmean(found, "data")

    def inside(model, *batch):
        _, found, _ = risk_and_penalty(loss, model, batch, GRID, shared)
        return jax.lax.pmean(jax.tree.map(jnp.add, found.risk, found.penalty), "data")

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    everywhere = PartitionSpec()
    rows = PartitionSpec("data")
    specs = {"in_specs": (everywhere, rows, rows), "out_specs": everywhere}
    over = partial(jax.shard_map, mesh=mesh, **specs)
    for name, job in (("outside", jax.grad(over(outside))), ("inside", over(inside))):
        gap = largest_difference(jax.jit(job)(model, *batch), expected)
        assert gap < 1e-12, (name, gap)
        print("penalty", name, gap)


def heads(seed, count, length):
    return list(map(jax.device_put, np.random.default_rng(seed).normal(size=(3, count, length, 5))))


def dense(query, key, value, grid):
    return attention.attention_weights(query, key, grid) @ value


def of_attention(attend, grid, run, *names):
    """Values and derivatives of two heads, each of which is attended by itself, or some of them.

    Where prefixes are whole there are log weights, which are among the keys' features and move.
    """
    at = heads(0, 2, grid.size)
    along = heads(1, 2, grid.size)

    def head(query, key, value):
        weighted = replace(grid, log_weights=key[:, 0], parts=jnp.arange(grid.size) // 5)
        return attend(query, key, value, weighted if grid.starts is None else grid)

    def attended(*at):
        return jax.vmap(head)(*at)

    def gradient(*at):
        return jax.grad(lambda *at: jnp.sum(jnp.sin(attended(*at))), argnums=(0, 1, 2))(*at)

    modes = {
        "value": attended,
        "jvp": lambda *at: jax.jvp(attended, at, tuple(along))[1],
        "gradient and its jvp": lambda *at: jax.jvp(gradient, at, tuple(along)),
    }
    return {name: run(modes[name], *at) for name in names or modes}


def ring(folder):
    """Attention alone, on grids that are not uniform and windows; jobs; and their memory."""
    mesh = jax.make_mesh((2, 4), ("data", "context"), axis_types=(AxisType.Auto,) * 2)
    attend = RingAttention(mesh, "context")
    tiles.TILE = 4  # of 7 positions on each device: the last of two tiles is not full
    graded = lim.graded_grid(28)
    long = "gradient and its jvp"
    for grid, *some in ((graded.windowed(9),), (graded, long)):
        found = of_attention(attend, grid, lambda mode, *at: jax.jit(mode)(*at), *some)
        apart = of_attention(dense, grid, lambda mode, *at: jax.jit(mode)(*at), *some)
        for mode in found:
            gap = largest_difference(found[mode], jax.tree.leaves(apart[mode]))
            assert gap < 1e-12, (mode, grid, gap)
            print(mode, gap)
    gap = gap_of_rounding(attend)
    assert 1e-4 < gap < 2e-2, gap
    print("bfloat16", gap)
    try:
        query, key, value = (array[0] for array in heads(0, 1, 10))
        attend(query, key, value, lim.token_grid(10))
    except ValueError as error:
        assert "got CellGrid of 10 positions over 4 devices" in str(error)
        print("refused", error)
    (model, batch), expected = saved(folder, attend)
    spread = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data", "context")))
    found = jax.jit(JOBS["algorithm 1"])(model, spread)
    gap = largest_difference(found, expected["algorithm 1", "dense"])
    assert gap < 1e-12, gap
    print("algorithm 1", gap)
    tiles.TILE = 32  # small beside what a device holds of the context
    jax.clear_caches()
    # From two on: what is on its way to a neighbour is there twice.
    by_two, by_eight = map(ring_bytes, (2, 8))
    assert by_eight < 1.25 * by_two / 4, (by_two, by_eight)
    print("memory", by_two, by_eight)


def gap_of_rounding(attend):
    """Of a gradient in float32 with products in bfloat16, beside one device's in float64."""

    def gradient(attend, grid):
        def total(*at):
            return jnp.sum(jnp.sin(jax.vmap(lambda *at: attend(*at, grid))(*at)))

        return jax.grad(total, argnums=(0, 1, 2))

    at = heads(0, 2, 28)
    expected = jax.jit(gradient(dense, lim.graded_grid(28)))(*at)
    single = [array.astype(jnp.float32) for array in at]
    with jax.default_matmul_precision("bfloat16"):
        found = jax.jit(gradient(attend, lim.graded_grid(28, dtype=jnp.float32)))(*single)
    return largest_difference(found, jax.tree.leaves(expected))


def ring_bytes(devices):
    """On one device, for a gradient and its jvp of a long context that so many share."""
    mesh = jax.make_mesh((devices,), ("context",), axis_types=(AxisType.Auto,))
    grid = lim.token_grid(4096)
    spec = NamedSharding(mesh, PartitionSpec("context"))
    at = [jax.ShapeDtypeStruct((grid.size, 16), float, sharding=spec)] * 3

    def loss(query, key, value):
        return jnp.sum(RingAttention(mesh, "context")(query, key, value, grid) ** 2)

    def pushed(*at):
        return jax.jvp(jax.grad(loss, argnums=(0, 1, 2)), at, at)

    return temporary_bytes(jax.jit(pushed).trace(*at))


def process(index, folder, port):
    """Each process holds half of the examples, then of the context; both end with one's numbers."""
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    (model, batch), expected = saved(folder)
    half = slice(index * EXAMPLES // 2, (index + 1) * EXAMPLES // 2)
    spread = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())
    shared = jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(spread, leaf[half]), batch
    )
    model = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(whole, leaf), model)
    found = jax.jit(JOBS["density"], out_shardings=whole)(model, shared)
    gap = largest_difference(found.addressable_data(0), expected["density", "dense"])
    assert gap < 1e-12, gap
    print("density", gap)
    mesh = jax.make_mesh((2,), ("context",), axis_types=(AxisType.Auto,))
    spread, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, "context"), ()))
    (model, batch), _ = saved(folder, RingAttention(mesh, "context"))
    half = slice(index * LENGTH // 2, (index + 1) * LENGTH // 2)
    shared = jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(spread, leaf[:, half]), batch
    )
    model = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(whole, leaf), model)
    found = jax.jit(JOBS["density"], out_shardings=whole)(model, shared)
    gap = largest_difference(found.addressable_data(0), expected["density", "dense"])
    assert gap < 1e-12, gap
    print("ring", gap)
    spread_weights.over_two(folder)


if __name__ == "__main__":
    role, folder, *port = sys.argv[1:]
    if port:
        process(int(role), folder, *port)
    else:
        roles = {"weights": spread_weights.over_eight, "virtual": virtual, "ring": ring}
        for name in role.split(","):
            roles[name](folder)
