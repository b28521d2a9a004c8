r"""Causal attention by a GPU's fused kernel: the fastest way to a gradient, and to nothing further.

Opt in where a field is made, ``TransformerField.init(..., attend=fused_attention)``. Influence
profiles and training gradients differentiate once. What differentiates a gradient again (penalties
and Algorithm 1, the density's rate, Gramians by forward mode) needs `attention.causal_attention`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import require, undifferentiated
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid
from lim_jax.network.blocked import require_heads

IMPLEMENTATION = "cudnn"
TWICE = (
    "fused_attention: its derivative was differentiated. The fused kernel is for first-order use: "
    "make the field with causal_attention for penalties, rates and other second-order use."
)


def fused_attention(
    query: Float[Array, "length size"],
    key: Float[Array, "length size"],
    value: Float[Array, "length features"],
    grid: Grid,
) -> Float[Array, "length features"]:
    r"""One head of causal attention, :math:`o_i = \sum_j A_{ij}v_j`, by cuDNN on an NVIDIA GPU.

    The same numbers as `attention.causal_attention` on tokens, to the rounding of half-precision
    inputs. Differentiated once, in reverse; JAX itself refuses forward mode.

    Parameters
    ----------
    query, key, value
        In bfloat16 or float16, with as many features in a value as in a key.
    grid
        `token_grid`: the kernel knows no other weights.

    Raises
    ------
    ValueError
        Where the grid or the dtypes are others.
    NotImplementedError
        Where a derivative is differentiated.
    RuntimeError
        Where there is no cuDNN.

    Examples
    --------
    >>> from lim_jax.grid import midpoint_grid
    >>> half = jnp.ones((2, 8), jnp.bfloat16)
    >>> fused_attention(half, half, half, midpoint_grid(2))
    Traceback (most recent call last):
    ValueError: grid: got offset 1/2 and power 1, expected token_grid. Take causal_attention.
    """
    require_heads(query, key, grid, value)
    require(
        isinstance(grid, CellGrid) and grid.offset == 0 and grid.power == 1,
        "grid",
        got=f"offset {getattr(grid, 'offset', None)} and power {getattr(grid, 'power', None)}",
        expected="token_grid",
        cure="Take causal_attention.",
    )
    require(
        getattr(grid, "starts", None) is None,
        "grid",
        got="prefixes that begin somewhere",
        expected="prefixes that begin at the first position: the kernel knows no others",
        cure="Take causal_attention.",
    )
    dtypes = {array.dtype for array in (query, key, value)}
    require(
        dtypes in ({jnp.dtype("bfloat16")}, {jnp.dtype("float16")}),
        "attention inputs",
        got=" and ".join(sorted(map(str, dtypes))),
        expected="bfloat16 or float16, which the kernel multiplies",
        cure="Cast the parameters and the batch, or take causal_attention.",
    )
    return _attend(query, key, value)


def _kernel(query: Array, key: Array, value: Array) -> Array:
    heads = (array[:, None] for array in (query, key, value))
    attended = jax.nn.dot_product_attention(*heads, is_causal=True, implementation=IMPLEMENTATION)
    return attended[:, 0]


_attend = jax.custom_vjp(_kernel)


def _attend_forward(query, key, value):
    return jax.vjp(_kernel, *undifferentiated((query, key, value), TWICE))


def _attend_backward(pull, covector):
    return pull(undifferentiated(covector, TWICE))


_attend.defvjp(_attend_forward, _attend_backward)
