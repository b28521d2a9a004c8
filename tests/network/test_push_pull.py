"""Tiled attention's two linear maps: each the other's transpose, and attention's derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import central_difference
from reference.networks import random_states

import lim_jax as lim
from lim_jax._linear import bind_at
from lim_jax.network import tiled_attention, tiles
from lim_jax.network.attention import attention_weights

# Eleven rows in tiles of four, the last not full; prefixes that begin in tiles and at their ends.
LENGTH = 11
SIZE = 3
FEATURES = 2
EXAMPLES = 3
HEADS = 2
STARTS = np.array([[0, 0, 2, 2, 2, 5, 5, 5, 5, 5, 10], [0, 1, 1, 1, 1, 1, 1, 7, 8, 8, 8], [0] * 11])
GRIDS = {"graded": lim.graded_grid(LENGTH), "midpoints": lim.midpoint_grid(LENGTH)}
WIDTHS = SIZE, SIZE, FEATURES
PARTS = np.array([0, 0, 0, 1, 1, -1, -1, 2, 2, 1, 1])
# One where a row reads a key of another part or of none.
OTHERS = ((PARTS[:, None] != PARTS) | (PARTS < 0)).astype(float)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of four positions, of two heads and examples at a time."""
    monkeypatch.setattr(tiles, "TILE", 4)
    monkeypatch.setattr(tiles, "CACHE", 32)


def arrays(seed):
    """Queries of examples and heads, keys of heads alone, values whose examples come last."""
    query, key, value = heads_of_examples(seed)
    return query, key[0], jnp.moveaxis(value, 0, -1)


def heads_of_examples(seed=0):
    """Queries, keys and values."""
    shape = EXAMPLES, HEADS, LENGTH
    return [jnp.asarray(random_states(seed + i, *shape, width)) for i, width in enumerate(WIDTHS)]


OVER = 0, None, 3, 0


def of_examples(function):
    """Map a function of one head's arrays and one example's starts over heads and examples."""
    return jax.vmap(jax.vmap(function, in_axes=(0, 0, 0, None)), in_axes=OVER)


def begun(grid, starts, log_weights):
    """The grid of packed rows, and the graded one with log weights between parts."""
    packed = grid.starting(starts)
    return packed.weighted(log_weights, jnp.asarray(PARTS)) if grid.power > 1 else packed


def tiled(grid):
    """Log weights are one of the keys' features, so that they move."""

    def outputs(query, key, value, starts):
        on = begun(grid, starts, key[:, 0])
        arrays = jax.tree.leaves(tiles.position_arrays(on))
        return bind_at(
            tiled_attention._attention, [query, key, value, *arrays], [], tiles.tiling(on)
        )

    return of_examples(outputs)


