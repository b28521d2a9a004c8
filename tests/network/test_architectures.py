"""What checkpoints bring: each option, and all of them, against NumPy written apart."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_network
from reference.architectures import ARCHITECTURES, architecture_flow
from reference.networks import LENGTH, falling_profile, layer_of, random_states, randomised

import lim_jax as lim
from lim_jax.network import AttentionMask, RMSNorm, Rotary
from lim_jax.network.flow import unit_profile
from lim_jax.network.regularity import feed_forward_regularity

GRID = lim.token_grid(LENGTH)


def flowed(flow, x):
    """Operation by operation: to compile every architecture once takes longer."""
    return eqx.filter_jit(lambda flow, x: flow(x, GRID))(flow, x)


@jax.jit
def normalised(norm, z):
    return norm(z)


def layers_of(flow):
    return [layer_of(flow, index) for index in range(flow.depth)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_layers_of_every_architecture_are_those_of_the_reference(name):
    flow = architecture_flow(name, horizon=1.5)
    x = random_states()
    expected = numpy_network.flow(layers_of(flow), np.asarray(x), 1.5, "split", falling_profile)
    np.testing.assert_allclose(flowed(flow, x), expected, rtol=1e-12, atol=1e-13)


def test_parallel_blocks_are_euler_in_steps_of_one():
    """x + Attn(LN_1 x) + FNN(LN_2 x), the norms apart, with turning keys: GPT-NeoX's layer."""
    flow = architecture_flow(
        "partial rotary", step=lim.euler, depth=3, horizon=3.0, profile=unit_profile
    )
    layers = layers_of(flow)
    x = random_states()
    for layer in layers:
        first = layer.attention.norm.scale
        second = layer.feed_forward.norm.scale
        assert np.abs(np.asarray(first) - np.asarray(second)).max() > 0.1
    states = np.asarray(x)
    for layer in layers:
        attended = numpy_network.attention(layer.attention, states)
        states = states + attended + numpy_network.feed_forward(layer.feed_forward, states)
    np.testing.assert_allclose(flowed(flow, x), states, rtol=1e-12, atol=1e-12)


def test_rms_norm_is_its_formula():
    norm = randomised(jax.eval_shape(lambda: RMSNorm.init(6, 0.3)), seed=3)
    z = np.asarray(random_states(1, 6)) + 2
    expected = np.asarray(norm.scale) * z / np.sqrt((z**2).sum() / 6 + 0.3)
    np.testing.assert_allclose(normalised(norm, z), expected, rtol=1e-14)


def test_rms_norm_sums_in_float32():
    """The squares of 300 are beyond float16."""
    norm = RMSNorm(*jax.device_put((np.ones(4, np.float16),)), norm_eps=1e-3)
    values = normalised(norm, np.full(4, 300, np.float16))
    assert values.dtype == jnp.float16 and values.tolist() == [1.0] * 4


@pytest.mark.slow
def test_everything_tile_by_tile_is_the_reference_too():
    """130 tokens are two tiles, and turn many times round."""
    attention = layer_of(architecture_flow("everything")).attention
    attention = dataclasses.replace(
        attention, mask=AttentionMask(positions=Rotary((0.9,), tokens=130))
    )
    x = random_states(1, 130, 6)
    features = jax.jit(lambda attention, x: attention(x, x, lim.token_grid(130)))(attention, x)
    expected = numpy_network.attention(attention, np.asarray(x))
    np.testing.assert_allclose(features, expected, rtol=1e-11, atol=1e-12)


def test_half_precision_stays_half_and_near():
    """Of everything, with parameters that float16 holds: inside, sums and rotations are wider."""
    field = layer_of(architecture_flow("everything"))
    x = random_states()

    def rounded(dtype):
        return jax.tree.map(lambda leaf: jax.device_put(np.float16(leaf).astype(dtype)), (field, x))

    half = rounded(np.float16)
    wide = rounded(np.float64)
    grid = lim.token_grid(LENGTH, jnp.float16)
    features = jax.jit(lambda field, x: field(x, x, grid))(*half)
    expected = np.asarray(jax.jit(lambda field, x: field(x, x, GRID))(*wide))
    assert features.dtype == jnp.float16
    rounding = 5e-3 * np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(features, float), expected, rtol=0, atol=rounding)


