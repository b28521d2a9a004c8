"""Prefixes that begin somewhere: windows, packed contexts, padding on the left."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.architectures import architecture_flow
from reference.networks import GRIDS, WIDTH, layer_of, random_states
from scipy.special import softmax

import lim_jax as lim
from lim_jax.adjoint.cone import joint_cone
from lim_jax.grid import segment_starts
from lim_jax.network import Rotary, attention, tiled_attention, tiles
from lim_jax.network.attention import attention_kernel, attention_weights, causal_attention

# Two examples of eleven rows in tiles of four: tiles before every start, a row that sees nothing of
# the first tile that its neighbours see, starts within tiles and at their ends.
PACKED = np.array([[0, 0, 2, 2, 2, 5, 5, 5, 5, 5, 10], [0, 1, 1, 1, 1, 1, 1, 7, 8, 8, 8]])


def arrays(seed, length, size=3, features=2):
    shapes = (length, size), (length, size), (length, features)
    return tuple(np.array(random_states(seed + i, *shape)) for i, shape in enumerate(shapes))


def small_tiles(patch, tile=4):
    patch.setattr(tiles, "TILE", tile)
    patch.setattr(attention, "DENSE", tile)


def by_rows(query, key, grid, starts):
    """`eq:causal-attention-weights` over each row's own prefix, one softmax after another."""
    weights = np.asarray(grid.weights)
    share = float(1 - grid.offset)
    result = np.zeros((len(query), len(query)))
    for i, first in enumerate(starts):
        mass = weights[first : i + 1].copy()
        mass[-1] *= share
        scores = key[first : i + 1] @ query[i] / np.sqrt(query.shape[1])
        result[i, first : i + 1] = softmax(scores + np.log(mass))
    return result


