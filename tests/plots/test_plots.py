"""Figures show the numbers of the results they are given."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from reference.drawn import assert_nothing_is_cut
from reference.networks import random_states
from reference.section4 import section4_by_hand

import lim_jax as lim
from lim_jax import plots, results
from lim_jax.adjoint.certificate import Certificate, Inequality, Premise
from lim_jax.adjoint.deficits import exact_characterisation
from lim_jax.plots import influence_profile
from lim_jax.plots.figure_style import new_figure, save_figure, shade_boundaries
from lim_jax.plots.profile import influence_difference, shares_by_place, signed_density
from lim_jax.probes import Estimate
from lim_jax.results.context_energies import ComparedInfluences


def heights(collection):
    return np.asarray(collection.get_paths()[0].vertices)[:, 1]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_title_is_no_formula(tmp_path):
    """A model or a file may be called by half of one."""
    figure, _ = new_figure("density", title="cost$x_$y")
    save_figure(figure, tmp_path, "figure")
    assert (tmp_path / "figure.png").stat().st_size > 0


def test_a_title_in_letters_that_the_font_lacks_is_saved_without_a_warning(tmp_path):
    """Matplotlib warns of each letter, at every file, and not of what a user can do."""
    figure, _ = new_figure("density", title="图书馆 المكتبة")
    save_figure(figure, tmp_path, "figure")  # here a warning would be an error
    assert (tmp_path / "figure.svg").stat().st_size > 0


def test_one_figure_gives_the_same_files_at_every_run(tmp_path, monkeypatch):
    """Files of two runs differ by what was measured, and not by the day or by random names."""
    written = []
    for day, folder in enumerate((tmp_path / "first", tmp_path / "second")):
        folder.mkdir()
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(86400 * day))
        figure, axes = new_figure("density", title="twice")
        shade_boundaries(axes, 0.2)
        save_figure(figure, folder, "figure")
        written.append([(folder / f"figure.{kind}").read_bytes() for kind in ("png", "svg")])
    assert b"clipPath id=" in written[0][1], "no name in this figure could have been random"
    assert written[0] == written[1]


def test_the_profile_shows_density_errors_averages_and_indices():
    grid = lim.graded_grid(30)
    batch = random_states(0, 5, 30, 2), None
    result = lim.influence(lambda params, x, y: jnp.sum(x**3), None, batch, grid)
    figure = influence_profile(result, "a network, cubes")
    (axes,) = figure.axes
    curve = next(line for line in axes.lines if np.size(line.get_xdata()) == 30)
    shown = np.array(curve.get_data())
    np.testing.assert_allclose(shown, [result.grid.nodes, result.density])
    band, averages = axes.collections
    # Of two decades and more: a logarithmic scale, and the errors of the logarithm.
    density = np.asarray(result.density)
    error = np.asarray(result.density_error)
    assert density.max() > 100 * density.min() and axes.get_yscale() == "log"
    ends = density * np.exp([[-2], [2]] * error / density)
    np.testing.assert_allclose(
        [heights(band).min(), heights(band).max()], [ends[0].min(), ends[1].max()], rtol=1e-12
    )
    drawn = [np.asarray(path.vertices)[0, 1] for path in averages.get_paths()]
    np.testing.assert_allclose(drawn, result.regional_averages)
    indices = result.indices()
    errors = result.index_errors()
    heading, numbers = axes.get_title().splitlines()
    assert heading == "a network, cubes (30 positions, n = 5)"
    assert f"LIM {float(indices.lim):+.3f} ± {float(errors.lim):.3f}" in numbers
    assert legend(figure) == ["density ± 2 standard errors", "uniform", "regional averages"]
    assert axes.get_xlabel() and axes.get_ylabel()


def test_a_profile_within_two_decades_is_drawn_to_scale():
    """With bands that go as far down as up."""
    grid = lim.graded_grid(6)
    energies = jax.device_put(np.random.default_rng(0).uniform(1, 3, (4, 6)))
    result = lim.Influence.from_energies(energies, lim.boundary_regions(grid, 0.2))
    (axes,) = influence_profile(result).axes
    assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0
    ends = np.asarray(result.density) + 2 * np.outer([-1, 1], result.density_error)
    band = heights(axes.collections[0])
    np.testing.assert_allclose([band.min(), band.max()], [ends[0].min(), ends[1].max()])


def profile_of(low, high, title="a network, cubes"):
    """A figure of energies between two bounds, the last position left out."""
    regions = lim.boundary_regions(lim.graded_grid(9), 0.4).without([8])
    energies = jax.device_put(np.random.default_rng(0).uniform(low, high, (4, 9)) ** 2)
    return influence_profile(lim.Influence.from_energies(energies, regions), title)


def cones(title):
    regions = lim.boundary_regions(lim.token_grid(6), 0.3)
    mass = Estimate(jnp.arange(2.0, 8.0), jnp.linspace(0.1, 0.5, 6))
    return plots.cone_masses({"network": mass}, regions, title)


HALF_A_FORMULA = "costs $x^$"


def signed(title):
    regions = lim.boundary_regions(lim.token_grid(5), 0.2)
    return signed_density(Estimate(jnp.arange(5.0), jnp.ones(5)), regions, 3, title)


def certificates(title):
    return plots.certificate_margins([certificate(HALF_A_FORMULA, ("left", 3.0, -1.0))], title)


@pytest.mark.parametrize("draw", [partial(profile_of, 1, 2), cones, signed, certificates])
def test_half_a_formula_in_a_title_or_a_name_is_written_as_it_stands(draw):
    """Saving such a figure raised matplotlib's ParseSyntaxException."""
    figure = draw(HALF_A_FORMULA)
    figure.draw_without_rendering()
    title = figure.axes[0].get_title()
    assert title.startswith(r"costs \$x^\$") and not is_math_text(title)


