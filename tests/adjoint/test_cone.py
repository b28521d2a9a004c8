"""The kernel's blocks and cone mass against dense Jacobians of the context slot."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from reference.as_users import temporary_bytes
from reference.dense import formed_blocks, kernel_blocks, prefix_weights
from reference.differences import difference_by_calls
from reference.light import without_norm
from reference.networks import (
    GRIDS,
    LENGTH,
    WIDTH,
    falling_profile,
    layer_of,
    random_flow,
    random_states,
)

import lim_jax as lim
from lim_jax import probes
from lim_jax.adjoint.sites import attention_sites


def attention():
    return layer_of(random_flow(depth=1)).attention


def plain_attention():
    """For what does not ask which derivatives the blocks are made of."""
    return without_norm(attention())


@pytest.mark.parametrize("grid_name", GRIDS)
def test_blocks_are_the_jacobian_of_the_context(grid_name):
    # `eq:attention-nonlocal-kernel`, `eq:one-head-attention-mean-value`.
    grid = GRIDS[grid_name](LENGTH)
    x = random_states()
    blocks = formed_blocks(attention(), x, grid)
    np.testing.assert_allclose(blocks, kernel_blocks(attention(), x, grid), rtol=0, atol=1e-13)


def future_weights(grid):
    """Of the integral from p_j to 1 over the kernel's Jacobian blocks squared, by loops."""
    weights = np.asarray(grid.weights)
    prefix = prefix_weights(grid)
    future = np.zeros((LENGTH, LENGTH))
    for j in range(LENGTH):
        for i in range(j, LENGTH):
            future[i, j] = weights[i] * prefix[i, j] / weights[j] / prefix[i, j] ** 2
    return future


@pytest.mark.parametrize("norm", ["operator", "frobenius"])
def test_cone_mass_on_unequal_cells_integrates_the_density_of_the_blocks(norm):
    """Sum over i >= j of Δp_i W_ij / Δp_j ||K^_ij / W_ij||^2."""
    grid = lim.graded_grid(LENGTH)
    x = random_states()
    blocks = np.asarray(kernel_blocks(attention(), x, grid))
    sizes = np.linalg.norm(blocks, ord=2 if norm == "operator" else "fro", axis=(2, 3))
    mass = lim.adjoint.cone_mass(attention(), x, grid, norm)
    expected = (future_weights(grid) * sizes**2).sum(axis=0)
    np.testing.assert_allclose(mass, expected, rtol=1e-11)


def test_cone_mass_on_tokens_is_the_papers_sum():
    """Sum over i >= j of Δp ||L K_ij||^2, by NumPy's singular values."""
    # `eq:cone-mass`.
    grid = lim.token_grid(LENGTH)
    x = random_states()
    blocks = np.asarray(kernel_blocks(attention(), x, grid)) * LENGTH
    sizes = np.linalg.norm(blocks, ord=2, axis=(2, 3))
    expected = np.tril(sizes**2).sum(axis=0) / LENGTH
    mass = lim.adjoint.cone_mass(attention(), x, grid)
    np.testing.assert_allclose(mass, expected, rtol=1e-12)


def test_cone_mass_of_averaging_is_known():
    """For k = 1/p it is the integral of p^-2 from q to 1, 1/q - 1, spectrally on panels."""
    # `eq:cone-mass`.
    zero, one = jax.device_put((np.zeros((1, 1, 1)), np.ones((1, 1, 1))))
    averaging = lim.CausalAttention(lambda z: z, zero, zero, one, one)
    grid = lim.gauss_grid(20, panels=8)
    x = jax.device_put(np.ones((grid.size, 1)))
    mass = np.asarray(lim.adjoint.cone_mass(averaging, x, grid))
    nodes = np.asarray(grid.nodes)
    inside = nodes > 2.0**-7
    expected = 1 / nodes - 1
    np.testing.assert_allclose(mass[inside], expected[inside], rtol=1e-11, atol=1e-11)


def test_the_literal_estimator_is_the_papers_sum():
    """Sum over i >= j of Δp ||K^_ij||^2, which is L^-2 of the density."""
    # `eq:finite-cone-mass-estimator`.
    x = random_states()
    grid = lim.graded_grid(LENGTH)
    sizes = np.linalg.norm(kernel_blocks(attention(), x, grid), ord=2, axis=(2, 3))
    mass = lim.adjoint.cone_mass(attention(), x, grid, normalisation="finite")
    expected = np.asarray(grid.weights) @ np.tril(sizes**2)
    np.testing.assert_allclose(mass, expected, rtol=1e-12)


