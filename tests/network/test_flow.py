"""Residual recursions over depth."""

import dataclasses
import re
from math import factorial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_network
from reference.architectures import architecture_flow
from reference.as_users import temporary_bytes
from reference.differences import fitted_order
from reference.hybrids import RECURRENT
from reference.light import light_flow
from reference.networks import SCHEMES, falling_profile, layer_of, random_flow, random_states

import lim_jax as lim
from lim_jax.cost.counting import operations
from lim_jax.network import attention
from lim_jax.network.flow import unit_profile
from lim_jax.network.steps import heun, rk4, strang

GRID = lim.token_grid(12)


def quadratic_profile(time):
    return 1 + time**2


BAD_PROFILES = {
    "-0.5 at depth time 1.5": lambda time: 1 - time,
    "inf at depth time 0": lambda time: 1 / time,
    "nan at depth time 1.5": lambda time: jnp.sqrt(1.2 - time),
}


@pytest.mark.parametrize("got", BAD_PROFILES)
def test_a_profile_that_is_negative_or_not_finite_is_refused(got, as_users_run):
    # `ass:depth-profile`.
    flow = random_flow(depth=4, horizon=2.0, profile=BAD_PROFILES[got])
    continuous = lim.ContinuousFlow(lambda time: None, horizon=2.0, profile=BAD_PROFILES[got])
    x = random_states()
    for call in (flow, flow.trajectory, eqx.filter_jit(flow)):
        with pytest.raises(ValueError, match=f"profile: got {got}, expected finite"):
            call(x, GRID)
    for call in (continuous, continuous.solve, eqx.filter_jit(continuous)):
        with pytest.raises(ValueError, match="profile: got .* expected finite"):
            call(x, GRID)


def test_a_profile_may_vanish_and_a_traced_one_is_judged_when_its_values_arrive():
    layers = light_flow(depth=4).layers
    x = random_states()

    @eqx.filter_jit
    def energy(rate):
        flow = lim.ResidualFlow(layers, profile=lambda time: rate * (1 - time))
        return jnp.sum(flow(x, GRID) ** 2)

    still = lim.ResidualFlow(layers, profile=lambda time: 0 * time)
    np.testing.assert_array_equal(terminal(still, x), x)
    np.testing.assert_allclose(energy(np.array(0.0)), np.sum(np.asarray(x) ** 2), rtol=1e-12)
    step = 1e-6
    after, before = (float(energy(np.array(0.5 + move))) for move in (step, -step))
    slope = jax.jit(jax.grad(energy))(0.5)
    np.testing.assert_allclose(slope, (after - before) / (2 * step), rtol=1e-7)
    several = jax.jit(jax.vmap(energy))(np.array([0.5, 0.7]))
    np.testing.assert_allclose(several[1], energy(np.array(0.7)), rtol=1e-12)
    with pytest.raises(RuntimeError, match="profile: got .*expected finite values"):
        jax.block_until_ready(energy(np.array(-0.1)))


@jax.jit
def terminal(flow, x, grid=GRID):
    return flow(x, grid)


@jax.jit
def evaluated(field, x):
    return field(x, x, GRID)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_flow_is_the_numpy_recursion(scheme):
    # `eq:discrete-residual`, `eq:complete-transformer-layer`.
    flow = random_flow(depth=3, step=SCHEMES[scheme], horizon=1.5)
    layers = [layer_of(flow, k) for k in range(3)]
    x = random_states()
    expected = numpy_network.flow(layers, np.asarray(x), 1.5, scheme, falling_profile)
    np.testing.assert_allclose(terminal(flow, x), expected, rtol=1e-12, atol=1e-13)


