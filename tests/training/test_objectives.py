"""Penalties on influence: the mixed derivative is the gradient of the gradient, on any model."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.differences import central_difference, difference_by_calls
from reference.light import light_flow
from reference.networks import VOCABULARY, random_labels, random_states, randomised

import lim_jax as lim
from lim_jax.network.controls import LayerwiseControl
from lim_jax.observability import gramian, trace_estimates
from lim_jax.training.density_objectives import (
    Penalty,
    balanced_objective,
    influence_penalty,
    risk_and_penalty,
)
from lim_jax.training.gramian_penalties import (
    injected_objective,
    observability_objective,
    trace_penalty,
)
from lim_jax.training.mixed_derivative import functional_of_adjoints

LENGTH = 6
WIDTH = 4
BATCH = 3
GRID = lim.graded_grid(LENGTH)
X = random_states(2, BATCH, LENGTH, WIDTH)
Y = random_labels(3, BATCH, LENGTH, VOCABULARY)
READOUT = lim.BandReadout(random_states(4, WIDTH, VOCABULARY), 0.5)
EXACT = Penalty(epsilon=0.0)


def network(step):
    return light_flow(1, width=WIDTH, heads=2, step=step)


def attentive():
    """Attention alone: half the program. What both sublayers make is tested with `split`."""
    flow = network(lim.euler)
    return dataclasses.replace(flow, layers=flow.layers.attention)


def continuous():
    """Of two layers, each of two steps: as `recursion` takes them."""
    return lim.ContinuousFlow(
        LayerwiseControl(attentive().layers),
        solver=diffrax.Euler(),
        stepsize_controller=diffrax.ConstantStepSize(),
        adjoint=diffrax.DirectAdjoint(),
        first_step=0.25,
        max_steps=4,
    )


def recursion(flow):
    """The same steps of Euler without diffrax, whose loop is not differentiated twice so."""
    layers = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), flow.control.layers)
    return lim.ResidualFlow(layers, horizon=flow.horizon)


class Recurrent(eqx.Module):
    """An Equinox model that knows nothing of us."""

    cell: eqx.nn.GRUCell

    def __call__(self, x, grid):
        def step(state, token):
            state = self.cell(token, state)
            return state, state

        return jax.lax.scan(step, jnp.zeros(WIDTH), x)[1]


def recurrent():
    cell = eqx.filter_eval_shape(eqx.nn.GRUCell, WIDTH, WIDTH, key=jax.random.key(0))
    return randomised(Recurrent(cell), 5)


MODELS: dict[str, Callable[[], Any]] = {
    "euler": attentive,
    "split": lambda: network(lim.split),
    "diffrax": continuous,
    "equinox": recurrent,
    "bare": lambda: random_states(5, WIDTH, WIDTH),
}


@eqx.filter_jit  # traced once for all derivatives
def example_loss(model: Any, x, y):
    if not isinstance(model, jax.Array):
        return lim.cross_entropy(READOUT(model(x, GRID), GRID), y, GRID)
    return lim.cross_entropy(READOUT(jnp.tanh(jnp.cumsum(x, axis=0) @ model), GRID), y, GRID)


def risk(params):
    return jax.vmap(example_loss, in_axes=(None, 0, 0))(params, X, Y).mean()


def objective(params):
    return balanced_objective(example_loss, params, (X, Y), GRID, EXACT, strength=2.0)


def gradient_of_gradient(params):
    """The same objective by differentiating the influence itself."""
    params = recursion(params) if isinstance(params, lim.ContinuousFlow) else params
    density = lim.influence(example_loss, params, (X, Y), GRID).density
    return risk(params) + 2.0 * (GRID.weights @ (density - 1) ** 2 / 2)


@eqx.filter_jit
def penalty(params, **options):
    return influence_penalty(example_loss, params, (X, Y), GRID, Penalty(**options))


def dot(left, right):
    return sum(jax.tree.leaves(jax.tree.map(np.vdot, left, right)))


@eqx.filter_jit
def value_and_gradient(function, params):
    return eqx.filter_value_and_grad(function)(params)


@eqx.filter_jit
def objectives_derivatives(params, direction):
    """Value, gradient and forward slope in one program: the rule's pass is compiled once."""
    slope = eqx.filter_jvp(objective, (params,), (direction,))[1]
    return *eqx.filter_value_and_grad(objective)(params), slope


def objectives_value_and_gradient(params, _):
    return value_and_gradient(objective, params)


