"""Charts of the page, as Vega-Lite: their colours are the page's, light, dark or printed."""

from collections.abc import Sequence
from typing import Any

import lazy_loader
import numpy as np

from lim_jax.density.statistics import Influence
from lim_jax.grid.partition import REGIONS
from lim_jax.report.shades import COUNT, Shading
from lim_jax.results.scales import spans_decades

alt: Any = lazy_loader.load("altair")  # of the extra; the rest does without
Specification = dict[str, Any]
Rows = list[dict[str, Any]]

INK = "var(--ink)"
ACCENT = "var(--accent)"
REGION = "var(--region)"
# Pixels.
HEIGHT = 240
CELL = 18


def profile_chart(influence: Influence) -> Specification:
    """Draw the density with two standard errors, its regional averages, and the uniform one."""
    weights = np.asarray(influence.regions.kept_weights)
    in_regions = weights > 0
    least, kind = _floor(np.asarray(influence.density)[in_regions])
    scale = alt.Scale(type=kind, domainMin=least, nice=False)
    x = _position("p:Q")
    y = alt.Y("drawn:Q", title="influence density m(p)", scale=scale)
    rows = _profile_rows(influence, in_regions, least)
    profile = alt.Chart(_data(rows))
    band = profile.mark_area(color=ACCENT, opacity=0.25).encode(x=x, y="low:Q", y2="high:Q")
    delta = float(influence.regions.delta)
    ends = alt.Chart(_data([{"from": 0, "to": delta}, {"from": 1 - delta, "to": 1}]))
    chart = alt.layer(
        ends.mark_rect(color=REGION).encode(x="from:Q", x2="to:Q"),
        *([band] if "low" in rows[0] else []),
        profile.mark_line(color=ACCENT, strokeWidth=1.5).encode(x=x, y=y),
        _averages(influence, float(1 / weights.sum()), least),
        _pointed_at(profile),
    )
    return _drawn(chart.properties(width="container", height=HEIGHT))


def _floor(density: np.ndarray) -> tuple[float, str]:
    """Return where the density's axis begins, where smaller values are drawn, and its scale."""
    positive = density[density > 0]
    if spans_decades(positive):
        return float(positive.min()) / 2, "log"
    return 0.0, "linear"


def _profile_rows(influence: Influence, in_regions: np.ndarray, least: float) -> Rows:
    """Return the data of the density's chart: a row for each position that regions keep."""
    edges = np.asarray(influence.grid.edges)
    columns = (influence.grid.nodes, influence.density, influence.density_error)
    table = np.stack([np.asarray(column) for column in (*columns, edges[:-1], edges[1:])], axis=1)
    rows = []
    for p, m, error, start, stop in table[in_regions].tolist():
        row = {"p": short(p), "m": short(m), "drawn": short(max(m, least))}
        row |= {"from": short(start), "to": short(stop)}
        if np.isfinite(error):
            low, high = (short(max(m + sign * error, least)) for sign in (-2, 2))
            row |= {"low": low, "high": high, "error": short(error)}
        rows.append(row)
    return rows


def _pointed_at(profile: Any) -> Any:
    """Return a cell of full height for each position, which shows its numbers if pointed at."""
    pointed = alt.selection_point(name="pointed", on="pointerover", clear="pointerout", empty=False)
    columns = {"p": "position", "m": "density"}
    if "error" in profile.data.values[0]:
        columns["error"] = "standard error"
    cells = profile.mark_rect(color=INK).encode(
        x=_position("from:Q"),
        x2="to:Q",
        opacity=alt.condition(pointed, alt.value(0.15), alt.value(0)),
        tooltip=_tooltip(columns),
    )
    return cells.add_params(pointed)


def _averages(influence: Influence, uniform: float, least: float) -> Any:
    """Return lines at the regional averages, and a dotted one at the uniform density."""
    delta = float(influence.regions.delta)
    ends = ((0, delta), (delta, 1 - delta), (1 - delta, 1))
    averages = np.asarray(influence.regional_averages).tolist()
    rows = [
        {
            "region": name,
            "from": start,
            "to": stop,
            "average": short(average),
            "drawn": short(max(average, least)),
        }
        for name, (start, stop), average in zip(REGIONS, ends, averages, strict=True)
    ]
    tooltip = _tooltip({"region": "region", "average": "average density"})
    lines = alt.Chart(_data(rows)).mark_rule(color=INK, strokeWidth=2)
    dotted = alt.Chart(_data([{"drawn": uniform}])).mark_rule(color=INK, strokeDash=[2, 3])
    return alt.layer(
        dotted.encode(y="drawn:Q"),
        lines.encode(x="from:Q", x2="to:Q", y="drawn:Q", tooltip=tooltip),
    )


