"""Unreliable references: quantities that pick rows, and kernels with a kink, in closed form."""

import csv
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.light import averaging

import lim_jax as lim
from lim_jax.limits import Quantity, convergence_study
from lim_jax.limits.references import polynomial_twins, reliability_warning
from lim_jax.limits.rows import names_by_remark

SIZES = (12, 24, 48, 96)
TOKENS = [lim.token_grid(size) for size in SIZES]
AVERAGING = averaging(1.0)
PICKS = {
    "the last row": lambda x, grid: x[-1],
    "the first row": lambda x, grid: x[0],
    "a row in the middle": lambda x, grid: x[grid.size // 2],
    "a mean over rows": lambda x, grid: (x**2).mean(),
    "a sum over rows": lambda x, grid: x.sum(),
    "an extreme of rows": lambda x, grid: x.max(),
    "rows after one another": lambda x, grid: jnp.cumsum(x, axis=0),
}
KEEPS = {
    "the whole": lambda x, grid: x,
    "an integral": lambda x, grid: lim.integral(jnp.exp(x), grid),
    "the end": lambda x, grid: grid.interpolate(x, jnp.ones(1)),
    "regions": lambda x, grid: lim.regional_averages(x[:, 0], lim.boundary_regions(grid, 0.2)),
    "a density": lambda x, grid: x**2 / lim.integral(x**2, grid)[None],
    "its logarithm": lambda x, grid: lim.integral(jnp.log(x), grid),
}


def line(p):
    return 1 + p[:, None]


@pytest.mark.slow
def test_a_quantity_that_picks_rows_is_told_from_one_of_the_field():
    """The average of 1 + p is 1 + p/2, whose last row is 3/2 on tokens and on no Gauss grid."""
    with pytest.warns(UserWarning) as warned:
        rates = convergence_study(AVERAGING, line, TOKENS, PICKS | KEEPS)
    (said,) = [str(one.message) for one in warned]
    assert said.startswith(f"quantities {', '.join(PICKS)}: of one cubic it differs on two Gauss")
    assert said.endswith("or the whole field with a norm.")
    assert {row.name for row in rates if row.reliability_warning} == set(PICKS)
    by_name = {row.name: row for row in rates}
    last = by_name["the last row"].study
    # 1 + p/2 at the last of 96 nodes, where 3/2 was meant; and the whole field is exact.
    node = np.polynomial.legendre.leggauss(96)[0][-1]
    meant = 0.5 / np.array(SIZES)
    np.testing.assert_allclose(np.subtract(last.errors, meant), (1 - node) / 4, rtol=1e-6)
    assert by_name["the whole"].study.reference_error < 1e-12 < 1e-5 < last.reference_error


def test_a_reliability_warning_stands_in_the_table_and_in_the_files():
    with pytest.warns(UserWarning, match="quantities last: of one cubic"):
        rates = convergence_study(
            AVERAGING, line, TOKENS, {"last": PICKS["the last row"], "all": KEEPS["the whole"]}
        )
    lines = str(rates).splitlines()
    assert lines[1].endswith("UNRELIABLE REFERENCE") and "UNRELIABLE" not in lines[2]
    assert lines[4] == "Where the reference is unreliable:"
    assert lines[5] == f"- {rates[0].reliability_warning}: last" and len(lines) == 6
    written = list(csv.DictReader(io.StringIO(rates.to_csv())))
    assert [row["reliability_warning"] for row in written] == [rates[0].reliability_warning] * 4 + [
        ""
    ] * 4
    assert [row.record()["reliability_warning"] for row in rates] == [
        rates[0].reliability_warning,
        "",
    ]


def distances(x, context, grid):
    """An average by exp(-|p - q|), which has a kink at p = q."""
    weights = grid.prefix_weights()
    kernel = weights * jnp.exp(-jnp.abs(grid.nodes[:, None] - grid.nodes[None, :]))
    return kernel @ context / kernel.sum(axis=1, keepdims=True)


@pytest.mark.slow
def test_a_kernel_with_a_kink_is_no_smooth_one():
    """Gauss grids of smooth fields know it to four digits; at the end it is 1/(e - 1) in truth."""
    quantities = {"state": Quantity(KEEPS["the whole"], 1), "integral": KEEPS["an integral"]}
    with pytest.warns(UserWarning, match="quantities state, integral: its limit differs on two"):
        rates = convergence_study(distances, lambda p: p[:, None], TOKENS, quantities)
    assert all(
        "kernel across p = q is steep or has a kink" in row.reliability_warning for row in rates
    )
    assert 1e-6 < rates[0].study.reference_error < 1e-3
    # The cure: three grids of the same kind.
    cured = convergence_study(
        distances,
        lambda p: p[:, None],
        TOKENS,
        {"end": Quantity(lambda x, grid: grid.interpolate(x, jnp.ones(1)), 1)},
        references=[lim.token_grid(size) for size in (384, 768, 1536)],
    )
    assert cured[0].reliability_warning == "" and cured.agree
    exact = 1 / np.expm1(1.0)
    sums = [np.arange(1, n + 1) / n for n in SIZES]
    ends = [np.exp(p - 1) @ p / np.exp(p - 1).sum() for p in sums]
    np.testing.assert_allclose(cured[0].study.errors, np.abs(np.array(ends) - exact), rtol=1e-4)


def test_a_network_that_picks_rows_is_unreliable_too():
    with pytest.warns(UserWarning, match="or the network picks rows"):
        (row,) = convergence_study(
            lambda x, grid: AVERAGING(x, x, grid)[-1], line, TOKENS, {"last": lambda x, grid: x}
        )
    assert row.reliability_warning


@pytest.mark.slow
def test_rows_may_be_picked_where_every_grid_has_them():
    """On tokens the last is p = 1; and where depth is refined all is on one grid."""
    finer = [lim.token_grid(size) for size in (192, 384, 768)]
    last = {"last": Quantity(PICKS["the last row"], 1)}
    (row,) = convergence_study(AVERAGING, line, TOKENS, last, references=finer)
    np.testing.assert_allclose(row.study.errors, 0.5 / np.array(SIZES), rtol=1e-9)
    flow = lim.ContinuousFlow(lambda time: AVERAGING)
    (deep,) = convergence_study(flow, line, lim.token_grid(5), last, depths=(4, 8, 16, 32))
    assert row.reliability_warning == deep.reliability_warning == ""


def test_twins_are_one_cubic_on_two_grids_whatever_was_given():
    """Of means of rows, so between the least and the largest: not negative where nothing was."""
    grids = lim.gauss_grid(7), lim.gauss_grid(5, panels=3)
    generator = np.random.default_rng(0)

    def result(size):
        made = generator.uniform(1, 1.02, (3, size, 2))
        return {"path": jnp.asarray(made), "same": jnp.ones(4), "name": "kept", "count": 3}

    first, second = polynomial_twins([result(grid.size) for grid in grids], grids)
    p, q = (np.asarray(grid.nodes) for grid in grids)
    for side in (0, 1):
        for step in range(3):
            values = np.asarray(first["path"])[step, :, side]
            cubic = np.polynomial.Polynomial.fit(p, values, 3)
            np.testing.assert_allclose(cubic(q), second["path"][step, :, side], rtol=1e-9)
            assert np.ptp(values) > 1e-3 and 1 <= values.min() < values.max() <= 1.02
    assert first["path"].shape == (3, 7, 2) and first["same"].tolist() == [1] * 4
    assert (first["name"], second["count"]) == ("kept", 3)


def ones(*shape):
    return jax.device_put(np.ones(shape))


@pytest.mark.parametrize(
    "results, grids",
    [
        ([ones(4), ones(8)], [lim.token_grid(4), lim.token_grid(8)]),
        ([ones(4), ones(4)], [lim.gauss_grid(4), lim.gauss_grid(2, panels=2)]),
        ([ones(4, 4), ones(8, 8)], [lim.gauss_grid(4), lim.gauss_grid(8)]),
        ([ones(3), ones(7)], [lim.gauss_grid(4), lim.gauss_grid(8)]),
        ([ones(4, 1), ones(8)], [lim.gauss_grid(4), lim.gauss_grid(8)]),
        (jax.device_put([np.arange(4), np.arange(8)]), [lim.gauss_grid(4), lim.gauss_grid(8)]),
        ([(ones(4),), [ones(8)]], [lim.gauss_grid(4), lim.gauss_grid(8)]),
    ],
)
def test_what_has_no_axis_of_positions_has_no_twins(results, grids):
    assert polynomial_twins(results, grids) == []


def test_a_reference_is_unreliable_from_half_of_the_digits():
    assert (
        reliability_warning(1e-8, 1e-8, "float64")
        == ""
        == reliability_warning(3e-4, 3e-4, "float32")
    )
    assert "of one cubic" in reliability_warning(
        2e-8, 2e-8, "float64"
    ) and "of one cubic" in reliability_warning(4e-4, 0.0, "float32")
    assert "its limit differs" in reliability_warning(1e-8, 2e-8, "float64")
    assert reliability_warning(np.nan, np.nan, "float64") == ""
    assert names_by_remark({"a": "x", "b": "", "c": "y", "d": "x"}) == {"x": ["a", "d"], "y": ["c"]}
