"""Readouts: from states to logits, ``readout(x, grid)``.

Arrays of other shapes than the grid's raise ValueError; NaN and infinity pass on.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lim_jax._checks import (
    as_int,
    error_if_got,
    require,
    require_callable,
    require_floats,
    require_key,
    require_name,
    require_positive,
)
from lim_jax._jit import filter_jit
from lim_jax._random import gaussian
from lim_jax.grid.measure import Grid, require_grid, require_on_grid

States = Float[Array, "length width"]
Logits = Float[Array, "length vocabulary"]
Edges = Literal["zero", "renormalised", "reflecting"]


class LinearReadout(eqx.Module):
    r"""Tokenwise linear logits, :math:`H(X)(p) = X(p)\,W_{out}` (`eq:linear-readout-example`).

    Call it as ``readout(x, grid)``, on states of shape ``(length, width)``; its arrays are
    parameters.

    Attributes
    ----------
    weight
        :math:`W_{out}`, of shape ``(width, vocabulary)``.
    bias
        What is added to every token's logits, of shape ``(vocabulary,)``; nothing by default.

    Examples
    --------
    >>> LinearReadout(jnp.array([[1.0, 2.0]]))(jnp.array([[3.0]]), lim.token_grid(1)).tolist()
    [[3.0, 6.0]]
    """

    weight: Float[Array, "width vocabulary"]
    bias: Float[Array, " vocabulary"] | None = None

    @classmethod
    @filter_jit
    def init(cls, width: int, vocabulary: int, *, key: Key[Array, ""]) -> "LinearReadout":
        """Draw Gaussian weights of variance one over the width, and no bias.

        Parameters
        ----------
        width
            The width of a state, at least 1.
        vocabulary
            The number of classes, at least 1.
        key
            A single random key, ``jax.random.key(seed)``.

        Returns
        -------
        LinearReadout
            The readout, in JAX's default float.

        Raises
        ------
        ValueError
            If `width` or `vocabulary` is no positive whole number that is known before tracing, or
            `key` is not one random key.
        """
        width = as_int(width, "width")
        vocabulary = as_int(vocabulary, "vocabulary")
        require_key(key)
        return cls(gaussian(key, (width, vocabulary)) / math.sqrt(width))

    def __call__(self, x: States, grid: Grid) -> Logits:
        """Read every token by itself."""
        _require_states(x, grid, self.weight)
        if self.bias is not None:
            require_floats(self.bias, "bias", "vocabulary", vocabulary=self.weight.shape[1])
        logits = x @ self.weight
        return logits if self.bias is None else logits + self.bias[None, :]


class TokenwiseReadout(eqx.Module):
    """Any map of one token to its logits, for example an `equinox.nn.MLP`.

    Call it as ``readout(x, grid)``, on states of shape ``(length, width)``.

    Attributes
    ----------
    function
        A function of one token, from ``(width,)`` to ``(vocabulary,)``. Where it is a pytree its
        arrays are parameters; what a bare function closes over is none: take that through
        `eqx.filter_jit`.

    Examples
    --------
    >>> TokenwiseReadout(jnp.tanh)(jnp.zeros((2, 3)), lim.token_grid(2)).shape
    (2, 3)
    """

    function: Callable[[Array], Array]

    def __call__(self, x: States, grid: Grid) -> Logits:
        """Read every token by itself."""
        _require_states(x, grid)
        require_callable(self.function, "function", "of one token")
        return jax.vmap(self.function)(x)


class LocalReadout(eqx.Module):
    r"""Linear logits from a window of tokens, by another map at every position.

    :math:`H(X)_i = \sum_{|j-i|\le r_H} C_{ij}\,X(j)` (`eq:local-readout-finite`). Of radius 0 it is
    the tokenwise :math:`H(X)_i = C_i X(i)` of `eq:tokenwise-terminal-adjoint`. A sum over tokens,
    without the grid's weights: it is of one context length. Of a loss whose derivative in the
    logits is G the terminal covector is :math:`P_T(j) = \sum_i C_{ij}^* G_i/\Delta p_j`
    (`eq:local-readout-adjoint`, as a density). Call it as ``readout(x, grid)``, on states of shape
    ``(length, width)``.

    Attributes
    ----------
    blocks
        The maps :math:`C_{ij}`, from ``(width,)`` to ``(vocabulary,)``, at
        ``blocks[i, r_H + j - i]``: of shape ``(length, window, vocabulary, width)``, with an odd
        window :math:`2 r_H + 1`. Those that would read beyond an end read zeros.

    Examples
    --------
    >>> before = jnp.zeros((3, 3, 1, 1)).at[:, 0].set(1.0)  # the logit at i is X(i - 1)
    >>> LocalReadout(before)(jnp.array([[1.0], [2.0], [3.0]]), lim.token_grid(3)).ravel().tolist()
    [0.0, 1.0, 2.0]
    """

    blocks: Float[Array, "length window vocabulary width"]

    def __call__(self, x: States, grid: Grid) -> Logits:
        """Sum each token's window of states, each multiplied by its block."""
        _require_states(x, grid)
        length, width = x.shape
        axes = "length window vocabulary width"
        require_floats(self.blocks, "blocks", axes, length=length, width=width)
        window = self.blocks.shape[1]
        require(
            window % 2 == 1,
            "blocks",
            got=f"a window of {window} tokens",
            expected="an odd number, 2 r_H + 1",
            cure="Add blocks of zeros on one side.",
        )
        padded = jnp.pad(x, ((window // 2, window // 2), (0, 0)))
        windows = jnp.stack([padded[k : k + length] for k in range(window)], axis=1)
        return jnp.einsum("ikvd,ikd->iv", self.blocks, windows)


def hat(distance: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""Return the hat kernel :math:`\kappa(s) = \max(1 - |s|, 0)`, of integral one."""
    return jnp.maximum(1 - jnp.abs(distance), 0)


class BandReadout(eqx.Module):
    r"""Logits from a window of positions around each token.

    :math:`H(X)(p) = \int r(p, q)\,X(q)\,W_{out}\,dq` with :math:`r(p,q) = \kappa((p-q)/b)/b`, by
    quadrature on the grid (`eq:local-readout-finite`). It reads ahead as well as back, and forms
    the ``(length, length)`` matrix. Call it as ``readout(x, grid)``, on states of shape
    ``(length, width)``.

    Attributes
    ----------
    weight
        :math:`W_{out}`, of shape ``(width, vocabulary)``.
    bandwidth
        :math:`b`, half the width of the window in position units, from the grid's widest cell to 1:
        a window of w tokens of L has :math:`b = w/(2L)`.
    edges
        What becomes of the mass of a window outside [0, 1]. ``"zero"`` drops it: rows and columns
        lose mass near the ends. ``"renormalised"`` divides each row by its sum, so the adjoint is
        wrong near the ends. ``"reflecting"``, the default, folds the mass back about 0 and 1: rows
        and, on equal cells, columns sum to one. This is the band to use.
    kernel
        :math:`\kappa`, a function of an array of distances, supported in [-1, 1] with integral one;
        by default the hat :math:`\max(1 - |s|, 0)`.

    Examples
    --------
    >>> band = BandReadout(jnp.eye(1), 0.5, "zero").matrix(lim.token_grid(4))
    >>> [round(float(mass), 3) for mass in band.sum(axis=1)]
    [0.75, 1.0, 1.0, 0.75]
    """

    weight: Float[Array, "width vocabulary"]
    bandwidth: float = eqx.field(static=True)
    edges: Edges = eqx.field(static=True, default="reflecting")
    kernel: Callable[[Array], Array] = eqx.field(static=True, default=hat)

    def __check_init__(self):
        """Raise ValueError unless edges, bandwidth and kernel are valid."""
        require_name(
            self.edges, get_args(Edges), "edges", "Pass one of these, which BandReadout explains."
        )
        require_positive(
            self.bandwidth,
            "bandwidth",
            expected="a number in (0, 1]",
            cure="Pass half the window in units of position: w/(2L) for w tokens.",
        )
        require_callable(self.kernel, "kernel", "of a distance")

    def __call__(self, x: States, grid: Grid) -> Logits:
        """Average the window around every token, then read it."""
        _require_states(x, grid, self.weight)
        return self.matrix(grid) @ x @ self.weight

    def matrix(self, grid: Grid) -> Float[Array, "length length"]:
        r"""Return the quadrature :math:`\Delta p_j\, r(p_i, p_j)` of the band.

        Parameters
        ----------
        grid
            The positions, of which none stands for more than the bandwidth.

        Returns
        -------
        Array
            The matrix of shape ``(length, length)`` that averages the window around each position.

        Raises
        ------
        ValueError
            If the bandwidth is less than the grid's widest cell, or more than 1.
        EquinoxRuntimeError
            If a row of the band is to be divided by its sum, and that is zero or NaN.
        """
        require_grid(grid)
        widest = grid.widest_cell
        require(
            widest <= self.bandwidth * (1 + 1e-9) and self.bandwidth <= 1,
            "bandwidth",
            got=f"{self.bandwidth}",
            expected=f"from {widest:.3g} (the widest cell) to 1",
            cure="Pass half the window in units of position: w/(2L) for w tokens.",
        )
        centre = grid.centres()
        rows = centre[:, None]
        columns = centre[None, :]
        band = self._density(rows - columns)
        if self.edges == "reflecting":
            band = band + self._density(rows + columns) + self._density(2 - rows - columns)
        band = band * grid.weights[None, :]
        if self.edges == "zero":
            return band
        sums = band.sum(axis=1, keepdims=True)
        sums = error_if_got(
            sums,
            "kernel",
            got={"a kernel whose values in a window sum to zero or NaN": ~(jnp.abs(sums) > 0)},
            expected="another sum, by which the window is divided",
            cure="Pass a kernel that is positive near 0.",
        )
        return band / sums

    def _density(self, distance: Float[Array, "..."]) -> Float[Array, "..."]:
        """Compute the kernel's density at a distance, in units of the bandwidth."""
        return self.kernel(distance / self.bandwidth) / self.bandwidth


def _require_states(x: States, grid: Grid, *weights: Float[Array, "width vocabulary"]) -> None:
    """Raise ValueError unless x fits the grid and the weights' width."""
    sizes = {}
    for weight in weights:
        require_floats(weight, "weight", "width vocabulary")
        sizes = {"width": weight.shape[0]}
    require_on_grid(
        x,
        grid,
        "x",
        "length width",
        cure=(
            "Pass one example, with a row for each position of the grid; map over a batch with "
            "jax.vmap."
        ),
        **sizes,
    )
