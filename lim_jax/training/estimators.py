"""Estimators of the influence density from the adjoints of a batch.

A density is balanced over *places*: every position of the grid, or *pools* of positions such as
records and regions. Places have a measure: the positions' weights, or the pools' shares of the
weight of all pools.
"""

from collections.abc import Callable
from functools import partial, update_wrapper
from inspect import signature
from numbers import Real
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import (
    as_finite_nonnegative,
    as_nonnegative,
    described,
    error_if_got,
    require,
    require_callable,
    require_floats,
    require_scalar,
)
from lim_jax.grid.measure import Scalar

Places = Float[Array, " places"]
Energies = Float[Array, "examples places"]
Statistic = Float[Array, "*groups places"]
Pools = Float[Array, "pools length"]
MEASURE = "Pass the measure of each place: grid.weights, or the pools' shares."


def as_memory(memory: Any, previous: Any) -> Any:
    """Return the memory; raise outside [0, 1), and if it is not 0 without `previous`."""
    memory = as_finite_nonnegative(memory, "memory", below=1.0)
    if previous is None:
        require(
            isinstance(memory, Real) and memory == 0,
            "memory",
            got=f"{described(memory)} without previous",
            expected="0",
            cure=(
                "Pass what the step before returned as previous; at the first step leave memory "
                "out."
            ),
        )
    return memory


def moving_average(previous: Array, new: Array, memory: Scalar | float) -> Array:
    """Return the next average, in which the previous one has the share `memory`."""
    return memory * previous + (1 - memory) * new


class Estimator:
    """A way to estimate a density from a batch: ``estimate(energies, weights, epsilon=)``.

    It goes in two steps, so that `risk_and_penalty` can average the first one's result, a mean over
    examples, over training steps. Its name and documentation are those of the second step.

    Parameters
    ----------
    statistic
        ``statistic(energies, weights, epsilon)``, a mean over examples of energies of shape
        ``(examples, places)``, where places are positions or pools.
    density
        ``density(statistic, weights, epsilon)``, the density of shape ``(places,)`` that the
        statistic stands for.

    Raises
    ------
    ValueError
        If one of them cannot be called; or, when the estimator is called, if the energies have not
        a row for each example and a column for each weight.
    EquinoxRuntimeError
        If an energy or a weight is negative.

    Examples
    --------
    >>> mean = lambda energies, weights, epsilon: energies.mean(axis=0)
    >>> largest = Estimator(mean, lambda mean, weights, epsilon: mean / mean.max())
    >>> largest(jnp.array([[1.0, 4.0]]), jnp.array([0.5, 0.5]), epsilon=0.0).tolist()
    [0.25, 1.0]
    """

    def __init__(self, statistic: Callable[..., Statistic], density: Callable[..., Places]):
        require_callable(statistic, "statistic", "statistic(energies, weights, epsilon)")
        require_callable(density, "density", "density(statistic, weights, epsilon)")
        self.statistic = statistic
        self.density = density
        update_wrapper(self, density)
        # It is called with the energies of a batch, not with the statistic as `density` is.
        self.__signature__ = signature(self.__call__)

    def __call__(self, energies: Energies, weights: Places, *, epsilon: Scalar | float) -> Places:
        r"""Estimate the density of a batch.

        Parameters
        ----------
        energies
            Every example's energy at every place, of shape ``(examples, places)``, nowhere
            negative.
        weights
            The measure of each place, nowhere negative: ``grid.weights``, or the pools' shares.
        epsilon
            :math:`\epsilon_{inf} \ge 0`, added to the total energy so that it does not vanish.

        Returns
        -------
        Array
            The density at each place, of shape ``(places,)``.
        """
        require_floats(energies, "energies", "examples places", "Pass one row for each example.")
        require_floats(
            weights,
            "weights",
            "places",
            "Pass one for each column of the energies: grid.weights, or the pools' shares.",
            places=energies.shape[1],
        )
        require_scalar(epsilon, "epsilon")
        epsilon = as_nonnegative(epsilon, "epsilon")
        weights = as_nonnegative(weights, "weights", MEASURE)
        energies = as_nonnegative(
            energies, "energies", "Pass squares of adjoints, such as Influence.example_energies."
        )
        return self.density(self.statistic(energies, weights, epsilon), weights, epsilon)

    def _identity(self) -> tuple[Callable[..., Statistic], Callable[..., Places]]:
        """Return what a digest reads in place of this object: both of its steps."""
        return self.statistic, self.density

    def averaged(self, statistic: Statistic, previous: Statistic, memory: Scalar) -> Statistic:
        """Return the moving average of the previous average and a batch's statistic.

        Parameters
        ----------
        statistic
            What the estimator's first step returns for a batch.
        previous
            The average before it, of the same shape; or a scalar, as 0 at the first step.
        memory
            The share of the previous average, from 0 to less than 1.

        Returns
        -------
        Array
            The average, of the statistic's shape.

        Raises
        ------
        ValueError
            If `previous` has neither the statistic's shape nor that of a scalar.
        """
        require(
            previous.shape in ((), statistic.shape),
            "previous",
            got=f"shape {previous.shape}",
            expected=f"{statistic.shape}, that of the estimator's statistic",
            cure="Pass what the step before returned; at the first, with memory 0, zeros.",
        )
        return moving_average(previous, statistic, memory)


