"""Blocked attention gives the dense formula's numbers, in every mode, in linear memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.as_users import temporary_bytes
from reference.networks import random_states

import lim_jax as lim
from lim_jax.cost.counting import operations
from lim_jax.network import attention, tiles
from lim_jax.network.attention import attention_weights, causal_attention
from lim_jax.network.caps_and_sinks import Shaping

MODES = "value", "grad", "jvp", "jvp of grad", "grad of jvp", "grad of grad", "jvp of jvp"


def in_modes(function, at, u, v):
    """A function of three arrays and its derivatives; a gradient is that of a sum of sines."""

    def slope(at):
        return jax.jvp(function, at, u)[1]

    jvp, jvp_of_jvp = jax.jvp(slope, (at,), (v,))
    first, jvp_of_grad = jax.jvp(grad(function), (at,), (u,))
    return {
        "value": function(*at),
        "grad": first,
        "jvp": jvp,
        "jvp of grad": jvp_of_grad,
        "jvp of jvp": jvp_of_jvp,
    }


def in_every_mode(function, at, u, v):
    """In reverse over both orders too, which is of transposes of the same programs."""
    gradient = grad(function)

    def steepness(at):
        return sum(jnp.vdot(g, d) for g, d in zip(gradient(at), u, strict=True))

    return in_modes(function, at, u, v) | {
        "grad of jvp": grad(lambda *at: jax.jvp(function, at, u)[1])(at),
        "grad of grad": jax.grad(steepness)(at),
    }


def grad(function):
    """The gradient of a function of three arrays, weighed to one number."""
    return jax.grad(lambda at: jnp.sum(jnp.sin(function(*at))))


def dense(grid):
    return lambda query, key, value: attention_weights(query, key, grid) @ value


def tiled(grid):
    return lambda query, key, value: causal_attention(query, key, value, grid)


def arrays(seed, length, size=3, features=2):
    shapes = (length, size), (length, size), (length, features)
    return tuple(random_states(seed + i, *shape) for i, shape in enumerate(shapes))


def small_tiles(patch):
    patch.setattr(tiles, "TILE", 4)
    patch.setattr(tiles, "WIDE", 4)
    patch.setattr(attention, "DENSE", 4)


@pytest.fixture(scope="module")
def derivatives():
    """By tiles and dense: three tiles, the last one not full; two examples at once."""
    grid = lim.token_grid(10)

    def of(formula):
        return jax.vmap(lambda *at: in_every_mode(formula(grid), *at))

    points = jax.device_put(
        [
            jax.tree.map(lambda a, b: np.stack([a, b]), arrays(seed, 10), arrays(seed + 50, 10))
            for seed in (0, 10, 20)
        ]
    )
    with pytest.MonkeyPatch.context() as patch:
        small_tiles(patch)
        return jax.jit(of(tiled))(*points), eqx.filter_jit(of(dense))(*points)


@pytest.mark.parametrize("mode", MODES)
def test_every_derivative_is_the_dense_ones(derivatives, mode):
    # `eq:attention-first-variation-schematic`, `eq:head-score-variation`.
    tiled_leaves, expected = (jax.tree.leaves(formula[mode]) for formula in derivatives)
    for ours, theirs in zip(tiled_leaves, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_capped_scores_sinks_and_log_weights_are_the_dense_ones_in_every_mode(monkeypatch):
    """The sink and the log weights are among the queries' and keys' numbers: so they move too.

    Of the modes that take other formulas; the others transpose the programs of these.

    The graded grid's own cells are halves, as the midpoints' are.
    """
    small_tiles(monkeypatch)
    graded = lim.graded_grid(10)
    parts = np.array([0, 0, 1, 1, 1, -1, -1, 0, 0, 2])
    others = ((parts[:, None] != parts) | (parts < 0)).astype(float)

    def shaped(attend):
        def attended(query, key, value):
            grid = graded.weighted(key[:, 1], jnp.asarray(parts))
            return attend(query, key, value, grid, Shaping(0.6, query[0, 0]))

        return attended

    def dense(query, key, value, grid, shaping):
        scores = 0.6 * jnp.tanh(query @ key.T / np.sqrt(3) / 0.6) + others * key[None, :, 1]
        mass = grid.prefix_weights() * jnp.exp(scores)
        total = mass.sum(axis=1, keepdims=True) + jnp.exp(query[0, 0]) / 10
        return mass / total @ value

    at = [arrays(seed, 10) for seed in (0, 10, 20)]
    query, key, value = at
    by_mode = jax.jit(lambda q, k, v: in_modes(shaped(causal_attention), q, k, v))(
        query, key, value
    )
    expected = jax.jit(lambda q, k, v: in_modes(shaped(dense), q, k, v))(query, key, value)
    for mode in by_mode:
        for ours, theirs in zip(
            *map(jax.tree.leaves, (by_mode[mode], expected[mode])), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12, err_msg=mode)


def test_long_grids_are_blocked_by_themselves():
    grid = lim.token_grid(2 * tiles.TILE + 5)
    at = arrays(0, grid.size)
    traced = jax.jit(tiled(grid)).trace(*at)
    features = traced.lower().compile()(*at)
    expected = jax.jit(dense(grid))(*at)
    np.testing.assert_allclose(features, expected, rtol=1e-12, atol=1e-14)
    assert f"{grid.size},{grid.size}" not in str(traced.jaxpr)


def test_two_heads_at_least_go_at_a_time_on_a_cpu():
    """Though the scores of one alone fill what a core works on at once."""
    grid = lim.token_grid(16 * tiles.TILE)
    heads = [jnp.stack([x, x]) for x in arrays(0, grid.size)]
    traced = jax.jit(jax.vmap(tiled(grid))).trace(*heads)
    written = traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "tensor<2x256x256xf64>" in written and "tensor<1x256x256xf64>" not in written


@jax.jit
def slopes(at):
    grid = lim.token_grid(10)
    return [
        jax.grad(lambda at: jnp.sum(formula(grid)(*at) ** 2))(at)  # noqa: B023
        for formula in (tiled, dense)
    ]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_large_scores_neither_overflow_nor_vanish(scale, monkeypatch):
    small_tiles(monkeypatch)
    query, key, value = map(np.asarray, arrays(0, 10))
    for ours, theirs in zip(*slopes((scale * query, key, value)), strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_not_a_number_is_met_by_the_rows_that_see_it_and_no_others(dtype, monkeypatch):
    """Though the highest score of a row may pass it over. It is the second of a tile of four."""
    small_tiles(monkeypatch)
    query, key, value = (x.astype(dtype) for x in arrays(0, 10))
    features = jax.jit(tiled(lim.token_grid(10)))(query, key.at[5].set(jnp.nan), value)
    assert features.dtype == dtype
    assert np.isnan(features[5:]).all()
    np.testing.assert_allclose(features[:5], dense(lim.token_grid(10))(query, key, value)[:5], 1e-5)


def test_half_precision_is_summed_in_single():
    """bfloat16 inputs: as exact as their own rounding, over a thousand summands."""
    grid = lim.token_grid(1024)

    @jax.jit
    def half_and_exact(*at):
        half = [array.astype(jnp.bfloat16) for array in at]
        return tiled(grid)(*half), dense(grid)(*(array.astype(float) for array in half))

    in_half, exact = map(np.asarray, half_and_exact(*arrays(0, 1024)))
    assert in_half.dtype == jnp.bfloat16
    error = np.abs(in_half.astype(float) - exact)
    assert error.max() < 2 * float(jnp.finfo(jnp.bfloat16).eps) * np.abs(exact).max()
    # At the end of the context a mean of a thousand: summed in bfloat16 it would be off by more.
    assert error[-100:].max() < 2e-3


# By hand, for queries and keys of size s and values of size f: scores and sums over values; scores
# again and their two factors' covectors, and the same of the sums. A second derivative may take
# twenty times as much as a value. The most bytes: no matrix of pairs of positions, which has 8 MB,
# and no row of tiles is kept: so it grows with the length, and not with its square.
PRICES = {
    "value": (lambda s, f: s + f, 0.4e6),
    "grad": (lambda s, f: 4 * s + 3 * f, 1.0e6),
    "grad of grad": (lambda s, f: 12 * (s + f), 3.2e6),
    "jvp of grad": (lambda s, f: 12 * (s + f), 2.4e6),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", PRICES)
def test_tiles_are_remade_and_not_kept(mode):
    """Eight rows of tiles: operations of those on and below the diagonal, and temporary memory."""
    grid = lim.token_grid(8 * tiles.TILE)
    size = 8
    features = 16

    def job(at, direction):
        def slope(at):
            return grad(tiled(grid))(at)

        def steepness(at):
            return sum(jnp.vdot(g, d) for g, d in zip(slope(at), direction, strict=True))

        functions = {
            "value": lambda at: tiled(grid)(*at),
            "grad": slope,
            "grad of grad": jax.grad(steepness),
            "jvp of grad": lambda at: jax.jvp(slope, (at,), (direction,)),
        }
        return functions[mode](at)

    shapes = jax.eval_shape(lambda: arrays(0, grid.size, size, features))
    traced = jax.jit(job).trace(shapes, shapes)
    products, most = PRICES[mode]
    pairs = 36 * tiles.TILE**2
    counts = operations(traced.jaxpr)
    if mode.endswith("of grad"):
        assert counts < 2 * pairs * products(size, features)
    else:
        assert counts == 2 * pairs * products(size, features)
    assert temporary_bytes(traced) < most