@pytest.mark.slow
def test_the_operator_norm_differentiates_once():
    grid = lim.token_grid(4)
    x = random_states(1, 4, WIDTH)
    direction = random_states(2, 4, WIDTH)

    @jax.jit
    def slopes(attention, x, direction):
        def total(x):
            return jnp.sum(lim.adjoint.cone_mass(attention, x, grid))

        _, slope = jax.linearize(total, x)
        (gradient,) = jax.linear_transpose(slope, x)(jnp.ones(()))
        return total(x), slope(direction), jnp.vdot(gradient, direction)

    layer = attention()
    _, forward, reverse = slopes(layer, x, direction)
    expected = difference_by_calls(lambda x: slopes(layer, x, direction)[0], x, direction)
    np.testing.assert_allclose(forward, expected, rtol=1e-7)
    np.testing.assert_allclose(reverse, expected, rtol=1e-7)


def test_the_cone_mass_of_512_tokens_fits():
    """L = 512, d = 32, 4 heads, in float64: the compiled program's temporary memory."""
    grid = lim.token_grid(512)
    x = jax.ShapeDtypeStruct((512, 32), float)
    attention = jax.eval_shape(lambda: lim.CausalAttention.init(32, heads=4, key=jax.random.key(0)))
    traced = jax.jit(lambda a, x: lim.adjoint.cone_mass(a, x, grid)).trace(attention, x)
    assert temporary_bytes(traced) < 60 * 2**20


