"""What results hold, each kind described once: arrays with the names of their axes and units."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from lim_jax._checks import ARRAYS, described, require
from lim_jax.adjoint.certificate import Certificate
from lim_jax.adjoint.ledger import CHANNELS, Channels
from lim_jax.density.statistics import Indices, Influence
from lim_jax.grid.measure import Grid
from lim_jax.grid.partition import REGIONS, Regions
from lim_jax.results.archive import SEQUENCES, kind_of
from lim_jax.results.comparison import Comparison

Variables = dict[str, tuple[str, Any, str]]
SHARE = "1"
ENERGY = "(loss/state)^2"
COVECTOR = "loss/state"
STATE = "state"
LOSS = "loss"
NONE = ""


class Description(NamedTuple):
    """A result as named arrays: each one's axes, values and units; what matters most is first."""

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
    accepted = not axes and (kind in SEVERAL or kind in ONE and not several)
    one_or_several = f"one or a list of {', '.join(SEVERAL)}"
    require(
        accepted,
        "result",
        got=f"{described(result)} with axes {axes!r}" if axes else described(result),
        expected=f"one of {', '.join(ONE)}; {one_or_several}; or an array with its axes",
        cure="Name the axes of an array, and of nothing else: axes='depth position'.",
    )
    if kind in ONE:
        return ONE[kind](result)
    return SEVERAL[kind](result if several else [result])


def _influence(influence: Influence) -> Description:
    """Describe an influence: density, indices, energies and their errors."""
    errors = influence.density_error, influence.total_error, influence.index_errors()
    variables = {
        **_numbers(influence.density, influence.total, influence.indices()),
        **_numbers(*errors, suffix="_error"),
        "energy": ("position", influence.energy, ENERGY),
        "energy_error": ("position", influence.energy_error, ENERGY),
    }
    if influence.example_energies is not None:
        variables["example_energy"] = ("example position", influence.example_energies, ENERGY)
    attributes = {"examples": int(influence.count), **_region_attributes(influence.regions)}
    return Description(variables, influence.grid, {"region": REGIONS}, attributes)


def _comparison(change: Comparison) -> Description:
    """Describe a comparison: the changes of density, indices and total, and their errors."""
    errors = change.density_error, change.total_error, change.index_errors
    variables = _numbers(change.density, change.total, change.indices)
    variables |= _numbers(*errors, suffix="_error")
    attributes = {"paired": str(change.paired), **_region_attributes(change.regions)}
    return Description(variables, change.regions.grid, {"region": REGIONS}, attributes)


def _numbers(density: Any, total: Any, indices: Indices, suffix: str = "") -> Variables:
    """Return the variables of a density, its total and indices, with `suffix` behind each name."""
    variables = {
        "density": ("position", density, SHARE),
        "regional_average": ("region", jnp.stack(indices[:3]), SHARE),
        **{name: ("", getattr(indices, name), SHARE) for name in Indices._fields[3:]},
        "total": ("", total, ENERGY),
    }
    return {name + suffix: variable for name, variable in variables.items()}


def _region_attributes(regions: Regions) -> dict[str, Any]:
    """Return the attributes of regions: their width and convention, and positions left out."""
    attributes = {"delta": float(regions.delta), "convention": regions.convention}
    return attributes | ({"left_out": list(regions.left_out)} if regions.left_out else {})


def _channels(channels: Channels) -> Description:
    """Describe channels: energies, vectors, and covectors and states by depth."""
    vectors = channels.vectors
    variables = {
        "energy": ("channel position", (vectors**2).sum(axis=-1), ENERGY),
        "vector": ("channel position component", vectors, COVECTOR),
        "cone": ("layer position component", channels.cone_by_depth, COVECTOR),
        "local": ("layer position component", channels.local_by_depth, COVECTOR),
        "covector": ("depth position component", channels.covectors, COVECTOR),
        "state": ("depth position component", channels.states, STATE),
        "time": ("depth", channels.times, NONE),
        "loss": ("", channels.loss, LOSS),
    }
    return Description(variables, labels={"channel": CHANNELS})


def _explanation(result: Any) -> Description:
    """Describe an explanation: influence, channels, hops, heads and certificates."""
    influence = _influence(result.influence)
    regional = result.regional
    rest = Description({}) if result.without_queries is None else _rest(result.without_queries)
    certificates = _certificates(result.certificates)
    layers = range(result.depth, result.depth + len(result.head_energies))
    variables = {
        **influence.variables,
        **rest.variables,
        "channel_energy": ("channel position", result.channel_energies, ENERGY),
        "relative_energy": ("channel position", result.relative_energies, "loss^2"),
        "hop_energy": ("hop position", result.hop_energies, ENERGY),
        "regional_channel_energy": ("region channel", regional.energies, ENERGY),
        "regional_channel_energy_error": ("region channel", regional.standard_errors, ENERGY),
        "regional_cross_terms": ("region", regional.cross_terms, ENERGY),
        "regional_hop_energy": ("region hop", result.regional_hop_energies, ENERGY),
        "head_energy": ("layer head", result.head_energies, ENERGY),
        "terminal_contrast": ("", result.terminal_contrast.value, SHARE),
        "terminal_contrast_error": ("", result.terminal_contrast.error, SHARE),
        **certificates.variables,
    }
    own_labels = {"channel": CHANNELS, "layer": layers, **rest.labels}
    labels = {**own_labels, **influence.labels, **certificates.labels}
    attributes = {"depth": result.depth, **influence.attributes}
    return Description(variables, influence.grid, labels, attributes)