def test_a_gpt2_stack_is_the_split_scheme_with_unit_steps():
    flow = random_flow(depth=3, step=lim.split, horizon=3.0, profile=unit_profile)
    states = np.asarray(random_states())
    for k in range(3):
        layer = layer_of(flow, k)
        states = states + numpy_network.attention(layer.attention, states)
        states = states + numpy_network.feed_forward(layer.feed_forward, states)
    np.testing.assert_allclose(terminal(flow, random_states()), states, rtol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_trajectory_follows_profile_and_times(scheme):
    flow = random_flow(depth=4, step=SCHEMES[scheme], horizon=2.0, profile=quadratic_profile)
    x = np.asarray(random_states())
    trajectory = jax.jit(lambda flow, x: (*flow.trajectory(x, GRID), flow(x, GRID)))(flow, x)
    times, states, end = map(np.asarray, trajectory)
    np.testing.assert_allclose(times, [0, 0.5, 1.0, 1.5, 2.0], rtol=1e-15)
    for k in range(4):
        np.testing.assert_allclose(states[k], x, rtol=1e-12)
        field = layer_of(flow, k)
        parts = [field] if scheme == "euler" else field.sublayers
        for part in parts:
            x = x + 0.5 * (1 + (0.5 * k) ** 2) * np.asarray(evaluated(part, x))
    np.testing.assert_allclose(states[4], x, rtol=1e-12)
    np.testing.assert_allclose(end, x, rtol=1e-12)


def test_a_linear_flow_is_a_matrix_power():
    """Zero queries average causally, so M Euler steps are powers of I + eps C (x) V."""
    value = np.asarray(random_states(1, 3, 3)) / 2
    x = random_states(2, 12, 3)

    @jax.jit
    def power(value, x):
        zeros = jnp.zeros((1, 1, 3))
        layer = lim.CausalAttention(eqx.nn.Identity(), zeros, zeros, value[None], jnp.eye(3)[None])
        layers = jax.tree.map(lambda leaf: jnp.stack(6 * [leaf]), layer)
        return lim.ResidualFlow(layers)(x, GRID)

    cesaro = np.tri(12) / np.arange(1, 13)[:, None]
    step = np.eye(36) + np.kron(cesaro, value) / 6
    expected = np.linalg.matrix_power(step, 6) @ np.asarray(x).ravel()
    np.testing.assert_allclose(np.ravel(power(value, x)), expected, rtol=1e-12)


class Linear(eqx.Module):
    matrix: jax.Array

    def __call__(self, x, context, grid):
        return x @ self.matrix.T


class LinearPair(eqx.Module):
    first: Linear
    second: Linear

    @property
    def sublayers(self):
        return self.first, self.second

    def __call__(self, x, context, grid):
        return self.first(x, context, grid) + self.second(x, context, grid)


def test_every_step_of_a_linear_field_is_its_polynomial_of_matrices():
    """Sublayers that do not commute, each by its truncated exponential, in the stated order."""
    first, second = np.asarray(random_states(3, 2, 3, 3))
    pair = LinearPair(*(Linear(jax.device_put(matrix)) for matrix in (first, second)))

    def exponential(matrix, order):
        powers = [np.linalg.matrix_power(matrix, n) / factorial(n) for n in range(order + 1)]
        return np.sum(powers, axis=0)

    def half(matrix):
        return exponential(0.15 * matrix, 2)

    expected = {
        lim.euler: exponential(0.3 * (first + second), 1),
        lim.split: exponential(0.3 * second, 1) @ exponential(0.3 * first, 1),
        heun: exponential(0.3 * (first + second), 2),
        strang: half(first) @ half(second) @ half(second) @ half(first),
        rk4: exponential(0.3 * (first + second), 4),
    }
    x = np.asarray(random_states(4, 12, 3))
    states = jax.jit(lambda x: [step(pair, x, GRID, 0.3) for step in expected])(x)
    for ours, matrix in zip(states, expected.values(), strict=True):
        np.testing.assert_allclose(ours, x @ matrix.T, rtol=1e-13, atol=1e-14)


@pytest.mark.slow
def test_layers_are_remade_in_reverse_but_for_their_attention():
    """What each further layer keeps: its state, and every head's outputs and log-sums.

    Attention's tiles are not walked again for what is kept, which is seen in the operations.
    """
    grid = lim.token_grid(160)

    def gradient(flow, x):
        return jax.grad(lambda x: jnp.sum(jnp.sin(flow(x, grid))))(x)

    def traced(depth, function=gradient):
        flow = light_flow(depth=depth, heads=2, step=lim.split)
        x = random_states(1, 160, 6)
        return jax.jit(function).trace(flow, x)

    few = traced(4)
    many = traced(16)
    forward = traced(4, lambda flow, x: flow(x, grid))
    assert operations(few.jaxpr) < 3.6 * operations(forward.jaxpr)
    heads = 2
    features = 3
    width = 6
    kept = 160 * (width + heads * (features + 1)) * 8
    assert (temporary_bytes(many) - temporary_bytes(few)) / 12 < 1.05 * kept


@pytest.mark.slow
def test_kept_products_are_not_made_again_and_give_the_same_gradient():
    """Of each layer queries, keys, values, attention's output, and hidden features: no others.

    The outer product is not read on the way back, where its layer's output is the next one's input.
    """
    remade = random_flow(depth=3, step=lim.split)
    width = remade.layers.attention.query.shape[-1]
    x = random_states(1, 12, width)

    def gradient(flow, x):
        return jax.grad(lambda flow, x: jnp.sum(jnp.sin(flow(x, GRID))), argnums=(0, 1))(flow, x)

    flows = remade, dataclasses.replace(remade, remat="save_matmuls")
    traced = [jax.jit(gradient).trace(flow, x) for flow in flows]
    dear, cheap = (operations(program.jaxpr) for program in traced)
    assert dear - cheap == 3 * 2 * 12 * width * (4 * width + 7)
    expected, of_kept = (jax.jit(gradient)(flow, x) for flow in flows)
    for a, b in zip(jax.tree.leaves(of_kept), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_layers_are_rematerialised_in_one_of_two_ways(as_users_run):
    with pytest.raises(ValueError, match="remat: got 'none', expected .full. or .save_matmuls."):
        dataclasses.replace(random_flow(depth=1), remat="none")


def penalised(flow, x, grid):
    """As Algorithm 1 takes it."""
    return jnp.sum(jax.grad(lambda x: jnp.sum(jnp.sin(flow(x, grid))))(x) ** 4)


LAYERS = {
    "tiles": (lambda: layer_of(random_flow(depth=1)), jax.grad(penalised)),
    "latent": (lambda: layer_of(architecture_flow("latent, experts")), lambda *at: at[0](*at[1:])),
    "mamba": (RECURRENT["mamba"], lambda *at: at[0](*at[1:])),
    "delta": (RECURRENT["delta"], lambda *at: at[0](*at[1:])),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_products_of_all_layers_and_orders_take_bfloat16(name, monkeypatch):
    """But the sums of decays, and what solves for the writes of the delta rule."""
    monkeypatch.setattr(attention, "DENSE", 4 if name == "tiles" else 96)
    layer, job = LAYERS[name]
    layers = jax.tree.map(lambda leaf: leaf.astype(jnp.float32)[None], layer())
    flow = lim.ResidualFlow(layers, compute="bfloat16")
    grid = lim.token_grid(5, jnp.float32)
    x = jnp.zeros((5, jax.tree.leaves(layers)[0].shape[-1]), jnp.float32)
    written = jax.jit(job).trace(flow, x, grid).lower(lowering_platforms=("cuda",)).as_text()
    products = re.findall(r"dot_general (.*) : \(.*x(\w+)>, .*x(\w+)>\) -> .*x(\w+)>", written)
    single = [how for how, *types in products if types != ["bf16", "bf16", "f32"]]
    assert len(products) - len(single) > 7
    assert len(single) == {"mamba": 1, "delta": 8}.get(name, 0)


@pytest.mark.slow
def test_a_flow_in_bfloat16_is_near_and_asks_for_nothing_elsewhere():
    flow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), random_flow(depth=2))
    grid = lim.token_grid(5, jnp.float32)
    x = random_states(1, 5, 6).astype(jnp.float32)

    @jax.jit
    def ends(flow, x):
        end, pull_back = jax.vjp(lambda x: flow(x, grid), x)
        return end, pull_back(jnp.cos(end))[0]

    rounded = dataclasses.replace(flow, compute="bfloat16")
    with jax.default_matmul_precision("bfloat16"):
        asked = ends.lower(flow, x).as_text()
    assert ends.lower(rounded, x).as_text() == asked
    for theirs, ours in zip(ends(flow, x), ends(rounded, x), strict=True):
        error = np.abs(ours - theirs).max() / np.abs(theirs).max()
        assert 1e-5 < error < 2e-2
    with pytest.raises(ValueError, match="compute: got 'float16', expected .bfloat16. or"):
        dataclasses.replace(flow, compute="float16")


def test_split_differs_from_euler_at_first_order():
    depths = (8, 16, 32, 64)
    errors = []
    layer = light_flow(depth=1).layers

    @jax.jit
    def ends(layers, x):
        return [lim.ResidualFlow(layers, step=step)(x, GRID) for step in SCHEMES.values()]

    for depth in depths:
        layers = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf), depth, axis=0), layer)  # noqa: B023
        euler, split = map(np.asarray, ends(layers, random_states()))
        errors.append(np.abs(euler - split).max())
    assert abs(fitted_order(depths, errors) - 1) < 0.15


