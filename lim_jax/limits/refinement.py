"""Refinement studies: the paper's limits, measured against the limit itself. Use float64."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import ARRAYS, as_int, described, require
from lim_jax.grid.measure import Grid, require_on_grid

Gap = Float[np.ndarray, "..."]
LEAST = 4  # a slope through fewer points says nothing


class Order(NamedTuple):
    """A fitted convergence order: errors behave like ``constant / refinement**value``."""

    value: float
    half_width: float
    constant: float

    @property
    def error(self) -> float:
        """The standard error of the slope, which tables and figures put behind ±."""
        return self.half_width / 2


def fit_order(refinements: Sequence[float | int], errors: Sequence[float]) -> Order:
    """Fit a convergence order by least squares on logarithms of four positive errors or more."""
    numbers = np.array([refinements, errors], float)
    # Every study's order comes through here, so this holds for them all.
    positive = bool(((numbers > 0) & (numbers < np.inf)).all())
    distinct = len(set(numbers[0])) == len(numbers[0])
    require(
        numbers.shape[1] >= LEAST and positive and distinct,
        "errors",
        got=f"{list(errors)} at {list(refinements)}",
        expected="at least four positive errors, each of another refinement",
        cure="Pass more points, and leave errors of zero out: they have no logarithm.",
    )
    x, y = np.log(numbers) * [[1], [-1]]
    design = np.stack([x, np.ones_like(x)], axis=1)
    (slope, intercept), *_ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ (slope, intercept)
    variance = residual @ residual / (len(x) - 2) / np.sum((x - x.mean()) ** 2)
    return Order(float(slope), float(2 * np.sqrt(variance)), float(np.exp(-intercept)))


def require_refinements(numbers: Sequence[int], name: str, what: str) -> None:
    """Raise ValueError unless there are enough numbers, each larger than the one before."""
    require(
        len(numbers) >= LEAST and list(numbers) == sorted(set(numbers)),
        name,
        got=f"{list(numbers)} {what}",
        expected=f"{LEAST} refinements or more, each finer than the one before",
        cure="Pass more, each double the one before: a slope through fewer says nothing.",
    )


def require_rising(numbers: Any, name: str) -> None:
    """Raise ValueError unless these are whole numbers, each larger than the one before."""
    listed = list(numbers) if isinstance(numbers, (Sequence, *ARRAYS)) else []
    counts = [as_int(number, name) for number in listed]
    if counts:
        got = f"{counts}"
    elif isinstance(numbers, Sequence):
        got = "none"
    else:
        got = described(numbers)
    require(
        len(counts) > 0 and counts == sorted(set(counts)),
        name,
        got=got,
        expected="whole numbers, each larger than the one before",
        cure="Pass them from the coarsest to the finest, for example (8, 16, 32, 64).",
    )


class Study(NamedTuple):
    """Errors of one quantity under refinement; what the paper does not state is None."""

    source: str  # the paper's label
    claimed: float | None
    refinements: tuple[float, ...]  # numbers of tokens or layers
    errors: tuple[float, ...]
    bounds: tuple[float, ...] | None  # with an explicit constant
    reference_error: float  # of the reference against itself at another resolution
    sampled: bool = False  # a constant is the largest of samples: beyond it nothing is refuted
    rounding: float = 0.0  # by how much rounding may move an error
    xlabel: str = "refinement n (positions or layers)"  # what refinements and errors are
    ylabel: str = "error (in the quantity's unit)"

    @property
    def order(self) -> Order:
        """The order fitted to the errors."""
        return fit_order(self.refinements, self.errors)

    @property
    def verdict(self) -> str:
        """Whether the errors are within the bounds: "holds", "BROKEN", "unresolved" and so on.

        By more than the reference's error and `rounding`; "measured" where a constant is a sample.
        """
        if self.bounds is None:
            return "no bound"
        if self.sampled:
            return "measured"
        beyond = np.subtract(self.errors, self.bounds)
        if np.any(beyond > self.reference_error + self.rounding):
            return "BROKEN"
        return "holds" if np.all(beyond <= self.rounding - self.reference_error) else "unresolved"

    @property
    def holds(self) -> bool | None:
        """True if the `verdict` is "holds", False if it is "BROKEN", else None."""
        return {"holds": True, "BROKEN": False}.get(self.verdict)

    @property
    def resolved(self) -> bool:
        """Whether every error is at least ten times the reference's own."""
        return min(self.errors) >= 10 * self.reference_error


def rounding_error(values: np.ndarray, size: float) -> float:
    """Return by how much rounding may move a size of values: a hundred units in the last place."""
    return 100 * float(np.finfo(values.dtype).eps) * size


def refine(
    source: str,
    claimed: float | None,
    refinements: Sequence[float | int],
    errors: Iterable[float | Array | np.floating],
    reference_error: float,
    bound: Callable[[Any], float] | None = None,
    *,
    sampled: bool = False,
    rounding: float = 0.0,
) -> Study:
    """Make a study, with the bound evaluated at each refinement if there is one."""
    bounds = None if bound is None else tuple(map(bound, refinements))
    sizes = tuple(map(float, refinements))
    measured = tuple(map(float, errors))
    return Study(source, claimed, sizes, measured, bounds, reference_error, sampled, rounding)


def refine_against(
    source: str,
    refinements: Sequence[float | int],
    values: Iterable[Array],
    references: Iterable[Array],
) -> Study:
    """Study the largest distances from the second reference; the first tells its error."""
    check, exact = map(np.asarray, references)
    *errors, reference_error = (
        float(np.abs(np.asarray(each) - exact).max()) for each in (*values, check)
    )
    return refine(source, None, refinements, errors, reference_error)


def richardson(
    values: Callable[[int], Float[Array, "*shape"]], order: int = 1
) -> Callable[[int], Float[Array, "*shape"]]:
    """Cancel a refinement's leading error by :math:`(2^r Q_{2n} - Q_n)/(2^r - 1)`."""

    def extrapolated(refinement: int) -> Float[Array, "*shape"]:
        """Combine the values of a refinement and of twice it, so that the leading error cancels."""
        fine = values(2 * refinement)
        coarse = values(refinement)
        return (2**order * fine - coarse) / (2**order - 1)

    return extrapolated


def largest(gap: Gap, grid: Grid) -> float:
    """Return the largest absolute entry: the default norm of an error."""
    return float(np.abs(gap).max())


def mean_square(gap: Gap, grid: Grid) -> float:
    r"""Compute a field's error in the grid's :math:`L^2`: :math:`\sqrt{\sum_i\Delta p_i\|e_i\|^2}`.

    Parameters
    ----------
    gap
        The error at each position, a NumPy array whose first axis is position.
    grid
        The positions of its rows.

    Returns
    -------
    float
        The norm; `Quantity` takes this function as its `norm`.

    Raises
    ------
    ValueError
        If the error has not a row for each position.

    Examples
    --------
    >>> mean_square(np.array([[3.0, 4.0], [5.0, 0.0]]), lim.token_grid(2))
    5.0
    """
    require_on_grid(gap, grid, "gap")
    squares = (gap**2).reshape(grid.size, -1).sum(axis=1)
    return float(np.sqrt(np.asarray(grid.weights) @ squares))