def _rest(influence: Influence) -> Description:
    """Describe the influence of the tokens that are not asked, which has positions of its own."""
    suffix = "_without_queries"
    variables = {
        name + suffix: (axes.replace("position", "position" + suffix), values, units)
        for name, (axes, values, units) in _influence(influence).variables.items()
    }
    return Description(variables, labels={"position" + suffix: influence.grid.nodes})


def _scores(result: Any) -> Description:
    """Describe scores of an answer's parts by the parts and positions of its context."""
    variables = {
        "score": ("answer_part part", result.by_part, LOSS),
        "within": ("part", _texts(part.within for part in result.parts), NONE),
    }
    if result.by_token is not None:
        variables["score_of_position"] = ("answer_part position", result.by_token, LOSS)
    parts = {"answer_part": result.answer, "part": result.parts}
    labels = {axis: _texts(part.text for part in along) for axis, along in parts.items()}
    return Description(variables, labels=labels)


def _along(axes: str, columns: Mapping[str, Any]) -> Variables:
    """Return columns as variables along these axes, without a unit."""
    return {name: (axes, values, NONE) for name, values in columns.items()}


def _certificates(certificates: Sequence[Certificate]) -> Description:
    """Describe certificates, and their inequalities and premises with each one's certificate."""
    names = []
    roles = []
    sides = []
    for claim in certificates:
        for role, inequalities in (("compared", claim.inequalities), ("measured", claim.measured)):
            names += [claim.name] * len(inequalities)
            roles += [role] * len(inequalities)
            sides += inequalities
    premises = [(claim.name, premise) for claim in certificates for premise in claim.premises]
    numbers = "greater", "lesser", "margin", "rounding"
    words = "vacuous", "conclusion", "source"
    variables = (
        _along(
            "certificate",
            {
                "holds": [claim.holds for claim in certificates],
                "concluded": [claim.concluded for claim in certificates],
                "least_margin": [claim.margin for claim in certificates],
                **{name: _texts(getattr(claim, name) for claim in certificates) for name in words},
            },
        )
        | _along(
            "inequality",
            {
                "certificate_of_inequality": _texts(names),
                "role": _texts(roles),
                "inequality_holds": [inequality.holds for inequality in sides],
                **{
                    name: [float(getattr(inequality, name)) for inequality in sides]
                    for name in numbers
                },
            },
        )
        | _along(
            "premise",
            {
                "certificate_of_premise": _texts(name for name, _ in premises),
                "premise_value": [float(premise.value) for _, premise in premises],
                "premise_holds": [bool(premise.holds) for _, premise in premises],
            },
        )
    )
    labels = {
        "certificate": _texts(claim.name for claim in certificates),
        "inequality": _texts(inequality.statement for inequality in sides),
        "premise": _texts(premise.statement for _, premise in premises),
    }
    return Description(variables, labels=labels)


def _rows(rows: Sequence[Any]) -> Description:
    """Describe rows: their studies, the order that each expects, and whether it agrees."""
    columns = {
        "expected_order": [_order_or_nan(row.expected) for row in rows],
        "agrees": [row.agrees for row in rows],
        "reason": _texts(row.reason for row in rows),
        "reliability_warning": _texts(row.reliability_warning for row in rows),
    }
    variables = _studies([row.study for row in rows]).variables | _along("study", columns)
    return Description(variables, labels={"study": _texts(row.name for row in rows)})


def _studies(studies: Sequence[Any]) -> Description:
    """Describe studies side by side, with NaN where one has fewer refinements or no bound."""
    steps = max(len(study.refinements) for study in studies)

    def filled(values: Sequence[float] | None) -> list[float]:
        """Append NaN up to the number of steps; None is no values."""
        values = values or ()
        return [*values, *[np.nan] * (steps - len(values))]

    orders = [study.order for study in studies]
    answers = {"holds": "yes", "BROKEN": "no"}
    sources = _texts(study.source for study in studies)
    variables = _along(
        "study step",
        {
            "error": [filled(study.errors) for study in studies],
            "bound": [filled(study.bounds) for study in studies],
            "refinement": [filled(study.refinements) for study in studies],
        },
    ) | _along(
        "study",
        {
            "order": [order.value for order in orders],
            "order_half_width": [order.half_width for order in orders],
            "constant": [order.constant for order in orders],
            "claimed_order": [_order_or_nan(study.claimed) for study in studies],
            "reference_error": [float(study.reference_error) for study in studies],
            "bound_holds": _texts(answers.get(study.verdict, study.verdict) for study in studies),
            "source": sources,
        },
    )
    return Description(variables, labels={"study": sources})


def _order_or_nan(order: float | None) -> float:
    """Return an order as a number, which is NaN where none is stated."""
    return np.nan if order is None else float(order)


def _training_path(path: Any) -> Description:
    """Describe a training path: density, energy, total and risk at each time."""
    variables = {
        "density": ("time position", path.density, SHARE),
        "energy": ("time position", path.energy, ENERGY),
        "total": ("time", path.total, ENERGY),
        "risk": ("time", path.risk, LOSS),
    }
    return Description(variables, path.grid, {"time": path.times})


def _texts(words: Any) -> np.ndarray:
    """Return texts as an array."""
    return np.array(list(words), str)


ONE: Mapping[str, Callable[[Any], Description]] = {
    "adjoint.Channels": _channels,
    "attribution.Scores": _scores,
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
