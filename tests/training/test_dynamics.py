"""The law by which training moves influence, against differences, and flows that resume."""

import chex
import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import central_difference
from reference.light import light_flow
from reference.networks import VOCABULARY, random_labels, random_states
from scipy.optimize import minimize

import lim_jax as lim
from lim_jax.training.dynamics import DensityDynamics, TrainingPath
from lim_jax.training.loop import resumable

LENGTH = 6
WIDTH = 4
BATCH = 3
GRID = lim.graded_grid(LENGTH)
BATCH_OF = random_states(2, BATCH, LENGTH, WIDTH), random_labels(3, BATCH, LENGTH, VOCABULARY)
READOUT = lim.LinearReadout(random_states(4, WIDTH, VOCABULARY))


def network(seed=1):
    return light_flow(seed, width=WIDTH, step=lim.split)


@eqx.filter_jit  # traced once for all derivatives
def example_loss(model, x, y):
    return lim.cross_entropy(READOUT(model(x, GRID), GRID), y, GRID)


@jax.jit
def bare_loss(weight, x, y):
    return lim.cross_entropy(READOUT(jnp.tanh(jnp.cumsum(x, axis=0) @ weight), GRID), y, GRID)


def descent(loss, params):
    gradient = eqx.filter_grad(lambda p: lim.training.risk(loss, p, BATCH_OF))(params)
    return jax.tree.map(jnp.negative, gradient)


def test_the_risk_is_the_mean_of_the_losses():
    """`eq:gd-risk`, example by example."""
    weight = random_states(5, WIDTH, WIDTH)
    losses = [float(bare_loss(weight, x, y)) for x, y in zip(*BATCH_OF, strict=True)]
    risk = jax.jit(lambda weight: lim.training.risk(bare_loss, weight, BATCH_OF))(weight)
    np.testing.assert_allclose(risk, np.mean(losses), rtol=1e-13)


