r"""Traces of observability Gramians without the Gramians: estimates and their moments.

Forward probes carry a random perturbation of one position through the network; injected noise
comes back from every layer to all positions at once. Signs (`probes.rademacher_probes`) are never
noisier than Gaussian entries, on either way.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._checks import as_int, require_floats, require_indices
from lim_jax._jit import filter_jit
from lim_jax._precision import promote, unit_of
from lim_jax.grid.integrals import less_their_mean
from lim_jax.grid.measure import Grid, Scalar, require_on_grid
from lim_jax.observability.gramian import (
    Gramians,
    Observations,
    Positions,
    State,
    Steps,
    gramian_traces,
    guarded_positions,
    layer_products,
    layer_steps,
    require_observations,
)
from lim_jax.probes import Probes, deviation_of


@filter_jit
def probed_observability(
    observations: Observations,
    x: State,
    step: Steps,
    probes: Probes | Float[Array, "probes positions width"],
    positions: Int[Array, " positions"] | None = None,
) -> Float[Array, "probes positions"]:
    r"""Sample the traces by forward probes, without any Gramian: Algorithm 3's estimates.

    Row r holds :math:`\sum_k\varepsilon\,\|C_kJ_{k,i}\xi_r\|^2`, whose mean over probes is
    :math:`\hat g_i` (`eq:discrete-observability-trace-estimator`). Differentiable in every mode.

    Parameters
    ----------
    observations
        ``observations(x) -> (depth, observed)``, what is seen of an input, a row for each layer:
        `ObservedTokens`, or any pure function.
    x
        The input of one example, of shape ``(length, width)``.
    step
        :math:`\varepsilon`, a number not below zero, or one such weight for each layer: zero for a
        layer that is left out, :math:`\varepsilon/\pi_k` for one that is kept with probability
        :math:`\pi_k`.
    probes
        :math:`\xi_r`, independent entries of mean 0 and variance 1, such as
        `probes.rademacher_probes`: of shape ``(probes, width)`` the same at every position, which
        lessens the noise of differences; else ``(probes, positions, width)``, one set for each
        position.
    positions
        The numbers of the monitored positions, counted from 0; all by default. No others are
        computed.

    Returns
    -------
    Array
        The samples, of shape ``(probes, positions)``, Euclidean as the Gramians are.

    Raises
    ------
    ValueError
        If `observations` are no function to a row for each layer, `x` is not of one example, the
        positions are no whole numbers, the probes or the weights of layers have another shape, or
        `step` is a number below zero, NaN or infinite.
    EquinoxRuntimeError
        If x has no such position, or a weight in an array `step` is below zero, NaN or infinite.

    Examples
    --------
    >>> observations = lambda x: 3 * x.reshape(1, -1)
    >>> probed_observability(observations, jnp.ones((2, 1)), 0.5, jnp.array([[1.0]])).tolist()
    [[4.5, 4.5]]
    """
    require_observations(observations, x)
    positions = jnp.arange(x.shape[0]) if positions is None else positions
    require_indices(positions, "positions")
    positions = guarded_positions(positions, x)
    each = getattr(probes, "ndim", 2) == 3
    axes = "probes positions width" if each else "probes width"
    sizes = {"positions": positions.shape[0], "width": x.shape[1]}
    require_floats(probes, "probes", axes, "Take them from probes, of the width.", **sizes)
    if not each:
        probes = jnp.broadcast_to(probes[:, None], (len(probes), len(positions), x.shape[1]))
    observed, push = jax.linearize(observations, x)
    steps = layer_steps(step, observed)

    def sample(position: Array, probe: Array) -> Scalar:
        """Push one probe at one position forward, and sum the squares over depth."""
        image = push(jnp.zeros_like(x).at[position].set(probe))
        return steps @ (promote(image) ** 2).sum(axis=1)

    return jax.vmap(jax.vmap(sample), in_axes=(None, 0))(positions, probes)


@filter_jit
def layer_injected_traces(
    observations: Observations,
    x: State,
    step: Steps,
    injected: Float[Array, "draws depth observed"],
) -> Float[Array, "draws length"]:
    r"""Sample the traces of all positions at once, by one reverse sweep for each draw.

    With independent isotropic :math:`z_k` at every layer,
    :math:`w = \sum_k\sqrt\varepsilon\,J_k^*C_k^*z_k` has
    :math:`\mathbb E\,\|w_i\|^2 = \mathrm{tr}\,G_i` at every position i. Differentiable in every
    mode in x and in positive weights of layers; where a weight that is learned may be zero, take
    `probed_observability`, as the root has no derivative there.

    Parameters
    ----------
    observations
        ``observations(x) -> (depth, observed)``, what is seen of an input, a row for each layer:
        `ObservedTokens`, or any pure function.
    x
        The input of one example, of shape ``(length, width)``.
    step
        :math:`\varepsilon`, a number not below zero, or one such weight for each layer: zero for a
        layer that is left out, :math:`\varepsilon/\pi_k` for one that is kept with probability
        :math:`\pi_k`.
    injected
        :math:`z_k`, independent entries of mean 0 and variance 1, best signs, for each number that
        is observed: of shape ``(draws, depth, observed)``.

    Returns
    -------
    Array
        The samples :math:`\|w_i\|^2`, of shape ``(draws, length)``, Euclidean as the Gramians are.

    Raises
    ------
    ValueError
        If `observations` are no function to a row for each layer, `x` is not of one example,
        `injected` or the weights of layers do not fit what is observed, or `step` is a number below
        zero, NaN or infinite.
    EquinoxRuntimeError
        If a weight in an array `step` is below zero, NaN or infinite.

    Examples
    --------
    >>> observations = lambda x: 3 * x.reshape(1, -1)
    >>> noise = jnp.ones((1, 1, 2))
    >>> layer_injected_traces(observations, jnp.ones((2, 1)), 0.5, noise).round(6).tolist()
    [[4.5, 4.5]]
    """
    depth, count = require_observations(observations, x)
    observed, pull = jax.vjp(observations, x)
    require_floats(
        injected,
        "injected",
        "draws depth observed",
        "Pass one entry for each number that is observed.",
        depth=depth,
        observed=count,
    )
    scale = jnp.sqrt(layer_steps(step, observed))[:, None]

    def draw(noise: Float[Array, "depth observed"]) -> Float[Array, " length"]:
        """Pull one draw of noise back, and square it at every position."""
        (pulled,) = pull((scale * promote(noise)).astype(observed.dtype))
        return (promote(pulled) ** 2).sum(axis=1)

    return jax.vmap(draw)(injected)


def trace_products(
    observations: Observations,
    x: State,
    draws: int,
    positions: Positions | None = None,
    *,
    depth: int | None = None,
) -> dict[str, int]:
    r"""Count the products with one layer's derivative that each route to the traces takes.

    Beside the exact routes of `layer_products` there are, with S positions, M layers and R draws,
    :math:`SRM` for forward probes and :math:`RM` for injected noise, which comes back in one sweep,
    where `subsec:algorithm-complexity` counts :math:`R\sum_k r_k` cotangents. Nothing is computed:
    shapes alone are looked at.

    Parameters
    ----------
    observations
        ``observations(x) -> (K, r)``, what is seen of an input at each observed layer:
        `ObservedTokens`, or any pure function.
    x
        The input of one example, of shape ``(length, width)``.
    draws
        R, how many probes, or draws of noise, at least 1.
    positions
        The numbers of the S monitored positions; all by default.
    depth
        M, how many layers the observations run through, of which they may show fewer. By default
        that of `ObservedTokens`; for another function it is to be passed.

    Returns
    -------
    dict
        The number of products of each route, ``forward``, ``reverse``, ``probes`` and ``injected``.

    Raises
    ------
    ValueError
        If `observations` are no function to a row for each layer, `x` is not of one example, the
        positions are no whole numbers, `draws` is no whole number of at least 1, or `depth` is
        missing or not that of `ObservedTokens`.

    Examples
    --------
    >>> trace_products(lambda x: 3 * x.reshape(1, -1), jnp.ones((2, 1)), draws=5, depth=1)
    {'forward': 2, 'reverse': 2, 'probes': 10, 'injected': 5}
    """
    draws = as_int(draws, "draws")
    exact = layer_products(observations, x, positions, depth=depth)
    monitored = x.shape[0] if positions is None else positions.shape[0]
    depth = exact["forward"] // (monitored * x.shape[1])
    return exact | {"probes": monitored * draws * depth, "injected": draws * depth}


def accumulated_numbers(
    observations: Observations, x: State, draws: int, positions: Positions | None = None
) -> dict[str, int]:
    """Count the numbers that each route to the traces squares and adds up.

    The accumulation of `subsec:algorithm-complexity`, beside the products of `trace_products`. With
    S positions of width :math:`d_x` of L, K layers observed, r numbers at each, and R draws:

    - ``probes``: :math:`S R K r`, the forward probes of `probed_observability`;
    - ``injected``: :math:`L d_x R`, the noise of `layer_injected_traces`;
    - ``forward``: :math:`S d_x K r`, exact Gramians in forward mode;
    - ``reverse``: :math:`L d_x K r`, exact Gramians in reverse mode.

    The paper's :math:`S R K d_x` is that of maps that observe one whole token, :math:`r = d_x`; of
    all L tokens r is :math:`L d_x`. A product with a layer costs at least :math:`L d_x^2`
    operations, so these numbers count where r is large and layers are few or narrow. Nothing is
    computed: shapes alone are looked at, and it works inside a transformation.

    Parameters
    ----------
    observations
        ``observations(x) -> (K, r)``, what is seen of an input at each observed layer:
        `ObservedTokens`, or any pure function.
    x
        The input of one example, of shape ``(length, width)``.
    draws
        R, how many probes, or draws of noise, at least 1.
    positions
        The S monitored positions, all L by default. The reverse routes go to all in any case.

    Returns
    -------
    dict
        The numbers of each route, ``forward``, ``probes``, ``reverse`` and ``injected``.

    Raises
    ------
    ValueError
        If `observations` are no function to a row for each layer, `x` is not of one example, or a
        count is no whole number that is known before tracing.

    Examples
    --------
    >>> accumulated_numbers(lambda x: 3 * x.reshape(1, -1), jnp.ones((2, 1)), draws=5)
    {'forward': 4, 'probes': 20, 'reverse': 4, 'injected': 10}
    """
    layers, count = require_observations(observations, x)
    draws = as_int(draws, "draws")
    if positions is not None:
        require_indices(positions, "positions")
    monitored = len(x) if positions is None else len(positions)
    observed = layers * count
    return {
        "forward": monitored * x.shape[1] * observed,
        "probes": monitored * draws * observed,
        "reverse": x.size * observed,
        "injected": x.size * draws,
    }


def probed_traces(
    gramians: Gramians, probes: Float[Array, "probes width"]
) -> Float[Array, " length"]:
    r"""Estimate the traces with common probes: :math:`\hat g_i = N^{-1}\sum_r \xi_r^* G_i \xi_r`.

    `eq:discrete-observability-trace-estimator` by `eq:finite-token-observability-quadratic-form`;
    unbiased for isotropic probes (`eq:observability-trace-unbiasedness`).

    Parameters
    ----------
    gramians
        :math:`G_i`, the Gramian of each position, as `observability_gramians` returns them.
    probes
        :math:`\xi_r`, N random vectors of shape ``(N, width)``, the same at every position, with
        independent entries of mean 0 and variance 1.

    Returns
    -------
    Array
        The estimate at each position, Euclidean as the Gramians are.

    Raises
    ------
    ValueError
        If the Gramians are no floating-point array of shape ``(positions, width, width)``, or the
        probes have another width.

    Examples
    --------
    >>> probed_traces(jnp.diag(jnp.array([1.0, 2.0]))[None], jnp.array([[1.0, -1.0]])).tolist()
    [3.0]
    """
    require_floats(gramians, "gramians", "positions width width")
    require_floats(probes, "probes", "probes width", width=gramians.shape[1])
    gramians, probes = promote((gramians, probes))
    return jnp.einsum("ra,iab,rb->i", probes, gramians, probes) / probes.shape[0]


class PenaltyMoments(NamedTuple):
    """The mean excess and the standard deviation of an estimated penalty.

    Attributes
    ----------
    bias
        How much the estimated penalty exceeds that of the exact traces on average.
    deviation
        The standard deviation of the estimated penalty.
    """

    bias: Scalar
    deviation: Scalar


@filter_jit
def gaussian_probe_moments(gramians: Gramians, grid: Grid, probes: int) -> PenaltyMoments:
    r"""Compute the exact bias and deviation of the trace penalty under common Gaussian probes.

    With the centred :math:`H_i = G_i - \bar G` the penalty is
    :math:`\hat\Omega = \sum_i \Delta p_i \hat h_i^2`, where
    :math:`\hat h_i = N^{-1}\sum_r \xi_r^* H_i \xi_r` has the cumulants

    .. math::
        \kappa(i) = \mathrm{tr} H_i,\quad
        \kappa(i,j) = \tfrac{2}{N}\mathrm{tr} H_iH_j,\quad
        \kappa(i,i,j) = \tfrac{8}{N^2}\mathrm{tr} H_i^2H_j,\quad
        \kappa(i,i,j,j) = \tfrac{16}{N^3}\bigl(2\,\mathrm{tr} H_i^2H_j^2
        + \mathrm{tr} H_iH_jH_iH_j\bigr).

    The bias is :math:`\mathrm{tr}(Q\Sigma) = \sum_i \Delta p_i \kappa(i,i)`
    (`eq:algorithm3-penalty-estimator-bias`), and the variance :math:`\sum_{ij}\Delta p_i\Delta
    p_j\,[\kappa(i,i,j,j) + 4\kappa(i,i,j)\kappa(j) + 2\kappa(i,j)^2 +
    4\kappa(i)\kappa(i,j)\kappa(j)]`.

    Parameters
    ----------
    gramians
        :math:`G_i`, the Gramian of each position, symmetric, as `observability_gramians` returns
        them.
    grid
        The positions, whose weights are :math:`\Delta p_i`; :math:`\bar G` is the mean of the
        Gramians by these.
    probes
        N, how many Gaussian probes the traces are estimated with, common to all positions; at least
        1.

    Returns
    -------
    PenaltyMoments
        The scalars ``bias``, how much the estimated penalty exceeds the exact one on average, and
        ``deviation``, its standard deviation.

    Raises
    ------
    ValueError
        If `gramians` is no floating-point array of shape ``(length, width, width)``, or `probes` no
        whole number of at least 1.

    Examples
    --------
    >>> gramians = jnp.array([[[0.0]], [[2.0]]])  # centred: -1 and 1, so the penalty is y^2
    >>> moments = gaussian_probe_moments(gramians, lim.token_grid(2), probes=1)
    >>> float(moments.bias), round(float(moments.deviation) ** 2, 9)  # E y^4 - 1^2, y ~ chi^2_1
    (2.0, 96.0)
    """
    require_on_grid(gramians, grid, "gramians", "length width width")
    probes = as_int(probes, "probes")
    grid = grid.in_single_precision
    centred = less_their_mean(gramians, grid)
    # In units of the largest entry: fourth powers of others leave float32. The result does not
    # depend on the unit, and neither do its derivatives.
    unit = unit_of(centred)
    centred = centred / unit
    mean = gramian_traces(centred)
    products = jnp.einsum("iab,jbc->ijac", centred, centred)
    squares = jnp.einsum("iiac->iac", products)
    second = 2 / probes * jnp.trace(products, axis1=2, axis2=3)
    third = 8 / probes**2 * jnp.einsum("iab,jba->ij", squares, centred)
    crossed = 2 * jnp.einsum("iab,jba->ij", squares, squares)
    fourth = 16 / probes**3 * (crossed + jnp.einsum("ijab,ijba->ij", products, products))
    lower = 4 * third * mean[None, :] + 2 * second**2
    summands = fourth + lower + 4 * mean[:, None] * second * mean[None, :]
    variance = grid.weights @ summands @ grid.weights
    bias = grid.weights @ jnp.diag(second)
    return PenaltyMoments(unit**2 * bias, unit**2 * deviation_of(variance))


@filter_jit
def penalty_bias(covariance: Float[Array, "length length"], grid: Grid) -> Scalar:
    r"""Compute the mean excess of the trace penalty of noisy traces, :math:`\mathrm{tr}(Q\Sigma)`.

    `eq:algorithm3-penalty-estimator-bias` (`rem:algorithm3-bias`), exact for unbiased traces of any
    law; Q is :math:`D - dd^\top/\sum_i d_i` with the weights :math:`d_i = \Delta p_i`.

    Parameters
    ----------
    covariance
        :math:`\Sigma`, the covariance of the traces' estimates between positions, of shape
        ``(length, length)``: from N Gaussian probes :math:`\tfrac2N\mathrm{tr}(G_iG_j)`; from signs
        less :math:`\tfrac2N\sum_a(G_i)_{aa}(G_j)_{aa}`.
    grid
        The positions.

    Returns
    -------
    Array
        The bias, a scalar.

    Raises
    ------
    ValueError
        If `covariance` is no floating-point array of shape ``(length, length)``.

    Examples
    --------
    >>> float(penalty_bias(jnp.diag(jnp.array([1.0, 3.0])), lim.token_grid(2)))  # (1 + 3) / 2 - 1
    1.0
    """
    require_on_grid(covariance, grid, "covariance", "length length")
    covariance = promote(covariance)
    weights = grid.in_single_precision.weights
    of_mean = weights @ covariance @ weights / weights.sum()
    return weights @ jnp.diag(covariance) - of_mean
