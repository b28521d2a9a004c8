"""The field's parts and its two slots."""

import dataclasses

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_network
from reference.networks import layer_of, random_flow, random_states, randomised

import lim_jax as lim

GRID = lim.token_grid(12)


def layer():
    return layer_of(random_flow(5, depth=1))


@jax.jit
def evaluated(field, x):
    return field(x, x, GRID)


@jax.jit
def normalised(norm, z):
    return norm(z)


def test_layer_norm_is_its_formula():
    # `eq:smooth-layernorm`.
    norm = layer().attention.norm
    z = random_states(1, 6)
    np.testing.assert_allclose(
        normalised(norm, z), numpy_network.layer_norm(norm, np.asarray(z)), rtol=1e-13, atol=1e-14
    )


def test_layer_norm_is_regular_at_a_constant_token():
    jacobian = jax.jit(jax.jacfwd(lambda z: lim.LayerNorm.init(4, norm_eps=0.01)(z)))(
        np.full(4, 2.0)
    )
    np.testing.assert_allclose(jacobian, (np.eye(4) - 0.25) / np.sqrt(0.01), rtol=1e-13)


def test_the_norm_bound_is_never_violated_and_nearly_attained():
    # `eq:preln-uniform-normalized-bound`.
    norm = randomised(jax.eval_shape(lambda: lim.LayerNorm.init(5, norm_eps=1e-3)), seed=3)
    tokens = 1000 * np.asarray(random_states(0, 2000, 5))

    @jax.jit
    def lengths_and_bounds(norm, tokens):
        plain = lim.LayerNorm.init(5, norm_eps=1e-12)
        lengths = jnp.linalg.norm(jax.vmap(norm)(tokens), axis=1)
        return lengths, norm.bound(), jnp.linalg.norm(plain(tokens[0])), plain.bound()

    lengths, bound, attained, plain_bound = map(np.asarray, lengths_and_bounds(norm, tokens))
    assert lengths.max() <= bound * (1 + 1e-12)
    np.testing.assert_allclose(attained, plain_bound, rtol=1e-10)


def test_attention_and_feed_forward_are_those_of_the_reference():
    # `eq:masked-mha`, `eq:mlp-block`, `eq:complete-vector-field-finite`,
    # `eq:induced-transformer-field`,
    # `eq:discrete-attention-numerator-scaled`, `eq:discrete-attention-denominator-scaled`.
    field = layer()
    x = random_states()
    whole, attention, feed_forward = (
        np.asarray(evaluated(part, x)) for part in (field, *field.sublayers)
    )
    np.testing.assert_allclose(
        attention, numpy_network.attention(field.attention, np.asarray(x)), rtol=1e-12
    )
    np.testing.assert_allclose(
        feed_forward, numpy_network.feed_forward(field.feed_forward, np.asarray(x)), rtol=1e-12
    )
    chex.assert_trees_all_close(whole, attention + feed_forward, rtol=1e-14)
    assert [type(part).__name__ for part in field.sublayers] == ["CausalAttention", "FeedForward"]


def test_the_slots_split_the_derivative():
    @jax.jit
    def derivatives(field, x, context, cotangent):
        _, whole = jax.vjp(lambda x: field(x, x, GRID), x)
        _, halves = jax.vjp(lambda x, c: field(x, c, GRID), x, x)
        _, pull_back = jax.vjp(lambda c: field.feed_forward(x, c, GRID), context)
        local = jax.jacrev(lambda x: field(x, context, GRID))(x)
        return whole(cotangent)[0], halves(cotangent), local, pull_back(cotangent)[0]

    states = (random_states(seed) for seed in (1, 2, 3))
    whole, halves, local, unread = jax.tree.map(np.asarray, derivatives(layer(), *states))
    chex.assert_trees_all_close(whole, sum(halves), rtol=1e-12)
    # The context is read by keys and values alone; queries and the tokenwise part read x.
    assert np.all(local * (1 - np.eye(12))[:, None, :, None] == 0)
    assert np.all(unread == 0)


def test_the_first_token_sees_only_itself():
    """The first-token rule, which is the operator's trace at position 0."""
    attention = layer().attention
    x = np.asarray(random_states())
    value, bias, output, output_bias = map(
        np.asarray,
        (attention.value, attention.value_bias, attention.output, attention.output_bias),
    )
    values = value @ np.asarray(normalised(attention.norm, x[0])) + bias
    expected = np.einsum("hdv,hv->d", output, values) + output_bias
    np.testing.assert_allclose(np.asarray(evaluated(attention, x))[0], expected, rtol=1e-13)


def test_sizes_are_free():
    @jax.jit
    def field_and_image(x):
        field = lim.TransformerField.init(
            6, heads=5, head_dim=2, intermediate_size=3, activation=jnp.tanh, key=jax.random.key(0)
        )
        return field, field(x, x, GRID)

    field, image = field_and_image(random_states())
    assert field.attention.query.shape == (5, 2, 6) and field.feed_forward.inner.shape == (3, 6)
    assert field.attention.query_bias is None
    assert image.shape == (12, 6)


def test_zero_biases_are_no_biases():
    @jax.jit
    def without_and_zero(x):
        key = jax.random.key(0)
        without = lim.CausalAttention.init(6, heads=2, key=key)
        zero = lim.CausalAttention.init(6, heads=2, bias=True, key=key)
        return without(x, x, GRID), zero(x, x, GRID)

    chex.assert_trees_all_close(*without_and_zero(random_states()), rtol=1e-14)