def arrays_of(jaxpr):
    """The sizes of all arrays that a program makes, those of its loops and branches included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from arrays_of(inner)


@pytest.mark.parametrize("norm", ["operator", "frobenius"])
def test_no_matrix_of_the_width_is_kept_for_each_position(norm):
    """Neither forward nor in reverse: the derivatives of keys and values go by columns."""
    length = 256
    width = 96
    grid = lim.token_grid(length)
    x = jax.ShapeDtypeStruct((length, width), float)
    shapes = jax.eval_shape(lambda: lim.CausalAttention.init(width, heads=2, key=jax.random.key(0)))

    def total(attention, x):
        return lim.adjoint.cone_mass(attention, x, grid, norm).sum()

    program = jax.make_jaxpr(jax.value_and_grad(total, argnums=(0, 1)))(shapes, x)
    largest = max(arrays_of(program.jaxpr))
    assert 2 * length**2 <= largest < length * width**2 / 2


@jax.jit
def orthogonal_probes():
    sets = jnp.linalg.qr(jax.random.normal(jax.random.key(1), (2, WIDTH, WIDTH)))[0]
    return jnp.sqrt(WIDTH) * sets.reshape(2 * WIDTH, WIDTH)


@pytest.mark.parametrize(
    "grid_name, normalisation, norm",
    [("tokens", "finite", "operator"), ("graded", "density", "frobenius")],
)
def test_a_field_of_ones_own_has_the_mass_of_its_blocks(grid_name, normalisation, norm):
    """By the closed form of the same attention, which never forms a block."""
    grid = GRIDS[grid_name](LENGTH)
    x = random_states()
    layer = plain_attention()

    def field(x, context, grid):
        return layer(x, context, grid) + jnp.tanh(x)

    full = jax.device_put(np.sqrt(WIDTH) * np.eye(WIDTH))

    @jax.jit
    def masses(x):
        return [
            (
                lim.adjoint.cone_mass(field, x, grid, norm, normalisation),
                *lim.adjoint.probed_cone_mass(field, x, grid, full, normalisation),
            )
            for field in (field, layer)  # noqa: F402
        ]

    for one, other in zip(*masses(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["operator", "frobenius"])
def test_the_mass_of_a_field_of_ones_own_differentiates_once(norm):
    """Where blocks are zero too: before each position."""
    grid = lim.token_grid(LENGTH)
    x = random_states()
    layer = plain_attention()
    falling = falling_profile(grid.nodes)

    def slope(field):
        return jax.grad(lambda x: falling @ lim.adjoint.cone_mass(field, x, grid, norm))(x)

    slope_of_field, expected = jax.jit(
        lambda: (slope(lambda x, context, grid: layer(x, context, grid)), slope(layer))
    )()
    np.testing.assert_allclose(
        slope_of_field, expected, rtol=0, atol=1e-9 * np.abs(slope_of_field).max()
    )


def test_a_field_that_looks_ahead_has_no_cone():
    """Columns are looked at, each of them: here one row in the middle reads the next."""
    read = np.tril(np.ones((LENGTH, LENGTH)))
    read[6, 7] = 1e-4

    def ahead(x, context, grid):
        return x + read @ context

    grid = lim.token_grid(LENGTH)
    x = random_states()
    with pytest.raises(eqx.EquinoxRuntimeError, match="field: got one that looks ahead"):
        jax.block_until_ready(lim.adjoint.cone_mass(ahead, x, grid))
    with pytest.raises(eqx.EquinoxRuntimeError, match="field: got one that looks ahead"):
        jax.block_until_ready(lim.adjoint.probed_cone_mass(ahead, x, grid, x[:2]))


@pytest.mark.parametrize("normalisation", ["density", "finite"])
def test_orthogonal_probes_are_exact(normalisation):
    grid = lim.graded_grid(LENGTH)
    x = random_states()
    drawn = orthogonal_probes()
    mass = lim.adjoint.probed_cone_mass(plain_attention(), x, grid, drawn, normalisation)
    exact = lim.adjoint.cone_mass(plain_attention(), x, grid, "frobenius", normalisation)
    np.testing.assert_allclose(mass.value, exact, rtol=1e-12)


@pytest.mark.parametrize("draw", [probes.gaussian_probes, probes.rademacher_probes])
def test_independent_probes_err_as_they_say(draw):
    """400 estimates of 50 probes: unbiased, and their spread is the stated error."""
    grid = lim.graded_grid(LENGTH)
    x = random_states()

    # `eq:probe-cone-mass-estimator`, `eq:isotropic-observability-probes`.
    @jax.jit
    def estimates(attention, x):
        drawn = draw(20_000, WIDTH, key=jax.random.key(1)).reshape(400, 50, WIDTH)
        return jax.vmap(lambda some: lim.adjoint.probed_cone_mass(attention, x, grid, some))(drawn)

    value, error = map(np.asarray, estimates(plain_attention(), x))
    exact = np.asarray(lim.adjoint.cone_mass(plain_attention(), x, grid, "frobenius"))
    spread = value.std(axis=0, ddof=1)
    assert (np.abs(value.mean(axis=0) - exact) / (spread / 20)).max() < 4
    typical = np.sqrt((error**2).mean(axis=0))
    np.testing.assert_allclose(typical, spread, rtol=0.15)


def sine_sum(x, y):
    return jnp.sum(jnp.sin(x))


@jax.jit
def joint_cone_and_blocks(flow, x, grid):
    """The joint cone of a batch, and the dense blocks and covectors of which it is made."""

    def sites_of(x):
        trajectory = lim.adjoint_trajectory(flow, sine_sum, (x, None), grid)
        return attention_sites(flow, trajectory.states, trajectory.covectors, grid)

    def blocks_of(site):
        return kernel_blocks(site.attention, site.states, grid)

    sites = jax.vmap(sites_of)(x)
    blocks = jax.vmap(jax.vmap(blocks_of))(sites)
    return lim.adjoint.joint_cone(sites, grid), blocks, sites.covectors, grid.prefix_weights()


def test_the_joint_cone_is_the_loop_over_all_pairs():
    """Γ by dense blocks and NumPy loops: depths t, u, positions p, r beyond q, two examples."""
    # `eq:joint-cross-depth-cone-integrand`.
    length = 4
    grid = lim.graded_grid(4)
    flow = random_flow(depth=2, step=lim.split, horizon=1.5)
    states = random_states(1, 2, length, WIDTH)
    joint, *of = jax.tree.map(np.asarray, joint_cone_and_blocks(flow, states, grid))
    blocks, covectors, prefix = of
    weights = np.asarray(grid.weights)
    parts = np.zeros((2, 2, length, length, WIDTH))  # example, depth, p, q
    for n in range(2):
        for k in range(2):
            size = falling_profile(0.75 * k)
            for i in range(length):
                for j in range(i + 1):
                    density = blocks[n, k, i, j].T / prefix[i, j]
                    parts[n, k, i, j] = size * density @ covectors[n, k, i]
    for j in range(length):
        future = weights * prefix[:, j] / weights[j]
        seen = parts[:, :, j:, j]
        gamma = np.einsum("ntpd,nurd->tupr", seen, seen) / 2
        np.testing.assert_allclose(joint.lowest[j], gamma.min(), rtol=1e-9)
        np.testing.assert_allclose(joint.largest[j], np.abs(gamma).max(), rtol=1e-10)
        total = 0.75**2 * np.einsum("p,tupr,r->", future[j:], gamma, future[j:])
        np.testing.assert_allclose(joint.energy[j], total, rtol=1e-9)
        np.testing.assert_allclose(joint.future[j], future.sum(), rtol=1e-14)


def test_the_joint_cone_sums_to_the_energy_of_the_channel():
    grid = lim.graded_grid(LENGTH)
    flow = random_flow(depth=3, step=lim.split, horizon=1.5)

    # `eq:full-depth-cone-energy`, `eq:exact-cone-covariance-energy`.
    @jax.jit
    def cones(flow, x):
        ledger = jax.vmap(lambda x: lim.adjoint.channels(flow, sine_sum, (x, None), grid))(x)
        sites = jax.vmap(lambda s, p: attention_sites(flow, s, p, grid))(
            ledger.states, ledger.covectors
        )
        by_depth = jax.vmap(lambda s: lim.adjoint.cone_energies(s, grid))(sites)
        return ledger.cone_by_depth, lim.adjoint.joint_cone(sites, grid).energy, by_depth

    cone, found, by_depth = map(np.asarray, cones(flow, random_states(1, 3, LENGTH, WIDTH)))
    energy = (cone.sum(axis=1) ** 2).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(found, energy, rtol=1e-11)
    # At one depth, per unit of depth and of the profile.
    increments = 0.5 * falling_profile(np.array([0.0, 0.5, 1.0]))[None, :, None]
    np.testing.assert_allclose(by_depth, (cone**2).sum(axis=3) / increments**2, rtol=1e-11)


@pytest.mark.parametrize("normalisation", ["density", "finite"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_cone_mass_on_a_grid_of_few_bits_has_weights_of_single_precision(
    dtype, normalisation, as_users_run
):
    """Products of two weights of a graded grid vanish in float16: the mass was a sixth."""

    def rounded(tree, dtype):
        return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)

    attention = rounded(plain_attention(), dtype)
    states = rounded(random_states(0, 24, WIDTH), dtype)

    def mass(dtype):
        grid = lim.graded_grid(24, dtype)
        network, x = rounded((attention, states), dtype)
        return lim.adjoint.cone_mass(network, x, grid, "frobenius", normalisation)

    np.testing.assert_allclose(mass(dtype), mass(jnp.float32), rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_cones_of_half_precision_are_sums_of_single(dtype, as_users_run):
    """The joint cone raised ValueError; squares of covectors of some 1e-4 vanish in float16."""
    grid = lim.token_grid(LENGTH, dtype)
    flow = random_flow(depth=2, step=lim.split, horizon=1.5)
    flow = jax.tree.map(lambda leaf: leaf.astype(dtype), flow)
    states = random_states(1, 2, 3, LENGTH, WIDTH).astype(dtype)
    covectors = (1e-4 * random_states(2, 2, 3, LENGTH, WIDTH)).astype(dtype)

    def visit(x, p):
        return attention_sites(flow, x, p, grid)

    sites = jax.vmap(visit)(states, covectors)
    pulled = jax.vmap(lambda site: lim.adjoint.cone_by_head(site, grid))(sites)
    cones = np.asarray(pulled, float).sum(axis=2)
    increments = np.asarray(sites.increments, float)[:, :, None, None]
    squares = ((cones / increments) ** 2).sum(axis=3)
    rounding = 20 * float(jnp.finfo(dtype).eps)

    def close(found, exact):
        np.testing.assert_allclose(found, exact, rtol=0, atol=rounding * np.abs(exact).max())

    energies = jax.vmap(lambda site: lim.adjoint.cone_energies(site, grid))(sites)
    close(energies, squares)
    joint = lim.adjoint.joint_cone(sites, grid)
    assert energies.dtype == joint.energy.dtype == jnp.float32
    close(joint.energy, (cones.sum(axis=1) ** 2).sum(axis=2).mean(axis=0))
    np.testing.assert_allclose(joint.horizon, 1.5, rtol=1e-6)  # of both layers