LONG = "a model whose name is longer than its figure is wide, with a loss of many words"


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda: profile_of(1, 2), id="to-scale"),
        pytest.param(lambda: profile_of(0.01, 2), id="logarithmic"),
        pytest.param(lambda: profile_of(1, 2, f"{LONG}, {LONG}"), id="long-title"),
        pytest.param(lambda: cones(f"{LONG}, {LONG}"), id="cones"),
        pytest.param(
            lambda: plots.certificate_margins(
                [certificate("a" * 30, ("left", 3.0, -1.0), ("right", 2.0, 1.0))], LONG
            ),
            id="certificates",
        ),
        pytest.param(
            lambda: plots.simulation_influence_profiles(section4_by_hand()), id="section-4"
        ),
    ],
)
def test_a_figure_shows_all_that_is_drawn_in_it(draw):
    assert_nothing_is_cut(draw())


def test_densities_drawn_later_on_the_same_axes_are_inside_too():
    regions = lim.boundary_regions(lim.token_grid(5), 0.2)
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    for energies in ([1.0, 1.1, 1.2, 1.1, 1.0], [1.0, 9.0, 1.2, 1.1, 1.0]):
        result = lim.Influence.from_energies(jax.device_put(np.array([energies])), regions)
        plots.draw_densities(axes, {"density": result})
    assert_nothing_is_cut(figure)


def test_zeros_are_not_drawn_on_a_logarithmic_scale():
    energies = jax.device_put(np.array([[0.0, 1.0, 300.0, 2.0]]))
    result = lim.Influence.from_energies(energies, lim.boundary_regions(lim.token_grid(4), 0.25))
    (axes,) = influence_profile(result).axes
    shown = np.asarray(axes.lines[0].get_ydata())
    assert axes.get_yscale() == "log" and np.isnan(shown).tolist() == [True] + 3 * [False]


def test_densities_of_before_and_after_are_told_apart_on_one_pair_of_axes():
    regions = lim.boundary_regions(lim.token_grid(5), 0.2)
    generator = np.random.default_rng(0)
    results = {
        name: lim.Influence.from_energies(jax.device_put(generator.random((3, 5))), regions)
        for name in ("before", "after")
    }
    axes = Figure().add_subplot()
    plots.draw_densities(axes, results)
    assert len(axes.collections) == 2
    for line, (name, result) in zip(axes.lines, results.items(), strict=True):
        assert line.get_label() == f"{name} ± 2 standard errors"
        np.testing.assert_allclose(np.asarray(line.get_ydata()), result.density)
    assert len({(line.get_linestyle(), line.get_marker()) for line in axes.lines}) == 2
    assert len({line.get_color() for line in axes.lines}) == 2