def test_the_program_does_not_grow_with_depth():
    sizes = [
        len(str(jax.make_jaxpr(random_flow(depth=depth))(random_states(), GRID)).splitlines())
        for depth in (2, 16)
    ]
    assert sizes[0] == sizes[1]


def test_any_function_of_two_slots_is_a_field():
    class Mean(eqx.Module):
        rate: jax.Array

        def __call__(self, x, context, grid):
            return self.rate * (lim.integral(context, grid)[None, :] - x)

    x = np.asarray(random_states())
    flow = lim.ResidualFlow(Mean(jax.device_put(np.full(5, 2.0))), horizon=1.0)
    mean = x.mean(axis=0, keepdims=True)
    np.testing.assert_allclose(terminal(flow, x), mean + (x - mean) * 0.6**5, rtol=1e-12)


def test_a_residual_flow_keeps_its_precision():
    flow = random_flow(depth=3)
    x = random_states()
    in_single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), (flow, x))
    single = terminal(*in_single, lim.token_grid(12, dtype=jnp.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, terminal(flow, x), rtol=1e-4, atol=1e-5)


def test_batches_are_vmapped():
    flow = random_flow()
    batch = np.asarray(random_states(2, 3, 12, 6))
    ends = jax.jit(jax.vmap(terminal, in_axes=(None, 0)))(flow, batch)
    np.testing.assert_allclose(np.asarray(ends)[1], terminal(flow, batch[1]), rtol=1e-12)