# Each function below is the second step of an `Estimator`: its energies are means over examples.
# Its docstring is that of the estimator, which is called with the energies of every example.
@partial(Estimator, lambda energies, weights, epsilon: energies.mean(axis=0))
def balanced_density(energies: Places, weights: Places, epsilon: Scalar | float) -> Places:
    r"""Estimate the density as Algorithm 1 does, :math:`\hat m = \hat I/(\hat Z + \epsilon_{inf})`.

    An `Estimator`, the default of a `Penalty`. Its statistic is the mean :math:`\hat I` of the
    energies over examples. A ratio of means has the bias
    :math:`[m\,\mathrm{Var}\hat Z - \mathrm{Cov}(\hat I, \hat Z)]/Z^2` to first order, which
    `ratio_bias` estimates.

    Parameters
    ----------
    energies
        Every example's energy at every place, of shape ``(examples, places)``, nowhere negative.
        A place is a position or a pool of positions.
    weights
        The measure of each place, of shape ``(places,)``, nowhere negative: ``grid.weights``, or
        the pools' shares.
    epsilon
        :math:`\epsilon_{inf} \ge 0`, added to the total :math:`\hat Z` so that it does not vanish;
        by keyword.

    Returns
    -------
    Array
        The density at each place, of shape ``(places,)``. Its integral is
        :math:`\hat Z/(\hat Z + \epsilon_{inf})`.

    Raises
    ------
    ValueError
        If the energies have not a row for each example and a column for each weight.
    EquinoxRuntimeError
        If an energy or a weight is negative.

    Examples
    --------
    >>> energies, weights = jnp.array([[0.0, 9.0], [2.0, 9.0]]), jnp.array([0.5, 0.5])
    >>> balanced_density(energies, weights, epsilon=0.0).round(3).tolist()
    [0.2, 1.8]
    """
    return over_total(energies, weights @ energies, epsilon)


def _means_of_halves(energies: Energies, weights: Places, epsilon: Scalar | float) -> Statistic:
    """Return the mean energies of the first and of the second half of the examples."""
    require(
        len(energies) > 1,
        "energies",
        got="one example",
        expected="at least two, since each half of the batch gives a denominator",
        cure="Enlarge the batch, or take balanced_density.",
    )
    halves = jnp.split(energies, [len(energies) // 2])
    return jnp.stack([half.mean(axis=0) for half in halves])


@partial(Estimator, _means_of_halves)
def crossed_density(
    energies: Float[Array, "2 places"], weights: Places, epsilon: Scalar | float
) -> Places:
    r"""Estimate the density with independent denominators: each half over the other's total.

    .. math:: \hat m = \frac12\left(\frac{\hat I^{(a)}}{\hat Z^{(b)} + \epsilon_{inf}}
              + \frac{\hat I^{(b)}}{\hat Z^{(a)} + \epsilon_{inf}}\right)

    of the mean energies :math:`\hat I` and totals :math:`\hat Z` of two halves of a batch: one of
    the cures that the paper's remark after Algorithm 1 names. Its expectation is that of a half's
    :math:`m\,Z\,\mathbb E[1/\hat Z]` exactly: too large by the same factor at every place, which is
    :math:`\mathrm{Var}\hat Z/Z^2` of half a batch to first order. That is less than
    `balanced_density` has where the examples' totals vary little and their profiles much, and more
    where the totals vary alone, of which the plain ratio has no bias: ask `ratio_bias`.

    An `Estimator`. Its statistic is the mean energies of the first and of the second half of the
    examples, of shape ``(2, places)``; the second half of an odd number has one more.

    Parameters
    ----------
    energies
        Every example's energy at every place, of shape ``(examples, places)``, nowhere negative:
        at least two examples, in an order that says nothing of them. A place is a position or a
        pool of positions.
    weights
        The measure of each place, of shape ``(places,)``, nowhere negative: ``grid.weights``, or
        the pools' shares.
    epsilon
        :math:`\epsilon_{inf} \ge 0`, added to the totals so that they do not vanish; by keyword.

    Returns
    -------
    Array
        The density at each place, of shape ``(places,)``. Its integral is not one but
        :math:`(\hat Z^{(a)}/\hat Z^{(b)} + \hat Z^{(b)}/\hat Z^{(a)})/2`, which is at least that.

    Raises
    ------
    ValueError
        If there are fewer than two examples, or not a column for each weight.
    EquinoxRuntimeError
        If an energy or a weight is negative.

    Examples
    --------
    >>> energies = jnp.array([[1.0, 1.0], [0.0, 4.0]])  # totals 1 and 2
    >>> crossed_density(energies, jnp.array([0.5, 0.5]), epsilon=0.0).tolist()
    [0.25, 2.25]
    >>> crossed = lim.training.Penalty(estimate=crossed_density)
    """
    first, second = energies
    first_density = over_total(first, weights @ second, epsilon)
    second_density = over_total(second, weights @ first, epsilon)
    return (first_density + second_density) / 2


def pooled_energies(
    energies: Float[Array, "examples length"], pools: Pools
) -> tuple[Float[Array, "examples pools"], Float[Array, " pools"]]:
    """Average energies over each pool, and return the pools' shares of their total weight."""
    sizes = pools.sum(axis=1)
    sizes = error_if_got(
        sizes,
        "pools",
        got={"a weight below zero or NaN": ~(pools >= 0), "a pool without any": ~(sizes > 0)},
        expected="weights nowhere negative, and no pool without any",
        cure="Pass rows of weights such as those of Regions.weights.",
    )
    return energies @ pools.T / sizes[None, :], sizes / sizes.sum()


def over_total(
    energy: Float[Array, "*groups places"], total: Float[Array, "..."], epsilon: Scalar | float
) -> Float[Array, "*groups places"]:
    """Divide by a total plus epsilon; return NaN, not zero, if that is infinite."""
    total = total + epsilon
    return jnp.where(jnp.isfinite(total), energy / total, jnp.nan)