def test_no_two_lines_of_a_figure_share_a_colour_a_dash_or_a_marker():
    styles = [plots.line_style(index) for index in range(7)]
    for part in ("color", "linestyle", "marker"):
        assert len({style[part] for style in styles}) == 7
    more = [plots.line_style(index) for index in range(20)]
    assert len({(style["color"], style["marker"]) for style in more}) == 20


def test_names_are_no_formulas(tmp_path):
    """Folders that are compared may be called by half of one, or by one that is wrong."""
    grid = lim.token_grid(5)
    regions = lim.boundary_regions(grid, 0.2)
    influence = lim.density.Influence.from_energies(1 + random_states(0, 2, 5) ** 2, regions)
    names = ("m$x", "a$b_{$")
    figure, axes = new_figure("density")
    plots.draw_densities(axes, dict.fromkeys(names, influence))
    figure.savefig(tmp_path / "densities.png")
    labels = [str(line.get_label()) for line in axes.lines]
    assert labels == [r"m\$x ± 2 standard errors", r"a\$b_{\$ ± 2 standard errors"]
    assert not any(map(is_math_text, labels))
    compared = ComparedInfluences(influence, influence, results.compare(influence, influence))
    difference = influence_difference(compared, names, "$_{$")
    difference.savefig(tmp_path / "difference.png")
    upper, lower = difference.axes
    assert upper.get_title().startswith("\\$_{\\$\n") and not is_math_text(upper.get_title())
    assert lower.get_ylabel() == r"a\$b_{\$ minus m\$x" and not is_math_text(lower.get_ylabel())


def test_a_profile_of_no_influence_says_so():
    """The indices are zeros that mean nothing."""
    regions = lim.boundary_regions(lim.token_grid(10), 0.2)
    influence = lim.density.Influence.from_energies(jnp.zeros((3, 10)), regions)
    heading = influence_profile(influence).axes[0].get_title()
    assert "no influence" in heading and "LIM" not in heading


def test_what_is_not_finite_is_refused_by_each_figure_that_would_leave_it_out():
    grid = lim.token_grid(5)
    regions = lim.boundary_regions(grid, 0.2)
    broken = Estimate(jnp.full(5, jnp.nan), jnp.zeros(5))
    with pytest.raises(ValueError, match="masses: got NaN or infinite values, expected finite"):
        plots.cone_masses({"network": broken}, regions)
    with pytest.raises(ValueError, match="density: got NaN or infinite values, expected finite"):
        signed_density(broken, regions, 2, "a loss")


def test_one_example_is_drawn_without_a_band():
    grid = lim.token_grid(5)
    batch = random_states(0, 1, 5, 2), None
    result = lim.influence(lambda params, x, y: jnp.sum(x**3), None, batch, grid)
    (axes,) = influence_profile(result).axes
    assert len(axes.collections) == 1  # the regional averages
    assert "±" not in axes.get_title() and axes.get_title().startswith("5 positions, n = 1\n")


def test_positions_left_out_are_not_drawn():
    grid = lim.graded_grid(30)
    regions = lim.boundary_regions(grid, 0.2).without([28, 29])
    batch = random_states(0, 5, 30, 2), None
    result = lim.influence(lambda params, x, y: jnp.sum(x**3), None, batch, grid, regions)
    (axes,) = influence_profile(result).axes
    curve, uniform = axes.lines
    shown = np.array(curve.get_data())
    np.testing.assert_allclose(shown, np.array([grid.nodes, result.density])[:, :28])
    kept = np.asarray(grid.weights)[:28].sum()
    np.testing.assert_allclose(np.asarray(uniform.get_ydata()), 1 / kept)
    assert "30 positions, n = 5, 2 left out" in axes.get_title()


