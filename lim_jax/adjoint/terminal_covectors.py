"""The queries of a loss, and the terminal covector that follows from them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lim_jax._checks import ARRAYS, as_int, error_if, error_if_not_finite, require, require_floats
from lim_jax._precision import promote
from lim_jax.adjoint.certificate import half_digits
from lim_jax.grid.measure import require_on_grid
from lim_jax.grid.partition import Regions, require_regions
from lim_jax.loss.losses import Labels, checked_queries, logit_residual


class QueryMasses(NamedTuple):
    r"""The query weights :math:`\alpha` of a loss by region (left, middle, right).

    Masses compare regions of different length, so it is the averages of squares that decide.

    Attributes
    ----------
    masses
        :math:`\omega_B = \sum_{i \in B}\alpha_i` (`eq:query-mass-discrete`), of shape ``(3,)``.
    squares
        :math:`|B|^{-1}\int_B \chi^2` of the density :math:`\chi_i = \alpha_i/\Delta p_i`
        (`eq:continuum-query-right-bias`), of shape ``(3,)``; on point regions of tokens :math:`L^2`
        times the average of :math:`\alpha_i^2` (`eq:right-biased-squared-query-mass`).
    """

    masses: Float[Array, "3"]
    squares: Float[Array, "3"]

    @property
    def right_biased(self) -> Bool[Array, ""]:
        r"""Whether :math:`\omega_R > \omega_M` beyond rounding (`eq:right-biased-query-mass`)."""
        return _above_the_middle(self.masses)

    @property
    def right_biased_by_squares(self) -> Bool[Array, ""]:
        """Whether the right's average of squares is above the middle's beyond rounding.

        `eq:right-biased-squared-query-mass`.
        """
        return _above_the_middle(self.squares)


def _above_the_middle(regional: Float[Array, "3"]) -> Bool[Array, ""]:
    """Tell whether the right region's number is above the middle's beyond rounding."""
    regional = error_if_not_finite(regional, "query_weights")
    _, middle, right = regional
    return right - middle > half_digits(regional.dtype) * (right + middle)


def query_masses(query_weights: Float[Array, " length"], regions: Regions) -> QueryMasses:
    r"""Sum query weights, and average the squares of their density, over E_L, E_M and E_R.

    The result says whether queries are right-biased, by masses (`eq:right-biased-query-mass`) or by
    squares: by masses even queries are where delta is above 1/3.

    Parameters
    ----------
    query_weights
        The loss's weights :math:`\alpha_i` of positions, of shape ``(length,)``: not negative, with
        the sum one. They are no density.
    regions
        The regions E_L, E_M and E_R, from `boundary_regions` on the loss's grid.

    Returns
    -------
    QueryMasses
        The masses and the averages of squares, three numbers each.

    Raises
    ------
    ValueError
        If `regions` are no `Regions`, or the weights are not on their grid.
    EquinoxRuntimeError
        If a weight is negative, infinite or NaN, or the weights do not sum to one.

    Examples
    --------
    >>> regions = lim.boundary_regions(lim.token_grid(4), "1/3", "points")
    >>> queries = query_masses(jnp.array([0.0, 0.0, 0.5, 0.5]), regions)
    >>> queries.masses.tolist(), queries.squares.tolist()
    ([0.0, 0.0, 1.0], [0.0, 0.0, 4.0])
    >>> bool(queries.right_biased), bool(queries.right_biased_by_squares)
    (True, True)
    """
    require_regions(regions)
    require_on_grid(query_weights, regions.grid, "query_weights", "length")
    query_weights = checked_queries(error_if_not_finite(query_weights, "query_weights"))
    regions = regions.in_single_precision
    density = promote(query_weights) / regions.grid.weights
    weights = regions.weights
    return QueryMasses(weights @ density, (weights @ density**2) / weights.sum(axis=1))


def readout_support(query_weights: Float[Array, " length"], radius: int) -> Float[Array, " length"]:
    r"""Mark with 1 where the terminal covector of a local readout may differ from zero, else 0.

    The tokens within `radius` of a query (`eq:local-readout-support`).

    Parameters
    ----------
    query_weights
        The loss's weights :math:`\alpha_i` of positions, of shape ``(length,)``: not negative, with
        the sum one. A position of positive weight is a query.
    radius
        How many tokens on each side of a query the readout sees, a whole number from 0 on, known
        before tracing.

    Returns
    -------
    Array
        Ones and zeros, in the precision of the weights, of shape ``(length,)``.

    Raises
    ------
    ValueError
        If the weights are no floats along one axis, or `radius` is no such number.
    EquinoxRuntimeError
        If a weight is negative, infinite or NaN, or the weights do not sum to one.

    Examples
    --------
    >>> readout_support(jnp.array([0.0, 0.0, 0.0, 1.0]), 1).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    require_floats(query_weights, "query_weights", "length")
    query_weights = checked_queries(error_if_not_finite(query_weights, "query_weights"))
    radius = as_int(radius, "radius", least=0)
    near = jnp.ones(2 * radius + 1, query_weights.dtype)
    queries = (query_weights > 0).astype(query_weights.dtype)
    reach = jnp.convolve(queries, near)[radius : radius + queries.shape[0]]
    return (reach > 0.5).astype(query_weights.dtype)


