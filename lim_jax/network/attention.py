r"""Causal attention on a grid: one weighted softmax for tokens and for the Volterra operator.

.. math:: A_{ij} = \frac{W_{ij}\, e^{s_{ij}}}{\sum_r W_{ir}\, e^{s_{ir}}}, \qquad
          s_{ij} = \langle q_i, k_j\rangle / \sqrt{d_k}

With the token grid's uniform prefix weights this is `eq:causal-attention-weights`; as the grid is
refined it tends to `eq:continuum-causal-kernel`. Scores and sums are kept in float32 at least;
arrays of other rows than the grid's are refused, and NaN and infinity pass on.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._products import matmul
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid
from lim_jax.network.caps_and_sinks import PLAIN, Shaping, capped
from lim_jax.network.tiled_attention import blocked_attention, require_heads

DENSE = 96  # positions: up to here whole matrices are the faster


def attention_weights(
    query: Float[Array, "length size"],
    key: Float[Array, "length size"],
    grid: Grid,
    shaping: Shaping = PLAIN,
) -> Float[Array, "length length"]:
    r"""Compute the causal attention matrix of one head.

    On tokens `eq:causal-attention-weights`, the softmax over :math:`j \le i`. Row i holds the
    quadrature weights of the prefix-attention measure :math:`\mu^{p_i}`
    (`eq:attention-induced-measure`), which have signs on Gauss--Legendre panels.

    Parameters
    ----------
    query, key
        The head's queries and keys, a row for each position; scores are their products over the
        root of the head's size.
    grid
        The positions, with their prefix weights and an additive mask, if it has one.
    shaping
        The cap of the scores and the sink, a `caps_and_sinks.Shaping`; by default neither.

    Returns
    -------
    Float[Array, "length length"]
        A: row i holds the weights by which position i reads the values. Each row sums to one, or
        with a sink to less.

    Raises
    ------
    ValueError
        If queries and keys do not fit the grid or one another.

    Examples
    --------
    >>> attention_weights(jnp.zeros((2, 1)), jnp.zeros((2, 1)), lim.token_grid(2)).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    require_heads(query, key, grid)
    return weights_of_rows(query, key, grid.prefix_weights(), grid, shaping)


def weights_of_rows(
    query: Float[Array, "rows size"],
    key: Float[Array, "length size"],
    prefix: Float[Array, "rows length"],
    grid: Grid,
    shaping: Shaping = PLAIN,
    rows: Int[Array, " rows"] | None = None,
) -> Float[Array, "rows length"]:
    """Return some rows of `attention_weights`, or all, by queries and rows of prefix weights."""
    scores = _mask(_scores(query, key, shaping), grid, rows)
    prefix = prefix.astype(scores.dtype)
    weights = _prefix_softmax(scores, prefix)
    if shaping.sink is not None:
        weights *= shaping.share_left(_log_mass(scores, prefix)[:, None], grid)
    return weights.astype(query.dtype)


def attention_kernel(
    query: Float[Array, "length size"], key: Float[Array, "length size"], grid: Grid
) -> Float[Array, "length length"]:
    r"""Compute the attention kernel :math:`A(p_i, p_j)`, a density in its second slot.

    :math:`\mathbf 1_{p_j \le p_i}\, e^{s_{ij}} / \int_0^{p_i} e^{s(p_i, r)}\,dr`
    (`eq:continuum-causal-kernel`, of one head `eq:one-head-score-and-kernel`), zero in the future
    (`eq:causal-support-recalled`). It grows like :math:`1/p` at 0, where
    `CausalAttention.left_trace` is what attention gives.

    Parameters
    ----------
    query, key
        The head's queries and keys, a row for each position; scores are their products over the
        root of the head's size.
    grid
        The positions, with their prefix weights, which integrate the denominator.

    Returns
    -------
    Float[Array, "length length"]
        The kernel: on tokens `attention_weights` over the cells' length, :math:`n A_{ij}`.

    Raises
    ------
    ValueError
        If queries and keys do not fit the grid or one another.

    Examples
    --------
    >>> attention_kernel(jnp.zeros((2, 1)), jnp.zeros((2, 1)), lim.token_grid(2)).tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    require_heads(query, key, grid)
    return jnp.where(grid.past, continued_kernel(query, key, grid), 0)


def continued_kernel(
    query: Float[Array, "length size"],
    key: Float[Array, "length size"],
    grid: Grid,
    shaping: Shaping = PLAIN,
) -> Float[Array, "length length"]:
    """Compute the attention kernel, continued smoothly past the diagonal within a panel."""
    # On Gauss--Legendre panels prefix weights reach ahead within a panel: there the formula goes on
    # without its indicator, so that quadratures of the kernel, such as cone masses, stay spectral.
    scores = _mask(_scores(query, key, shaping), grid)
    prefix = grid.prefix_weights().astype(scores.dtype)
    relevant = grid.past | (prefix != 0)
    highest = jnp.max(jnp.where(relevant, scores, -jnp.inf), axis=1, keepdims=True)
    mass = jnp.exp(jnp.where(relevant, scores - jax.lax.stop_gradient(highest), -jnp.inf))
    kernel = mass / jnp.sum(prefix * mass, axis=1, keepdims=True)
    if shaping.sink is not None:
        kernel *= shaping.share_left(_log_mass(scores, prefix)[:, None], grid)
    return kernel.astype(query.dtype)


def score_slopes(
    query: Float[Array, "length size"], key: Float[Array, "length size"], cap: float
) -> Float[Array, "length length"]:
    """Return the derivatives :math:`1 - (s_{ij}/c)^2` of capped scores in the uncapped ones."""
    return 1 - (_scores(query, key, Shaping(cap)) / cap) ** 2


def _scores(
    query: Float[Array, "rows size"], key: Float[Array, "length size"], shaping: Shaping
) -> Float[Array, "rows length"]:
    """Compute the scores :math:`s_{ij}` (`eq:continuum-attention-score`), capped."""
    return capped(matmul(query, key.T) / math.sqrt(query.shape[1]), shaping.cap)


def _mask(
    scores: Float[Array, "rows length"], grid: Grid, rows: Int[Array, " rows"] | None = None
) -> Float[Array, "rows length"]:
    """Add the grid's mask, all rows or some, to the scores."""
    return scores if grid.log_weights is None else scores + grid.mask(rows).astype(scores.dtype)