@pytest.mark.parametrize(
    "name",
    [n if n in ("bare", "euler") else pytest.param(n, marks=pytest.mark.slow) for n in MODELS],
)
def test_the_gradient_is_that_of_the_gradient(name):
    # `eq:discrete-target-influence-penalty`.
    model = MODELS[name]()
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    direction = randomised(arrays, 7)
    forward = name in ("euler", "bare")  # the rule's, whatever the model
    derivatives = objectives_derivatives if forward else objectives_value_and_gradient
    value, gradient, *slopes = derivatives(model, direction)
    expected = value_and_gradient(gradient_of_gradient, model)
    np.testing.assert_allclose(value, expected[0], rtol=1e-13)
    scale = np.sqrt(dot(expected[1], expected[1]))
    assert scale > 1e-3
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * scale)
    along = dot(gradient, direction)
    for slope in slopes:
        np.testing.assert_allclose(slope, along, rtol=1e-10)
    moved = difference_by_calls(
        lambda arrays: derivatives(eqx.combine(arrays, static), direction)[0],
        arrays,
        direction,
    )
    np.testing.assert_allclose(along, moved, rtol=1e-7)


@pytest.mark.slow
def test_second_derivatives_pass_through_the_rule():
    params = random_states(5, WIDTH, WIDTH)
    first = random_states(6, WIDTH, WIDTH)
    second = random_states(7, WIDTH, WIDTH)

    def slope(params):
        return jnp.vdot(jax.grad(objective)(params), first)

    @jax.jit
    def forms(params):
        return {
            "grad of grad": jnp.vdot(jax.grad(slope)(params), second),
            "jvp of grad": jnp.vdot(jax.jvp(jax.grad(objective), (params,), (second,))[1], first),
            "jvp of jvp": jax.jvp(
                lambda p: jax.jvp(objective, (p,), (first,))[1], (params,), (second,)
            )[1],
            "differences": central_difference(slope, params, second),
        }

    by_rule = forms(params)
    expected = by_rule.pop("differences")
    for form, value in by_rule.items():
        np.testing.assert_allclose(value, expected, rtol=1e-6, err_msg=form)


def test_options_and_inputs_are_differentiated_too():
    params = random_states(5, WIDTH, WIDTH)
    target = jax.device_put(1 + 0.1 * np.sin(np.arange(1.0, LENGTH + 1)))

    @jax.jit
    def value_and_gradients(*arguments):
        def value(x, strength, target):
            return balanced_objective(
                example_loss, params, (x, Y), GRID, Penalty(target), strength=strength
            )

        return jax.value_and_grad(value, argnums=(0, 1, 2))(*arguments)

    at = X, jnp.array(1.5), target
    gradients = value_and_gradients(*at)[1]
    for index, direction in ((0, random_states(8, *X.shape)), (1, jnp.array(1.0)), (2, target)):

        def moved(argument, index=index):
            return value_and_gradients(*at[:index], argument, *at[index + 1 :])[0]

        expected = difference_by_calls(moved, at[index], direction)
        np.testing.assert_allclose(np.vdot(gradients[index], direction), expected, rtol=1e-7)


def test_the_penalty_is_the_influences_discrepancy():
    # `eq:influence-discrepancy-functional`, `eq:l2-influence-discrepancy`.
    params = attentive()
    value = penalty(params, target=0.5, epsilon=0.0)
    density = np.asarray(lim.influence(example_loss, params, (X, Y), GRID).density)
    expected = np.asarray(GRID.weights) @ (density - 0.5) ** 2 / 2
    np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_single_precision_stays_single():
    """Under x64 too: neither the grid's doubles nor a zero of the default dtype get in."""
    x, y, params = (a.astype(jnp.float32) for a in (X, Y, MODELS["bare"]()))
    grid = lim.graded_grid(LENGTH, jnp.float32)
    readout = lim.BandReadout(READOUT.weight.astype(jnp.float32), 0.5)

    def loss(params, x, y):
        return lim.cross_entropy(readout(jnp.tanh(jnp.cumsum(x, axis=0) @ params), grid), y, grid)

    def single(params):
        return balanced_objective(loss, params, (x, y), grid, EXACT, strength=2.0)

    value, gradient = jax.jit(jax.value_and_grad(single))(params)
    assert value.dtype == gradient.dtype == jnp.float32
    model = MODELS["bare"]()
    expected = objectives_derivatives(model, model)[1]
    np.testing.assert_allclose(gradient, expected, rtol=2e-4, atol=2e-5)