@pytest.mark.parametrize("name", GRIDS)
def test_rows_attend_from_where_they_start(name):
    grid = GRIDS[name](11)
    query, key, _ = arrays(0, 11)
    starts = PACKED[0]

    @jax.jit
    def measured(query, key, starts):
        begun = grid.starting(starts)
        kernel = attention_kernel(query, key, begun)
        return attention_weights(query, key, begun), kernel, begun.prefix_weights()

    weights, kernel, prefix = map(np.asarray, measured(query, key, starts))
    expected = by_rows(query, key, grid, starts)
    np.testing.assert_allclose(weights, expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(prefix * kernel, expected, rtol=1e-13, atol=1e-15)
    assert (kernel[expected == 0] == 0).all()


def in_every_mode(formula, at, u, v):
    """Values, and derivatives of both orders: none is a matrix."""
    value = lambda at: formula(*at)  # noqa: E731
    gradient = jax.grad(lambda at: jnp.sum(jnp.sin(value(at))))
    slope = lambda at: jax.jvp(value, (at,), (u,))[1]  # noqa: E731
    first, jvp_of_grad = jax.jvp(gradient, (at,), (u,))
    jvp, jvp_of_jvp = jax.jvp(slope, (at,), (v,))
    return {
        "value": value(at),
        "grad": first,
        "jvp": jvp,
        "jvp of grad": jvp_of_grad,
        "jvp of jvp": jvp_of_jvp,
    }


@pytest.mark.slow
def test_tiles_are_the_dense_formula_in_every_mode(monkeypatch):
    """With traced starts, of other examples others; without, in `test_tiled_attention`."""
    small_tiles(monkeypatch)
    grid = lim.graded_grid(11)

    def dense(query, key, value, begun):
        return attention_weights(query, key, begun) @ value

    def of(formula):
        def modes(at, u, v, starts):
            begun = grid.starting(starts)
            return in_every_mode(lambda *at: formula(*at, begun), at, u, v)

        return jax.vmap(modes)

    points = jax.device_put(
        [
            jax.tree.map(lambda a, b: np.stack([a, b]), arrays(seed, 11), arrays(seed + 50, 11))
            for seed in (0, 10, 20)
        ]
        + [PACKED]
    )
    by_mode = jax.jit(of(causal_attention))(*points)
    expected = eqx.filter_jit(of(dense))(*points)
    for mode in by_mode:
        for ours, theirs in zip(
            *map(jax.tree.leaves, (by_mode[mode], expected[mode])), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12, err_msg=mode)


@pytest.mark.parametrize(
    "length, window", [(1, 1), (20, 3), (128, 40), (129, 1), (256, 128), (300, 131)]
)
def test_windows_of_ragged_lengths_are_one_softmax_a_row(length, window):
    query, key, value = arrays(3, length)

    @jax.jit
    def attended(query, key, value):
        grid = lim.token_grid(length).windowed(window)
        return tiled_attention.blocked_attention(query, key, value, grid)

    starts = np.maximum(np.arange(length) - window + 1, 0)
    expected = by_rows(query, key, lim.token_grid(length), starts) @ value
    np.testing.assert_allclose(attended(query, key, value), expected, rtol=1e-12, atol=1e-14)


def test_tiles_that_no_row_sees_are_not_read(monkeypatch):
    """What stands there may be anything: masked only, it would be NaN times zero."""
    small_tiles(monkeypatch)
    query, key, value = arrays(0, 14)
    value[:4] = key[:4] = np.nan

    @jax.jit
    @jax.grad
    def gradient(query, key, value):
        return jnp.sum(causal_attention(query, key, value, lim.token_grid(14).windowed(4))[8:])

    slopes = np.asarray(gradient(query, key, value))
    assert np.isfinite(slopes[8:]).all() and np.abs(slopes[8:]).min() > 0


def test_windows_and_starts_go_together():
    """The later of two starts counts, whichever came first."""
    grid = lim.token_grid(11)
    starts = jnp.asarray(PACKED[0])
    expected = np.maximum(np.arange(11) - 2, PACKED[0])
    np.testing.assert_array_equal(grid.windowed(3).starting(starts).starts, expected)
    np.testing.assert_array_equal(grid.starting(starts).windowed(3).starts, expected)
    assert grid.windowed(11) is grid


def test_chunks_are_counted_from_where_contexts_begin():
    """Contexts of five and three positions in chunks of two, and a window of two on top of them."""
    grid = lim.token_grid(8)
    packed = grid.starting(jnp.array([0, 0, 0, 0, 0, 5, 5, 5])).chunked(2)
    np.testing.assert_array_equal(packed.starts, [0, 0, 2, 2, 4, 5, 5, 7])
    np.testing.assert_array_equal(grid.chunked(3).windowed(2).starts, [0, 0, 1, 3, 3, 4, 6, 6])
    np.testing.assert_array_equal(packed.unmasked.chunked(4).starts, 4 * [0] + 4 * [4])


def test_chunks_are_refused_where_it_is_not_known_any_more_where_contexts_begin(as_users_run):
    grid = lim.token_grid(8)
    for cut in (grid.windowed(4), grid.chunked(4), grid.chunked(4).windowed(3)):
        with pytest.raises(
            ValueError, match="chunk: got 2 positions on a grid .* Call chunked first"
        ):
            cut.chunked(2)
    for cut in (grid.chunked(4), grid.chunked(4).windowed(3)):
        with pytest.raises(ValueError, match="starts: got .* Call starting before chunked"):
            cut.starting(jnp.zeros(8, int))


@pytest.mark.parametrize("name", ["window", "chunk"])
@pytest.mark.parametrize("size", [0, -1, 2.0])
def test_a_window_holds_a_row_itself_at_least(name, size, as_users_run):
    grid = lim.token_grid(4)
    cut = {"window": grid.windowed, "chunk": grid.chunked}[name]
    with pytest.raises(ValueError, match=f"{name}: got {size}, expected a whole number .* least 1"):
        cut(size)


@pytest.fixture(scope="module")
def ledger():
    """A network's ledger of one row under query weights: channels, cone mass and joint cone."""
    flow = architecture_flow("everything", horizon=1.5)
    # By the token, whatever the length of the row.
    by_token = Rotary((0.9,))
    flow = eqx.tree_at(lambda flow: flow.layers.attention.mask.positions, flow, by_token)

    def measured(x, asked, starts):
        grid = lim.token_grid(x.shape[0])
        grid = grid if starts is None else grid.starting(starts)

        def loss(state, asked):
            return jnp.sum(asked[:, None] * jnp.sin(state))

        by_channel = lim.adjoint.channels(flow, loss, (x, asked), grid)
        attention = layer_of(flow).attention
        mass = lim.adjoint.cone_mass(attention, x, grid, "frobenius", "finite")
        return by_channel.vectors / x.shape[0], mass * x.shape[0]

    return lambda *of: eqx.filter_jit(measured)(*jax.device_put(of))


@pytest.mark.slow
def test_packed_contexts_have_the_channels_of_contexts_alone(ledger):
    """Channels (Euclidean) and cone masses, with turning keys and a window."""
    packed = 5, 1, 5  # lengths that recur, here and below: each is a program
    length = sum(packed)
    x, asked = map(np.asarray, (random_states(1, length, WIDTH), random_states(4, length)))
    starts = segment_starts(jnp.asarray(np.repeat(np.arange(len(packed)) % 2, packed)))
    vectors, mass = map(np.asarray, ledger(x, asked, starts))
    for first, end in ((0, 5), (6, 11)):
        alone, own_mass = map(np.asarray, ledger(x[first:end], asked[first:end], None))
        np.testing.assert_allclose(vectors[:, first:end], alone, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(mass[first:end], own_mass, rtol=1e-10)


@pytest.mark.slow
def test_padding_on_the_left_is_not_seen(ledger):
    """Whatever stands there, and where its queries have no weight, it has no influence."""
    x = np.array(random_states(1, 11, WIDTH))
    asked = np.asarray(random_states(4, 11))
    mask = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    x[:6] *= 100
    vectors, _ = map(np.asarray, ledger(x, asked * mask, segment_starts(jnp.asarray(mask))))
    alone, _ = map(np.asarray, ledger(x[6:], asked[6:], None))
    np.testing.assert_allclose(vectors[:, 6:], alone, rtol=1e-10, atol=1e-12)
    assert (vectors[:, :6] == 0).all()


@pytest.mark.slow
def test_the_joint_cone_of_a_window_counts_the_future_that_is_not_seen():
    """Its integrand is zero there, and no positive bound holds of all pairs."""
    flow = architecture_flow("everything", depth=1)
    grid = lim.token_grid(9)
    x = random_states(1, 9, WIDTH)

    def measured(x):
        adjoint = lim.adjoint.channels(flow, lambda s, y: jnp.sum(jnp.sin(s)), (x, None), grid)
        sites = lim.adjoint.attention_sites(flow, adjoint.states, adjoint.covectors, grid)
        return joint_cone(jax.tree.map(lambda leaf: leaf[None], sites), grid), adjoint.cone

    joint, cone = eqx.filter_jit(measured)(x)
    np.testing.assert_allclose(joint.energy, (cone**2).sum(axis=1), rtol=1e-10)
    assert (joint.lowest[:5] <= 0).all()


def test_segments_are_runs():
    assert segment_starts(jnp.array([3, 3, 3, 5, 3, 3])).tolist() == [0, 0, 0, 3, 4, 4]
    ids = np.random.default_rng(0).integers(0, 2, (3, 9))
    starts_of_row = np.asarray(jax.jit(jax.vmap(segment_starts))(ids))
    for row, starts in zip(ids, starts_of_row, strict=True):
        for i, start in enumerate(starts):
            assert (row[start : i + 1] == row[i]).all()
            assert start == 0 or row[start - 1] != row[i]


def test_what_is_no_prefix_is_refused():
    grid = lim.token_grid(3)
    numbers = jnp.arange(3)
    with pytest.raises(ValueError, match="starts: got 4 of them, expected 3, one for each"):
        grid.starting(jnp.zeros(4, int))
    for wrong in (numbers + 1, numbers - 1):
        with pytest.raises(
            Exception, match="starts: got .*expected numbers from 0 to the row's own"
        ):
            jax.block_until_ready(jax.jit(lambda starts: grid.starting(starts).starts)(wrong))
    made = eqx.filter_jit(lim.CausalAttention.init)
    attention = made(4, window=2, key=jax.random.key(0))
    with pytest.raises(ValueError, match="window: got 2 positions on PanelGrid"):
        attention(jnp.ones((5, 4)), jnp.ones((5, 4)), lim.gauss_grid(5))
    with pytest.raises(ValueError, match="window: got 0"):
        made(4, window=0, key=jax.random.key(0))
    with pytest.raises(
        ValueError, match="attention: got AttentionMask.window=2.*expected rows that see"
    ):
        lim.network.attention_regularity(attention)
