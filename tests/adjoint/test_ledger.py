"""The ledger of channels: exact sums, dense twins, and the limit in depth."""

import dataclasses
from functools import cache

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.dense import transposed
from reference.differences import fitted_order
from reference.light import light_layers
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
from lim_jax.adjoint.ledger import (
    RegionalChannels,
    boundary_strengths,
    regional_channels,
    relative_energies,
)
from lim_jax.adjoint.sites import attention_sites
from lim_jax.adjoint.tangent import causal_by_construction
from lim_jax.network.controls import linear_control

GRID = lim.graded_grid(LENGTH)
DEPTH = 12
FIRST = 5
READOUT = lim.LinearReadout(random_states(4, WIDTH, VOCABULARY))


def loss_on(grid):
    return lambda x, y: lim.cross_entropy(READOUT(x, grid), y, grid)


def labels_on(grid):
    return random_labels(3, grid.size, 5)


@cache
def measured(step):
    """A ledger, the gradient, and the heads' parts."""
    grid = GRID
    flow = random_flow(depth=DEPTH, step=SCHEMES[step], horizon=2.0)
    loss = loss_on(grid)
    labels = labels_on(grid)

    @jax.jit
    def everything(x):
        ledger = lim.adjoint.channels(flow, loss, (x, labels), grid)
        sites = attention_sites(flow, ledger.states, ledger.covectors, grid)
        return ledger, {
            "at depths": jnp.stack([ledger.at_depth(k) for k in range(DEPTH + 1)]),
            "gradient": jax.grad(lambda x: loss(flow(x, grid), labels))(x),
            "cone": ledger.cone,
            "by head": lim.adjoint.cone_by_head(sites, grid),
        }

    return jax.tree.map(np.asarray, everything(random_states()))


@pytest.mark.parametrize("step", SCHEMES)
def test_channels_sum_to_the_input_adjoint(step):
    # `eq:adjoint-channel-vector-decomposition`.
    ledger, of = measured(step)
    gradient = of["gradient"] / np.asarray(GRID.weights)[:, None]
    scale = np.abs(gradient).max()
    vectors = of["at depths"][0]
    np.testing.assert_allclose(vectors.sum(axis=0), gradient, rtol=0, atol=1e-13 * scale)
    added = ledger.cone_by_depth + ledger.local_by_depth
    np.testing.assert_allclose(
        added, -np.diff(ledger.covectors, axis=0), rtol=0, atol=1e-13 * scale
    )