def dense(query, key, value, starts, grid, log_weights=None):
    """The attention matrices, and outputs and log-sum-exps."""
    log_weights = key[:, 0] if log_weights is None else log_weights
    scores = query @ key.T + (OTHERS * log_weights[None] if grid.power > 1 else 0)
    plain = grid.starting(starts)
    mass = jnp.where(plain.past, jnp.exp(scores), 0) * plain.prefix_weights()
    weights = attention_weights(query * np.sqrt(SIZE), key, begun(grid, starts, log_weights))
    outputs = mass / mass.sum(axis=1, keepdims=True) @ value
    return weights, outputs, jnp.log(mass.sum(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_the_derivative_is_that_of_the_dense_formula_and_of_differences(grid):
    """Forward and in reverse, of examples and heads that share keys, outputs and log-sum-exps."""
    point = arrays(0)
    direction = arrays(10)
    starts = jnp.asarray(STARTS)
    covectors = (
        random_states(20, EXAMPLES, HEADS, LENGTH, FEATURES),
        random_states(21, EXAMPLES, HEADS, LENGTH),
    )

    def whole(query, key, value):
        heads = of_examples(lambda q, k, v, starts: dense(q, k, v, starts, grid)[1:])
        return heads(query, key, value, starts)

    def ours(query, key, value):
        return tuple(tiled(grid)(query, key, value, starts))

    @jax.jit
    def both_ways(point, direction):
        found = []
        for formula in (ours, whole):
            value, slope = jax.jvp(formula, point, direction)
            found.append((value, slope, jax.vjp(formula, *point)[1](covectors)))
        return found, central_difference(lambda point: ours(*point), point, direction)

    (found, expected), differences = both_ways(point, direction)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    for a, b in zip(found[1], differences, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
    forward = sum(np.vdot(g, slope) for g, slope in zip(covectors, found[1], strict=True))
    reverse = sum(np.vdot(p, d) for p, d in zip(found[2], direction, strict=True))
    np.testing.assert_allclose(forward, reverse, rtol=1e-12)


def at_a_point(grid, starts):
    """One head's point, its attention matrix, and its push and pull."""
    query, key, value = (array[0, 0] for array in heads_of_examples())
    on = begun(grid, starts, random_states(5, LENGTH))
    weights, *found = dense(query, key, value, starts, grid, on.log_weights)
    point = [query, key, value, *found, *tiles.position_arrays(on)]
    tiling = tiles.tiling(on)

    def apply(primitive):
        return lambda vectors: bind_at(primitive, point, vectors, tiling)

    return (query, key, value, weights), apply(tiled_attention._push), apply(tiled_attention._pull)


def every_pair(some, others):
    """The inner products of every one of the first with every one of the others."""
    return some.reshape(len(some), -1) @ others.reshape(len(others), -1).T


def test_an_accelerator_takes_all_heads_and_examples_at_once():
    """By where a program is lowered: one group of six in one tile; a CPU takes three of two."""

    def features(*point):
        return bind_at(tiled_attention._attention, point, [], tiles.tiling(GRIDS["graded"]))[0]

    def pulled(*point):
        found, pull = jax.vjp(jax.vmap(jax.vmap(features)), *point)
        return pull(found)

    traced = jax.jit(pulled).trace(*jax.eval_shape(heads_of_examples))
    # Keys: groups, heads and examples in each, blocks, positions in each, features.
    small = f"tensor<3x2x3x4x{SIZE}xf64>"
    large = f"tensor<1x6x1x{LENGTH}x{SIZE}xf64>"
    for platform, there, absent in (
        ("cpu", small, large),
        ("cuda", large, small),
        ("tpu", large, small),
    ):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert there in text, platform
        assert absent not in text, platform


def test_push_and_pull_are_the_written_sums_of_many_vectors_at_one_point():
    """By NumPy from the matrix; five vectors share the point, and pairs of theirs transpose."""
    t = [np.asarray(random_states(30 + i, 5, LENGTH, width)) for i, width in enumerate(WIDTHS)]
    t += [np.asarray(random_states(35, 5, LENGTH))]
    g, h = (np.asarray(random_states(40, 5, LENGTH, *rest)) for rest in ((FEATURES,), ()))

    @jax.jit
    def measured(starts):
        point, push, pull = at_a_point(GRIDS["graded"], starts)
        # The vectors' axis comes last, so that it has to be moved.
        pushed = jax.vmap(push, in_axes=-1, out_axes=-1)([jnp.moveaxis(x, 0, -1) for x in t])
        turned = jax.vmap(lambda *g: jax.linear_transpose(push, [x[0] for x in t])([*g])[0])(g, h)
        back = jax.vmap(lambda *t: jax.linear_transpose(pull, [g[0], h[0]])([*t])[0])(*t)
        return point, pushed, back, jax.vmap(lambda *g: pull([*g]))(g, h), turned

    point, pushed, back, pulled, turned = jax.tree.map(np.asarray, measured(STARTS[0]))
    q, k, v, a = point
    dq, dk, dv, du = t
    moved = a * (dq @ k.T + q @ np.swapaxes(dk, 1, 2) + OTHERS * du[:, None, :])
    outputs = a @ v
    slopes = moved.sum(axis=2)
    expected = moved @ v + a @ dv - slopes[:, :, None] * outputs, slopes
    e = a * (g @ v.T + (h - (g * outputs).sum(axis=2))[:, :, None])
    covectors = e @ k, np.swapaxes(e, 1, 2) @ q, a.T @ g, (e * OTHERS).sum(axis=1)
    for ours, again, theirs in zip(pushed, back, expected, strict=True):
        np.testing.assert_allclose(np.moveaxis(ours, -1, 0), theirs, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(again, np.moveaxis(ours, -1, 0))
    for ours, again, theirs in zip(pulled, turned, covectors, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(again, ours)
    pairs = sum(every_pair(x, y) for x, y in zip((g, h), expected, strict=True))
    others = sum(every_pair(x, y) for x, y in zip(pulled, t, strict=True))
    np.testing.assert_allclose(others, pairs, rtol=1e-11)


@pytest.mark.slow
def test_vectors_at_many_points_are_those_at_each():
    """Mapped over heads inside and over vectors outside, where all vectors share the points."""
    point = [array[0] for array in heads_of_examples()]
    covectors = random_states(9, HEADS, 5, LENGTH, FEATURES)

    def features(query, key, value):
        tiling = tiles.tiling(GRIDS["midpoints"])
        return bind_at(tiled_attention._attention, [query, key, value], [], tiling)[0]

    @jax.jit
    def both_ways(point, covectors):
        _, pull = jax.vjp(jax.vmap(features), *point)
        shared = jax.vmap(pull, in_axes=1, out_axes=1)(covectors)

        def at_each(head):
            *point, covectors = head
            return jax.lax.map(jax.vjp(features, *point)[1], covectors)

        return shared, jax.lax.map(at_each, (*point, covectors))

    for ours, theirs in zip(*both_ways(point, covectors), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_the_programs_are_transposes_by_jax_too():
    """JAX's own transpose of the push as it is written, tile by tile, is the pull."""
    points = [random_states(i, EXAMPLES, LENGTH, width) for i, width in enumerate(WIDTHS)]
    points += [random_states(4, EXAMPLES, LENGTH, FEATURES), random_states(5, EXAMPLES, LENGTH)]
    points += [random_states(3, EXAMPLES, LENGTH), jnp.tile(PARTS, (EXAMPLES, 1))]
    points += [jnp.asarray(STARTS)]
    tiling = tiles.tiling(begun(GRIDS["graded"], jnp.asarray(STARTS[0]), points[5][0]))
    tangents = [random_states(6 + i, EXAMPLES, 1, LENGTH, w) for i, w in enumerate(WIDTHS)]
    tangents += [random_states(10, EXAMPLES, 1, LENGTH)]
    covectors = [x[:, None] for x in (random_states(9, EXAMPLES, LENGTH, FEATURES), points[4])]

    @jax.jit
    def both_ways(points, covectors):
        pushed = jax.linear_transpose(
            lambda t: tiled_attention._push_forward(points, t, tiling), tangents
        )
        return pushed(covectors)[0], tiled_attention._pull_back(points, covectors, tiling)

    for ours, theirs in zip(*both_ways(points, covectors), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
