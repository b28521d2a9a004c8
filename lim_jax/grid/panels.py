"""The continuum: Gauss--Legendre nodes on panels."""

from bisect import bisect_left
from fractions import Fraction
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from lim_jax._checks import as_int, require
from lim_jax.grid.measure import Grid, as_dtype, checked_positions, require_on_grid

NODES = "Pass a Python int, such as 64: on one panel it gives ten digits for smooth fields."

_leggauss = cache(np.polynomial.legendre.leggauss)  # an eigenvalue problem each time


class PanelGrid(Grid):
    r"""Gauss--Legendre nodes on panels: the continuum itself, to rounding, for smooth fields.

    On each panel, between two `breaks`, a field is its interpolating polynomial through `order`
    nodes. Prefix weights are the exact integrals of the interpolant: dense, signed, and spectrally
    accurate. Attention on this grid is therefore the Volterra operator, not a causal matrix: inside
    a panel a row may weigh nodes ahead of it.
    """

    breaks: tuple[float, ...] = eqx.field(static=True)
    order: int = eqx.field(static=True, converter=partial(as_int, name="order", cure=NODES))
    dtype: DTypeLike | None = eqx.field(static=True, default=None, converter=as_dtype)

    def __check_init__(self):
        """Raise ValueError unless nodes increase and the weights integrate polynomials exactly."""
        self._require_nodes_apart()
        # Gauss weights integrate degree 2 order - 1, prefix weights degree order - 1: not so where
        # breaks were rounded to float32, or with hundreds of nodes on a panel.
        nodes = self._nodes()
        order = self.order
        prefix = self._weights_to(nodes) @ nodes ** (order - 1) - nodes**order / order
        integral = self._weights() @ nodes ** (2 * order - 1) - 1 / (2 * order)
        error = max(np.abs(prefix).max(), abs(integral))
        require(
            bool(error < 1e-12),
            "grid",
            got=f"an error of {error:.1e} in the integral of a polynomial",
            expected="exact weights",
            cure="Pass the breaks in float64, or take fewer nodes on each panel and more panels.",
        )

    def _require_nodes_apart(self) -> None:
        """Raise ValueError unless the nodes are positive and increase in the grid's dtype."""
        dtype = jax.dtypes.canonicalize_dtype(self.dtype or float)
        nodes = self._nodes().astype(dtype)
        # Numbers below the smallest normal one are zeros in a compiled program.
        apart = bool(nodes[0] >= jnp.finfo(dtype).tiny) and bool(np.all(np.diff(nodes) > 0))
        panels = len(self.breaks) - 1
        require(
            apart,
            "grid",
            got=f"{panels} panels, on which nodes coincide with others or with 0 in {dtype}",
            expected="nodes above 0 that increase, on panels that do",
            cure="Take fewer panels, or a dtype of more bits.",
        )

    @property
    def size(self) -> int:
        """The number of nodes on all panels."""
        return self.order * (len(self.breaks) - 1)

    def prefix_weights(self) -> Float[Array, "length length"]:
        """Return weights that integrate the interpolant: exact up to degree `order` - 1."""
        return self._cast(self._weights_to(self._nodes()))

    def centres(self) -> Float[Array, " length"]:
        """Return the nodes."""
        return self.nodes

    def interpolate(
        self, values: Float[Array, " length *rest"], positions: Float[Array, " points"]
    ) -> Float[Array, " points *rest"]:
        """Evaluate each panel's polynomial in barycentric form; differentiable in `values` only."""
        require_on_grid(values, self)
        values = jnp.asarray(values)
        positions = checked_positions(positions)
        breaks = self._cast(np.array(self.breaks))
        panel = jnp.clip(jnp.searchsorted(breaks, positions) - 1, 0, len(self.breaks) - 2)
        members = panel[:, None] * self.order + jnp.arange(self.order, dtype=panel.dtype)[None, :]
        # Any common factor of a panel's barycentric weights cancels, so those of [-1, 1] serve.
        reference, gauss = _leggauss(self.order)
        signs = (-1.0) ** np.arange(self.order)
        barycentric = self._cast(signs * np.sqrt((1 - reference**2) * gauss))
        distance = positions[:, None] - self.nodes[members]
        at_node = distance == 0
        shares = barycentric[None, :] / jnp.where(at_node, 1, distance)
        on_any = jnp.any(at_node, axis=1, keepdims=True)
        shares = jnp.where(on_any, at_node.astype(shares.dtype), shares)
        shares = shares / shares.sum(axis=1, keepdims=True)
        return jnp.einsum("pk,pk...->p...", shares, values[members])

    def _nodes(self) -> np.ndarray:
        """Return the Gauss nodes of all panels, in double precision."""
        reference, _ = _leggauss(self.order)
        starts = np.array(self.breaks[:-1])
        widths = np.diff(self.breaks)
        return (starts[:, None] + widths[:, None] * (reference + 1) / 2).ravel()

    def _weights(self) -> np.ndarray:
        """Return the Gauss weights of all panels, in double precision."""
        _, gauss = _leggauss(self.order)
        return np.outer(np.diff(self.breaks) / 2, gauss).ravel()

    def _edges(self) -> np.ndarray:
        """Return the edges of cells as wide as the Gauss weights, which separate the nodes."""
        edges = np.concatenate([[0.0], np.cumsum(self._weights())])
        edges[-1] = 1.0
        return edges

    def _nodes_below(self, position: Fraction) -> int:
        """Count the nodes strictly left of an exact position."""
        nodes = self._nodes()
        return bisect_left(range(self.size), position, key=lambda i: Fraction(float(nodes[i])))

    def _weights_to(self, positions: np.ndarray) -> np.ndarray:
        """Return the weights of the interpolant's integral from 0 to any positions."""
        # On [-1, 1] the interpolant's Legendre coefficients are (2n+1)/2 sum_j w_j P_n(x_j) f_j,
        # exactly by Gauss quadrature, and (2n+1) times the integral of P_n from -1 to x is
        # P_{n+1}(x) - P_{n-1}(x), or x + 1 for n = 0.
        reference, gauss = _leggauss(self.order)
        starts = np.array(self.breaks[:-1])
        widths = np.diff(self.breaks)
        x = np.clip(2 * (positions[:, None] - starts) / widths - 1, -1, 1)
        values = np.polynomial.legendre.legvander(x, self.order)
        primitives = np.concatenate([(x + 1)[..., None], values[..., 2:] - values[..., :-2]], -1)
        at_nodes = np.polynomial.legendre.legvander(reference, self.order - 1)
        rows = np.einsum("pqn,jn->pqj", primitives, at_nodes) * gauss / 2 * widths[:, None] / 2
        return rows.reshape(len(positions), self.size)