def test_a_stopped_gradient_is_zero():
    params = attentive()

    def stopped(params):
        return objective(jax.lax.stop_gradient(params))

    _, stopped = value_and_gradient(stopped, params)
    _, unstopped, _ = objectives_derivatives(params, params)
    assert dot(stopped, stopped) == 0 and dot(unstopped, unstopped) > 1e-6


def test_an_average_of_energies_is_balanced_and_handed_on():
    """Values, average and gradients against a gradient of the gradient."""
    params = MODELS["bare"]()
    previous = jax.device_put(np.arange(1.0, 1.0 + LENGTH))

    def nested(params):
        energy = 0.75 * previous + 0.25 * lim.influence(example_loss, params, (X, Y), GRID).energy
        density = energy / lim.integral(energy, GRID)
        return risk(params) + 2.0 * (GRID.weights @ (density - 1) ** 2 / 2), energy

    @jax.jit
    def compute(params):
        ours = risk_and_penalty(
            example_loss, params, (X, Y), GRID, EXACT, previous=previous, memory=0.75
        )
        return ours, jax.value_and_grad(nested, has_aux=True)(params)

    (values, gradients, energy), ((expected, mean), slope) = compute(params)
    np.testing.assert_allclose(values.risk + 2 * values.penalty, expected, rtol=1e-12)
    np.testing.assert_allclose(energy, mean, rtol=1e-12)
    np.testing.assert_allclose(gradients.risk + 2 * gradients.penalty, slope, rtol=1e-10)


def test_functionals_see_densities():
    """P_0 = w^2 / weights for the loss w^2 sum(x): the gradient by hand."""

    def loss(weight, x, y):
        return weight**2 * x.sum()

    def functional(losses, adjoints, options):
        return losses.sum() + options * (adjoints**3).sum()

    batch = jnp.ones((1, LENGTH, 1)), None

    def value(weight):
        return functional_of_adjoints(functional, loss, weight, batch, GRID, jnp.array(2.0))

    cubes = float((1 / np.asarray(GRID.weights) ** 3).sum())
    value_at, slope = jax.jit(jax.value_and_grad(value))(1.5)
    np.testing.assert_allclose(value_at, 1.5**2 * LENGTH + 2 * 1.5**6 * cubes, rtol=1e-13)
    np.testing.assert_allclose(slope, 2 * 1.5 * LENGTH + 12 * 1.5**5 * cubes, rtol=1e-13)


@pytest.mark.slow
def test_training_on_the_objective_balances_influence():
    params: Any = network(lim.split)
    optimiser = optax.adam(1e-2)

    @jax.jit
    def update(params, gradient, state):
        with jax.numpy_dtype_promotion("standard"):  # optax promotes
            change, state = optimiser.update(gradient, state)
        return eqx.apply_updates(params, change), state

    before = penalty(params)
    state = jax.jit(optimiser.init)(params)
    for _ in range(60):
        _, gradient = value_and_gradient(objective, params)
        params, state = update(params, gradient, state)
    assert float(penalty(params)) < float(before) / 4


class TracePenalty(NamedTuple):
    """The objective with a gradient through the Gramians themselves, and the mean of their traces.

    Dear: Algorithm 3 is held to it.
    """

    value: jax.Array
    gradient: Any
    traces: np.ndarray
    risk: jax.Array


def observed_last(params, x):
    return gramian.ObservedTokens(params, GRID, jnp.array([LENGTH - 1]), READOUT)(x)


def of_algorithm_3(params, **options):
    """With exact probes."""
    return observability_objective(
        example_loss,
        observed_last,
        params,
        (X, Y),
        GRID,
        jnp.sqrt(WIDTH) * jnp.eye(WIDTH),
        strength=0.3,
        step=0.5,
        **options,
    )


SOME = jax.device_put(np.array([4, 1]))  # positions


@pytest.fixture(scope="module")
def trace_objective():
    def exact(params):
        def traces(x):
            gramians = gramian.observability_gramians(lambda x: observed_last(params, x), x, 0.5)
            return gramian.gramian_traces(gramians)

        mean = jax.vmap(traces)(X).mean(axis=0)
        return risk(params) + 0.15 * trace_penalty(mean, GRID), (mean, risk(params))

    params = attentive()
    (value, (mean, loss)), gradient = jax.jit(jax.value_and_grad(exact, has_aux=True))(params)
    return TracePenalty(value, gradient, np.asarray(mean), loss)