def ungrouped(attention):
    """The same with keys and values of its own for each of two heads in a group."""
    names = ("key", "value", "key_bias", "value_bias")
    grouped = {name: getattr(attention, name) for name in names}
    repeated = {
        name: jax.device_put(np.repeat(np.asarray(leaf), 2, axis=0))
        for name, leaf in grouped.items()
        if leaf is not None
    }
    return dataclasses.replace(attention, **repeated)


def test_heads_of_a_group_share_its_keys_and_values():
    """Grouped queries are plain ones whose keys, values and biases are repeated."""
    grouped = layer_of(architecture_flow("everything")).attention
    x = random_states()
    plain = ungrouped(grouped)
    evaluate = jax.jit(lambda attention, x: attention(x, x, GRID))
    np.testing.assert_allclose(evaluate(grouped, x), evaluate(plain, x), rtol=1e-13)
    trace = jax.jit(lambda attention, z: attention.left_trace(z))
    first = np.asarray(evaluate(grouped, x))[0]
    np.testing.assert_allclose(trace(grouped, x[0]), first, rtol=1e-12)


@pytest.mark.parametrize("name", ["gated outputs", "normed outputs"])
def test_the_first_token_is_gated_and_normed_as_all_others(name):
    """The left trace is the rule of the first token."""
    attention = layer_of(architecture_flow(name)).attention
    x = random_states()
    trace = jax.jit(lambda attention, z: attention.left_trace(z))(attention, x[0])
    expected = numpy_network.attention(attention, np.asarray(x)[:1])[0]
    np.testing.assert_allclose(trace, expected, rtol=1e-12)


def test_options_that_do_not_fit_are_refused():
    attention = layer_of(architecture_flow("everything")).attention
    gated = dataclasses.replace(attention, gate=jnp.ones((4, 4, 6)))
    one_gate = eqx.tree_at(lambda attention: attention.gate, gated, jnp.ones((1, 4, 6)))
    with pytest.raises(ValueError, match=r"gate: got sizes \(1, 4, 6\), expected \(4, 4, 6\)"):
        one_gate.__check_init__()  # the suite's checks of shapes go before the constructor's
    with pytest.raises(ValueError, match="groups: got 4 heads in 3 groups"):
        lim.CausalAttention.init(8, heads=4, num_kv_heads=3, key=jax.random.key(0))
    six = Rotary((1.0, 0.5, 0.2), tokens=12)
    with pytest.raises(ValueError, match="rotary: got 6 features that are rotated, expected"):
        dataclasses.replace(attention, mask=AttentionMask(positions=six))
    with pytest.raises(ValueError, match="norm_eps: got 0"):
        RMSNorm.init(4, 0.0)


def test_lipschitz_constants_know_groups_and_refuse_what_they_do_not_know():
    grouped = layer_of(architecture_flow("grouped queries")).attention
    constants = jax.jit(
        lambda a: lim.network.attention_regularity(jax.tree.map(lambda leaf: 0.2 * leaf, a))
    )
    found = constants(grouped)
    expected = constants(ungrouped(grouped))
    assert found.head.shape == (4,) and np.all(np.isfinite(found.head))
    np.testing.assert_allclose(found.lipschitz, expected.lipschitz, rtol=1e-12)
    np.testing.assert_allclose(found.bound, expected.bound, rtol=1e-12)
    gated = dataclasses.replace(grouped, gate=jnp.ones((4, 4, 6)))
    with pytest.raises(ValueError, match="attention: got queries, keys, .* or gated"):
        lim.network.attention_regularity(gated)
    field = layer_of(architecture_flow("everything"))
    with pytest.raises(ValueError, match="attention: .* expected rows that see their whole"):
        lim.network.attention_regularity(field.attention)
    with pytest.raises(ValueError, match="network: got GatedFeedForward"):
        feed_forward_regularity(field.feed_forward)
