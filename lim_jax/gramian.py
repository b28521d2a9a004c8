r"""Observability Gramians: how visible a perturbation of each position stays along depth.

.. math:: G_i = \sum_k \varepsilon\, J_{k,i}^* C_k^* C_k J_{k,i}

Observations are any pure function of the input that returns what is seen at each layer, for
example a selector of a flow's trajectory; equalising observability is relative to it. These are
Euclidean quantities of the input tokens: no weights :math:`\Delta p` enter.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._checks import require
from lim_jax.flow import ResidualFlow
from lim_jax.grid import Grid, integral
from lim_jax.probes import Probes

Scalar = Float[Array, ""]
State = Float[Array, "length width"]
Observations = Callable[[State], Float[Array, "depth observed"]]
Gramians = Float[Array, "length width width"]
Steps = float | Float[Array, " depth"]
Mode = Literal["cheaper", "forward", "reverse"]


def observability_gramians(
    observations: Observations, x: State, step: Steps, mode: Mode = "cheaper"
) -> Gramians:
    r"""Compute the exact Gramian :math:`G_i` of every position.

    `eq:finite-token-observability-gramian`. Forward mode costs a Jacobian-vector product for each
    number of the input, reverse mode a pull-back for each number observed
    (`subsec:algorithm-complexity`).

    Parameters
    ----------
    observations
        From the input to the observations :math:`C_k X_k`, a row for each layer
        :math:`k = 0,\dots,M-1`; the terminal state is not among them.
    x
        The input at which the observations are linearised.
    step
        :math:`\varepsilon`, or one weight for each layer: zero for a layer that is left out,
        :math:`\varepsilon/\pi_k` for one that is kept with probability :math:`\pi_k`.
    mode
        ``"forward"``, ``"reverse"``, or the one with fewer products.

    Raises
    ------
    ValueError
        Where the mode has another name.

    Examples
    --------
    >>> observations = lambda x: 3 * x.reshape(1, -1)  # one layer, all of both tokens seen
    >>> observability_gramians(observations, jnp.ones((2, 1)), step=0.5).ravel().tolist()
    [4.5, 4.5]
    """
    require(
        mode in ("cheaper", "forward", "reverse"),
        "mode",
        got=repr(mode),
        expected='"cheaper", "forward" or "reverse"',
        cure="See observability_gramians.",
    )
    observed = jax.eval_shape(observations, x)
    forward = mode == "forward" or (mode == "cheaper" and x.size < observed.size)
    jacobian = (jax.jacfwd if forward else jax.jacrev)(observations)(x)
    return jnp.einsum("k,koia,koib->iab", _steps(step, observed), jacobian, jacobian)


def observed_tokens(
    flow: ResidualFlow,
    grid: Grid,
    positions: Int[Array, " queries"],
    readout: Callable[[State, Grid], State] | None = None,
) -> Observations:
    r"""Observe some tokens of every layer but the last, raw or through a readout.

    Differentiated, a readout H becomes the task-aligned :math:`C_k = DH(X_k)`. One position, the
    last, is the final-query selector.

    Parameters
    ----------
    flow, grid
        The network and its positions.
    positions
        The tokens that are observed.
    readout
        ``readout(x, grid)``, or None for the states themselves.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> flow = ResidualFlow(jnp.zeros(3), step=lambda layer, x, grid, step: x)
    >>> see_last = observed_tokens(flow, token_grid(2), jnp.array([1]))
    >>> gramian_traces(observability_gramians(see_last, jnp.ones((2, 4)), 1 / 3)).tolist()
    [0.0, 4.0]
    """

    def seen(state: State) -> Float[Array, "length features"]:
        return state if readout is None else readout(state, grid)

    def observations(x: State) -> Float[Array, "depth observed"]:
        states = flow.trajectory(x, grid).states[:-1]
        return jax.vmap(seen)(states)[:, positions].reshape(flow.depth, -1)

    return observations


def probed_observability(
    observations: Observations,
    x: State,
    step: Steps,
    probes: Probes | Float[Array, "probes positions width"],
    positions: Int[Array, " positions"] | None = None,
) -> Float[Array, "probes positions"]:
    r"""Sample the traces by forward probes, without any Gramian: Algorithm 3's estimates.

    Row r holds :math:`\sum_k\varepsilon\,\|C_kJ_{k,i}\xi_r\|^2`, whose mean over probes is
    :math:`\hat g_i` (`eq:discrete-observability-trace-estimator`); `probes.sample_mean` gives it
    with its standard error. One Jacobian-vector product for each probe and position.

    Parameters
    ----------
    observations, x, step
        As in `observability_gramians`.
    probes
        From `probes`; of shape (probes, width) the same at every position, which lessens the noise
        of differences, else one set for each position.
    positions
        The monitored positions, all by default.

    Examples
    --------
    >>> observations = lambda x: 3 * x.reshape(1, -1)
    >>> probed_observability(observations, jnp.ones((2, 1)), 0.5, jnp.array([[1.0]])).tolist()
    [[4.5, 4.5]]
    """
    positions = jnp.arange(x.shape[0]) if positions is None else positions
    if probes.ndim == 2:
        probes = jnp.broadcast_to(probes[:, None], (len(probes), len(positions), x.shape[1]))
    observed, push = jax.linearize(observations, x)
    steps = _steps(step, observed)

    def sample(position: Array, probe: Array) -> Scalar:
        return steps @ (push(jnp.zeros_like(x).at[position].set(probe)) ** 2).sum(axis=1)

    return jax.vmap(jax.vmap(sample), in_axes=(None, 0))(positions, probes)


def layer_injected_traces(
    push_backward: Callable[[Float[Array, "depth observed"]], State],
    step: Steps,
    injected: Float[Array, "draws depth observed"],
) -> Float[Array, "draws length"]:
    r"""Sample the traces of all positions at once, by one reverse sweep for each draw.

    With independent isotropic :math:`z_k` at every layer, :math:`w = \sum_k\sqrt\varepsilon\,
    J_k^*C_k^*z_k` has :math:`\mathbb E\,\|w_i\|^2 = \mathrm{tr}\,G_i` at every position i.

    Parameters
    ----------
    push_backward
        The transpose of the observations' derivative, from ``jax.vjp``.
    step
        As in `observability_gramians`.
    injected
        Independent isotropic entries.

    Examples
    --------
    >>> _, transpose = jax.vjp(lambda x: 3 * x.reshape(1, -1), jnp.ones((2, 1)))
    >>> layer_injected_traces(lambda z: transpose(z)[0], 0.5, jnp.ones((1, 1, 2))).round(6).tolist()
    [[4.5, 4.5]]
    """

    def draw(entries: Float[Array, "depth observed"]) -> Float[Array, " length"]:
        steps = _steps(step, entries)
        return (push_backward(jnp.sqrt(steps)[:, None] * entries) ** 2).sum(axis=1)

    return jax.vmap(draw)(injected)


def _steps(step: Steps, observed: jax.ShapeDtypeStruct | Array) -> Float[Array, " depth"]:
    return jnp.broadcast_to(jnp.asarray(step, observed.dtype), observed.shape[:1])


def gramian_traces(gramians: Gramians) -> Float[Array, " length"]:
    r"""The observability :math:`g_i = \mathrm{tr}\,G_i` of an isotropic perturbation.

    Examples
    --------
    >>> gramian_traces(jnp.eye(3)[None]).tolist()
    [3.0]
    """
    return jnp.trace(gramians, axis1=1, axis2=2)


def complement_gramians(gramians: Gramians) -> Float[Array, "length less less"]:
    r"""The Gramians on the complement of **1**, in an orthonormal basis of it.

    Under layer normalisation with a selector of final tokens :math:`G_i\mathbf 1 = 0`, and only
    these have condition numbers.

    Examples
    --------
    >>> blind = jnp.array([[[1.0, -1.0], [-1.0, 1.0]]])  # sees differences only
    >>> complement_gramians(blind).ravel().round(6).tolist()
    [2.0]
    """
    width = gramians.shape[-1]
    ones = jnp.ones((width, 1), gramians.dtype)
    basis = jnp.linalg.qr(jnp.concatenate([ones, jnp.eye(width, width - 1)], axis=1))[0][:, 1:]
    return jnp.einsum("ap,iab,bq->ipq", basis, gramians, basis)


def condition_numbers(gramians: Gramians) -> Float[Array, " length"]:
    r""":math:`\kappa_0 = \lambda_{\max}/\lambda_{\min}` of every Gramian; infinite where singular.

    Examples
    --------
    >>> condition_numbers(jnp.diag(jnp.array([2.0, 8.0]))[None]).tolist()
    [4.0]
    """
    spectrum = jnp.linalg.eigvalsh(gramians)
    smallest = spectrum[:, 0]
    singular = smallest <= 0
    return jnp.where(singular, jnp.inf, spectrum[:, -1] / jnp.where(singular, 1, smallest))


def probed_traces(
    gramians: Gramians, probes: Float[Array, "probes width"]
) -> Float[Array, " length"]:
    r"""Estimate the traces with common probes: :math:`\hat g_i = N^{-1}\sum_r \xi_r^* G_i \xi_r`.

    `eq:discrete-observability-trace-estimator` by `eq:finite-token-observability-quadratic-form`;
    unbiased for isotropic probes (`eq:observability-trace-unbiasedness`).

    Examples
    --------
    >>> probed_traces(jnp.diag(jnp.array([1.0, 2.0]))[None], jnp.array([[1.0, -1.0]])).tolist()
    [3.0]
    """
    return jnp.einsum("ra,iab,rb->i", probes, gramians, probes) / probes.shape[0]


class PenaltyMoments(NamedTuple):
    """The mean excess and the standard deviation of an estimated penalty."""

    bias: Scalar
    deviation: Scalar


def gaussian_probe_moments(gramians: Gramians, grid: Grid, probes: int) -> PenaltyMoments:
    r"""Exact bias and deviation of the trace penalty under common Gaussian probes.

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
    (`eq:algorithm3-penalty-estimator-bias`), and the variance
    :math:`\sum_{ij}\Delta p_i\Delta p_j\,[\kappa(i,i,j,j) + 4\kappa(i,i,j)\kappa(j)
    + 2\kappa(i,j)^2 + 4\kappa(i)\kappa(i,j)\kappa(j)]`.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> gramians = jnp.array([[[0.0]], [[2.0]]])  # centred: -1 and 1, so the penalty is y^2
    >>> moments = gaussian_probe_moments(gramians, token_grid(2), probes=1)
    >>> float(moments.bias), round(float(moments.deviation) ** 2, 9)  # E y^4 - 1^2, y ~ chi^2_1
    (2.0, 96.0)
    """
    centred = gramians - integral(gramians, grid)[None]
    mean = gramian_traces(centred)
    products = jnp.einsum("iab,jbc->ijac", centred, centred)
    squares = jnp.einsum("iiac->iac", products)
    second = 2 / probes * jnp.trace(products, axis1=2, axis2=3)
    third = 8 / probes**2 * jnp.einsum("iab,jba->ij", squares, centred)
    crossed = 2 * jnp.einsum("iab,jba->ij", squares, squares)
    fourth = 16 / probes**3 * (crossed + jnp.einsum("ijab,ijba->ij", products, products))
    summands = (
        fourth
        + 4 * third * mean[None, :]
        + 2 * second**2
        + 4 * mean[:, None] * second * mean[None, :]
    )
    variance = grid.weights @ summands @ grid.weights
    return PenaltyMoments(grid.weights @ jnp.diag(second), jnp.sqrt(variance))