@pytest.mark.slow
def test_algorithm_3_with_exact_probes_is_the_trace_penalty_of_the_gramians(trace_objective):
    # `eq:observability-balanced-training-objective`.
    exact = trace_objective
    values_and_gradient = jax.jit(jax.value_and_grad(of_algorithm_3, has_aux=True))(attentive())
    (value, traces), gradient = values_and_gradient
    np.testing.assert_allclose(value, exact.value, rtol=1e-11)
    np.testing.assert_allclose(traces, exact.traces, rtol=1e-10)
    scale = np.sqrt(dot(exact.gradient, exact.gradient))
    leaves = map(jax.tree.leaves, (gradient, exact.gradient))
    for left, right in zip(*leaves, strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-10 * scale)


@pytest.mark.slow
def test_algorithm_3_averages_the_traces_of_some_positions_over_steps(trace_objective):
    @jax.jit
    def compute(params):
        previous = jax.device_put(np.ones(2))
        return of_algorithm_3(params, positions=SOME, previous=previous, memory=0.25)

    value, averaged = compute(attentive())
    averages = 0.25 + 0.75 * trace_objective.traces[np.asarray(SOME)]
    np.testing.assert_allclose(averaged, averages, rtol=1e-10)
    weights = np.asarray(GRID.weights)[np.asarray(SOME)]
    spread = weights @ (averages - weights @ averages / weights.sum()) ** 2
    np.testing.assert_allclose(value, trace_objective.risk + 0.15 * spread, rtol=1e-10)


@pytest.mark.slow
def test_algorithm_3_takes_the_weighted_variance_of_positions_that_stand_for_all(trace_objective):
    @jax.jit
    def compute(params):
        return of_algorithm_3(params, positions=SOME, weights=jax.device_put(np.array([0.7, 0.5])))

    value, traces = compute(attentive())
    some = trace_objective.traces[np.asarray(SOME)]
    np.testing.assert_allclose(traces, some, rtol=1e-10)
    centre = (0.7 * some[0] + 0.5 * some[1]) / 1.2
    variance = 0.7 * (some[0] - centre) ** 2 + 0.5 * (some[1] - centre) ** 2
    np.testing.assert_allclose(value, trace_objective.risk + 0.15 * variance, rtol=1e-10)


def test_algorithm_3s_objective_by_hand():
    """One layer of half a step sees a_i w x_i, so that the traces are a^2 w^2 / 2."""
    # `eq:observability-balanced-training-objective`.
    seen = np.array([1.0, -2, 3, 0.5, 1.5, -1])
    weights = np.asarray(GRID.weights)

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def objective(weight):
        batch = jnp.ones((2, LENGTH, 1)), jnp.array([1.0, 4.0])
        return observability_objective(
            lambda weight, x, y: weight * y * x.mean(),
            lambda weight, x: weight * (seen[None] * x.T),
            weight,
            batch,
            GRID,
            -jnp.ones((1, 1)),
            strength=0.3,
            step=0.5,
        )

    (value, traces), slope = jax.tree.map(np.asarray, objective(jnp.array(3.0)))
    np.testing.assert_allclose(traces, 4.5 * seen**2, rtol=1e-12)
    penalty = weights @ (traces - weights @ traces / weights.sum()) ** 2
    np.testing.assert_allclose(value, 3 * 2.5 + 0.15 * penalty, rtol=1e-12)
    np.testing.assert_allclose(slope, 2.5 + 0.15 * 4 * penalty / 3, rtol=1e-12)


