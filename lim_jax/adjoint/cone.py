r"""Cone mass and cone energy: how strongly later positions read each position.

Integrals over :math:`p \ge q` take the adjoint's weights, :math:`\Delta p_i W_{ij}/\Delta p_j`:
on tokens :math:`\Delta p` for :math:`i \ge j`, the diagonal block included. The blocks are those
of `tangent`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lim_jax._checks import error_if, require, require_callable, require_floats, require_name
from lim_jax._jit import filter_jit
from lim_jax._precision import beyond_rounding, promote
from lim_jax.adjoint.block_norms import column_mass, squared_frobenius_norms
from lim_jax.adjoint.sites import AttentionSites, map_sites, require_sites, require_softmax
from lim_jax.adjoint.tangent import (
    BLOCKS_OF_SOFTMAX,
    KernelFactors,
    causal_by_construction,
    kernel_factors,
    pull_back,
)
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.multihead import CausalAttention
from lim_jax.network.slots import Field, State
from lim_jax.probes import Estimate, Probes, sample_mean
from lim_jax.weights import in_memory

Norm = Literal["operator", "frobenius"]
Normalisation = Literal["density", "finite"]
NAMES = "Pass one of these names, which cone_mass explains."
SQUARES: dict[str, Callable[[Array], Array]] = {  # of the blocks of one column
    "operator": lambda blocks: jnp.linalg.norm(blocks, ord=2, axis=(1, 2)) ** 2,
    "frobenius": lambda blocks: (blocks**2).sum(axis=(1, 2)),
}


@filter_jit
def cone_mass(
    attention: Field,
    x: State,
    grid: Grid,
    norm: Norm = "operator",
    normalisation: Normalisation = "density",
) -> Float[Array, " length"]:
    r"""Compute the cone mass :math:`\mathcal C(q) = \int_q^1 \|K(p, q)\|^2\,dp` at every position.

    `eq:cone-mass`, exact on the grid. On tokens the density is
    :math:`\sum_{i \ge j} \Delta p\,\|L\hat K_{ij}\|^2`, which converges as L grows; the literal
    `eq:finite-cone-mass-estimator`, :math:`\sum_{i\ge j} \Delta p\,\|\hat K_{ij}\|^2`, tends to 0
    like :math:`L^{-2}`. The mass grows like :math:`1/q` at 0, so no average of it over a left
    region converges.

    No block is formed (`block_norms`) unless a norm follows attention's output, and no array is
    larger than the attention matrices, or than a matrix of the width for each position. Operator
    norms are exact to rounding where the largest singular value is isolated, to the gap where it is
    not; in float32 they may stop at the second one (seen once, 7 % lower), not in float64. For
    the average over depth and data, `jax.lax.map` it over `attention_sites` and `vmap` over
    examples.

    Parameters
    ----------
    attention
        The sublayer, for example ``field.attention``; or any causal function
        ``field(x, context, grid)`` of two slots, whose blocks are then formed, column by column, by
        as many pushes as there are features.
    x
        The states of one example, of shape ``(length, width)``.
    grid
        The positions of x.
    norm
        ``"operator"`` (the paper's, and the default) or ``"frobenius"``, the norm that probes
        estimate.
    normalisation
        ``"density"`` (the default) for blocks K of the kernel, or ``"finite"`` for the literal
        estimator, of :math:`\hat K_{ij} = W_{ij} K(p_i, p_j)`.

    Returns
    -------
    Array
        The mass at every position q, of shape ``(length,)``.

    Raises
    ------
    ValueError
        If `norm` or `normalisation` has another name, or x does not fit the grid.
    EquinoxRuntimeError
        If a column of a field reaches rows before its own; Gauss--Legendre panels are not checked.
    NotImplementedError
        If the operator norm of attention is differentiated twice: take the Frobenius norm.

    Examples
    --------
    >>> mass = cone_mass(lim.limits.averaging_attention(), jnp.ones((2, 1)), lim.token_grid(2))
    >>> mass.tolist()  # sums of Δp/p^2 over p >= q
    [2.5, 0.5]
    """
    require_name(norm, tuple(SQUARES), "norm", NAMES)
    require_name(normalisation, ("density", "finite"), "normalisation", NAMES)
    if not _has_factors(attention):
        basis = jnp.eye(x.shape[1], dtype=x.dtype)
        return _over_columns(attention, x, grid, normalisation, basis, SQUARES[norm])
    factors = kernel_factors(attention, x, grid)
    weights = _cone_weights(grid, normalisation).astype(factors.kernel.dtype)
    if norm == "frobenius":
        return (weights * squared_frobenius_norms(factors)).sum(axis=0)

    @jax.checkpoint
    def mass(column: tuple[Array, Array]) -> Float[Array, ""]:
        """Compute the cone mass of one column, with its weights for the rows."""
        j, weights = column
        return column_mass(factors, j, weights)

    return jax.lax.map(mass, (jnp.arange(grid.size), weights.T))


@filter_jit
def probed_cone_mass(
    attention: Field, x: State, grid: Grid, probes: Probes, normalisation: Normalisation = "density"
) -> Estimate:
    r"""Estimate the Frobenius cone mass with probes supported at one token each.

    `eq:probe-cone-mass-estimator` for the kernel alone:
    :math:`\mathbb E\,\|K(p,q)\xi\|^2 = \|K(p,q)\|_F^2`. The local operator, which the printed
    estimator includes at i = j, is left out, as in the mass it estimates. With a full set of
    orthogonal probes it is exact.

    Parameters
    ----------
    attention
        The sublayer, for example ``field.attention``; or any causal function
        ``field(x, context, grid)`` of two slots.
    x
        The states of one example, of shape ``(length, width)``.
    grid
        The positions of x.
    probes
        Random vectors of the width with :math:`\mathbb E\,\xi\xi^* = I`, of shape
        ``(probes, width)``, for example from `probes.rademacher_probes`; the same at every token.
    normalisation
        ``"density"`` (the default) for blocks K of the kernel, or ``"finite"`` for
        :math:`\hat K_{ij} = W_{ij} K(p_i, p_j)`.

    Returns
    -------
    Estimate
        The mass at every position, of shape ``(length,)``, and its standard error, which takes the
        probes as independent (orthogonal ones err less) and is infinite for one probe.

    Raises
    ------
    ValueError
        If `normalisation` has another name, x does not fit the grid, or the probes are not of the
        width of x.
    EquinoxRuntimeError
        If a column of a field reaches rows before its own; Gauss--Legendre panels are not checked.

    Examples
    --------
    >>> averaging, probe = lim.limits.averaging_attention(), jnp.ones((1, 1))
    >>> probed_cone_mass(averaging, jnp.ones((2, 1)), lim.token_grid(2), probe).value.tolist()
    [2.5, 0.5]
    """
    require_name(normalisation, ("density", "finite"), "normalisation", NAMES)
    require_on_grid(x, grid, "x", "length width")
    require_floats(probes, "probes", "probes width", width=x.shape[1])

    def squares(images: Float[Array, "length width probes"]) -> Float[Array, "length probes"]:
        """Compute the squared norm of each probe's image at each position."""
        return (images**2).sum(axis=1)

    samples = _over_columns(attention, x, grid, normalisation, probes, squares)
    return sample_mean(samples.T)


@filter_jit
def cone_energies(sites: AttentionSites, grid: Grid) -> Float[Array, "depth length"]:
    r"""Compute :math:`\|\int_q^1 K_t(p,q)^*P_t(p)\,dp\|^2` of one example at every depth.

    The mean over examples is the cone covariance energy :math:`Q_t(q)`
    (`eq:exact-cone-covariance-energy`).

    Parameters
    ----------
    sites
        The `attention_sites` of one example.
    grid
        The positions of the sites' states.

    Returns
    -------
    Array
        The energy by layer and position q, of shape ``(depth, length)``; zero in layers without
        attention.

    Raises
    ------
    ValueError
        If `sites` are no `AttentionSites`, or their states do not fit the grid.
    """
    require_sites(sites, grid)

    def energy(attention: Any, site: AttentionSites) -> Float[Array, " length"]:
        """Compute the energy of one attention's cone, zero where there is no attention."""
        if attention is None:
            return jnp.zeros_like(grid.in_single_precision.weights)
        cone = pull_back(attention, site.states, site.covectors, grid).kernel
        return (promote(cone) ** 2).sum(axis=1)

    return map_sites(energy, sites)


class JointCone(NamedTuple):
    r"""The cross-depth integrand :math:`\Gamma(t, u, p, r; q)`, reduced at every position q.

    Attributes
    ----------
    lowest
        The least :math:`\Gamma` over all pairs of depths and of future positions.
    largest
        The largest :math:`|\Gamma|` over the same pairs.
    energy
        The integral of :math:`\Gamma` over both depths and both future positions,
        :math:`Q_{\rm cone}(q) = \mathbb E\|P_{\rm cone}(q)\|^2` (`eq:full-depth-cone-energy`).
    future
        The length of the future cone on the grid, 1 - q in the continuum.
    horizon
        The depth T of the flow.
    """

    lowest: Float[Array, " length"]
    largest: Float[Array, " length"]
    energy: Float[Array, " length"]
    future: Float[Array, " length"]
    horizon: Float[Array, ""]


@filter_jit
def joint_cone(sites: AttentionSites, grid: Grid) -> JointCone:
    r"""Reduce the cross-depth integrand of a batch to its extremes and its integral.

    `eq:joint-cross-depth-cone-integrand`: with :math:`a_k(p) = \zeta_k K_k(p,q)^*P(p)`, it is
    :math:`\mathbb E\,a_k(p)\cdot a_l(r)`, the expectation over the batch. Positions q and depths k
    are streamed, so that what is formed at once is (length) x (depth, length) for one q.

    Parameters
    ----------
    sites
        The `attention_sites` of every example, by `vmap`: the arrays have a leading axis of
        examples, the attention and the increments too.
    grid
        The positions of the states: cells, such as `token_grid`, `midpoint_grid` or `graded_grid`.

    Returns
    -------
    JointCone
        Least, largest and integrated :math:`\Gamma`, each a number for every position q.

    Raises
    ------
    ValueError
        If the grid has Gauss--Legendre panels, whose weights have signs; if some layer is no
        `CausalAttention`; or if the sites are no batch on this grid.
    """
    require(
        isinstance(grid, CellGrid),
        "grid",
        got=type(grid).__name__,
        expected="a grid of cells, whose prefix weights are non-negative",
        cure="Take token_grid, midpoint_grid or graded_grid: extremes bound positive sums only.",
    )
    require_sites(sites, grid, "examples depth length width")
    require_softmax(sites.attention, BLOCKS_OF_SOFTMAX)
    factors = jax.vmap(jax.vmap(lambda a, x: kernel_factors(in_memory(a), x, grid)))(
        sites.attention, sites.states
    )
    increments, steps, covectors = promote((sites.increments, sites.step, sites.covectors))
    step = steps[0, 0]
    profile = increments / steps
    cone_weights = _cone_weights(grid, "density")

    def at_position(j: Array) -> tuple[Array, Array, Array, Array]:
        r"""Return :math:`\Gamma`'s extremes, the cone's energy and the future's length."""
        weights = cone_weights[:, j]
        inside = weights > 0

        def contribution(factors: KernelFactors, covectors: State, scale: Array) -> State:
            """Pull one attention's covectors back to this position, scaled by its increment."""
            return scale * factors.pull_column(j, covectors)

        parts = jax.vmap(jax.vmap(contribution))(factors, covectors, profile)

        def against_all(part: Float[Array, "examples length width"]) -> tuple[Array, Array]:
            """Return the least and the largest entry of one layer's Gram matrices with all."""
            gamma = jnp.einsum("ndx,nkex->dke", part, parts) / parts.shape[0]
            both = inside[:, None, None] & inside[None, None, :]
            # A Gram matrix: no entry is larger than the largest of its diagonal.
            largest = jnp.where(inside, (part**2).sum(axis=2).mean(axis=0), 0).max()
            return jnp.where(both, gamma, jnp.inf).min(), largest

        lowest, largest = jax.lax.map(against_all, jnp.moveaxis(parts, 1, 0))
        channel = step * jnp.einsum("d,nkdx->nx", weights, parts)
        return lowest.min(), largest.max(), (channel**2).sum(axis=1).mean(), weights.sum()

    lowest, largest, energy, future = jax.lax.map(at_position, jnp.arange(grid.size))
    return JointCone(lowest, largest, energy, future, horizon=steps[0].sum())


def _cone_weights(grid: Grid, normalisation: Normalisation) -> Float[Array, "length length"]:
    r"""Return the weights of :math:`\int_{p_j}^1`, or the literal ones of :math:`\hat K_{ij}`."""
    grid = grid.in_single_precision
    weights = grid.weights
    prefix = grid.prefix_weights()
    if normalisation == "finite":
        return weights[:, None] * prefix**2
    return weights[:, None] * prefix / weights[None, :]


def future_lengths(grid: CellGrid) -> Float[np.ndarray, " length"]:
    """Return the length of every position's future cone: its column's sum of cone weights."""
    weights = grid._weights()
    starts = np.zeros(grid.size, int) if grid.starts is None else np.asarray(grid.starts)
    begun = np.cumsum(np.bincount(starts, weights, grid.size))
    # Sum over i >= j with starts_i <= j of Δp_i, less the part of cell j that row j does not read.
    return begun - np.cumsum(weights) + float(1 - grid.offset) * weights


def _has_factors(attention: Field) -> TypeGuard[CausalAttention]:
    """Tell whether this is a causal attention, whose kernel has factors."""
    return isinstance(attention, CausalAttention) and causal_by_construction(attention)


def _over_columns(
    field: Field,
    x: State,
    grid: Grid,
    normalisation: Normalisation,
    vectors: Float[Array, "vectors width"],
    squares: Callable[[Float[Array, "length width vectors"]], Float[Array, " length *rest"]],
) -> Float[Array, " length *rest"]:
    """Apply every column's blocks to some vectors, and integrate the images' squares over rows."""
    require_on_grid(x, grid, "x", "length width")
    weights = _cone_weights(grid, normalisation)
    if _has_factors(field):
        factors = kernel_factors(field, x, grid)
        push = factors.push_column
        vectors = vectors.astype(factors.states.dtype)
        weights = weights.astype(factors.kernel.dtype)
    else:
        require_callable(field, "attention", "field(x, context, grid)")
        prefix = grid.in_single_precision.prefix_weights()
        # The derivative has the Jacobian's blocks, which are K times the prefix weights.
        weights = jnp.where(prefix != 0, weights / jnp.where(prefix != 0, prefix, 1) ** 2, 0)

        def push(j: Array, tangent: Float[Array, " width"]) -> State:
            """Push a tangent of one context token forward to all positions."""
            along = jnp.zeros_like(x).at[j].set(tangent.astype(x.dtype))
            return promote(jax.jvp(lambda context: field(x, context, grid), (x,), (along,))[1])

    @jax.checkpoint
    def reduce_column(column: tuple[Array, Array]) -> tuple[Array, Bool[Array, ""]]:
        """Reduce one column's images, and tell whether earlier positions read it."""
        j, weights = column
        images = jax.vmap(push, (None, 0), 2)(j, vectors)
        early = (jnp.arange(grid.size) < j)[:, None, None]
        return weights @ squares(images), beyond_rounding(jnp.where(early, images, 0), images)

    masses, ahead = jax.lax.map(reduce_column, (jnp.arange(grid.size), weights.T))
    if causal_by_construction(field) or not isinstance(grid, CellGrid):
        return masses  # on panels all columns reach earlier rows, within a panel
    message = (
        "field: got one that looks ahead, expected a causal one: a cone mass is of what "
        "follows each position. Let rows read their prefix alone."
    )
    return error_if(masses, jnp.any(ahead), message)
