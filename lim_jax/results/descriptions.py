"""What results hold, each kind described once: arrays with the names of their axes and units."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from lim_jax._checks import ARRAYS, described, require
from lim_jax.adjoint.certificate import Certificate, Inequality
from lim_jax.adjoint.ledger import CHANNELS, Channels
from lim_jax.density.statistics import Indices, Influence
from lim_jax.grid.measure import Grid
from lim_jax.grid.partition import Regions
from lim_jax.results.archive import SEQUENCES, kind_of
from lim_jax.results.comparison import Comparison

Variables = dict[str, tuple[str, Any, str]]
SHARE, ENERGY, COVECTOR, STATE = "1", "(loss/state)^2", "loss/state", "state"
LOSS, NONE = "loss", ""
REGIONS = Indices._fields[:3]


class Description(NamedTuple):
    """A result as named arrays: each one's axes, values and units; what matters most is first.

    `grid` has the positions, where the result has them, `labels` the coordinates along other axes,
    and `attributes` what holds for all of it.
    """

    variables: Variables
    grid: Grid | None = None
    labels: Mapping[str, Any] = {}
    attributes: Mapping[str, Any] = {}


def describe(result: Any, axes: str = "") -> Description:
    """Name the arrays of a result, and their axes, as `labelled.to_xarray` takes them."""
    if isinstance(result, ARRAYS):
        return Description({"values": (axes, result, NONE)})
    several = kind_of(result) in SEQUENCES and len(result) > 0
    kind = kind_of(result[0] if several else result)
    require(
        not axes and (kind in SEVERAL or kind in ONE and not several),
        "result",
        got=described(result) + f" with axes {axes!r}" * bool(axes),
        expected=f"one of {', '.join(ONE)}; one or a list of {', '.join(SEVERAL)}; "
        "or an array with its axes",
        cure="The axes of an array are named, and of nothing else: axes='depth position'.",
    )
    if kind in ONE:
        return ONE[kind](result)
    return SEVERAL[kind](result if several else [result])


def _influence(found: Influence) -> Description:
    variables = {
        **_numbers(found.density, found.total, found.indices()),
        **_numbers(found.density_error, found.total_error, found.index_errors(), "_error"),
        "energy": ("position", found.energy, ENERGY),
        "energy_error": ("position", found.energy_error, ENERGY),
    }
    if found.example_energies is not None:
        variables["example_energy"] = ("example position", found.example_energies, ENERGY)
    attributes = {"examples": int(found.count), **_of_regions(found.regions)}
    return Description(variables, found.grid, {"region": REGIONS}, attributes)


def _comparison(found: Comparison) -> Description:
    variables = {
        **_numbers(found.density, found.total, found.indices),
        **_numbers(found.density_error, found.total_error, found.index_errors, "_error"),
    }
    attributes = {"paired": str(found.paired), **_of_regions(found.regions)}
    return Description(variables, found.regions.grid, {"region": REGIONS}, attributes)


def _numbers(density: Any, total: Any, indices: Indices, suffix: str = "") -> Variables:
    averages = jnp.stack(indices[:3])
    single = {name: ("", getattr(indices, name), SHARE) for name in Indices._fields[3:]}
    found = {
        "density": ("position", density, SHARE),
        "regional_average": ("region", averages, SHARE),
        **single,
        "total": ("", total, ENERGY),
    }
    return {name + suffix: variable for name, variable in found.items()}


def _of_regions(regions: Regions) -> dict[str, Any]:
    found = {"delta": float(regions.delta), "convention": regions.convention}
    return found | ({"left_out": list(regions.left_out)} if regions.left_out else {})


def _channels(found: Channels) -> Description:
    vectors = found.vectors
    variables = {
        "energy": ("channel position", (vectors**2).sum(axis=-1), ENERGY),
        "vector": ("channel position component", vectors, COVECTOR),
        "cone": ("layer position component", found.cone_by_depth, COVECTOR),
        "local": ("layer position component", found.local_by_depth, COVECTOR),
        "covector": ("depth position component", found.covectors, COVECTOR),
        "state": ("depth position component", found.states, STATE),
        "time": ("depth", found.times, NONE),
        "loss": ("", found.loss, LOSS),
    }
    return Description(variables, labels={"channel": CHANNELS})


def _explanation(found: Any) -> Description:
    of_all, regional = _influence(found.influence), found.regional
    rest = {} if found.without_queries is None else _influence(found.without_queries).variables
    certificates = _certificates(found.certificates)
    layers = range(found.depth, found.depth + len(found.head_energies))
    variables = {
        **of_all.variables,
        **{f"{name}_without_queries": variable for name, variable in rest.items()},
        "channel_energy": ("channel position", found.channel_energies, ENERGY),
        "relative_energy": ("channel position", found.relative_energies, "loss^2"),
        "hop_energy": ("hop position", found.hop_energies, ENERGY),
        "regional_channel_energy": ("region channel", regional.energies, ENERGY),
        "regional_channel_energy_error": ("region channel", regional.standard_errors, ENERGY),
        "regional_cross_terms": ("region", regional.cross_terms, ENERGY),
        "regional_hop_energy": ("region hop", found.regional_hop_energies, ENERGY),
        "head_energy": ("layer head", found.head_energies, ENERGY),
        "terminal_contrast": ("", found.terminal_contrast.value, SHARE),
        "terminal_contrast_error": ("", found.terminal_contrast.error, SHARE),
        **certificates.variables,
    }
    labels = {"channel": CHANNELS, "layer": layers, **of_all.labels, **certificates.labels}
    return Description(variables, of_all.grid, labels, {"depth": found.depth, **of_all.attributes})


def _certificates(found: Sequence[Certificate]) -> Description:
    """Certificates; and below them their inequalities and premises, each with its certificate's."""
    compared: list[tuple[str, str, Inequality]] = [
        (one.name, role, inequality)
        for one in found
        for role, those in (("compared", one.inequalities), ("measured", one.measured))
        for inequality in those
    ]
    premises = [(one.name, premise) for one in found for premise in one.premises]
    variables = {
        "holds": ("certificate", [one.holds for one in found], NONE),
        "concluded": ("certificate", [one.concluded for one in found], NONE),
        "least_margin": ("certificate", [one.margin for one in found], NONE),
        "vacuous": ("certificate", _texts(one.vacuous for one in found), NONE),
        "conclusion": ("certificate", _texts(one.conclusion for one in found), NONE),
        "source": ("certificate", _texts(one.source for one in found), NONE),
        "certificate_of_inequality": ("inequality", _texts(name for name, _, _ in compared), NONE),
        "role": ("inequality", _texts(role for _, role, _ in compared), NONE),
        "inequality_holds": ("inequality", [one.holds for _, _, one in compared], NONE),
        **{
            name: ("inequality", [float(getattr(one, name)) for _, _, one in compared], NONE)
            for name in ("greater", "lesser", "margin", "rounding")
        },
        "certificate_of_premise": ("premise", _texts(name for name, _ in premises), NONE),
        "premise_value": ("premise", [float(one.value) for _, one in premises], NONE),
        "premise_holds": ("premise", [bool(one.holds) for _, one in premises], NONE),
    }
    labels = {
        "certificate": _texts(one.name for one in found),
        "inequality": _texts(one.statement for _, _, one in compared),
        "premise": _texts(one.statement for _, one in premises),
    }
    return Description(variables, labels=labels)


