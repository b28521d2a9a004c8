"""The adjoint by attention hops: exact sums, dense twins, the binomials of causal averaging."""

import dataclasses
from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.dense import prefix_weights, transposed
from reference.differences import central_difference, difference_by_calls
from reference.light import without_norm
from reference.networks import (
    LENGTH,
    SCHEMES,
    VOCABULARY,
    WIDTH,
    falling_profile,
    random_flow,
    random_labels,
    random_states,
)

import lim_jax as lim
from lim_jax.adjoint.hops import attention_hops, one_hop_by_head
from lim_jax.loss import autoregressive_cross_entropy

DEPTH = 3
GRID = lim.graded_grid(LENGTH)
READOUT = lim.LinearReadout(random_states(4, WIDTH, VOCABULARY))
ASKED = (4, 9)  # unequal queries, and neither the last token
QUERIES = np.zeros(LENGTH)
QUERIES[list(ASKED)] = 0.3, 0.7


LABELS = 3 * random_labels()  # their sums are not one


def asked_loss(state, labels):
    """A tokenwise readout under query weights that are zero nearly everywhere."""
    return autoregressive_cross_entropy(READOUT(state, GRID), labels, jax.device_put(QUERIES))


@eqx.filter_jit
def measured(flow, x):
    """Hops at two cuts, the adjoint and the gradient, of one program for each scheme."""
    example = x, LABELS
    hops, cut = (attention_hops(flow, asked_loss, example, GRID, most) for most in (DEPTH, 1))
    covectors = lim.adjoint_trajectory(flow, asked_loss, example, GRID).covectors
    gradient = jax.grad(lambda x: asked_loss(flow(x, GRID), LABELS))(x) / GRID.weights[:, None]
    return hops, cut, covectors, gradient