def readout_residual_energies(
    readout: Any,
    states: Float[Array, "examples length width"],
    targets: Float[Array, "examples length vocabulary"] | Int[Array, "examples length"],
    regions: Regions,
) -> Float[Array, " length"]:
    r"""Compute :math:`\rho_i = \mathbb E\,\|C_i^*(\mathrm{softmax}(H_i) - Y_{i+1})\|^2`.

    The square of the derivative of token i's cross-entropy in the state of token i
    (`eq:finite-recency-energy-contrast`), without query weights, averaged over examples.

    Parameters
    ----------
    readout
        A function ``readout(x, grid)`` from states to logits that is tokenwise, such as
        `LinearReadout` or `TokenwiseReadout`.
    states
        The terminal states of every example, of shape ``(examples, length, width)``.
    targets
        The labels of every position: class numbers, of shape ``(examples, length)``, or rows, of
        shape ``(examples, length, vocabulary)``. Rows of another sum than one scale the softmax, as
        in `loss.logit_residual`.
    regions
        The regions, from `boundary_regions`, on whose grid the states are; the energies are the
        same for all regions of a grid.

    Returns
    -------
    Array
        :math:`\rho_i`, of shape ``(length,)``: squares of Euclidean derivatives, no densities.

    Raises
    ------
    ValueError
        If `regions` are no `Regions`, the states are not on their grid, or the targets are not of
        the same examples and positions.
    EquinoxRuntimeError
        If the readout reads several tokens for one token's logits, or a class number is outside the
        vocabulary.

    Examples
    --------
    >>> regions = lim.boundary_regions(lim.token_grid(3), "1/3")
    >>> zeros, classes = jnp.zeros((1, 3, 2)), jnp.zeros((1, 3), int)
    >>> readout_residual_energies(lambda x, grid: x, zeros, classes, regions).tolist()
    [0.5, 0.5, 0.5]
    """
    require_regions(regions)
    require_on_grid(states, regions.grid, "states", "examples length width")
    grid = regions.grid
    if not (isinstance(targets, ARRAYS) and jnp.issubdtype(targets.dtype, jnp.integer)):
        require_floats(targets, "targets", "examples length vocabulary")
    require(
        targets.shape[:2] == states.shape[:2],
        "targets",
        got=f"shape {targets.shape} with states of shape {states.shape}",
        expected="labels of the same examples and positions",
        cure="Pass class numbers (examples, length) or rows (examples, length, vocabulary).",
    )

    def energies(example: tuple[Array, Labels]) -> tuple[Array, Array]:
        """Compute one example's residual energies, and whether the readout mixes positions."""
        state, target = example
        logits, pull = jax.vjp(lambda x: readout(x, grid), state)
        (covector,) = pull(logit_residual(logits, target))
        return (promote(covector) ** 2).sum(axis=1), _mixing(lambda c: pull(c)[0], logits)

    # One example's logits at a time: of real vocabularies they are large.
    squares, mixing = jax.lax.map(energies, (states, targets))
    return error_if(
        squares.mean(axis=0),
        jnp.any(mixing),
        "readout: got one that reads several tokens for one token's logits, expected a tokenwise "
        "one such as LinearReadout or TokenwiseReadout. Measure other readouts on their "
        "terminal covectors P_T, whose energies are no product of query weights and residual "
        "energies.",
    )


def _mixing(pull: Any, logits: Float[Array, "length vocabulary"]) -> Array:
    """Tell whether a readout's adjoint carries anything from one token to another."""
    length = logits.shape[0]
    # A random cotangent, so that nothing cancels.
    cotangent = jnp.asarray(np.random.default_rng(0).standard_normal(logits.shape), logits.dtype)
    largest = jnp.abs(pull(cotangent)).max()

    def leak(digit: Array) -> Array:
        """Tell whether positions with and without a binary digit mix."""
        chosen = ((jnp.arange(length) >> digit) & 1).astype(logits.dtype)[:, None]
        leaked = (1 - chosen) * pull(chosen * cotangent) + chosen * pull((1 - chosen) * cotangent)
        return jnp.abs(leaked).max() > half_digits(logits.dtype) * largest

    # Two positions differ in some binary digit: cotangents at the positions where it is one must
    # give nothing where it is zero.
    digits = jnp.arange(max(length - 1, 1).bit_length())
    return jnp.any(jax.lax.map(leak, digits))