def test_regions_are_drawn_where_they_lie():
    grid = lim.token_grid(10)
    batch = random_states(0, 1, 10, 2), None
    regions = lim.boundary_regions(grid, "1/4")
    result = lim.influence(lambda params, x, y: jnp.sum(x**3), None, batch, grid, regions)
    (axes,) = influence_profile(result).axes
    ends = [np.asarray(path.vertices)[:, 0] for path in axes.collections[0].get_paths()]
    np.testing.assert_allclose(ends, [(0, 0.25), (0.25, 0.75), (0.75, 1)])
    bare = Figure().add_subplot()
    shade_boundaries(bare, 0.25)
    shaded = [patch.get_extents().transformed(bare.transData.inverted()) for patch in bare.patches]
    np.testing.assert_allclose([(s.x0, s.x1) for s in shaded], [(0, 0.25), (0.75, 1)])


def drawn(figure):
    """The ordinates of a figure's lines, by label; numbers that it was not given are not made."""
    (axes,) = figure.axes
    return {str(line.get_label()): np.asarray(line.get_ydata()) for line in axes.lines}


def test_section_4_is_drawn_as_it_was_computed():
    # `fig:simulation-influence-profiles`, `fig:simulation-observability-profiles`,
    # `fig:simulation-probe-bias`.
    results = section4_by_hand()
    figures = (
        plots.simulation_influence_profiles(results),
        plots.simulation_observability_profiles(results),
    )
    for figure in figures:
        for line in figure.axes[0].lines:
            np.testing.assert_allclose(np.asarray(line.get_xdata()), np.arange(1, 49) / 48)
    profiles, traces = map(drawn, figures)
    names = ("Baseline", "balancing", "reweighting", "observability")
    for name, label, row in zip(names, profiles, results.table.values(), strict=True):
        np.testing.assert_array_equal(profiles[label], row.density)
        assert label.endswith(name)
    np.testing.assert_array_equal(traces["Before"], results.trace_densities["before"])
    np.testing.assert_array_equal(traces["After Algorithm 3"], results.trace_densities["after"])
    study = results.probes
    figure = plots.simulation_probe_errors(results)
    shown = drawn(figure)
    for label, expected in {
        "bias, exact": study.exact_bias,
        "bias, 1000 repetitions": study.bias,
        "standard deviation, exact": study.exact_deviation,
        "standard deviation, 1000 repetitions": study.deviation,
    }.items():
        np.testing.assert_array_equal(shown[label], expected, err_msg=label)
    for line in figure.axes[0].lines:
        np.testing.assert_array_equal(line.get_xdata(), study.counts)


def test_imbalances_are_drawn_over_their_first_values():
    # `fig:simulation-convergence`.
    results = section4_by_hand()
    shown = drawn(plots.simulation_convergence(results))
    for curve, run in zip(shown.values(), results.runs.values(), strict=True):
        np.testing.assert_allclose(curve, np.asarray(run.history) / float(run.history[0]))
        assert curve[0] == 1


def test_cone_masses_have_a_band_of_two_errors():
    regions = lim.boundary_regions(lim.token_grid(6), 0.3)
    value = np.arange(2.0, 8.0)
    error = np.linspace(0.1, 0.5, 6)
    mass = Estimate(*map(jnp.asarray, (value, error)))
    (axes,) = plots.cone_masses({"network": mass}, regions).axes
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), value)
    band = heights(axes.collections[0])
    ends = 2 * np.exp(-0.2 / 2), 7 * np.exp(1.0 / 7)
    np.testing.assert_allclose([band.min(), band.max()], ends)
    assert axes.get_title() == "6 positions"


def test_large_errors_of_small_cone_masses_stay_on_the_logarithmic_axis():
    """Two errors are more than the mass itself: the band is a factor, to either side."""
    regions = lim.boundary_regions(lim.token_grid(5), 0.2)
    value = np.array([4.0, 1.0, 0.5, 0.1, 0.0])
    error = np.array([0.1, 0.2, 0.5, 0.2, 0.0])
    mass = Estimate(*map(jnp.asarray, (value, error)))
    (axes,) = plots.cone_masses({"network": mass}, regions, "mean over layers").axes
    band = heights(axes.collections[0])
    np.testing.assert_allclose(band.min(), 0.1 * np.exp(-4))
    assert np.isnan(np.asarray(axes.lines[0].get_ydata())[-1])  # no mass has no logarithm
    assert axes.get_title() == "mean over layers (5 positions)"


