r"""What changed from one influence to another, with its standard error.

Two networks, or one before and after training, on the same examples: what the examples do to both
cancels in the difference, and its error is often far below that of either. The difference is taken
example by example where both influences keep these (`keep_examples`), else as if they were
independent.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import described, require
from lim_jax.density.statistics import Indices, Influence, all_known, number_lines
from lim_jax.grid.partition import Regions

Scalar = Float[Array, ""]
Results = tuple[Any, Any, Indices]  # density, total, indices, or such a number for each example


class Comparison(NamedTuple):
    r"""The second of two influences minus the first.

    Attributes
    ----------
    regions
        Of both.
    paired
        Whether errors are of differences example by example. Else errors of the two add in squares,
        which is right of independent examples, and too much of equal ones that move both alike.
    density, density_error
        :math:`m_2(p_i) - m_1(p_i)` and its standard error.
    total, total_error
        :math:`Z_2 - Z_1`.
    indices, index_errors
        Of the regional averages, the gap, LIM and the contrast.
    """

    regions: Regions
    paired: bool
    density: Float[Array, " length"]
    density_error: Float[Array, " length"]
    total: Scalar
    total_error: Scalar
    indices: Indices
    index_errors: Indices

    def __str__(self) -> str:
        """The numbers in a few lines of text."""
        if not all_known(self._replace(paired=None)) or self.density.ndim > 1:
            return repr(self)
        kind = "pair by pair" if self.paired else "as if of independent examples"
        numbers = self.indices, self.index_errors, self.total, self.total_error
        return "\n".join([f"second minus first, {kind}", *number_lines(*numbers)])


def compare(first: Influence, second: Influence) -> Comparison:
    r"""Subtract the first influence from the second, with standard errors.

    Errors are linearised, as those of `density.Influence`: with the derivative :math:`T'` of a
    result in the mean energies, example e adds
    :math:`T_2'[E_{2,e} - \bar E_2] - T_1'[E_{1,e} - \bar E_1]` to the difference, and the scatter
    of these gives the error. Where energies are not kept in both, or not of as many examples, the
    two errors add in squares.

    Parameters
    ----------
    first, second
        Over the same regions; for pairs, with `keep_examples` and of the same examples in the same
        order.

    Raises
    ------
    ValueError
        Where one is no influence, or their regions differ.

    Examples
    --------
    >>> from lim_jax.grid import boundary_regions, token_grid
    >>> regions = boundary_regions(token_grid(4), 0.25)
    >>> energies = jnp.array([[1.0, 2.0, 4.0, 1.0], [3.0, 2.0, 2.0, 1.0]])
    >>> first, second = (
    ...     Influence.from_energies(scale * energies, regions, keep_examples=True)
    ...     for scale in (1.0, 3.0)
    ... )
    >>> print(compare(first, second))
    second minus first, pair by pair
                           left             middle              right
    density               0 ± 0              0 ± 0              0 ± 0
    gap 0 ± 0   LIM 0 ± 0   contrast 0 ± 0
    total 4 ± 0
    """
    _require_influence(first, "first")
    _require_influence(second, "second")
    require(
        bool(first.regions == second.regions),
        "second",
        got=f"influence over {second.regions}",
        expected=f"influence over {first.regions}, those of the first",
        cure="Measure both with the same regions.",
    )
    one, two = first.example_energies, second.example_energies
    paired = one is not None and two is not None and one.shape == two.shape
    (density, total, indices), errors = _compared(first, second, paired)
    density_error, total_error, index_errors = errors
    return Comparison(
        first.regions, paired, density, density_error, total, total_error, indices, index_errors
    )


@eqx.filter_jit
def _compared(first: Influence, second: Influence, paired: bool) -> tuple[Results, Results]:
    errors = _paired_errors if paired else _independent_errors
    return jax.tree.map(jnp.subtract, _results(second), _results(first)), errors(first, second)


def _results(found: Influence) -> Results:
    return found.density, found.total, found.indices()


def _paired_errors(first: Influence, second: Influence) -> Results:
    """The standard errors of the mean of what the examples add to the difference."""
    changes = jax.tree.map(jnp.subtract, _deviations(second), _deviations(first))

    def error(deviations: Float[Array, "examples *shape"]) -> Float[Array, "*shape"]:
        count = deviations.shape[0]
        scatter = jnp.sum(deviations**2, axis=0)
        known = jnp.sqrt(scatter / max(count * (count - 1), 1))
        return known if count > 1 else jnp.full_like(known, jnp.inf)

    return jax.tree.map(error, changes)


def _deviations(found: Influence) -> Results:
    """What every example adds to the results, to first order; the mean over examples is zero."""

    def of_energy(energy: Float[Array, " length"]) -> Results:
        return _results(eqx.tree_at(lambda result: result.energy, found, energy))

    assert found.example_energies is not None
    _, slope = jax.linearize(of_energy, found.energy)
    return jax.vmap(slope)(found.example_energies - found.energy[None, :])


def _independent_errors(first: Influence, second: Influence) -> Results:
    errors = [
        (found.density_error, found.total_error, found.index_errors()) for found in (first, second)
    ]
    return jax.tree.map(jnp.hypot, *errors)


def _require_influence(found: Any, name: str) -> None:
    require(
        isinstance(found, Influence),
        name,
        got=described(found),
        expected="an Influence",
        cure="Measure one with density.influence.",
    )