def head_chart(energies: np.ndarray, first_layer: int, shade: Shading) -> Specification:
    """Draw a cell for each head of each layer, by what it adds to its layer's influence."""
    shades = shade(energies)
    rows = [
        {
            "layer": first_layer + layer,
            "head": head,
            "share": f"{share:.3g} %",
            "shade": int(shades[layer, head]),
        }
        for (layer, head), share in np.ndenumerate(energies)
    ]
    columns = {"layer": "layer", "head": "head", "share": "of the influence at its layer"}
    chart = _shaded_cells(rows, "layer", columns, stroke="var(--page)", strokeWidth=1)
    chart = chart.encode(x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0)))
    return _drawn(chart.properties(width=CELL * energies.shape[1], height=CELL * len(energies)))


def depth_chart(densities: np.ndarray, shade: Shading) -> Specification:
    """Draw the density over position at every depth, from the input below to the last state."""
    depths, bins = densities.shape
    shades = shade(densities)
    rows = [
        {
            "depth": depth,
            "from": short(at / bins),
            "to": short((at + 1) / bins),
            "m": short(density),
            "shade": int(shades[depth, at]),
        }
        for (depth, at), density in np.ndenumerate(densities)
    ]
    columns = {"depth": "depth", "from": "from position", "to": "to", "m": "density"}
    chart = _shaded_cells(rows, "depth", columns, strokeWidth=0)
    chart = chart.encode(x=_position("from:Q"), x2="to:Q")
    return _drawn(chart.properties(width="container", height=CELL * depths))


def share_chart(
    names: Sequence[str], shares: np.ndarray, colours: Sequence[str], title: str
) -> Specification:
    """Draw one bar for each region, divided by the parts' shares of their energy."""
    rows = [
        {"region": region, "part": name, "order": order, "share": short(share)}
        for region, row in zip(REGIONS, shares, strict=True)
        for order, (name, share) in enumerate(zip(names, row, strict=True))
    ]
    percent = alt.Axis(format="%", values=[0, 0.25, 0.5, 0.75, 1])
    whole_axis = alt.Scale(domain=[0, 1])
    tooltip = [alt.Tooltip("region:N"), alt.Tooltip("part:N"), alt.Tooltip("share:Q", format=".1%")]
    scale = alt.Scale(domain=list(names), range=list(colours))
    chart = alt.Chart(_data(rows)).mark_bar(stroke="var(--page)", strokeWidth=1)
    chart = chart.encode(
        x=alt.X("share:Q", title=title, stack="zero", axis=percent, scale=whole_axis),
        y=alt.Y("region:N", title=None),
        color=alt.Color("part:N", title=None, scale=scale, legend=alt.Legend(orient="top")),
        order="order:Q",
        tooltip=tooltip,
    )
    return _drawn(chart.properties(width="container", height=78))


def short(number: float) -> float:
    """Round a number to five digits, which a page holds of it."""
    return float(f"{float(number):.5g}")


def _position(field: str) -> Any:
    """Return a horizontal axis of positions from 0 to 1, which shows this field."""
    axis = alt.Axis(values=[n / 10 for n in range(0, 11, 2)], format=".1f")
    return alt.X(field, title="position p", scale=alt.Scale(domain=[0, 1]), axis=axis)


def _tooltip(columns: dict[str, str]) -> list[Any]:
    """Return a tooltip that shows these fields under their titles."""
    return [alt.Tooltip(f"{field}:N", title=name) for field, name in columns.items()]


def _shaded_cells(rows: Rows, vertical: str, columns: dict[str, str], **mark: Any) -> Any:
    """Return cells in the page's shades, without a legend, which stands beside the chart."""
    colours = [f"var(--shade-{n})" for n in range(COUNT)]
    scale = alt.Scale(domain=list(range(COUNT)), range=colours)
    return (
        alt.Chart(_data(rows))
        .mark_rect(**mark)
        .encode(
            y=alt.Y(f"{vertical}:O", title=vertical, sort="descending"),
            color=alt.Color("shade:O", scale=scale, legend=None),
            tooltip=_tooltip(columns),
        )
    )


def _data(rows: Rows) -> Any:
    """Return rows as data that stand in the chart itself."""
    return alt.InlineData(values=rows)


def _drawn(chart: Any) -> Specification:
    """Return a chart's specification, in the page's colours and font."""
    text = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12}
    lines = {"domainColor": INK, "tickColor": INK, "gridColor": "var(--line)"}
    quiet = {"titleFontWeight": "normal", "grid": False}
    chart = chart.configure(background="transparent", font="system-ui, sans-serif")
    chart = chart.configure_view(stroke=None).configure_axis(**text, **lines, **quiet)
    return chart.configure_legend(**text).to_dict()