def certificate(name, *sides, holds=True, vacuous=""):
    premise = Premise("a premise", 1.0, holds)
    inequalities = tuple(
        Inequality(f"l({side}) > U(middle)", greater, lesser, 1e-9)
        for side, greater, lesser in sides
    )
    return Certificate(name, "thm:x", (premise,), inequalities, "it follows", (), vacuous)


def test_certificates_draw_the_greater_side_as_the_greater():
    vectors = np.random.default_rng(0).standard_normal((3, 3, 3, 4))
    products = jax.device_put(np.einsum("nbad,nbcd->nbac", vectors, vectors))
    judged = exact_characterisation(lim.adjoint.RegionalChannels(products))
    (axes,) = plots.certificate_margins([judged], "title").axes
    for name in ("greater", "lesser"):
        marks = [line for line in axes.lines if line.get_label() == f"must be {name}"]
        for row, (mark, one) in enumerate(zip(marks, judged.inequalities, strict=True)):
            largest = max(abs(one.greater), abs(one.lesser))
            place = [np.ravel(part)[0] for part in mark.get_data()]
            np.testing.assert_allclose(place, [getattr(one, name) / largest, row])


def test_an_infinite_side_of_a_certificate_is_drawn_at_one_and_said():
    sides = ("left", 0.2, np.inf), ("right", -np.inf, np.inf)
    (axes,) = plots.certificate_margins([certificate("both", *sides)], "title").axes
    drawn = [np.asarray(line.get_xdata()) for line in axes.lines]
    np.testing.assert_array_equal([one for one in drawn if one.size == 2][:2], [[0, 1], [-1, 1]])
    labels = [tick.get_text().splitlines()[0] for tick in axes.get_yticklabels()]
    assert labels == [f"both, {one}: failed, of an infinite side" for one in ("left", "right")]


def test_each_row_of_the_certificates_has_its_side_and_its_verdict_in_colour_and_word():
    figure = plots.certificate_margins(
        [
            certificate("both", ("left", 3.0, 1.0), ("right", 2.0, 1.0)),
            certificate("one", ("left", 3.0, 1.0), ("right", -1.0, 1.0)),
            certificate("premise", ("left", 3.0, 1.0), holds=False),
            certificate("empty", ("right", 3.0, 1.0), vacuous="cannot hold"),
        ],
        "title",
    )
    (axes,) = figure.axes
    labels = [tick.get_text().splitlines()[0] for tick in axes.get_yticklabels()]
    words = ["held", "held", "failed elsewhere", "failed", "failed elsewhere", "vacuous"]
    named = [
        "both, left",
        "both, right",
        "one, left",
        "one, right",
        "premise, left",
        "empty, right",
    ]
    assert labels == [f"{name}: {word}" for name, word in zip(named, words, strict=True)]
    colours = [tick.label1.get_color() for tick in axes.yaxis.get_major_ticks()]
    for row, colour in enumerate(colours):
        assert {line.get_color() for line in axes.lines[3 * row : 3 * row + 3]} == {colour}
    assert len(set(zip(words, colours, strict=True))) == len(set(colours)) == 4
    assert axes.get_legend() is None  # off the data
    assert set(legend(figure)) == {"must be greater", "must be lesser", *words}


def test_any_title_of_a_document_is_in_the_legend_and_none_is_a_formula():
    """Matplotlib hides names that begin with a line below, and reads dollars as mathematics."""
    shares = np.array([[[0.5, 0.25], [0.375, 0.5]]] * 2)
    result = results.two_way_shares(shares, np.array([[[0, 1], [1, 0]]] * 2))
    figure = shares_by_place(result, ["_notes", r"$\frac$"])
    assert_nothing_is_cut(figure)
    assert legend(figure)[:2] == ["“_notes”", r"“\$\frac\$”"]