def test_the_cone_of_one_split_layer_is_the_dense_kernels():
    """eps K(x)* (I + eps DFNN*) P by dense Jacobians; the local part is all that remains."""
    grid = lim.graded_grid(LENGTH)
    size = 0.5 * falling_profile(0)
    flow = random_flow(depth=1, step=lim.split, horizon=0.5)
    x = random_states()
    # `eq:primacy-channel-term`, `eq:recency-channel-term`.
    loss = loss_on(grid)

    @jax.jit
    def everything(x):
        field = jax.tree.map(lambda leaf: leaf[0], flow.layers)
        between = x + size * field.attention(x, x, grid)
        network = jax.jacfwd(lambda x: field.feed_forward(x, x, grid))(between)
        kernel = jax.jacfwd(lambda context: field.attention(x, context, grid))(x)
        local = jax.jacfwd(lambda state: field.attention(state, x, grid))(x)
        return lim.adjoint.channels(flow, loss, (x, labels_on(grid)), grid).vectors, (
            network,
            kernel,
            local,
        )

    vectors, jacobians = everything(x)
    terminal, cone, rest = np.asarray(vectors).reshape(3, -1)
    matrices = (np.asarray(jacobian).reshape(LENGTH * WIDTH, -1) for jacobian in jacobians)
    network, kernel, local = (size * transposed(matrix, grid) for matrix in matrices)
    attention_input = terminal + network @ terminal
    np.testing.assert_allclose(cone, kernel @ attention_input, rtol=1e-11, atol=1e-13)
    expected = local @ attention_input + network @ terminal
    np.testing.assert_allclose(rest, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("step", SCHEMES)
def test_pre_norm_fields_leave_the_sum_of_features_alone(step):
    ledger, _ = measured(step)
    sums = ledger.covectors.sum(axis=2)
    np.testing.assert_allclose(sums, np.broadcast_to(sums[-1:], sums.shape), atol=1e-13)
    for added in (ledger.cone_by_depth, ledger.local_by_depth):
        np.testing.assert_allclose(added.sum(axis=2), 0, atol=1e-13)


@pytest.mark.parametrize("step", SCHEMES)
def test_heads_and_depths_sum_to_the_cone(step):
    # `eq:depth-integrated-cone-channel`, `eq:primacy-channel-term`.
    ledger, of = measured(step)
    assert of["by head"].shape == (DEPTH, 2, LENGTH, WIDTH)
    np.testing.assert_allclose(of["by head"].sum(axis=1), ledger.cone_by_depth, atol=1e-14)
    np.testing.assert_allclose(of["cone"], of["by head"].sum(axis=(0, 1)), atol=1e-13)


def test_at_each_depth_the_channels_are_those_of_the_layers_that_follow():
    """The ledger of the rest of the flow, from the state there, is the ledger at that depth."""
    ledger, of = measured("split")
    at_depths = of["at depths"]
    covectors = ledger.covectors
    rest = lim.ResidualFlow(
        jax.tree.map(lambda leaf: leaf[FIRST:], random_flow(depth=DEPTH).layers),
        2.0 * (DEPTH - FIRST) / DEPTH,
        lambda time: falling_profile(time + 2.0 * FIRST / DEPTH),
        lim.split,
    )
    example = jax.device_put(ledger.states[FIRST]), labels_on(GRID)
    alone = lim.adjoint.channels(rest, loss_on(GRID), example, GRID).vectors
    np.testing.assert_allclose(at_depths[FIRST], alone, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(at_depths.sum(axis=1), covectors, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(at_depths[:, 0], np.stack([covectors[-1]] * (DEPTH + 1)))
    np.testing.assert_array_equal(at_depths[DEPTH, 1:], 0)


def test_a_depth_is_one_of_the_flows():
    ledger, _ = measured("euler")
    for depth in (-1, DEPTH + 1):
        with pytest.raises(ValueError, match="depth: got .*expected a depth from 0 to 12, the num"):
            ledger.at_depth(depth)


def test_relative_energies_do_not_see_layers_that_rescale_the_state():
    """Five tokenwise layers, x to g x: |P_k| grows like g^{M-k}, relative energies are one."""
    rates = np.array([12.0, 0.5, -0.8, 3.0, 0.1])
    x = random_states()

    class Rescaling(eqx.Module):
        rate: jax.Array

        def __call__(self, x, context, grid):
            return self.rate * x

    flow = lim.ResidualFlow(Rescaling(jax.device_put(rates)), horizon=5.0)

    @jax.jit
    def both(x):
        ledger = lim.adjoint.channels(flow, loss_on(GRID), (x, labels_on(GRID)), GRID)
        energies = [
            relative_energies(ledger.covectors[k][None], ledger.states[k], GRID)[0]
            for k in range(6)
        ]
        return ledger.covectors, jnp.stack(energies)

    covectors, energies = map(np.asarray, both(x))
    gains = np.cumprod(np.append(1, (1 + rates)[::-1]))[::-1]
    np.testing.assert_allclose(covectors, gains[:, None, None] * covectors[-1], rtol=1e-11)
    scale = np.asarray(GRID.weights) @ (np.asarray(x) ** 2).sum(axis=1)
    expected = scale * (covectors[0] ** 2).sum(axis=1)
    np.testing.assert_allclose(energies, np.stack([expected] * 6), rtol=1e-11)


@pytest.mark.slow
def test_channels_of_deep_networks_tend_to_those_of_the_continuous_flow():
    # `eq:depth-integrated-cone-channel`.
    # Attention has the cone and a local part, without a norm too: the programs are a third.
    control = linear_control(light_layers(3).attention)
    grid = lim.graded_grid(6)
    x = random_states(1, 6, WIDTH)
    loss = loss_on(grid)
    depths = (24, 48)

    @jax.jit
    def limit(x):
        continuous = lim.ContinuousFlow(control, profile=falling_profile)
        example = x, labels_on(grid)
        return lim.continuous_adjoint(continuous, loss, example, grid, jnp.array([0.0]))

    @jax.jit
    def at_depth(x, times):
        flow = lim.ResidualFlow(jax.vmap(control)(times), profile=falling_profile)
        ledger = lim.adjoint.channels(flow, loss, (x, labels_on(grid)), grid)
        return {"cone": ledger.cone, "local": ledger.local}

    found = [at_depth(x, jnp.asarray(np.arange(depth) / depth)) for depth in depths]
    expected = limit(x)._asdict()
    errors = {
        name: [np.abs(np.asarray(one[name]) - expected[name]).max() for one in found]
        for name in ("cone", "local")
    }
    for name, values in errors.items():
        assert abs(fitted_order(depths, values) - 1) < 0.15, (name, values)


def test_energies_and_cross_terms_are_the_influence():
    # `eq:regional-channel-energies`, `eq:regional-channel-cross-terms`,
    # `eq:exact-regional-influence-decomposition`, `eq:channel-correlation-bound`,
    # `eq:residual-influence-component`, `eq:residual-recency-contrast`, `eq:primacy-strength`,
    # `eq:recency-strength`.
    grid = GRID
    flow = random_flow(depth=3)
    regions = lim.boundary_regions(grid, 0.2)
    loss = loss_on(grid)
    batch = random_states(1, 3, LENGTH, WIDTH)

    @jax.jit
    def measured(batch):
        ledger = lambda x: lim.adjoint.channels(flow, loss, (x, labels_on(grid)), grid)  # noqa: E731
        vectors = jax.vmap(lambda x: ledger(x).vectors)(batch)
        regional = lim.adjoint.regional_channels(vectors, regions)
        strengths = boundary_strengths(regional, regions)
        names = ("totals", "pairs", "correlations", "energies", "residual_contrast")
        return vectors, strengths, {name: getattr(regional, name) for name in names}

    vectors, strengths, regional = jax.tree.map(np.asarray, measured(batch))
    influence = lim.influence(
        lambda flow, x, y: loss(flow(x, grid), labels_on(grid)), flow, (batch, None), grid, regions
    )
    expected = lim.regional_averages(influence.energy, regions)
    np.testing.assert_allclose(regional["totals"], expected, rtol=1e-12)
    # By loops, from the vectors.
    weights = np.asarray(regions.weights)
    for b in range(3):
        for c, (first, second) in enumerate(((0, 1), (0, 2), (1, 2))):
            products = (vectors[:, first] * vectors[:, second]).sum(axis=2).mean(axis=0)
            pair = weights[b] @ products / weights[b].sum()
            np.testing.assert_allclose(regional["pairs"][b, c], pair, rtol=1e-11)
            sizes = [
                weights[b] @ (vectors[:, a] ** 2).sum(axis=2).mean(axis=0) / weights[b].sum()
                for a in (first, second)
            ]
            rho = abs(pair) / np.sqrt(sizes[0] * sizes[1])
            np.testing.assert_allclose(regional["correlations"][b, c], rho, rtol=1e-11)
            assert rho <= 1
    squares = (vectors**2).sum(axis=3).mean(axis=0)
    np.testing.assert_allclose(strengths.primacy, weights[0] @ squares[1], rtol=1e-12)
    np.testing.assert_allclose(strengths.recency, weights[2] @ squares[0], rtol=1e-12)
    contrast = regional["energies"][2, 0] - regional["energies"][1, 0]
    np.testing.assert_allclose(regional["residual_contrast"], contrast)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_energies_of_channels_of_half_precision_are_sums_of_single(dtype):
    """Of 64 components of sizes from 0 to 1: their products were rounded at each position."""
    numbers = np.random.default_rng(0).uniform(size=(1, 3, 10, 64))
    vectors = jnp.asarray(numbers, dtype)
    exact = np.asarray(vectors, float)
    grid = lim.token_grid(10, dtype)
    products = regional_channels(vectors, lim.boundary_regions(grid, "1/5")).products
    by_position = np.einsum("eaid,ebid->eiab", exact, exact)
    regions = [by_position[:, part].mean(axis=1) for part in np.split(np.arange(10), [2, 8])]
    np.testing.assert_allclose(products, np.stack(regions, axis=1), rtol=1e-6)
    energies = relative_energies(vectors[0], vectors[0, 0], grid)
    squares = (exact[0] ** 2).sum(axis=2)
    np.testing.assert_allclose(energies, squares[0].mean() * squares, rtol=1e-6)


def test_standard_errors_are_those_of_the_mean():
    energies = np.array([1.0, 2.0, 6.0])[:, None, None, None] * np.ones((1, 3, 1, 1))
    regional = lim.adjoint.RegionalChannels(jnp.asarray(np.eye(3) * energies))
    np.testing.assert_allclose(regional.standard_errors, np.sqrt(7.0 / 3), rtol=1e-12)
    alone = lim.adjoint.RegionalChannels(regional.products[:1])
    assert bool(jnp.isinf(alone.standard_errors).all())


def test_correlations_of_channels_that_are_not_numbers_are_none():
    """Zero is where a channel vanishes, and nowhere else."""
    products = np.tile(np.eye(3), (1, 3, 1, 1))
    products[0, 0, 0, 0], products[0, 1, 0, 0] = np.nan, 0
    correlations = np.asarray(RegionalChannels(jax.device_put(products)).correlations)
    assert np.isnan(correlations[0, :2]).all() and (correlations[1:] == 0).all()


class Mixing(eqx.Module):
    """The field that mixes the positions of each slot by a matrix of its own."""

    of_x: jax.Array
    of_context: jax.Array

    def __call__(self, x, context, grid):
        return self.of_x @ x + self.of_context @ context


@pytest.fixture(scope="module")
def ledger_of_mixing():
    """The channels of two layers that mix positions, whichever matrices they have."""

    @eqx.filter_jit
    def ledger(of_x, of_context, x, grid):
        flow = lim.ResidualFlow(Mixing(of_x, of_context))
        return lim.adjoint.channels(flow, lambda x, y: (x**3).sum(), (x, None), grid)

    return ledger


def looking_ahead(length):
    """Which positions rows read, by the kind, where they read ahead too."""
    row, column = np.indices((length, length))
    yield "all", row >= 0
    yield "the next", column <= row + 1
    for size in {length // 4, length // 2, 3 * length // 4} - {0, 1}:
        yield f"a prefix of {size}", (column <= row) | (column < size)
        yield f"the last {size}", (column <= row) | (row >= length - size)
        yield f"blocks of {size} and before", column // size <= row // size
        yield f"blocks of {size} alone", column // size == row // size


def causal(length):
    """Which positions causal rows read: all, their own, a window, all before them, their text."""
    row, column = np.indices((length, length))
    past = column <= row
    return (
        past,
        column == row,
        past & (column > row - 2),
        column < row,
        past & (column // 3 == row // 3),
    )


@pytest.mark.parametrize("case", ["causal", "context", "query", "second layer", "panels"])
def test_a_field_that_reads_later_tokens_is_refused(ledger_of_mixing, case):
    """Each but the causal one reads one token from behind the middle, by a number of 1e-4."""
    # `rem:attention-measure-scope`.
    generator = np.random.default_rng(0)
    of_context = np.tril(generator.standard_normal((2, LENGTH, LENGTH)))
    of_x = np.stack([np.eye(LENGTH)] * 2)
    slot = of_x if case == "query" else of_context
    layer = int(case == "second layer")
    grid = lim.gauss_grid(LENGTH) if case == "panels" else lim.token_grid(LENGTH)
    if case != "causal":
        slot[layer, LENGTH // 2 - 1, LENGTH // 2] = 1e-4
    args = (*jax.device_put((of_x, of_context, generator.standard_normal((LENGTH, 2)))), grid)
    if case in ("causal", "panels"):
        ledger = ledger_of_mixing(*args)
        pulled = np.swapaxes(of_context, 1, 2)[1] @ (
            np.asarray(ledger.covectors[2]) * np.asarray(grid.weights)[:, None]
        )
        expected = pulled / np.asarray(grid.weights)[:, None] / 2
        np.testing.assert_allclose(ledger.cone_by_depth[1], expected, rtol=1e-9)
        return
    with pytest.raises(eqx.EquinoxRuntimeError, match="got a field that reads later tokens"):
        ledger_of_mixing(*args)
    if case == "context":
        for read in dict(looking_ahead(LENGTH)).values():
            mixing = jax.device_put(np.stack([np.tril(read), 1.0 * read]))
            with pytest.raises(eqx.EquinoxRuntimeError, match="reads later tokens"):
                ledger_of_mixing(args[0], mixing, *args[2:])


@pytest.mark.parametrize("length", [1, 2, 3, 8])
def test_prefixes_halves_and_ends_that_read_both_ways_look_ahead(length):
    """In either slot, at every length; and no causal reading does."""
    # `rem:attention-measure-scope`.
    generator = np.random.default_rng(length)
    grid = lim.token_grid(length)
    x = jax.device_put(generator.standard_normal((length, 2)))

    @jax.jit
    def ahead(of_x, of_context):
        return lim.adjoint.looks_ahead(Mixing(of_x, of_context), x, grid)

    def judged(read, slot):
        mixing = [np.eye(length), np.eye(length)]
        mixing[slot] = read * generator.standard_normal((length, length))
        return bool(ahead(*jax.device_put(mixing)))

    if length > 1:
        for kind, read in looking_ahead(length):
            assert judged(read, 0) and judged(read, 1), kind
    for read in causal(length):
        assert not judged(read, 0) and not judged(read, 1)


@pytest.mark.slow
def test_a_continuous_flow_that_reads_later_tokens_has_no_cone():
    """Only at its end: the field at depth time t reads the last two tokens t times."""
    # `rem:attention-measure-scope`.
    read = np.zeros((LENGTH, LENGTH))
    read[-2:, -2:] = 1
    flow = lim.ContinuousFlow(
        lambda time: lambda x, context, grid: time * (read @ context),
        solver=diffrax.Euler(),
        stepsize_controller=diffrax.ConstantStepSize(),
        first_step=0.5,
        max_steps=2,
    )
    with pytest.raises(eqx.EquinoxRuntimeError, match="flow.control: got a field that reads later"):
        eqx.filter_jit(lim.continuous_adjoint)(
            flow, lambda x, y: (x**2).sum(), (random_states(), None), GRID, jnp.zeros(1)
        )


def test_only_the_librarys_own_fields_are_causal_as_written():
    """A sum of one's own within the library's attention is looked at like any other field."""
    # `rem:attention-measure-scope`.
    written = causal_by_construction
    layer = jax.tree.map(lambda leaf: leaf[0], random_flow(depth=1).layers)

    def to_the_mean(query, key, value, grid):
        return jnp.broadcast_to(value.mean(axis=0, keepdims=True), value.shape)

    attend = eqx.tree_at(
        lambda field: field.attention,
        layer,
        replace_fn=lambda a: dataclasses.replace(a, attend=to_the_mean),
    )
    assert written(layer) and written(layer.attention)
    with pytest.raises(ValueError, match="attention: got CausalAttention that attends by function"):
        lim.adjoint.kernel_factors(attend.attention, random_states(), GRID)
    with pytest.raises(eqx.EquinoxRuntimeError, match="field: got one that looks ahead"):
        jax.block_until_ready(
            lim.adjoint.cone_mass(attend.attention, random_states(), GRID, "frobenius")
        )
    for other in (attend, attend.attention, Mixing(jnp.ones(1), jnp.ones(1)), lambda x, c, g: x):
        assert not written(other)
    looks_ahead = eqx.filter_jit(lim.adjoint.looks_ahead)
    assert looks_ahead(attend, random_states(), GRID)
    assert not looks_ahead(layer, random_states(), GRID)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_strengths_of_channels_of_half_precision_are_integrals_in_single(dtype, as_users_run):
    """The regions' weights of half precision do not multiply energies of single."""
    numbers = np.random.default_rng(0).uniform(size=(2, 3, 10, 5))
    vectors = jnp.asarray(numbers, dtype)
    regions = lim.boundary_regions(lim.token_grid(10, dtype), "1/5")
    strengths = boundary_strengths(regional_channels(vectors, regions), regions)
    squares = (np.asarray(vectors, float) ** 2).sum(axis=3).mean(axis=0) / 10
    expected = squares[1, :2].sum(), squares[0, 8:].sum()
    np.testing.assert_allclose(strengths, expected, rtol=1e-6)
