r"""Random probes of a token, with :math:`\mathbb E\,\xi\xi^* = I`, and statistics of samples.

For such probes :math:`\mathbb E\,\|A\xi\|^2 = \|A\|_F^2` and
:math:`\mathbb E\,\xi^*G\xi = \mathrm{tr}\,G` (`eq:isotropic-observability-probes`). Signs are the
default choice; the paper takes Gaussian entries.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lim_jax._checks import as_int, error_if_got, require_floats, require_key
from lim_jax._jit import filter_jit
from lim_jax._random import gaussian

Probes = Float[Array, "probes width"]


class Estimate(NamedTuple):
    """An estimate from a sample, such as the mean, with its standard error.

    Attributes
    ----------
    value
        The estimate.
    error
        Its standard error, of the same shape; infinite for one sample.
    """

    value: Float[Array, "*shape"]
    error: Float[Array, "*shape"]


@filter_jit
def sample_mean(samples: Float[Array, " samples *shape"]) -> Estimate:
    r"""Average one or more independent samples; NaN and infinity pass on.

    Parameters
    ----------
    samples
        The samples along the first axis, of shape ``(samples, ...)``, floats.

    Returns
    -------
    Estimate
        The mean and its standard error, of the shape of one sample. The error is the standard
        deviation, with one degree of freedom less, over :math:`\sqrt n`; for one sample it is
        infinite. Where all samples are equal its derivative is taken as zero.

    Raises
    ------
    ValueError
        If there is no sample, or `samples` is no array of floats.

    Examples
    --------
    >>> mean = sample_mean(jnp.array([1.0, 3.0]))
    >>> float(mean.value), round(float(mean.error), 3)
    (2.0, 1.0)
    """
    require_floats(samples, "samples", "samples *shape", cure="Take at least one sample.")
    count = samples.shape[0]
    value = samples.mean(axis=0)
    if count == 1:
        return Estimate(value, jnp.full_like(value, jnp.inf))
    deviations = samples - value[None]
    # In units of the largest: squares of others would overflow, or vanish.
    largest = jax.lax.stop_gradient(jnp.abs(deviations).max(axis=0))
    unit = jnp.where(largest == 0, 1, largest)
    variance = ((deviations / unit[None]) ** 2).sum(axis=0) / (count - 1)
    return Estimate(value, unit * deviation_of(variance) / math.sqrt(count))


def deviation_of(variance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the root of a variance; where it is zero its derivative is zero."""
    # Rounding may leave a variance slightly negative.
    vanishes = variance <= 0
    return jnp.where(vanishes, 0, jnp.sqrt(jnp.where(vanishes, 1, variance)))


def tail_index(samples: Float[Array, " samples"]) -> Estimate:
    r"""Estimate how heavy a tail the law of a sample has, by Hill's estimator.

    .. math:: \frac1{\hat\alpha} = \frac1k\sum_{i\le k}\log\frac{s_{(i)}}{s_{(k+1)}},
              \qquad k = \lfloor\sqrt n\rfloor

    from the k largest of n samples, with standard error :math:`\hat\alpha/\sqrt k`. Where
    :math:`P(s > r)` falls like :math:`r^{-\alpha}`, moments below alpha are finite; of lighter
    tails the index rises slowly with n.

    Parameters
    ----------
    samples
        Independent samples, finite and not negative, of shape ``(samples,)``, floats.

    Returns
    -------
    Estimate
        The index :math:`\hat\alpha` and its standard error. The index is infinite if the k + 1
        largest samples are equal; it is zero, with an infinite error, for one sample or if some
        samples, but at most k, are positive. Its derivative is taken as zero in these cases.

    Raises
    ------
    ValueError
        If there is no sample, or `samples` is no array of floats along one axis.
    EquinoxRuntimeError
        If a sample is negative, infinite or NaN.
    """
    require_floats(samples, "samples", "samples")
    samples = error_if_got(
        samples,
        "samples",
        got={"a number below zero": samples < 0, "NaN or infinity": ~jnp.isfinite(samples)},
        expected="finite numbers from 0 on",
        cure="Pass sizes, such as norms.",
    )
    num_largest = math.isqrt(samples.size)
    if samples.size == 1:
        return Estimate(jnp.zeros_like(samples[0]), jnp.full_like(samples[0], jnp.inf))
    largest = jax.lax.top_k(samples, num_largest + 1)[0]
    smallest = largest[-1]
    differ = largest[0] > smallest
    regular = differ & (smallest > 0)
    # Roots, as the ratio of two samples may overflow.
    roots = jnp.sqrt(jnp.where(regular, largest, 1))
    inverse = 2 * jnp.log(roots[:-1] / roots[-1]).mean()
    index = 1 / jnp.where(regular, inverse, 1)
    index = jnp.where(regular, index, jnp.where(differ, 0, jnp.inf).astype(index.dtype))
    return Estimate(index, jnp.where(index > 0, index / math.sqrt(num_largest), jnp.inf))


def gaussian_probes(count: int, width: int, *, key: Key[Array, ""]) -> Probes:
    """Draw independent standard normal entries (`eq:isotropic-observability-probes`).

    Parameters
    ----------
    count
        The number of probes, a positive whole number.
    width
        The width of the states that they probe, a positive whole number.
    key
        A random key.

    Returns
    -------
    Array
        Probes of shape ``(count, width)``, in JAX's default precision.

    Raises
    ------
    ValueError
        If `count` or `width` is no such number, or `key` is no random key.
    """
    return gaussian(key, _shape(count, width, key))


def rademacher_probes(count: int, width: int, *, key: Key[Array, ""]) -> Probes:
    """Draw independent signs (`eq:isotropic-observability-probes`), exact for diagonal matrices.

    Parameters
    ----------
    count
        The number of probes, a positive whole number.
    width
        The width of the states that they probe, a positive whole number.
    key
        A random key.

    Returns
    -------
    Array
        Probes of shape ``(count, width)``, each entry 1 or -1, in JAX's default precision.

    Raises
    ------
    ValueError
        If `count` or `width` is no such number, or `key` is no random key.
    """
    return jax.random.rademacher(key, _shape(count, width, key), dtype=jnp.zeros(()).dtype)


def _shape(count: int, width: int, key: Key[Array, ""]) -> tuple[int, int]:
    """Check a key and two sizes, and return the shape of probes."""
    require_key(key)
    return as_int(count, "count", cure="Take at least one probe."), as_int(width, "width")
