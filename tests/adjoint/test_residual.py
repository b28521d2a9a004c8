"""The residual product against dense matrices; its bounds are honest."""

import dataclasses

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.dense import transposed
from reference.differences import difference_by_calls
from reference.light import light_layers, without_norm
from reference.networks import (
    LENGTH,
    SCHEMES,
    VOCABULARY,
    WIDTH,
    layer_of,
    random_flow,
    random_labels,
    random_states,
)

import lim_jax as lim
from lim_jax.adjoint import residual
from lim_jax.network.controls import linear_control


def uneven(time):
    """A depth profile that is not one."""
    return 0.5 + time**2


LABELS = random_labels()


def loss_on(grid):
    readout = lim.LinearReadout(random_states(4, WIDTH, VOCABULARY))
    return lambda x, y: lim.cross_entropy(readout(x, grid), y, grid)


@eqx.filter_jit
def jacobians(flow, x, grid):
    """Of every layer where the flow meets it."""
    times, states = flow.trajectory(x, grid)
    increments = flow.horizon / flow.depth * jax.vmap(flow.profile)(times[:-1])

    def jacobian(layer, increment, state):
        return jax.jacfwd(lambda x: flow.transition((layer, increment), x, grid))(state)

    return jax.vmap(jacobian)(flow.layers, increments, states[:-1])


def interactions(flow, x, grid):
    """The dense B_k, transposed in the grid's pairing, and the weights that repeat."""
    weights = np.repeat(np.asarray(grid.weights), WIDTH)
    dense = np.asarray(jacobians(flow, x, grid)).reshape(flow.depth, weights.size, -1)
    moved = dense - np.eye(weights.size)
    return [transposed(matrix, grid) for matrix in moved], weights


@pytest.mark.parametrize("step", SCHEMES)
def test_orders_are_the_sums_over_subsets_of_layers(step):
    # `eq:residual-adjoint-product`, `eq:identity-plus-interaction-expansion`.
    grid = lim.graded_grid(LENGTH)
    x = random_states()
    flow = random_flow(depth=3, step=SCHEMES[step], profile=uneven)
    loss = loss_on(grid)
    highest = {"euler": 1, "split": 3}[step]

    @jax.jit
    def measured(x):
        orders = residual.interaction_orders(flow, loss, (x, LABELS), grid, highest)
        return orders, jax.grad(loss)(flow(x, grid), LABELS)

    orders, gradient = map(np.asarray, measured(x))
    (a, b, c), weights = interactions(flow, x, grid)
    terminal = gradient.ravel() / weights
    expected = [
        terminal,
        (a + b + c) @ terminal,
        (a @ b + a @ c + b @ c) @ terminal,
        a @ b @ c @ terminal,
    ]
    by_order = orders.reshape(highest + 1, -1)
    np.testing.assert_allclose(by_order, expected[: highest + 1], rtol=1e-9, atol=1e-11)
    with pytest.raises(ValueError, match="highest: got 4, expected an order from 0 to 3"):
        residual.interaction_orders(flow, loss, (x, LABELS), grid, 4)


def dense_norms(matrices, weights):
    """In the orthonormal coordinates of the grid's pairing."""
    root = np.sqrt(weights)
    return np.array([np.linalg.norm(root[:, None] * b / root[None, :], ord=2) for b in matrices])