def test_the_density_moves_as_differences_and_the_replicator_say():
    # `eq:gd-mdot`.
    @jax.jit
    def measured(params):
        dynamics = lim.training.density_dynamics(example_loss, params, BATCH_OF, GRID)

        def density(params):
            return lim.influence(example_loss, params, BATCH_OF, GRID).density

        moved = central_difference(density, params, descent(example_loss, params), step=1e-4)
        rates = dynamics.rate, dynamics.replicator_rate, dynamics.decay, dynamics.mean_decay
        return rates, moved, dynamics.density, density(params)

    result = jax.tree.map(np.asarray, measured(network()))
    (rate, replicator_rate, decay, mean_decay), moved, density, expected = result
    scale = np.abs(moved).max()
    assert scale > 1e-4
    np.testing.assert_allclose(density, expected, rtol=1e-12)
    np.testing.assert_allclose(rate, moved, rtol=0, atol=1e-7 * scale)
    np.testing.assert_allclose(replicator_rate, rate, rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(np.asarray(GRID.weights) @ rate, 0, atol=1e-13 * scale)
    # Mass grows exactly where the relative decay is below its average.
    assert ((rate > 0) == (decay < mean_decay)).all()


def test_the_energys_slope_along_any_direction():
    # `eq:influence-parameter-gradient`, `prop:influence-differentiability`.
    params = random_states(5, WIDTH, WIDTH)
    direction = random_states(6, WIDTH, WIDTH)
    dynamics = lim.training.density_dynamics(bare_loss, params, BATCH_OF, GRID, direction)

    def energy(params):
        return lim.influence(bare_loss, params, BATCH_OF, GRID).energy

    expected = jax.jit(lambda p: central_difference(energy, p, direction))(params)
    np.testing.assert_allclose(dynamics.energy_rate, expected, rtol=1e-7)


def test_positions_without_influence_have_no_decay():
    """The loss sees the second position only: r = 0 on the rest, and no NaN."""

    def loss(weight, x, y):
        return weight * x[1].sum() + weight**2

    batch = jnp.ones((2, 3, 2)), None
    grid = lim.token_grid(3)
    dynamics = lim.training.density_dynamics(loss, jnp.array(2.0), batch, grid)
    np.testing.assert_allclose(dynamics.density, [0, 3, 0])
    # I = 2 * 9 w^2, and dw/ds = -(2 + 2w) = -6: r = -2 * (-6) / 2 = 6.
    np.testing.assert_allclose(dynamics.decay, [0, 6, 0])
    np.testing.assert_allclose(dynamics.replicator_rate, 0, atol=1e-13)
    nothing = lim.training.density_dynamics(loss, jnp.array(0.0), batch, grid)
    assert bool(jnp.isfinite(nothing.rate).all()) and float(nothing.total) == 0


def test_the_discrepancy_moves_by_the_pairing():
    """`eq:l2-influence-discrepancy-derivative` against reverse mode and a central difference."""
    target = 1 + np.cos(4 * np.asarray(GRID.nodes)) / 2
    params = random_states(5, WIDTH, WIDTH)
    direction = random_states(6, WIDTH, WIDTH)

    def discrepancy(params):
        density = lim.influence(bare_loss, params, BATCH_OF, GRID).density
        return GRID.weights @ (density - target) ** 2 / 2

    @jax.jit
    def measured(params):
        dynamics = lim.training.density_dynamics(bare_loss, params, BATCH_OF, GRID, direction)
        reverse = jnp.vdot(jax.grad(discrepancy)(params), direction)
        moved = central_difference(discrepancy, params, direction)
        return dynamics.discrepancy_rate(jax.device_put(target)), reverse, moved

    rate, reverse, moved = map(float, measured(params))
    assert abs(rate) > 1e-2
    np.testing.assert_allclose(rate, reverse, rtol=1e-10)
    np.testing.assert_allclose(rate, moved, rtol=1e-7)


@pytest.mark.parametrize("exponent", [2, 4])
@pytest.mark.parametrize("scale", [1e-18, 1e-8, 1.0, 1e8])
def test_the_sensitivity_norm_is_found_at_every_scale_of_the_loss(exponent, scale):
    """Of adjoints (3, 4) w, the norm is 5 along (0.6, 0.8): cubes of small images underflowed."""
    slopes = jnp.array([3.0, 4.0], jnp.float32)
    found = lim.training.sensitivity_norm(
        lambda weight, x, y: scale * (slopes @ weight) * x.sum() / 2,
        jnp.zeros(2, jnp.float32),
        (jnp.zeros((2, 2, 1), jnp.float32), None),
        lim.token_grid(2, jnp.float32),
        exponent=exponent,
        steps=3,
        key=jax.random.key(0),
    )
    np.testing.assert_allclose(found.values[1:] / scale, 5, rtol=1e-5)
    np.testing.assert_allclose(np.abs(found.direction), [0.6, 0.8], rtol=1e-5)


@pytest.mark.parametrize("size", [1e-24, 1e19])
def test_a_direction_is_scaled_to_norm_one_whatever_its_size(size):
    """Squares of its entries under- and overflow, and it was taken for zero."""
    loss = lambda weight, x, y: (weight @ jnp.array([1.0, 2.0, -3.0], jnp.float32)) * x.sum()  # noqa: E731
    batch = jnp.ones((2, 2, 1), jnp.float32), None
    grid = lim.token_grid(2, jnp.float32)
    direction = jnp.array([2.0, 1.0, 2.0], jnp.float32)
    moments = lim.training.fourth_moments(
        loss, jnp.zeros(3, jnp.float32), batch, grid, size * direction
    )
    # The adjoint is the product at both positions over their weights of one half.
    expected = abs(2 * (2 + 2 - 6) / 3) ** 4
    np.testing.assert_allclose(moments[1].value, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "dtypes", [("float32", "bfloat16"), ("float64", "float32"), ("float16", "float16")], ids=str
)
def test_parameters_of_any_precisions_and_of_no_entries_have_a_direction(dtypes):
    """Of adjoints (3, 4) w the norm is 5; directions keep the dtypes of their own parameters."""
    first, second = map(jnp.dtype, dtypes)
    params = {"a": jnp.zeros(1, first), "b": jnp.zeros(1, second), "none": jnp.zeros(0, second)}
    batch = jnp.zeros((2, 2, 1), first), None
    grid = lim.token_grid(2, first)
    problem = (
        lambda p, x, y: (3 * p["a"] + 4 * p["b"].astype(first))[0] * x.sum() / 2,
        params,
        batch,
    )  # noqa: E731
    found = lim.training.sensitivity_norm(*problem, grid, steps=3, key=jax.random.key(0))
    rounding = 4 * float(jnp.finfo(second).eps)
    np.testing.assert_allclose(found.values[1:], 5, rtol=rounding)
    for name, leaf in params.items():
        assert found.direction[name].dtype == leaf.dtype
    along = {"a": jnp.full(1, 3, first), "b": jnp.full(1, 4, second), "none": params["none"]}
    moments = lim.training.fourth_moments(*problem, grid, along)
    np.testing.assert_allclose(moments.sensitivity.value, 5.0**4, rtol=4 * rounding)


def test_fourth_powers_of_adjoints_in_half_precision_are_not_infinite():
    """An adjoint of 100 has the fourth power 1e8, beyond the 65,504 of float16."""
    loss = lambda weight, x, y: 50 * weight * x.sum()  # noqa: E731
    batch = jnp.full((2, 2, 1), 300, jnp.float16), None
    one = jnp.ones((), jnp.float16)
    problem = loss, one, batch, lim.token_grid(2, jnp.float16), one
    moments = lim.training.fourth_moments(*problem)
    np.testing.assert_allclose([each.value for each in moments], 1e8, rtol=1e-3)
    # Both squares are 1e4, the input's is 9e4.
    growth = lim.training.adjoint_growth(*problem)
    np.testing.assert_allclose(growth, 2e4 / (1 + 9e4), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [2, 4])
def test_the_sensitivity_norm_is_that_of_the_dense_jacobian(exponent):
    """Of central differences in all parameters, by NumPy's SVD and by SciPy from 20 starts."""
    # `prop:influence-l2-differentiability`, `eq:adjoint-l4-sensitivity-assumption`.
    params = random_states(5, WIDTH, WIDTH)

    def adjoints(params):
        gradients = jax.vmap(jax.grad(bare_loss, argnums=1), in_axes=(None, 0, 0))
        return gradients(params, *BATCH_OF) / GRID.weights[None, :, None]

    @jax.jit
    def differences(params):
        basis = np.eye(WIDTH**2).reshape(-1, WIDTH, WIDTH)
        return jax.lax.map(lambda d: central_difference(adjoints, params, d), basis)

    found, unsettled = (
        lim.training.sensitivity_norm(
            bare_loss, params, BATCH_OF, GRID, exponent=exponent, steps=steps, key=jax.random.key(0)
        )
        for steps in (100, 1)
    )
    jacobian = np.asarray(differences(params))
    weights = np.asarray(GRID.weights) / BATCH

    def norm(direction):
        image = np.tensordot(direction.ravel() / np.linalg.norm(direction), jacobian, axes=1)
        return ((image**2).sum(axis=2) ** (exponent / 2) @ weights).sum() ** (1 / exponent)

    values = np.asarray(found.values)
    assert (np.diff(values) > -1e-12).all() and values[0] < 0.9 * values[-1]
    np.testing.assert_allclose(np.linalg.norm(found.direction), 1, rtol=1e-12)
    for run in (found, unsettled):
        at_direction = norm(np.asarray(run.direction))
        np.testing.assert_allclose(at_direction, run.values[-1], rtol=1e-7)
    # Where the norm is largest its slope is along the direction: other powers settle elsewhere.
    image = np.tensordot(np.ravel(found.direction), jacobian, axes=1)
    pushed = weights[:, None] * (image**2).sum(axis=2, keepdims=True) ** (exponent / 2 - 1) * image
    slope = np.tensordot(jacobian, pushed, axes=3)
    slope /= np.linalg.norm(slope)
    np.testing.assert_allclose(np.ravel(found.direction), slope, rtol=0, atol=1e-6)
    if exponent == 2:
        scaled = jacobian * np.sqrt(weights)[:, None]
        largest = np.linalg.svd(scaled.reshape(WIDTH**2, -1), compute_uv=False)[0]
    else:
        starts = np.random.default_rng(0).standard_normal((20, WIDTH**2))
        largest = max(-minimize(lambda d: -norm(d), start).fun for start in starts)
    np.testing.assert_allclose(values[-1], largest, rtol=1e-5)


def test_fourth_moments_by_hand():
    # `prop:influence-l2-differentiability`, `rem:l4-sensitivity-practice`,
    # `eq:adjoint-l4-sensitivity-assumption`.
    params = random_states(5, WIDTH, WIDTH)
    direction = random_states(6, WIDTH, WIDTH)
    moments = lim.training.fourth_moments(bare_loss, params, BATCH_OF, GRID, direction)

    def adjoints(params):
        gradients = jax.vmap(jax.grad(bare_loss, argnums=1), in_axes=(None, 0, 0))
        return gradients(params, *BATCH_OF) / GRID.weights[None, :, None]

    @jax.jit
    def value_and_slope(params):
        unit = direction / jnp.linalg.norm(direction)
        return adjoints(params), central_difference(adjoints, params, unit)

    weights = np.asarray(GRID.weights)
    value, slope = value_and_slope(params)
    for estimate, vectors in ((moments.adjoint, value), (moments.sensitivity, slope)):
        each = (np.asarray(vectors) ** 2).sum(axis=2) ** 2 @ weights
        np.testing.assert_allclose(estimate.value, each.mean(), rtol=1e-6)
        np.testing.assert_allclose(estimate.error, each.std(ddof=1) / np.sqrt(3), rtol=1e-5)


def scaled_loss(weight, x, y):
    """P_0 is y times the weights at every position, and DP_0[eta] is y times eta."""
    return lim.integral(x, GRID) @ weight * y


@pytest.mark.parametrize(
    "tail, holds", [(6, True), (4.5, False), (3.5, False), (2.5, False), ("two", False)], ids=str
)
def test_premises_of_the_penalties_are_what_single_examples_carry(tail, holds):
    """Labels that are quantiles of a Pareto law, or all zero but two: Z is 1.4 errors, then.

    Of 2,500 with k = 50 an index of 5.6 is two errors above 4.
    """
    # `prop:influence-differentiability`, `prop:influence-l2-differentiability`,
    # `eq:adjoint-l4-sensitivity-assumption`, `eq:data-fourth-moment`,
    # `eq:adjoint-parameter-uniform-bound`, `eq:influence-normalization-away-from-zero`.
    generator = np.random.default_rng(7)
    count = 2500
    x = generator.uniform(-0.5, 0.5, (count, LENGTH, WIDTH))
    ranks = (generator.permutation(count) + 0.5) / count
    y = 100.0 * (ranks < 2 / count) if tail == "two" else ranks ** (-1 / tail)
    weight = np.arange(1.0, 5)
    eta = np.array([3.0, 0, -4, 0])
    batch = jax.device_put((x, y))
    args = scaled_loss, jax.device_put(weight), batch, GRID, jax.device_put(eta)
    *moments, total = lim.training.penalty_premises(*args)
    weights = np.asarray(GRID.weights)
    inputs = (x**2).sum(axis=2) @ weights
    mass = weights.sum()
    fourths = (inputs**2 + y**4, 30**2 * mass * y**4, mass * y**4)
    for premise, each in zip(moments, fourths, strict=True):
        largest = np.sort(each)[::-1][:51]
        index = 0 if largest[-1] == 0 else 4 / np.mean(np.log(largest[:50] / largest[50]))
        np.testing.assert_allclose(premise.value, index, rtol=1e-9)
        assert premise.holds is holds and ": not refuted, by a tail index" in premise.statement
    np.testing.assert_allclose(total.value, 30 * mass * (y**2).mean(), rtol=1e-9)
    assert total.holds is (tail != "two")
    growth = lim.training.adjoint_growth(*args)
    expected = (30 + 1) * mass * y**2 / (1 + inputs + y**2)
    np.testing.assert_allclose(growth, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "direction", [np.ones(4, "float32"), np.ones(3), (np.ones(4),)], ids=["float32", "3", "a tuple"]
)
def test_a_direction_is_like_the_parameters(direction):
    batch = jnp.ones((2, LENGTH, WIDTH)), jnp.ones(2)
    of_direction = (
        lim.training.fourth_moments,
        lim.training.penalty_premises,
        lim.training.adjoint_growth,
    )
    for function in of_direction:
        with pytest.raises(
            ValueError, match="direction: got .+ the shapes and dtypes of those of the par"
        ):
            function(scaled_loss, jnp.ones(4), batch, GRID, direction)


def test_labels_with_a_value_for_each_position_are_integrated_and_ids_have_no_size():
    # `eq:data-fourth-moment`.
    x, y = np.random.default_rng(8).standard_normal((2, 3, LENGTH, WIDTH))

    def loss(weight, x, y):
        return weight * jnp.sum(x)

    weights = np.asarray(GRID.weights)
    inputs = (x**2).sum(axis=2) @ weights
    labels = (y**2).sum(axis=2) @ weights
    for made, size in (((y, np.arange(3)), labels), (y[:, 1:], (y[:, 1:] ** 2).sum(axis=(1, 2)))):
        batch = jax.device_put((x, made))
        growth = lim.training.adjoint_growth(loss, jnp.array(0.0), batch, GRID, jnp.array(2.0))
        expected = WIDTH * (1 / weights).sum() / (1 + inputs + size)
        np.testing.assert_allclose(growth, expected, rtol=1e-9)


@pytest.mark.slow
def test_the_integral_of_the_rate_is_the_change_of_the_density():
    """`eq:gd-flow`, by Simpson's rule over a flow that is solved to 1e-9."""
    times = np.linspace(0, 0.5, 33)
    path = lim.training.gradient_flow(
        bare_loss,
        random_states(5, WIDTH, WIDTH),
        BATCH_OF,
        GRID,
        times.tolist(),
        solver=diffrax.Dopri8(),
        stepsize_controller=diffrax.PIDController(1e-9, 1e-9),
    )

    @jax.jit
    @jax.vmap
    def rate(params):
        return lim.training.density_dynamics(bare_loss, params, BATCH_OF, GRID).rate

    simpson = np.full(33, 2.0)
    simpson[1::2], simpson[[0, -1]] = 4.0, 1.0
    integral = (0.5 / 32 / 3) * simpson @ np.asarray(rate(path.params))
    density = (
        np.asarray(path.energy) / (np.asarray(path.energy) @ np.asarray(GRID.weights))[:, None]
    )
    change = density[-1] - density[0]
    np.testing.assert_allclose(path.density, density, rtol=1e-12)
    assert np.abs(change).max() > 1e-2
    np.testing.assert_allclose(integral, change, rtol=0, atol=1e-6)
    assert bool((np.diff(path.risk) < 0).all())


def test_indices_along_a_path_are_those_of_each_time():
    # `eq:gd-influence-density`; Z_s >= z_0, `eq:influence-normalization-away-from-zero`.
    """`eq:gd-influence-density` and `eq:gd-lim-index` by NumPy, with a position left out too."""
    energy = np.exp(random_states(7, 3, LENGTH))
    energy[2] = 0  # no influence
    times = jnp.arange(3.0)
    path = lim.training.TrainingPath(GRID, times, None, times, jax.device_put(energy))
    weights = np.asarray(GRID.weights)
    np.testing.assert_allclose(path.total, energy @ weights, rtol=1e-12)
    np.testing.assert_allclose(path.density[:2] @ weights, 1, rtol=1e-12)
    np.testing.assert_allclose(path.density[2], 0)
    regions = lim.boundary_regions(GRID, "9/20")
    for chosen, kept in ((regions, np.ones(6)), (regions.without([5]), np.arange(6) < 5)):
        rows = np.asarray(regions.weights) * kept
        averages = energy[:2] @ rows.T / rows.sum(axis=1) / (energy[:2] @ (weights * kept))[:, None]
        indices = path.indices(chosen, 1e-3)
        np.testing.assert_allclose(np.array(indices[:3]).T[:2], averages, rtol=1e-12)
        boundary = np.minimum(averages[:, 0], averages[:, 2])
        gap = boundary - averages[:, 1]
        np.testing.assert_allclose(indices.lim[:2], gap / (boundary + 1e-3), rtol=1e-12)
        assert np.asarray(indices)[:, 2].tolist() == [0] * 6
    with pytest.raises(ValueError, match="regions: got regions of"):
        path.indices(lim.boundary_regions(lim.token_grid(LENGTH), 0.3))


def test_eulers_steps_are_gradient_descent():
    # `eq:gd-flow`.
    params = {"weight": random_states(5, WIDTH, WIDTH)}

    def loss(params, x, y):
        return bare_loss(params["weight"], x, y)

    path = lim.training.gradient_flow(
        loss,
        params,
        BATCH_OF,
        GRID,
        [0.0, 0.1, 0.2],
        solver=diffrax.Euler(),
        stepsize_controller=diffrax.ConstantStepSize(),
        first_step=0.05,
    )

    @jax.jit
    def descended(params):
        return jax.tree.map(lambda p, d: p + 0.05 * d, params, descent(loss, params))

    for _ in range(4):
        params = descended(params)
    last = jax.tree.map(lambda leaf: np.asarray(leaf)[-1], path)
    chex.assert_trees_all_close(last.params, params, rtol=1e-11, atol=1e-14)
    expected = lim.influence(loss, params, BATCH_OF, GRID).energy
    np.testing.assert_allclose(last.energy, expected, rtol=1e-10)


class Interrupted(Exception):
    """The power went out."""


def interrupting(after):
    def progress(indices):
        for index in indices:
            if index == after:
                raise Interrupted
            yield index

    return progress


def test_a_flow_that_is_interrupted_gives_the_same_numbers(tmp_path):
    arguments = (
        bare_loss,
        random_states(5, WIDTH, WIDTH),
        BATCH_OF,
        GRID,
        [0.0, 0.1, 0.3, 0.6],
    )
    whole = lim.training.gradient_flow(*arguments)
    checkpoint = tmp_path / "flow.eqx"
    with pytest.raises(Interrupted):
        lim.training.gradient_flow(
            *arguments, run="bare loss", checkpoint=checkpoint, progress=interrupting(after=2)
        )
    resumed = lim.training.gradient_flow(*arguments, run="bare loss", checkpoint=checkpoint)
    for ours, theirs in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # A finished run is read back without another step.
    again = lim.training.gradient_flow(
        *arguments, run="bare loss", checkpoint=checkpoint, progress=interrupting(after=0)
    )
    np.testing.assert_array_equal(again.energy, whole.energy)
    loss, params, batch, grid, times = arguments
    for other, message in (
        ((loss, params, batch, grid, [0.0, 0.2, 0.3, 0.6]), "times: got .*0.2.*those of the check"),
        ((loss, params, batch, grid, [0.0, 0.1, 0.3, 0.5, 0.7]), r"times: got 0.5, expected 0.6"),
        ((loss, params, (2 * batch[0], batch[1]), grid, times), "checkpoint: got .*of start"),
    ):
        with pytest.raises(ValueError, match=message):
            lim.training.gradient_flow(*other, run="bare loss", checkpoint=checkpoint)


def test_loops_resume_between_checkpoints_and_refuse_others(tmp_path):
    taken = []

    def step(state, index):
        taken.append(index)
        return {"sum": state["sum"] + index}, state["sum"]

    start = {"sum": jnp.array(0.0)}
    checkpoint = tmp_path / "loop.eqx"
    with pytest.raises(Interrupted):
        resumable(
            step, start, 10, run="sums", checkpoint=checkpoint, every=3, progress=interrupting(8)
        )
    taken.clear()
    state, records = resumable(step, start, 10, run="sums", checkpoint=checkpoint, every=3)
    assert [index for index in taken if index][0] == 6  # the last checkpoint; 0 is the shape's
    assert float(state["sum"]) == 45
    np.testing.assert_array_equal(records, [0, 0, 1, 3, 6, 10, 15, 21, 28, 36])
    with pytest.raises(ValueError, match="loop.eqx, of start"):
        resumable(step, {"sum": jnp.zeros(3)}, 10, run="sums", checkpoint=checkpoint)
    with pytest.raises(ValueError, match="steps: got 0"):
        resumable(step, start, 0)
    assert list(tmp_path.iterdir()) == [checkpoint]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_rates_on_a_grid_of_few_bits_have_weights_of_single_precision(dtype, as_users_run):
    """One tenth is off by 1e-3 in bfloat16, and totals, densities and their rates were."""
    grid = lim.token_grid(10, dtype)
    energy = np.arange(1, 11, dtype=np.float32)
    rate = np.square(energy)
    moved = DensityDynamics(grid, jnp.asarray(energy), jnp.asarray(rate))
    np.testing.assert_allclose(moved.total, 5.5, rtol=1e-6)
    np.testing.assert_allclose(moved.density, energy / 5.5, rtol=1e-6)
    expected = (rate - energy / 5.5 * 38.5) / 5.5
    np.testing.assert_allclose(moved.rate, expected, rtol=1e-5, atol=1e-5)
    path = TrainingPath(grid, jnp.zeros(1), None, jnp.zeros(1), jnp.asarray(energy[None]))
    np.testing.assert_allclose(path.total, [5.5], rtol=1e-6)
    averages = path.indices(lim.boundary_regions(grid, "1/5"))
    np.testing.assert_allclose(averages.left, [1.5 / 5.5], rtol=1e-6)
