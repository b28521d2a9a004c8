"""The field's parts and its two slots."""

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from networks import random_flow, random_states, randomised

import lim_jax as lim

GRID = lim.token_grid(12)


def layer(**options):
    return jax.tree.map(lambda leaf: leaf[0], random_flow(5, depth=1, **options).layers)


def test_layer_norm_is_its_formula():
    norm = layer().attention.norm
    z = random_states(1, 6)
    np.testing.assert_allclose(
        norm(z), reference.layer_norm(norm, np.asarray(z)), rtol=1e-13, atol=1e-14
    )


def test_layer_norm_is_regular_at_a_constant_token():
    norm = lim.LayerNorm.init(4, eta=0.01)
    jacobian = jax.jacfwd(norm)(jnp.full(4, 2.0))
    np.testing.assert_allclose(jacobian, (np.eye(4) - 0.25) / np.sqrt(0.01), rtol=1e-13)


def test_the_norm_bound_is_never_violated_and_nearly_attained():
    norm = randomised(lim.LayerNorm.init(5, eta=1e-3), seed=3)
    tokens = 1000 * random_states(0, 2000, 5)
    lengths = jnp.linalg.norm(jax.vmap(norm)(tokens), axis=1)
    assert float(lengths.max()) <= float(norm.bound())
    plain = lim.LayerNorm.init(5, eta=1e-12)
    np.testing.assert_allclose(jnp.linalg.norm(plain(tokens[0])), plain.bound(), rtol=1e-10)


def test_attention_and_feed_forward_are_those_of_the_reference():
    field, x = layer(), random_states()
    np.testing.assert_allclose(
        field.attention(x, x, GRID), reference.attention(field.attention, np.asarray(x)), rtol=1e-12
    )
    np.testing.assert_allclose(
        field.feed_forward(x, x, GRID),
        reference.feed_forward(field.feed_forward, np.asarray(x)),
        rtol=1e-12,
    )
    chex.assert_trees_all_close(
        field(x, x, GRID), field.attention(x, x, GRID) + field.feed_forward(x, x, GRID), rtol=1e-14
    )
    assert [type(part).__name__ for part in field.sublayers] == ["CausalAttention", "FeedForward"]


def test_the_slots_split_the_derivative():
    field, x, context = layer(), random_states(1), random_states(2)
    cotangent = random_states(3)
    _, whole = jax.vjp(lambda x: field(x, x, GRID), x)
    _, halves = jax.vjp(lambda x, c: field(x, c, GRID), x, x)
    chex.assert_trees_all_close(whole(cotangent)[0], sum(halves(cotangent)), rtol=1e-12)
    # The context is read by keys and values alone; queries and the tokenwise part read x.
    local = jax.jacrev(lambda x: field(x, context, GRID))(x)
    off_diagonal = local * (1 - jnp.eye(12))[:, None, :, None]
    assert np.all(np.asarray(off_diagonal) == 0)
    _, pull_back = jax.vjp(lambda c: field.feed_forward(x, c, GRID), context)
    assert np.all(np.asarray(pull_back(cotangent)[0]) == 0)


def test_the_first_token_sees_only_itself():
    """The first-token rule, which is the operator's trace at position 0."""
    attention, x = layer().attention, random_states()
    values = attention.value @ attention.norm(x[0]) + attention.value_bias
    expected = jnp.einsum("hdv,hv->d", attention.output, values) + attention.output_bias
    np.testing.assert_allclose(attention(x, x, GRID)[0], expected, rtol=1e-13)


def test_sizes_are_free():
    key = jax.random.key(0)
    field = lim.TransformerField.init(
        6, heads=5, head_size=2, hidden=3, activation=jnp.tanh, key=key
    )
    assert field.attention.query.shape == (5, 2, 6) and field.feed_forward.inner.shape == (3, 6)
    assert field.attention.query_bias is None
    assert field(random_states(), random_states(), GRID).shape == (12, 6)


def test_zero_biases_are_no_biases():
    key, x = jax.random.key(0), random_states()
    without = lim.CausalAttention.init(6, heads=2, key=key)
    zero = lim.CausalAttention.init(6, heads=2, bias=True, key=key)
    chex.assert_trees_all_close(without(x, x, GRID), zero(x, x, GRID), rtol=1e-14)


def test_heads_may_have_values_of_another_size():
    attention = lim.CausalAttention(
        eqx.nn.Identity(),
        query=random_states(0, 2, 3, 6),
        key=random_states(1, 2, 3, 6),
        value=random_states(2, 2, 4, 6),
        output=random_states(3, 2, 6, 4),
    )
    x = random_states()
    expected = sum(
        lim.causal_attention(
            x @ attention.query[h].T, x @ attention.key[h].T, x @ attention.value[h].T, GRID
        )
        @ attention.output[h].T
        for h in range(2)
    )
    chex.assert_trees_all_close(attention(x, x, GRID), expected, rtol=1e-12)


@pytest.mark.parametrize("part", ["attention", "feed_forward"])
def test_sublayers_have_norms_of_their_own(part):
    field, x = layer(), random_states()
    moved = eqx.tree_at(lambda f: getattr(f, part).norm.scale, field, replace_fn=lambda s: s + 1)
    changed = [
        bool(jnp.any(new(x, x, GRID) != old(x, x, GRID)))
        for new, old in zip(moved.sublayers, field.sublayers, strict=True)
    ]
    assert changed == [part == "attention", part == "feed_forward"]