@pytest.mark.slow
def test_norms_enclose_the_largest_singular_values_and_bound_the_adjoint():
    grid = lim.graded_grid(LENGTH)
    x = random_states()
    flow = random_flow(depth=3, step=lim.split, profile=uneven)
    loss = loss_on(grid)

    # `eq:residual-stability-bound`.
    # `eq:adjoint-operator-bound`.
    @jax.jit
    def measured(x):
        norms = residual.interaction_norms(flow, x, grid, key=jax.random.key(0))
        few = residual.interaction_norms(flow, x, grid, key=jax.random.key(0), steps=6)
        covectors = lim.adjoint_trajectory(flow, loss, (x, LABELS), grid).covectors
        gap = covectors[0] - covectors[-1]
        terminal = covectors[-1]
        ratio = jnp.sqrt(lim.inner(gap, gap, grid) / lim.inner(terminal, terminal, grid))
        return norms, few, residual.amplification(norms), ratio

    norms, few, bounds, ratio = jax.tree.map(np.asarray, measured(x))
    exact = np.array(dense_norms(*interactions(flow, x, grid)))
    np.testing.assert_allclose(norms.attained, exact, rtol=1e-10)
    for enclosure in (norms, few):
        assert (enclosure.attained <= exact * (1 + 1e-12)).all() and (
            enclosure.upper >= exact
        ).all()
    assert (norms.upper < 1.06 * exact).all()
    product = np.prod(1 + norms.upper) - 1
    np.testing.assert_allclose(bounds.product, product, rtol=1e-12)
    later = [np.prod(1 + norms.upper[layer:]) - 1 for layer in range(3)]
    np.testing.assert_allclose(bounds.products, later, rtol=1e-12)
    np.testing.assert_allclose(bounds.exponential, np.expm1(3 * max(norms.upper)), rtol=1e-12)
    assert ratio < bounds.product < bounds.exponential
    examples = jax.tree.map(lambda leaf: leaf[None], norms)
    several = r"shape \(1, 3\), expected \(layers,\).+ map over several"
    with pytest.raises(ValueError, match=several):
        residual.amplification(examples)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_norms_of_half_precision_enclose_the_largest_singular_value(dtype):
    """Layers that scale features, exactly: the search ended at its first vector, far below."""
    scales = jnp.array([4.0, 3.0, 2.0, 1.0, 0.5], dtype)

    def step(scale, x, grid, increment):
        return x + increment.astype(dtype) * scale[None] * x

    flow = lim.ResidualFlow(jnp.stack([scales, scales / 2]), step=step)
    x = jnp.ones((4, 5), dtype)
    norms = residual.interaction_norms(
        flow, x, lim.token_grid(4, dtype), key=jax.random.key(0), steps=8
    )
    expected = np.array([2.0, 1.0])  # half a step of time, times the largest scale
    rounding = 2 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(norms.attained, float), expected, rtol=rounding)
    assert (np.asarray(norms.upper, float) >= expected * (1 - rounding)).all()


@pytest.mark.slow
def test_the_product_bound_is_differentiated():
    """With a Krylov space of all dimensions, against differences; a second time it is refused."""
    grid = lim.token_grid(4)
    x = random_states(1, 4, WIDTH)
    flow = random_flow(depth=1)
    direction = random_states(2, 4, WIDTH)
    flow = dataclasses.replace(flow, layers=without_norm(flow.layers.attention))  # a third of it

    def bound(x):
        norms = residual.interaction_norms(flow, x, grid, key=jax.random.key(0))
        return residual.amplification(norms).product

    @jax.jit
    def slopes(x):
        _, slope = jax.linearize(bound, x)  # its value is by the rule, and no truth
        (gradient,) = jax.linear_transpose(slope, x)(jnp.ones(()))
        return bound(x), slope(direction), jnp.vdot(gradient, direction)

    expected = difference_by_calls(lambda x: slopes(x)[0], x, direction)
    _, forward, reverse = slopes(x)
    np.testing.assert_allclose(forward, expected, rtol=1e-6)
    np.testing.assert_allclose(reverse, expected, rtol=1e-6)
    with pytest.raises(NotImplementedError, match="differentiated once"):
        jax.eval_shape(lambda x: jax.jvp(jax.grad(bound), (x,), (direction,)), x)


