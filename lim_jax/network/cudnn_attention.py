"""Attention by cuDNN's fused kernel: what an NVIDIA GPU runs at first order, where that is allowed.

Of heads in half precision, or in float32 where products are asked for in bfloat16. Wherever the
kernel does not know the dtype, the sizes, the grid or the prefixes, the same is computed tile by
tile (`tiled_attention`).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._linear import PlatformProgram, Points, Program, Vectors
from lim_jax._precision import rounds
from lim_jax.network.tiles import Tiling

IMPLEMENTATION = "cudnn"
HALF = jnp.dtype("bfloat16"), jnp.dtype("float16")
LARGEST = 128  # features of a head
OLDEST = 8.0  # compute capability


def outputs_or(tiles: Program) -> PlatformProgram:
    """Return a program of attention by cuDNN where it may run, and else by wide tiles."""

    def program(points: Points, vectors: Vectors, tiling: Tiling, _: object) -> Sequence[Array]:
        """Compute outputs by the kernel or the tiles, and log-sum-exps by the tiles."""
        # The kernel's own log-sum-exps are rounded to half precision. The compiler drops the tiles
        # where nobody reads theirs, as at first order.
        features, log_total = tiles(points, vectors, tiling._replace(wide=True))
        heads = _heads(points)
        if _allowed(heads, tiling):
            features = _kernel(*heads).astype(features.dtype)
        return features, log_total

    return program


def pulled_or(tiles: Program) -> PlatformProgram:
    """Return a program that pulls covectors back by the kernel where it may run, else by tiles."""

    def program(
        points: Points, vectors: Vectors, tiling: Tiling, zero: tuple[bool, ...]
    ) -> Sequence[Array]:
        """Pull covectors back by the kernel if only outputs have some, and else by the tiles."""
        heads = _heads(points)
        outputs_only = zero == (False, True)
        if not outputs_only or not _allowed(heads, tiling):
            return tiles(points, vectors, tiling._replace(wide=True))
        _, pull = jax.vjp(_kernel, *heads)
        covectors = jnp.swapaxes(vectors[0], 0, 1).astype(heads[2].dtype)
        gradients = jax.lax.map(pull, covectors)
        return [jnp.swapaxes(x, 0, 1).astype(points[0].dtype) for x in gradients]

    return program


def _kernel(
    query: Float[Array, "points length size"],
    key: Float[Array, "points length size"],
    value: Float[Array, "points length size"],
) -> Float[Array, "points length size"]:
    """Compute causal attention on tokens by cuDNN's kernel; queries come scaled."""
    heads = (array[:, :, None] for array in (query, key, value))
    attended = jax.nn.dot_product_attention(
        *heads, is_causal=True, scale=1.0, implementation=IMPLEMENTATION
    )
    return attended[:, :, 0]


def _heads(points: Points) -> Points:
    """Return queries, keys and values, rounded to bfloat16 if JAX's configuration says so."""
    heads = points[:3]
    return [x.astype(HALF[0]) for x in heads] if rounds(*heads) else heads


def _allowed(heads: Points, tiling: Tiling) -> bool:
    """Tell whether the kernel can compute this attention, on this machine."""
    query, key, value = heads
    size = query.shape[-1]
    fits = size % 8 == 0 and size <= LARGEST and size == value.shape[-1]
    half = query.dtype in HALF and query.dtype == key.dtype == value.dtype
    plain = tiling.cap is None and tiling.axis is None and not tiling.arrays
    return tiling.grid.is_of_tokens and fits and half and plain and _is_there(query, key, value)


def _is_there(*heads: Array) -> bool:
    """Tell whether JAX can trace the kernel here, and the GPU is recent enough."""
    try:
        jax.eval_shape(lambda *heads: jax.vjp(_kernel, *heads)[0], *heads)
        return _capability() >= OLDEST
    except (RuntimeError, NotImplementedError):
        return False


def _capability() -> float:
    """Return the compute capability of this machine's NVIDIA GPU, or raise RuntimeError."""
    return float(jax.local_devices(backend="cuda")[0].compute_capability)
