"""The fused kernel on a GPU; elsewhere its wrapper, around JAX's own attention."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import random_states, randomised

import lim_jax as lim
from lim_jax.grid import CellGrid
from lim_jax.network import fused
from lim_jax.network.attention import causal_attention
from lim_jax.network.fused import fused_attention

GRID = lim.token_grid(12, jnp.bfloat16)


@pytest.fixture(autouse=True)
def any_machine(monkeypatch):
    if jax.default_backend() != "gpu":
        monkeypatch.setattr(fused, "IMPLEMENTATION", "xla")
    with jax.numpy_dtype_promotion("standard"):  # JAX's own attention promotes
        yield


def flow(attend):
    """Two layers in bfloat16 with eight features in a head, the kernel's granularity."""

    def layer(key):
        return lim.TransformerField.init(16, heads=2, attend=attend, key=key)

    shapes = jax.eval_shape(lambda: jax.vmap(layer)(jax.random.split(jax.random.key(0), 2)))
    layers = randomised(shapes, 0, scale=0.25)
    return cast(lim.ResidualFlow(layers, step=lim.split), jnp.bfloat16)


def cast(tree, dtype):
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, dtype)), tree)


def loss(flow, x):
    return jnp.sum(jnp.sin(flow(x, GRID).astype(jnp.float32)))


X = cast(random_states(0, 3, 12, 16), jnp.bfloat16)
FIRST, SECOND, _ = (jax.device_put(example) for example in np.asarray(X))


def test_gradients_of_a_flow_are_the_blocked_ones_in_half_precision():
    """Two to three digits: those of bfloat16."""
    found, expected = (
        jax.jit(jax.vmap(jax.grad(loss, argnums=1), in_axes=(None, 0)))(flow(attend), X)
        for attend in (fused_attention, causal_attention)
    )
    found, expected = (np.asarray(slope, np.float64) for slope in (found, expected))
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_a_head_is_softmax_attention():
    query, key, value = (random_states(i, 12, 8) for i in (0, 1, 2))
    half = cast((query, key, value), jnp.float16)
    found = fused_attention(half[0], half[1], half[2], GRID)
    expected = jax.jit(causal_attention)(query, key, value, lim.token_grid(12))
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, atol=4e-3)


@pytest.mark.parametrize("outer", ["forward", "reverse"])
def test_a_second_derivative_is_refused_in_words(outer):
    model = flow(fused_attention)

    def slope(x):
        return jnp.sum(jax.grad(loss, argnums=1)(model, x).astype(jnp.float32) ** 2)

    with pytest.raises(NotImplementedError, match="first-order use"):
        if outer == "forward":
            jax.eval_shape(lambda x, v: jax.jvp(slope, (x,), (v,)), FIRST, SECOND)
        else:
            jax.eval_shape(jax.grad(slope), FIRST)


def test_the_gradient_is_not_differentiated_in_its_covector_either():
    model = flow(fused_attention)

    def slope(scale):
        return jax.grad(lambda x: scale * loss(model, x))(FIRST)

    with pytest.raises(NotImplementedError, match="first-order use"):
        jax.eval_shape(lambda one: jax.jvp(slope, (one,), (one,)), np.float32(1))


def test_forward_mode_is_refused():
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: flow(fused_attention)(x, GRID), (FIRST,), (SECOND,))


def test_other_precisions_are_refused(as_users_run):
    single = cast(FIRST, jnp.float32)
    with pytest.raises(ValueError, match="got float32, expected bfloat16 or float16"):
        fused_attention(single, single, single, GRID)
    with pytest.raises(ValueError, match="got bfloat16 and float32"):
        fused_attention(FIRST, single, single, GRID)


def test_a_head_is_not_differentiated_twice_under_a_linear_loss():
    def slope(x):
        return jax.grad(lambda x: fused_attention(x, x, x, GRID)[3, 0])(x)

    with pytest.raises(NotImplementedError, match="first-order use"):
        jax.eval_shape(lambda x, v: jax.jvp(slope, (x,), (v,)), FIRST, SECOND)


OTHERS = lim.midpoint_grid(12), CellGrid(cells=12, offset=Fraction(0), power=2), lim.gauss_grid(12)


@pytest.mark.parametrize("grid", OTHERS)
def test_other_grids_are_refused(grid):
    with pytest.raises(ValueError, match="expected token_grid"):
        fused_attention(FIRST, FIRST, FIRST, grid)