@pytest.mark.parametrize("step", SCHEMES)
def test_the_remainder_of_a_split_layer_is_of_second_order(step):
    """`eq:residual-jacobian-remainder`: four like layers with increments 1/16 to 1/128."""
    grid = lim.graded_grid(5)
    x = random_states(1, 5, WIDTH)
    layers = jax.tree.map(lambda leaf: np.repeat(leaf, 4, axis=0), light_layers(depth=1))
    options = {"horizon": 4.0, "profile": lambda time: 2 ** -(4 + time)}
    flow = lim.ResidualFlow(jax.device_put(layers), step=SCHEMES[step], **options)
    measured = eqx.filter_jit(residual.splitting_remainders)
    found = jax.tree.map(np.asarray, measured(flow, x, grid, key=jax.random.key(0)))
    if step == "euler":
        np.testing.assert_array_equal(found.upper, 0)
        return
    slope = np.polyfit(np.log2([16, 32, 64, 128]), np.log2(found.attained), 1)[0]
    assert abs(slope + 2) < 0.15
    split, weights = interactions(flow, x, grid)
    # The one-field step at the states of the split flow.
    field = layer_of(flow)

    @jax.jit
    def one_field(x):
        states = flow.trajectory(x, grid).states[:-1]
        return jax.vmap(jax.jacfwd(lambda x: field(x, x, grid)))(states)

    matrices = np.asarray(one_field(x)).reshape(4, weights.size, -1)
    dense = [transposed(matrix, grid) for matrix in matrices]
    gaps = [b - a / 2 ** (4 + k) for k, (b, a) in enumerate(zip(split, dense, strict=True))]
    np.testing.assert_allclose(found.attained, dense_norms(gaps, weights), rtol=1e-9)
    assert (found.upper >= found.attained).all()


@pytest.mark.slow
def test_generators_along_a_continuous_flow_are_bounded_at_every_time():
    """`eq:adjoint-operator-bound`: against dense derivatives of the field at the states met."""
    grid = lim.graded_grid(5)
    x = random_states(1, 5, WIDTH)
    control = linear_control(random_flow(depth=2).layers.attention)  # the part that couples tokens
    # Euler's method, the cheapest to compile: states are met whatever leads to them.
    flow = lim.ContinuousFlow(
        control,
        profile=uneven,
        solver=diffrax.Euler(),
        stepsize_controller=diffrax.ConstantStepSize(),
        first_step=0.1,
    )
    times = jax.device_put(np.array([0.0, 0.3, 1.0]))

    @jax.jit
    def measured(x):
        norms = residual.generator_norms(flow, x, grid, times, key=jax.random.key(0))
        states = flow.trajectory(x, grid, times).states

        def jacobian(time, state):
            return uneven(time) * jax.jacfwd(lambda x: control(time)(x, x, grid))(state)

        return norms, jax.vmap(jacobian)(times, states)

    norms, dense = jax.tree.map(np.asarray, measured(x))
    weights = np.repeat(np.asarray(grid.weights), WIDTH)
    matrices = dense.reshape(3, weights.size, -1)
    exact = dense_norms(matrices, weights)
    np.testing.assert_allclose(norms.attained, exact, rtol=1e-9)
    assert (norms.upper >= norms.attained).all()


def test_the_amplification_of_a_flow_is_of_its_largest_generator():
    """e^(T Lambda) - 1, of each example at a time of its own, which is not the last."""
    # `eq:adjoint-operator-bound`.
    upper = jnp.array([[0.2, 0.7, 0.3], [0.5, 0.1, 0.4]])
    norms = residual.GeneratorNorms(upper, upper, jnp.zeros((2, 3)), jnp.array([2.0, 3.0]))
    np.testing.assert_allclose(norms.amplification, np.expm1([2 * 0.7, 3 * 0.5]), rtol=1e-14)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_orders_of_half_precision_are_sums_over_layers_in_single(dtype, as_users_run):
    """Of 4096 layers that each add 1/4096: sums in bfloat16 stop at a sixteenth."""
    depth = 4096
    still = lim.ResidualFlow(
        jnp.full(depth, 1 / depth, dtype),
        step=lambda layer, x, grid, step: x + layer * x,
    )
    x = jnp.full((2, 1), 2**-6, dtype)
    grid = lim.token_grid(2, dtype)
    orders = residual.interaction_orders(still, lambda x, y: x.sum() / 2, (x, None), grid, 1)
    np.testing.assert_allclose(np.asarray(orders, float), 1, rtol=float(jnp.finfo(dtype).eps))
