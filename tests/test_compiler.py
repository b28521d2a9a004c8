"""The installed compiler against a miscompilation that jaxlib 0.10.2 has on CPU (jax#39103).

There the vmapped VJP of layer normalisation, with 16 or more cotangents of shape (256, 64) in
float32, came out wrong by 30 to 50 per cent.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.as_users import DEFAULTS

import lim_jax as lim

COTANGENTS = 16
LENGTH = 256
WIDTH = 64
ETA = 1e-5


def numpy_pull_back(x, scale, cotangent):
    """The VJP of the normalisation, by its formula."""
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + ETA)
    normalised = centred / spread
    pulled = scale * cotangent
    along = (pulled * normalised).mean(axis=-1, keepdims=True) * normalised
    return (pulled - pulled.mean(axis=-1, keepdims=True) - along) / spread


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-4), (jnp.float64, 1e-11)])
def test_the_vmapped_vjp_of_layer_norm(dtype, tolerance):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((LENGTH, WIDTH))
    scale = 1 + 0.1 * generator.standard_normal(WIDTH)
    cotangents = generator.standard_normal((COTANGENTS, LENGTH, WIDTH))
    norm = lim.LayerNorm(jnp.asarray(scale, dtype), jnp.zeros(WIDTH, dtype), ETA)

    @partial(jax.jit, compiler_options=DEFAULTS)
    def pull_back(x, cotangents):
        _, pull = jax.vjp(jax.vmap(norm), x)
        return jax.vmap(pull)(cotangents)[0]

    pulled = pull_back(jnp.asarray(x, dtype), jnp.asarray(cotangents, dtype))
    expected = numpy_pull_back(x, scale, cotangents)
    np.testing.assert_allclose(pulled, expected, rtol=0, atol=tolerance * np.abs(expected).max())