def flow_of(step):
    return random_flow(depth=DEPTH, step=SCHEMES[step], horizon=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("step", SCHEMES)
def test_rows_sum_to_the_adjoint_at_every_depth_and_to_the_gradient(step):
    hops, cut, covectors, gradient = map(np.asarray, measured(flow_of(step), random_states()))
    assert hops.shape == (DEPTH + 1, DEPTH + 1, LENGTH, WIDTH)
    scale = np.abs(covectors).max()
    for rows in (hops, cut):
        np.testing.assert_allclose(rows.sum(axis=1), covectors, rtol=0, atol=1e-13 * scale)
    np.testing.assert_allclose(hops[0].sum(axis=0), gradient, rtol=0, atol=1e-13 * scale)
    np.testing.assert_allclose(cut[:, 0], hops[:, 0], rtol=0, atol=1e-13 * scale)
    # No layer has been passed at the end, and so many layers give no more hops.
    np.testing.assert_array_equal(hops[DEPTH, 1:], 0)
    for depth in range(DEPTH):
        np.testing.assert_array_equal(hops[depth, DEPTH - depth + 1 :], 0)
        assert (np.abs(hops[depth, : DEPTH - depth + 1]).max(axis=(1, 2)) > 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("step", SCHEMES)
def test_no_hop_stays_at_the_queries_and_one_hop_ends_before_the_last(step):
    hops = np.asarray(measured(flow_of(step), random_states())[0])
    elsewhere = np.setdiff1d(np.arange(LENGTH), ASKED)
    np.testing.assert_array_equal(hops[:, 0, elsewhere], 0)
    assert (np.abs(hops[:, 0, list(ASKED)]).max(axis=2) > 1e-6).all()
    np.testing.assert_array_equal(hops[:, :, max(ASKED) + 1 :], 0)


@eqx.filter_jit
def derivatives(flow, x):
    """Of every layer: its local operators, the last stage's first, and the kernel of each head."""
    states = flow.trajectory(x, GRID).states[:-1]
    increments = 2.0 / DEPTH * falling_profile(2.0 * np.arange(DEPTH) / DEPTH)

    def layer(field, increment, x):
        def kernel(head):
            """By the outputs of one head alone: attention is linear in them."""
            others = jnp.arange(2)[:, None, None] != head
            alone = eqx.tree_at(
                lambda a: a.output, field.attention, replace_fn=lambda o: jnp.where(others, 0, o)
            )
            return jax.jacfwd(lambda context: alone(x, context, GRID))(x)

        def network(x):
            return field.feed_forward(x, x, GRID)

        heads = jax.vmap(kernel)(jnp.arange(2))
        attention = jax.jacfwd(lambda state: field.attention(state, x, GRID))(x)
        if flow.step is lim.euler:
            return [increment * (attention + jax.jacfwd(network)(x))], increment * heads
        between = x + increment * field.attention(x, x, GRID)
        return [increment * jax.jacfwd(network)(between), increment * attention], increment * heads

    return jax.vmap(layer)(flow.layers, increments, states)


def dense_way_back(flow, x, terminal):
    """The way of `terminal` from the end to layer `first`, hopping in layers by given heads."""

    def matrices(found):
        rows = np.asarray(found).reshape(-1, LENGTH * WIDTH, LENGTH * WIDTH)
        return [transposed(matrix, GRID) for matrix in rows]

    locals_, heads = derivatives(flow, x)
    locals_ = [matrices(found) for found in locals_]
    heads = matrices(heads)

    def way_back(first, hops):
        vector = terminal.ravel()
        zero = np.zeros_like(heads[0])
        for layer in reversed(range(first, DEPTH)):
            # The kernel is that of the layer's first stage, so it comes last.
            for stage in locals_[:-1]:
                vector = vector + stage[layer] @ vector
            if layer in hops:
                vector = sum((heads[2 * layer + head] for head in hops[layer]), zero) @ vector
            else:
                vector = vector + locals_[-1][layer] @ vector
        return vector.reshape(LENGTH, WIDTH)

    return way_back


@pytest.mark.parametrize("step", SCHEMES)
def test_hops_are_sums_of_dense_products_over_the_layers_that_hop(step):
    """Each set of layers by its kernels, all others by their local operators alone."""
    flow = flow_of(step)
    x = random_states()
    hops, cut, covectors, _ = map(np.asarray, measured(flow, x))
    way_back = dense_way_back(flow, x, covectors[-1])
    for first in range(DEPTH):
        layers = range(first, DEPTH)
        rows = [
            np.sum([way_back(first, dict.fromkeys(c, (0, 1))) for c in combinations(layers, r)], 0)
            for r in range(DEPTH - first + 1)
        ]
        np.testing.assert_allclose(hops[first, : len(rows)], rows, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(cut[first, 1], np.sum(rows[1:], 0), rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("step, first", [("euler", 0), ("split", 1)])
def test_one_hop_by_heads_is_dense_and_sums_to_row_one(step, first):
    """At the input, and of the layers from the second on."""
    flow = flow_of(step)
    x = random_states()
    hops, _, covectors, _ = map(np.asarray, measured(flow, x))
    way_back = dense_way_back(flow, x, covectors[-1])
    by_head = eqx.filter_jit(one_hop_by_head)(flow, asked_loss, (x, LABELS), GRID, first)
    heads = np.asarray(by_head)
    expected = [
        [way_back(first, {layer: (head,)}) for head in (0, 1)] for layer in range(first, DEPTH)
    ]
    np.testing.assert_allclose(heads, expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(heads.sum(axis=(0, 1)), hops[first, 1], rtol=1e-9, atol=1e-12)
    assert (np.abs(heads).max(axis=(2, 3)) > 1e-4).all()


def test_the_rows_sum_is_the_loss_change_by_differences():
    flow = flow_of("split")
    x = random_states()
    direction = random_states(6)
    hops = np.asarray(measured(flow, x)[0])
    slope = central_difference(lambda x: asked_loss(flow(x, GRID), LABELS), x, direction)
    weights = np.asarray(GRID.weights)
    pairing = weights @ (hops[0].sum(axis=0) * np.asarray(direction)).sum(axis=1)
    np.testing.assert_allclose(pairing, slope, rtol=1e-8)


@pytest.mark.slow
def test_what_heads_move_is_differentiated_and_vectorised():
    flow = random_flow(depth=2, horizon=2.0)
    direction = np.asarray(random_states(6))
    flow = dataclasses.replace(flow, layers=without_norm(flow.layers.attention))  # a third of it
    points = np.stack([random_states(), random_states(8)])

    def loss(state, y):
        return jnp.sum(jnp.sin(state[np.array(ASKED)]))

    def energy(x):
        return jnp.sum(one_hop_by_head(flow, loss, (x, None), GRID)[1, 0] ** 2)

    measured = jax.jit(jax.vmap(jax.value_and_grad(energy)))
    gradients = np.asarray(measured(points)[1])
    slopes = difference_by_calls(lambda points: measured(points)[0], points, direction)
    np.testing.assert_allclose((gradients * direction).sum(axis=(1, 2)), slopes, rtol=1e-7)


class Averaging(eqx.Module):
    """Causal averaging at a rate: all kernel, nothing local."""

    rate: jax.Array

    def __call__(self, x, context, grid):
        weights = grid.prefix_weights()
        return self.rate * (weights @ context) / weights.sum(axis=1)[:, None]


@pytest.mark.parametrize("make_grid", [lim.token_grid, lim.graded_grid])
def test_hops_of_causal_averaging_are_binomial(make_grid):
    """Row r is e_r of the layers' increments times C*^r P_T; of equal ones the binomial term."""
    grid = make_grid(7)
    depth = 6
    highest = 4
    prefix = prefix_weights(grid)
    average = transposed(prefix / prefix.sum(axis=1, keepdims=True), grid)
    terminal = random_states(5, 7, 1)
    x = random_states(1, 7, 1)
    rates = np.array([0.4, 1.0, 0.7, 1.3, 0.2, 0.9])

    @jax.jit
    def compute(rates):
        flow = lim.ResidualFlow(Averaging(rates), 2.0)
        loss = lambda x, y: lim.inner(x, y, grid)  # noqa: E731
        return attention_hops(flow, loss, (x, terminal), grid, highest)[0]

    powers = [np.linalg.matrix_power(average, r) @ np.asarray(terminal) for r in range(depth + 1)]
    for each in (np.ones(depth), rates):
        coefficients = np.poly(-each / 3)  # elementary symmetric polynomials, eps = 2/6
        terms = [c * power for c, power in zip(coefficients, powers, strict=True)]
        expected = [*terms[:highest], sum(terms[highest:])]
        np.testing.assert_allclose(compute(each), expected, rtol=1e-11, atol=1e-13)
    binomial = np.array([1, 6, 15, 20, 15, 6, 1]) / 3.0 ** np.arange(7)
    np.testing.assert_allclose(np.poly(-np.ones(depth) / 3), binomial, rtol=1e-12)
