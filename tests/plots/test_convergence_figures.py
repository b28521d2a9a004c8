"""Figures of rates: series, orders, slopes, bounds and names, as they are drawn."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.cbook import is_math_text
from matplotlib.text import Annotation
from reference.drawn import assert_nothing_is_cut

import lim_jax as lim
from lim_jax import plots
from lim_jax.limits.network_studies import Rates
from lim_jax.limits.refinement import Study
from lim_jax.limits.rows import Curve, Row

SIZES = (10.0, 20.0, 40.0, 80.0)


def row(name, order, *, claimed=None, expected=None, scale=3.0, bound=None):
    errors = tuple(scale * size**-order for size in SIZES)
    bounds = None if bound is None else tuple(bound * error for error in errors)
    return Row(name, Study("eq:source", claimed, SIZES, errors, bounds, 1e-9), expected)


def series(axes):
    """The lines of errors: those with a marker."""
    return [line for line in axes.lines if line.get_marker() not in ("None", "")]


def triangles(axes):
    return [line for line in axes.lines if np.size(line.get_xdata()) == 4 and _closed(line)]


def _closed(line):
    x, y = line.get_data()
    return (x[0], y[0]) == (x[-1], y[-1])


def texts(axes):
    return [text.get_text().replace("\n", " ") for text in axes.texts]


def test_errors_and_bounds_are_drawn_in_one_colour_and_only_where_there_is_a_bound():
    rows = [row("attention, inside", 1, bound=5.0), row("attention, mean square", 2)]
    figure = plots.convergence_rates(rows, "attention")
    (axes,) = figure.axes
    for line, found in zip(series(axes), rows, strict=True):
        np.testing.assert_array_equal(np.array(line.get_data()), [SIZES, found.study.errors])
    bounds = [line for line in axes.lines if line not in series(axes)]
    assert len(bounds) == 1 and bounds[0].get_color() == series(axes)[0].get_color()
    np.testing.assert_array_equal(np.asarray(bounds[0].get_ydata()), rows[0].study.bounds)
    assert {axes.get_xscale(), axes.get_yscale()} == {"log"}
    assert axes.get_title() == "" and axes.get_xlabel() and axes.get_ylabel()
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "bound, in its series' colour" in named and axes.get_legend() is None
    (bare,) = plots.convergence_rates(rows[1:], "attention").legends
    assert not any("bound" in text.get_text() for text in bare.get_texts())


def test_each_line_has_its_name_and_its_measured_order_at_its_end():
    rows = [row("attention, inside", 1), row("attention, mean square", 2, scale=4.0)]
    (axes,) = plots.convergence_rates(rows, "attention").axes
    assert texts(axes) == ["mean square: 2.00 ± 0.00", "inside: 1.00 ± 0.00"]
    for text, found, line in zip(axes.texts, rows[::-1], series(axes)[::-1], strict=True):
        assert isinstance(text, Annotation) and text.xy == (SIZES[-1], found.study.errors[-1])
        assert text.get_color() == line.get_color()


def test_names_at_the_ends_do_not_lie_on_one_another():
    rows = [row(f"attention, part {k}", 1, scale=1 + k / 1000) for k in range(5)]
    (axes,) = plots.convergence_rates(rows, "attention").axes
    places = [text.get_position()[1] for text in axes.texts]
    assert (np.diff(places) > 0.05).all() and 0 <= places[0] and places[-1] <= 1
    assert texts(axes)[0].startswith("part 0")


@pytest.mark.parametrize(
    "claimed, expected, words",
    [(1.0, 2.0, "claimed 1, measured 0.90"), (None, 0.5, "expected 0.5, measured 0.90")],
)
def test_a_triangle_has_the_claimed_slope_or_else_the_expected(claimed, expected, words):
    found = row("state", 0.9, claimed=claimed, expected=expected)
    (axes,) = plots.convergence_rates([found], "mine").axes
    (triangle,) = triangles(axes)
    (start, stop, *_), (top, bottom, *_) = np.array(triangle.get_data())
    slope = np.log(top / bottom) / np.log(stop / start)
    np.testing.assert_allclose(slope, expected if claimed is None else claimed)
    assert top < found.study.errors[-2] and words in texts(axes)
    (caption,) = (text for text in axes.texts if text.get_text() == words)
    paper = caption.get_bbox_patch()
    assert paper is not None and paper.get_facecolor() == (1, 1, 1, 1)  # no line strikes it through
    assert caption.zorder > max(line.zorder for line in axes.lines)


def test_rows_of_one_order_share_a_triangle_with_the_range_of_what_was_measured():
    rows = [row(f"a, {k}", 1 + k / 20, claimed=1.0, expected=1.0) for k in range(3)]
    rows += [row("a, other", 2.1, expected=2.0, scale=1e-3), row("a, none", 0.3)]
    rows[0] = row("a, 0", 1, expected=1.0)
    (axes,) = plots.convergence_rates(rows, "a").axes
    assert len(triangles(axes)) == 2
    assert texts(axes)[0] == "claimed or expected 1, measured 1.00 to 1.10"
    assert texts(axes)[1] == "expected 2, measured 2.10"


def test_an_order_of_zero_has_no_triangle():
    (axes,) = plots.convergence_rates([row("times i", 0, claimed=0.0, expected=0.0)], "a").axes
    assert not triangles(axes)


def test_ticks_stand_at_the_refinements():
    (axes,) = plots.convergence_rates([row("state", 1)], "mine").axes
    np.testing.assert_array_equal(axes.get_xticks(), SIZES)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["10", "20", "40", "80"]
    assert not len(axes.xaxis.get_minorticklocs())


def test_topics_have_panels_of_five_series_at_most():
    rows = [row(f"attention, part {k}, {g}", 1) for g in ("tokens", "graded") for k in range(4)]
    rows += [row(f"loss, {k}", 1) for k in range(2)] + [
        row(f"depth, scheme {k}", 1) for k in "abcdef"
    ]
    figure = plots.convergence_rates(rows, "all")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["attention, tokens", "attention, graded", "loss", "depth", "depth"]
    assert [len(series(axes)) for axes in figure.axes] == [4, 4, 2, 5, 1]
    assert texts(figure.axes[1])[0] == "part 0: 1.00 ± 0.00"
    assert figure.get_suptitle() == "all"
    assert_nothing_is_cut(figure)


def test_a_study_of_ones_own_is_drawn_as_it_comes():
    """Quantities that share no topic share a panel."""
    (axes,) = plots.convergence_rates(Rates([row("state", 1), row("energy", 2)]), "mine").axes
    assert len(series(axes)) == 2 and axes.get_title() == ""


def test_axes_say_what_a_study_measured():
    """Growths, moments and logarithms are no errors over n; a panel of several names all."""
    study = lim.limits.left_cone_mass_study(
        lim.limits.averaging_attention(), lambda p: jnp.zeros((p.size, 1)), (5, 10, 15, 20)
    )
    (axes,) = plots.convergence_rates([Row("left", study, 0.0)], "cone").axes
    assert axes.get_ylabel() == "growth of the average from n to 2n positions"
    assert axes.get_xlabel() == "refinement n (positions or layers)"
    plain = Row("plain", study._replace(xlabel="n", ylabel="error"), 0.0)
    (axes,) = plots.convergence_rates([Row("left", study, 0.0), plain], "cone").axes
    assert axes.get_xlabel() == "refinement n (positions or layers), n"


def test_an_error_of_zero_is_not_drawn_and_a_curve_of_none_but_zeros_is_refused(tmp_path):
    """Its logarithm is none: the name stands at the end of what is drawn."""
    exact = Curve("exact", (1.0, 2.0, 4.0), (1e-2, 1e-4, 0.0))
    figure = plots.error_against_cost([exact], "evaluations")
    figure.savefig(tmp_path / "figure.png")
    (axes,) = figure.axes
    (end,) = [text for text in axes.texts if isinstance(text, Annotation)]
    assert end.xy == (2.0, 1e-4)
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1e-2, 1e-4, np.nan])
    with pytest.raises(ValueError, match="curves: got errors .0.0. of 'zero', expected a positive"):
        plots.error_against_cost([exact, Curve("zero", (1.0,), (0.0,))], "evaluations")


def test_half_a_formula_in_a_name_or_a_title_is_written_as_it_stands():
    """Saving such a figure raised matplotlib's ParseSyntaxException."""
    study = Study("eq:mine", 1.0, (10.0, 20.0, 40.0, 80.0), (0.4, 0.2, 0.1, 0.05), None, 0.0)
    half = "costs $x^$"
    rates = plots.convergence_rates([Row(f"a {half}", study, 1.0)], half)
    curve = Curve(f"a {half}", (1.0, 2.0), (0.2, 0.1))
    costs = plots.error_against_cost([curve], half)
    for figure in (rates, costs):
        figure.draw_without_rendering()
        (end,) = [text for text in figure.axes[0].texts if "costs" in text.get_text()]
        assert end.get_text().startswith(r"a costs \$x^\$") and not is_math_text(end.get_text())
    assert costs.axes[0].get_xlabel() == rates.get_suptitle() == r"costs \$x^\$"


def test_costs_are_drawn_with_the_methods_names_at_the_ends():
    curves = [Curve("Euler", (8.0, 16.0), (0.1, 0.05)), Curve("Heun", (16.0, 32.0), (0.02, 0.005))]
    figure = plots.error_against_cost(curves, "evaluations")
    assert_nothing_is_cut(figure)
    (axes,) = figure.axes
    assert texts(axes) == ["Heun", "Euler"] and axes.get_legend() is None
    for line, curve in zip(axes.lines, curves, strict=True):
        np.testing.assert_array_equal(np.array(line.get_data()), [curve.costs, curve.errors])