def test_heads_may_have_values_of_another_size():
    attention = lim.CausalAttention(
        eqx.nn.Identity(),
        query=random_states(0, 2, 3, 6),
        key=random_states(1, 2, 3, 6),
        value=random_states(2, 2, 4, 6),
        output=random_states(3, 2, 6, 4),
    )

    @jax.jit
    def together_and_by_heads(attention, x):
        expected = sum(
            lim.causal_attention(
                x @ attention.query[h].T, x @ attention.key[h].T, x @ attention.value[h].T, GRID
            )
            @ attention.output[h].T
            for h in range(2)
        )
        return attention(x, x, GRID), expected

    chex.assert_trees_all_close(*together_and_by_heads(attention, random_states()), rtol=1e-12)


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_sublayers_have_norms_of_their_own(part):
    field = layer()
    x = random_states()
    moved = eqx.tree_at(
        lambda f: getattr(f, part).norm.scale, field, replace_fn=lambda s: np.asarray(s) + 1
    )
    changed = [
        bool(np.any(np.asarray(evaluated(new, x)) != np.asarray(evaluated(old, x))))
        for new, old in zip(moved.sublayers, field.sublayers, strict=True)
    ]
    assert changed == [part == "attention", part == "feed_forward"]


def test_keywords_reach_the_parts_they_are_for():
    """Both sublayers' norms take eta, the tokenwise network its activation."""

    def made():
        key = jax.random.key(0)
        field = lim.TransformerField.init(6, activation=jnp.tanh, norm_eps=0.3, key=key)
        alone = lim.CausalAttention.init(6, norm_eps=0.2, key=key)
        tokenwise = lim.FeedForward.init(6, activation=jnp.sin, norm_eps=0.1, key=key)
        return field, alone, tokenwise

    field, alone, tokenwise = jax.eval_shape(made)
    norms = (field.attention.norm, field.feed_forward.norm, alone.norm, tokenwise.norm)
    assert [norm.norm_eps for norm in norms] == [0.3, 0.3, 0.2, 0.1]
    unasked = jax.eval_shape(
        lambda: [kind.init(4) for kind in (lim.LayerNorm, lim.network.RMSNorm)]
    )
    assert [norm.norm_eps for norm in unasked] == [1e-5, 1e-5]
    assert field.feed_forward.activation is jnp.tanh and tokenwise.activation is jnp.sin


def test_the_activation_is_applied_between_the_matrices():
    tokenwise = layer().feed_forward
    x = np.asarray(random_states())
    bent = dataclasses.replace(tokenwise, activation=jnp.cos)
    hidden = numpy_network.layer_norm(tokenwise.norm, x) @ np.asarray(tokenwise.inner).T
    outer = np.asarray(tokenwise.outer)
    expected = np.cos(hidden + np.asarray(tokenwise.inner_bias)) @ outer.T
    expected = expected + np.asarray(tokenwise.outer_bias)
    np.testing.assert_allclose(evaluated(bent, x), expected, rtol=1e-12, atol=1e-13)


def test_matrices_are_drawn_apart_with_variance_one_over_their_fan_in():
    """Some 3,000 entries each: variances and correlations within five standard errors."""

    @jax.jit
    def drawn():
        keys = jax.random.split(jax.random.key(7))
        options = {"heads": 3, "head_dim": 24, "intermediate_size": 90, "bias": True}
        field = lim.TransformerField.init(40, **options, key=keys[0])
        return field, lim.LinearReadout.init(40, 75, key=keys[1]).weight

    field, readout = drawn()
    attention, tokenwise = field.sublayers
    fan_ins = [
        (attention.query, 40), (attention.key, 40), (attention.value, 40),
        (attention.output, 3 * 24), (tokenwise.inner, 40), (tokenwise.outer, 90), (readout, 40),
    ]  # fmt: skip
    entries = [np.sqrt(fan_in) * np.ravel(matrix) for matrix, fan_in in fan_ins]
    for values in entries:
        assert abs(np.mean(values**2) - 1) < 5 * np.sqrt(2 / values.size)
        assert abs(np.mean(values**4) - 3) < 5 * np.sqrt(96 / values.size)  # Gaussian
    size = min(values.size for values in entries)
    correlations = np.corrcoef([values[:size] for values in entries])
    assert np.abs(correlations - np.eye(len(entries))).max() < 5 / np.sqrt(size)
    for norm in (attention.norm, tokenwise.norm):
        assert np.all(np.asarray(norm.scale) == 1) and not np.any(norm.shift)
    biases = ("query_bias", "key_bias", "value_bias", "output_bias")
    assert not any(np.any(getattr(attention, name)) for name in biases)
    assert not np.any(tokenwise.inner_bias) and not np.any(tokenwise.outer_bias)


def test_the_norm_bound_takes_scales_by_their_size():
    """The largest scale is negative: its size bounds, and is attained where all are alike."""
    alike = lim.LayerNorm(*jax.device_put((np.full(4, -3.0), np.zeros(4))), norm_eps=1e-12)
    length = np.linalg.norm(normalised(alike, np.array([1.0, -1.0, 1.0, -1.0])))
    np.testing.assert_allclose(length, 6.0, rtol=1e-10)
    np.testing.assert_allclose(alike.bound(), 6.0, rtol=1e-10)
    mixed = lim.LayerNorm(*jax.device_put((np.array([0.5, -3.0]), np.zeros(2))), norm_eps=1e-12)
    np.testing.assert_allclose(mixed.bound(), 3 * np.sqrt(2), rtol=1e-14)