def _rows(found: Sequence[Any]) -> Description:
    of_studies = _studies([row.study for row in found])
    variables = {
        **of_studies.variables,
        "expected_order": ("study", [_stated(row.expected) for row in found], NONE),
        "agrees": ("study", [row.agrees for row in found], NONE),
        "reason": ("study", _texts(row.reason for row in found), NONE),
        "reliability_warning": ("study", _texts(row.reliability_warning for row in found), NONE),
    }
    return Description(variables, labels={"study": _texts(row.name for row in found)})


def _studies(found: Sequence[Any]) -> Description:
    """Studies side by side, filled up with NaN where one has fewer refinements, or no bound."""
    steps = max(len(one.refinements) for one in found)

    def filled(values: Sequence[float] | None) -> list[float]:
        values = values or ()
        return [*values, *[np.nan] * (steps - len(values))]

    orders = [one.order for one in found]
    claimed = [_stated(one.claimed) for one in found]
    answers = {"holds": "yes", "BROKEN": "no"}
    variables = {
        "error": ("study step", [filled(one.errors) for one in found], NONE),
        "bound": ("study step", [filled(one.bounds) for one in found], NONE),
        "refinement": ("study step", [filled(one.refinements) for one in found], NONE),
        "order": ("study", [order.value for order in orders], NONE),
        "order_half_width": ("study", [order.half_width for order in orders], NONE),
        "constant": ("study", [order.constant for order in orders], NONE),
        "claimed_order": ("study", claimed, NONE),
        "reference_error": ("study", [float(one.reference_error) for one in found], NONE),
        "bound_holds": (
            "study",
            _texts(answers.get(one.verdict, one.verdict) for one in found),
            NONE,
        ),
        "source": ("study", _texts(one.source for one in found), NONE),
    }
    return Description(variables, labels={"study": _texts(one.source for one in found)})


def _stated(order: float | None) -> float:
    return np.nan if order is None else float(order)


def _training_path(found: Any) -> Description:
    variables = {
        "density": ("time position", found.density, SHARE),
        "energy": ("time position", found.energy, ENERGY),
        "total": ("time", found.total, ENERGY),
        "risk": ("time", found.risk, LOSS),
    }
    return Description(variables, found.grid, {"time": found.times})


def _texts(words: Any) -> np.ndarray:
    """An array of text, also where there is none."""
    return np.array(list(words), str)


ONE: Mapping[str, Callable[[Any], Description]] = {
    "adjoint.Channels": _channels,
    "density.Influence": _influence,
    "explanations.Explanation": _explanation,
    "results.Comparison": _comparison,
    "training.TrainingPath": _training_path,
}
SEVERAL: Mapping[str, Callable[[Sequence[Any]], Description]] = {
    "adjoint.Certificate": _certificates,
    "limits.Row": _rows,
    "limits.Study": _studies,
}