def gauss_grid(order: int, panels: int = 1, dtype: DTypeLike | None = None) -> PanelGrid:
    r"""Return Gauss--Legendre panels, halved again and again towards position 0.

    With one panel, 64 nodes give attention of a smooth field to ten digits. More panels resolve
    what is singular at 0, such as the adjoint of causal averaging: their ends are
    :math:`0, 2^{1-n}, \dots, \frac12, 1`.

    Parameters
    ----------
    order
        The number of nodes on each panel: the grid has `order` times `panels` positions.
    panels
        The number n of panels; by default one, [0, 1].
    dtype
        The floating-point dtype of the grid's arrays; by default JAX's default float.

    Returns
    -------
    PanelGrid
        The grid, known before tracing.

    Raises
    ------
    ValueError
        If `order` or `panels` is not a positive Python int, `dtype` not a floating-point dtype, so
        many nodes on a panel have no exact weights, or so many panels no nodes apart in `dtype`.

    Examples
    --------
    >>> gauss_grid(2, panels=2).breaks
    (0.0, 0.5, 1.0)
    >>> grid = gauss_grid(12)
    >>> prefix = grid.prefix_weights() @ jnp.cos(grid.nodes)
    >>> bool(jnp.allclose(prefix, jnp.sin(grid.nodes), rtol=0, atol=1e-13))
    True
    """
    panels = as_int(
        panels, "panels", cure="Pass a Python int, or leave it out for the one panel [0, 1]."
    )
    breaks = (0.0, *(0.5**k for k in reversed(range(panels))))
    return PanelGrid(breaks=breaks, order=order, dtype=dtype)