@pytest.mark.slow
def test_injected_traces_are_differentiated_as_the_gradient_of_a_gradient():
    """The same samples by `jax.vjp`, example by example, differentiated again in reverse.

    Of even steps and of the first layer's alone, by the same programs.
    """
    params = attentive()
    draws = 2
    seen = jax.device_put(np.array([LENGTH - 1, 2]))

    def observations(params, x):
        return gramian.ObservedTokens(params, GRID, seen, READOUT)(x)

    observed = jax.eval_shape(observations, params, X[0])
    noise = random_states(6, BATCH, draws, *observed.shape)

    def ours(params, step):
        return injected_objective(
            example_loss, observations, params, (X, Y), GRID, noise, strength=0.3, step=step
        )

    def plain(params, step):
        def samples(x, noise):
            return trace_estimates.layer_injected_traces(
                lambda x: observations(params, x), x, step, noise
            )

        traces = jax.vmap(samples)(X, noise).mean(axis=(0, 1))
        return risk(params) + 0.15 * trace_penalty(traces, GRID), traces

    ours, plain = (jax.jit(jax.value_and_grad(f, has_aux=True)) for f in (ours, plain))
    for step in (np.array([0.5, 0.5]), np.array([0.5, 0.0])):
        (value, traces), gradient = ours(params, step)
        (expected, plain_traces), slope = plain(params, step)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(traces, plain_traces, rtol=1e-11)
        scale = np.sqrt(dot(slope, slope))
        for left, right in zip(jax.tree.leaves(gradient), jax.tree.leaves(slope), strict=True):
            np.testing.assert_allclose(left, right, rtol=0, atol=1e-11 * scale)


@pytest.mark.slow
def test_injected_traces_average_over_training_steps():
    params = attentive()
    seen = jnp.array([LENGTH - 1])

    def observations(params, x):
        return gramian.ObservedTokens(params, GRID, seen)(x)

    noise = random_states(6, BATCH, 1, *jax.eval_shape(observations, params, X[0]).shape)

    @jax.jit
    def compute(params):
        """And one number for a step that is an array of even ones."""

        def objective(step: Any = 0.5, **options):
            return injected_objective(
                example_loss,
                observations,
                params,
                (X, Y),
                GRID,
                noise,
                strength=2.0,
                step=step,
                **options,
            )

        later = objective(previous=jnp.arange(6.0), memory=0.25)
        return objective()[1], objective(jnp.full(2, 0.5))[1], later, risk(params)

    fresh, even, (value, averaged), loss = jax.tree.map(np.asarray, compute(params))
    np.testing.assert_allclose(fresh, even, rtol=1e-13)
    np.testing.assert_allclose(averaged, 0.25 * np.arange(6.0) + 0.75 * fresh, rtol=1e-12)
    weights = np.asarray(GRID.weights)
    spread = weights @ (averaged - weights @ averaged / weights.sum()) ** 2
    np.testing.assert_allclose(value, loss + spread, rtol=1e-11)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_gradients_of_half_precision_are_along_weights_of_single(dtype):
    """Adjoints 106 w at 106 positions: 106 is a number of both, and 1/106 is not.

    One over the nearest number to 1/106 is nearer to another number than to 106.
    """
    loss = lambda w, x, y: w * x.astype(jnp.float32).sum()  # noqa: E731
    total = lambda losses, adjoints, options: adjoints.sum()  # noqa: E731
    batch = jnp.zeros((1, 106, 1), dtype), None
    grid = lim.token_grid(106, dtype)
    slope = jax.grad(lambda w: functional_of_adjoints(total, loss, w, batch, grid, None))
    np.testing.assert_allclose(slope(jnp.float32(1)), 106**2, rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_penalties_of_half_precision_square_in_single_precision(size, dtype):
    """Adjoints w at each position: in float16 1e-6 has four bits, and 9e4 is infinite."""
    w = jnp.asarray(size * np.linspace(1, 2, 8), dtype)
    batch = jnp.ones((2, 8, 1), dtype), None
    problem = lambda w, x, y: (w * x[:, 0]).sum() / 8, w, batch, lim.token_grid(8, dtype)  # noqa: E731
    energy = np.asarray(w, float) ** 2
    density = energy / energy.mean()
    expected = 0.5 * ((density - 1) ** 2).mean()
    # dm_i/dI_j = (d_ij - m_i/8)/Z, and dI_j/dw_j = 2 w_j.
    slopes = (density - 1) / 8 @ (np.eye(8) - np.outer(density, np.ones(8)) / 8)
    slope = slopes * 2 * np.asarray(w, float) / energy.mean()
    with jax.numpy_dtype_promotion("standard"):
        values, gradients, energies = risk_and_penalty(*problem, EXACT)
        penalty = influence_penalty(*problem, EXACT)
    np.testing.assert_allclose([values.penalty, penalty], expected, rtol=1e-5)
    np.testing.assert_allclose(energies, energy, rtol=1e-5)
    rounding = 4 * float(jnp.finfo(dtype).eps) * np.abs(slope).max()
    np.testing.assert_allclose(np.asarray(gradients.penalty, float), slope, rtol=0, atol=rounding)
