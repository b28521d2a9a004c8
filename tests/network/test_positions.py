"""Rotary positions: frequencies, the precision of angles, differences alone, the continuum."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.architectures import architecture_flow
from reference.differences import fitted_order
from reference.networks import LENGTH, WIDTH, layer_of, random_states

import lim_jax as lim
from lim_jax.network import AttentionMask, Rotary
from lim_jax.network.frequencies import (
    DynamicFrequencies,
    LongFrequencies,
    linear_scaling,
    llama3_scaling,
    rotary_frequencies,
    yarn_amplitude,
    yarn_scaling,
)
from lim_jax.network.masks import SwitchedMask
from lim_jax.network.positions import Alibi, Tempered, TemperedRotary, UnitRotary

SIZES = (12, 24, 48, 96)


def test_frequencies_are_powers_of_the_base():
    frequencies = rotary_frequencies(6, base=5e5)
    np.testing.assert_allclose(frequencies, [5e5 ** (-m / 3) for m in range(3)], rtol=1e-14)
    np.testing.assert_allclose(
        linear_scaling(frequencies, 8), np.array(frequencies) / 8, rtol=1e-14
    )


@pytest.mark.parametrize("low, high", [(1.5, 4), (2.0, 2.0)])
def test_llama3_scales_slow_pairs_and_keeps_quick_ones(low, high):
    """By wavelengths: kept below n / high, divided above n / low, and by shares between."""
    frequencies = rotary_frequencies(64, base=5e5)
    expected = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / high:
            expected.append(frequency)
        elif wavelength > 8192 / low:
            expected.append(frequency / 32)
        else:
            share = (8192 / wavelength - low) / (high - low)
            expected.append((1 - share) * frequency / 32 + share * frequency)
    kinds = np.round(np.array(expected) / frequencies, 6)
    assert (kinds == 1).any() and (kinds == 1 / 32).any() and (len(set(kinds)) > 2) == (low < high)
    scaled = llama3_scaling(frequencies, factor=32, low=low, high=high, trained=8192)
    np.testing.assert_allclose(scaled, expected, rtol=1e-13)


def test_angles_of_ten_thousand_tokens_are_exact_in_float32():
    """A float32 angle of 10,000 radians is wrong by 5e-4, and so would be its cosine."""
    rotary = Rotary(frequencies=(1.0, 0.83), tokens=10_000)
    length = 10_000
    grid = lim.token_grid(length, jnp.float32)
    vectors = jax.device_put(
        np.tile(np.array([3.0, 0.0, 0.0, 4.0, 5.0], np.float32), (1, length, 1))
    )
    rotated = np.asarray(jax.jit(lambda v: rotary.rotated(v, rotary.rope(grid)))(vectors))
    assert rotated.dtype == np.float32
    angles = np.outer(np.arange(1, length + 1), np.array([1, 0.83], np.longdouble))
    cosine = np.cos(angles)
    sine = np.sin(angles)
    pairs = 3 * cosine[:, 0], -4 * sine[:, 1], 3 * sine[:, 0], 4 * cosine[:, 1]
    expected = np.stack([*pairs, np.full(length, 5.0)], axis=1)
    np.testing.assert_allclose(rotated[0], expected, rtol=0, atol=1e-6)


def test_scores_know_differences_of_positions_alone():
    """Tokens counted from 0, 1 or 100: the same attention."""
    attention = layer_of(architecture_flow("rotary")).attention
    x = random_states()
    grid = lim.token_grid(LENGTH)

    @jax.jit
    def attended(x, rope):
        query = attention.queries(x, rope)
        key, value = attention.sources(x, rope)
        heads = jax.vmap(lim.causal_attention, in_axes=(0, 0, 0, None))(query, key, value, grid)
        return jnp.einsum("hdv,hlv->ld", attention.output, heads)

    expected = jax.jit(attention.__call__)(x, x, grid)
    for first in (0, 1, 100):
        angles = np.outer(first + np.arange(LENGTH), attention.mask.positions.frequencies)
        rope = jax.device_put(np.stack([np.cos(angles), np.sin(angles)], axis=1))
        np.testing.assert_allclose(attended(x, rope), expected, rtol=1e-11, atol=1e-12)


def smooth_states(p):
    phases = np.arange(1.0, WIDTH + 1)
    return jnp.sin(p[:, None] * (1 + phases)[None, :] + phases[None, :])


@jax.jit
def attended_smoothly(attention, grid):
    x = smooth_states(grid.nodes)
    return attention(x, x, grid)


def gaps(attention, tokens_of):
    """How far attention on token grids is from that of 64 Gauss nodes, at its worst."""
    reference = lim.gauss_grid(64)

    def turning(tokens):
        rotary = Rotary((0.9, 0.23), tokens=tokens)
        return dataclasses.replace(attention, mask=AttentionMask(positions=rotary))

    limit = attended_smoothly(turning(12), reference)
    differences = []
    for size in SIZES:
        grid = lim.token_grid(size)
        expected = jax.jit(reference.interpolate)(limit, grid.nodes)
        differences.append(
            np.abs(attended_smoothly(turning(tokens_of(size)), grid) - expected).max()
        )
    return differences


@pytest.mark.slow
def test_rotary_attention_has_a_continuum_limit():
    """Order one as the tokens are refined, where [0, 1] stands for twelve of them."""
    attention = layer_of(architecture_flow("rotary")).attention
    errors = gaps(attention, lambda size: 12)
    assert abs(fitted_order(SIZES, errors) - 1) < 0.15 and errors[-1] < 0.05
    # Where it stands for as many as the grid has, keys turn ever faster: there is no limit.
    assert min(gaps(attention, lambda size: size)[1:]) > 0.1


def test_malformed_positions_are_refused():
    for frequencies in ((), (1.0, math.inf), (math.nan,)):
        with pytest.raises(ValueError, match="frequencies: got .* expected finite numbers"):
            Rotary(frequencies, tokens=4)
    with pytest.raises(ValueError, match="tokens: got 0"):
        Rotary((1.0,), tokens=0)
    with pytest.raises(ValueError, match="size: got 5, expected an even number"):
        rotary_frequencies(5)
    with pytest.raises(ValueError, match="base: got -1"):
        rotary_frequencies(4, base=-1.0)
    with pytest.raises(ValueError, match="low: got 4.0, expected at most high, 1.0"):
        llama3_scaling((1.0,), factor=8.0, low=4.0, high=1.0, trained=8192)


def test_yarn_is_the_papers_ramp():
    """By pairs: kept up to that of 32 turns, divided from that of one on, linear between."""
    base = 500.0
    factor = 8.0
    trained = 300
    frequencies = rotary_frequencies(16, base)
    ends = [8 * math.log(trained / (turns * 2 * math.pi)) / math.log(base) for turns in (32, 1)]
    for whole, (low, high) in (
        (True, (max(math.floor(ends[0]), 0), math.ceil(ends[1]))),
        (False, (max(ends[0], 0), ends[1])),
    ):
        expected = []
        for pair, frequency in enumerate(frequencies):
            share = min(max((pair - low) / (high - low), 0), 1)
            expected.append(frequency * (1 - share) + frequency / factor * share)
        scaled = yarn_scaling(
            frequencies, base=base, factor=factor, trained=trained, whole_pairs=whole
        )
        np.testing.assert_allclose(scaled, expected, rtol=1e-13)
    # Trained on less than a turn of any pair, all are kept, as in transformers.
    many = rotary_frequencies(128, base)
    assert yarn_scaling(many, base=base, factor=factor, trained=4) == many
    assert yarn_amplitude(factor) == pytest.approx(0.1 * math.log(8) + 1)
    assert yarn_amplitude(factor, 0.5) == pytest.approx(0.05 * math.log(8) + 1)


def test_frequencies_of_a_length_are_those_of_contexts_that_long():
    """A context of seven tokens has the long ones, of six the short; packed, neither."""
    short = (0.9, 0.2)
    long = (0.4, 0.1)
    rotary = Rotary(LongFrequencies(short, long, trained=6), amplitude=1.5)
    for length, frequencies in ((6, short), (7, long)):
        angles = np.outer(np.arange(1, length + 1), frequencies)
        expected = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        np.testing.assert_allclose(rotary.rope(lim.token_grid(length)), expected, rtol=1e-12)
    assert rotary.rotary_dim == 4 and rotary.same_rope(5, 6) and not rotary.same_rope(6, 7)
    # Of twelve tokens in [0, 1] a context of 5 has others than the first 5 of one of 6.
    spread = AttentionMask(positions=Rotary(short, tokens=12))
    first, second = (np.asarray(spread.rope(lim.token_grid(length)))[0] for length in (5, 6))
    assert not np.allclose(first, second) and not spread.same_rope(5, 6) and spread.same_rope(5, 5)
    packed = lim.token_grid(7).starting(jnp.array([0, 0, 0, 3, 3, 3, 3]))
    with pytest.raises(ValueError, match="grid: got several contexts.*its length says how"):
        rotary.rope(packed)
    grown = DynamicFrequencies(size=4, base=100.0, factor=3.0, trained=6)
    assert grown(5) == rotary_frequencies(4, 100.0)
    np.testing.assert_allclose(grown(9), rotary_frequencies(4, 100 * (3 * 1.5 - 2) ** 2))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_of_layers_that_turn_differently_the_most_counts(order):
    """Wherever it stands among them: a head must have as many features."""
    kinds = [
        AttentionMask(),
        AttentionMask(positions=Rotary((1.0, 0.5, 0.2))),
        AttentionMask(positions=Rotary((1.0,))),
    ]
    masks = SwitchedMask(tuple(kinds[index] for index in order), jnp.array(0))
    assert masks.rotary_dim == 6
    attention = lim.CausalAttention.init(8, heads=2, key=jax.random.key(0))
    with pytest.raises(ValueError, match="rotary: got 6 features that are rotated, expected"):
        dataclasses.replace(attention, mask=masks)


def test_angles_from_zero_and_tempers_begin_with_each_context():
    """In a packed row the second context's tokens are as in a row of its own."""
    starts = jnp.array([0, 0, 0, 3, 3, 3, 3])
    packed = lim.token_grid(7).starting(starts)
    alone = lim.token_grid(4)
    rotary = Rotary((0.7, 0.1), from_zero=True)
    np.testing.assert_allclose(rotary.rope(packed)[3:], rotary.rope(alone), rtol=1e-13)
    np.testing.assert_allclose(rotary.rope(alone)[0], [[1.0, 1.0], [0.0, 0.0]])
    tempered = Tempered(scale=0.5, floor=2)
    np.testing.assert_allclose(tempered.rope(packed)[3:], tempered.rope(alone), rtol=1e-13)
    expected = [1 + 0.5 * math.log(1 + i // 2) for i in (1, 2, 3, 4)]
    np.testing.assert_allclose(tempered.rope(alone), expected, rtol=1e-13)
    from_zero = Tempered(scale=0.5, floor=2, from_zero=True)
    query = random_states(3, 2, 4, 4)
    both = TemperedRotary((0.7, 0.1), tempered=from_zero)
    turned = np.asarray(Rotary((0.7, 0.1)).encode_keys(query, both.rope(alone)[:, :2]))
    np.testing.assert_allclose(both.encode_keys(query, both.rope(alone)), turned, rtol=1e-13)
    grown = [1 + 0.5 * math.log(1 + i // 2) for i in range(4)]
    encoded = both.encode_queries(query, both.rope(alone))
    np.testing.assert_allclose(encoded, turned * np.array(grown)[:, None], rtol=1e-13)
    np.testing.assert_allclose(both.rope(packed)[3:, 2], both.rope(alone)[:, 2], rtol=1e-13)
    encoded = tempered.encode_queries(query, tempered.rope(alone))
    np.testing.assert_allclose(encoded, np.asarray(query) * np.array(expected)[:, None], rtol=1e-13)
    assert tempered.encode_keys(query, tempered.rope(alone)) is query


@pytest.mark.parametrize("cut", ["windowed", "chunked"])
@pytest.mark.parametrize(
    "positions",
    [Rotary((0.7,), from_zero=True), Tempered(0.5, floor=2)],
    ids=["rotary", "tempered"],
)
def test_positions_from_the_context_refuse_a_grid_that_a_window_cut(positions, cut):
    """Its rows begin where their windows do, each elsewhere, and not where the context does."""
    grid = getattr(lim.token_grid(7), cut)(3)
    with pytest.raises(ValueError, match=f"grid: got prefixes that were {cut}, expected those of"):
        positions.rope(grid)
    Rotary((0.7,)).rope(grid)  # whose angles count from the first position of all


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_alibi_tells_neighbours_apart_in_products_of_half_precision(dtype):
    """Without queries attention is exp(-m (i - j)), whose neighbours differ by exp(-m) wherever."""
    length = 1500  # numbers above 256 are not all numbers of bfloat16
    slopes = 0.5, 0.25
    positions = Alibi(slopes)
    grid = lim.token_grid(length, dtype)
    flat = jnp.zeros((2, length, 4), dtype)
    with jax.default_matmul_precision("bfloat16"):
        rope = positions.rope(grid)
        query = positions.encode_queries(flat, rope)
        key = positions.encode_keys(flat, rope)
        for head, slope in enumerate(slopes):
            weights = lim.network.attention_weights(query[head], key[head], grid)[-1]
            expected = np.exp(-slope * np.arange(length)[::-1])
            expected /= expected.sum()
            np.testing.assert_allclose(
                np.asarray(weights, float), expected, atol=0.02 * expected[-1]
            )


def test_alibis_features_of_half_precision_sum_to_positions_of_seventeen_bits():
    """Two numbers of bfloat16 have sixteen: a third is needed from 65,537 tokens on."""
    positions = Alibi((0.5,), tokens=100_001)
    grid = lim.token_grid(7, jnp.float32)
    rope = positions.rope(grid)
    with jax.default_matmul_precision("bfloat16"):
        key = positions.encode_keys(jnp.zeros((1, 7, 2), jnp.float32), rope.astype(jnp.float32))
    features = np.asarray(key[0, :, 2:])
    np.testing.assert_array_equal(features, features.astype(jnp.bfloat16).astype(np.float32))
    exact = np.float32(100_001 * np.arange(1, 8) / 7 - 1)
    np.testing.assert_allclose(features.sum(axis=1, dtype=float), exact, rtol=2**-23)


def test_alibi_has_one_feature_where_numbers_are_exact():
    positions = Alibi((0.5, 0.25))
    rope = positions.rope(lim.token_grid(5))
    assert positions.encode_keys(jnp.zeros((2, 5, 4)), rope).shape == (2, 5, 5)
    assert positions.encode_keys(jnp.zeros((2, 5, 4), jnp.float32), rope).shape == (2, 5, 5)


def test_a_temper_steps_at_whole_tokens_though_nodes_are_rounded():
    """The 15th of 22 tokens completes the fifth three of them; 22 * (15 / 22) lies below 15."""
    grid = lim.token_grid(22)
    assert 22 * np.asarray(grid.nodes)[14] < 15
    expected = [1 + 0.5 * math.log(1 + i // 3) for i in range(1, 23)]
    np.testing.assert_allclose(Tempered(0.5, floor=3).rope(grid), expected, rtol=1e-13)


def test_unit_rotary_divides_by_the_root_mean_square():
    rotary = UnitRotary((0.7,), norm_eps=0.3)
    query = random_states(3, 2, 4, 4)
    grid = lim.token_grid(4)
    turned = np.asarray(Rotary((0.7,)).rotated(query, rotary.rope(grid)))
    expected = turned / np.sqrt((turned**2).mean(axis=2, keepdims=True) + 0.3)
    np.testing.assert_allclose(rotary.encode_keys(query, rotary.rope(grid)), expected, rtol=1e-12)