def _log_mass(
    scores: Float[Array, "rows length"], prefix: Float[Array, "rows length"]
) -> Float[Array, " rows"]:
    r"""Compute :math:`\ell_i = \log\sum_j W_{ij}\,e^{s_{ij}}`, for weights that may have signs."""
    masked = jnp.where(prefix != 0, scores, -jnp.inf)
    highest = jax.lax.stop_gradient(jnp.max(masked, axis=1))
    return highest + jnp.log(jnp.sum(prefix * jnp.exp(masked - highest[:, None]), axis=1))


@jax.custom_jvp
def _prefix_softmax(
    scores: Float[Array, "rows length"], prefix: Float[Array, "rows length"]
) -> Float[Array, "rows length"]:
    """Normalise the grid's prefix weights times the exponential of the scores, row by row."""
    # Weights may have signs, so they multiply after the exponential; positions without any are
    # masked before the row maximum is taken.
    masked = jnp.where(prefix != 0, scores, -jnp.inf)
    mass = prefix * jnp.exp(masked - jnp.max(masked, axis=1, keepdims=True))
    return mass / jnp.sum(mass, axis=1, keepdims=True)


@_prefix_softmax.defjvp
def _prefix_softmax_jvp(primals, tangents):
    """Compute the derivative of the normalised kernel, `eq:normalized-kernel-variation`."""
    # dA_ij = A_ij (ds_ij - sum_r A_ir ds_ir), of any weights, which do not move: linear in ds and
    # made of A alone, so it can be transposed and differentiated again.
    weights = _prefix_softmax(*primals)
    change, _ = tangents
    mean_change = jnp.sum(weights * change, axis=1, keepdims=True)
    return weights, weights * (change - mean_change)


def causal_attention(
    query: Float[Array, "length size"],
    key: Float[Array, "length size"],
    value: Float[Array, "length features"],
    grid: Grid,
    shaping: Shaping = PLAIN,
) -> Float[Array, "length features"]:
    r"""Attend causally by one head, :math:`o_i = \sum_j A_{ij} v_j` (`eq:masked-mha`).

    In the continuum `eq:one-head-causal-map`. A quotient: on tokens of
    `eq:discrete-attention-numerator-scaled` by `eq:discrete-attention-denominator-scaled`, on
    panels of `eq:continuum-attention-numerator` by `eq:continuum-attention-denominator`.

    Beyond `DENSE` positions tile by tile, in memory linear in the length, with the same numbers and
    derivatives (`tiled_attention`); on Gauss--Legendre panels always by the whole matrix. `vmap`
    over heads.

    Parameters
    ----------
    query, key
        The head's queries and keys, a row for each position; scores are their products over the
        root of the head's size.
    value
        The head's values, a row for each position.
    grid
        The positions, with their prefix weights and an additive mask, if it has one.
    shaping
        The cap of the scores and the sink, a `caps_and_sinks.Shaping`; by default neither.

    Returns
    -------
    Float[Array, "length features"]
        What the head reads at each position.

    Raises
    ------
    ValueError
        If queries, keys and values do not fit the grid or one another.

    Examples
    --------
    >>> values = jnp.array([[1.0], [3.0]])
    >>> causal_attention(jnp.zeros((2, 1)), jnp.zeros((2, 1)), values, lim.token_grid(2)).tolist()
    [[1.0], [2.0]]
    """
    require_heads(query, key, grid, value)
    if isinstance(grid, CellGrid) and grid.size > DENSE:
        return blocked_attention(query, key, value, grid, shaping)
    return matmul(attention_weights(query, key, grid, shaping), value).astype(value.dtype)
