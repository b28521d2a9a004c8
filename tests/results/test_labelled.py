"""Labelled results: xarray and pandas, by axis and coordinate; and what others open."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from reference.as_users import run_python
from reference.made_results import (
    CERTIFICATES,
    GRID,
    KINDS,
    LAYERS,
    LENGTH,
    ROWS,
    WIDTH,
    channels,
    explanation,
    influence,
    numbers,
    of_kind,
    training_path,
)
from scipy.io import netcdf_file

import lim_jax as lim
from lim_jax.adjoint.certificate import Inequality
from lim_jax.results import compare, to_pandas, to_xarray

WORDS = [f"w{index}" for index in range(LENGTH)]
NODES = ((np.arange(LENGTH) + 0.5) / LENGTH) ** 3
WEIGHTS = 3 * ((np.arange(LENGTH) + 0.5) / LENGTH) ** 2 / LENGTH
LABELLED = [kind for kind in KINDS if kind not in ("curves", "estimate", "measured contexts")]


def test_an_influence_has_its_positions_regions_examples_and_attributes():
    result = influence()
    data = to_xarray(result, tokens=WORDS, model="mine", loss="last token")
    assert data.density.dims == ("position",) and data.example_energy.dims == (
        "example",
        "position",
    )
    np.testing.assert_allclose(data.position, NODES, rtol=1e-12)
    np.testing.assert_allclose(data.weight, WEIGHTS, rtol=1e-12)
    assert data.token.values.tolist() == list(range(LENGTH)) and data.text.values.tolist() == WORDS
    assert data.region.values.tolist() == ["left", "middle", "right"]
    energies = np.asarray(result.example_energies)
    kept = np.where([0, 1, 0, 1, 1, 1, 1], WEIGHTS, 0)
    density = np.where(kept > 0, energies.mean(axis=0), 0) / (kept @ energies.mean(axis=0))
    np.testing.assert_allclose(data.density, density, rtol=1e-12)
    np.testing.assert_allclose(data.example_energy.mean("example"), data.energy, rtol=1e-12)
    np.testing.assert_allclose((data.density * data.weight).sum(), 1, rtol=1e-12)
    averages = result.indices()
    errors = result.index_errors()
    np.testing.assert_allclose(data.regional_average, averages[:3])
    np.testing.assert_allclose(data.regional_average_error.sel(region="right"), errors.right)
    assert data.gap.item() == averages.gap and data.lim_error.item() == errors.lim
    expected = {"model": "mine", "loss": "last token", "delta": 1 / 3, "examples": 5,
                "left_out": [0, 2], "convention": "overlap"}  # fmt: skip
    assert data.attrs.items() >= expected.items() and "densities" in data.scaling


def test_channels_and_hops_have_layers_depths_and_the_positions_that_are_given():
    ledger = channels()
    data = to_xarray(ledger, grid=GRID)
    assert dict(data.sizes) == {
        "channel": 3,
        "position": LENGTH,
        "component": WIDTH,
        "layer": LAYERS,
        "depth": LAYERS + 1,
    }
    np.testing.assert_allclose(data.position, NODES, rtol=1e-12)
    np.testing.assert_allclose(data.vector.sel(channel="cone"), data.cone.sum("layer"), rtol=1e-12)
    residual = (np.asarray(ledger.covectors)[-1] ** 2).sum(axis=1)
    np.testing.assert_allclose(data.energy.sel(channel="residual"), residual, rtol=1e-12)
    hops = numbers(0, LAYERS + 1, 3, LENGTH, WIDTH)
    named = to_xarray(hops, axes="depth hop position component", grid=GRID, tokens=WORDS)
    assert named["values"].dims == ("depth", "hop", "position", "component")
    at = named["values"].sel(position=NODES[4], method="nearest").isel(hop=2)
    np.testing.assert_array_equal(at, np.asarray(hops)[:, 2, 4])
    assert "position" not in to_xarray(hops, axes="depth hop position component").coords


def test_an_explanation_has_heads_of_its_layers_and_both_densities():
    result = explanation()
    data = to_xarray(result)
    assert data.layer.values.tolist() == [1, 2, 3]  # from the depth that is explained on
    np.testing.assert_array_equal(data.head_energy.sel(layer=2), result.head_energies[1])
    assert data.density.sum() != data.density_without_queries.sum()
    np.testing.assert_array_equal(data.density_without_queries[[0, 2]], 0)
    energies = np.asarray(result.regional.products)[:, 2, 1, 1].mean()
    np.testing.assert_allclose(
        data.regional_channel_energy.sel(region="right", channel="cone"), energies, rtol=1e-12
    )
    assert data.depth == 1 and data.holds.dims == ("certificate",)
    contrast = result.terminal_contrast
    assert data.terminal_contrast == contrast.value != contrast.error
    assert data.terminal_contrast_error == contrast.error


def test_certificates_are_tables_of_their_inequalities_and_premises():
    data = to_xarray(list(CERTIFICATES))
    assert data.certificate.values.tolist() == ["one of them", "another"]
    assert data.holds.values.tolist() == [False, True]
    assert data.concluded.values.tolist() == [True, True]  # true, though it does not follow
    assert data.vacuous.values.tolist() == ["never here", ""]
    table = to_pandas(list(CERTIFICATES), "inequality")
    assert list(table.index) == ["l > u", "x > y", "p > q", "r > s", "v > w"]
    assert table.role.tolist() == ["compared", "measured", "compared", "compared", "measured"]
    assert table.margin["x > y"] == 1 and table.certificate_of_inequality["r > s"] == "another"
    assert table.inequality_holds.all() and table.greater["l > u"] == 1 / 3
    assert table.lesser["v > w"] == 3 and table.rounding["r > s"] == 0.1
    assert data.source.values.tolist() == ["eq:one", "eq:two"]
    assert data.conclusion.values.tolist() == ["it is so", "so it is"]
    assert data.least_margin.values.tolist() == [1 / 3 - 0.1, 1.0]
    premises = to_pandas(list(CERTIFICATES), "premise")
    assert list(premises.index) == ["a > 0", "b is finite"]
    assert premises.certificate_of_premise.tolist() == 2 * ["one of them"]
    assert premises.premise_value.tolist() == [0.1, np.inf]
    assert premises.premise_holds.tolist() == [True, False]
    tie = CERTIFICATES[0]._replace(inequalities=(Inequality("t > t", 1.0, 0.5, 0.6),))
    assert to_xarray([tie]).inequality_holds.values.tolist() == [False, True]
    alone = to_xarray(CERTIFICATES[1])
    assert alone.sizes["certificate"] == 1 and alone.sizes["premise"] == 0


def test_studies_of_unequal_lengths_stand_side_by_side():
    data = to_xarray(ROWS)
    assert data.study.values.tolist() == ["mine, at the left", "yours"]
    assert dict(data.sizes) == {"study": 2, "step": 5}
    assert np.isnan(data.error[1, 4]) and np.isnan(data.bound[0]).all()
    assert data.error[1, 3] == 0.04 and data.refinement[0, 4] == 32
    assert data.bound_holds.values.tolist() == ["no bound", "yes"]
    broken = ROWS[1].study._replace(bounds=(2.0, 1.0, 0.1, 0.25))
    assert to_xarray([broken]).bound_holds.values.tolist() == ["no"]
    assert data.reason.values.tolist() == ["", "smoother than asked"]
    doubtful = [ROWS[0]._replace(reliability_warning="it picks rows"), ROWS[1]]
    assert to_xarray(doubtful).reliability_warning.values.tolist() == ["it picks rows", ""]
    assert data.reference_error.values.tolist() == [1e-9, 0]
    assert data.agrees.values.tolist() == [row.agrees for row in ROWS]
    assert np.isnan(data.claimed_order[0]) and data.expected_order.values.tolist() == [1, 1.5]
    slope = np.polyfit(np.log([3, 6, 12, 24]), np.log([1.0, 0.3, 0.13, 0.04]), 1)[0]
    np.testing.assert_allclose(data.order[1], -slope, rtol=1e-12)
    line = np.polynomial.Polynomial.fit([0, 1, 2, 3], np.log([1.0, 0.3, 0.13, 0.04]), 1, [0, 1])
    scatter = np.sum((line(np.arange(4.0)) - np.log([1.0, 0.3, 0.13, 0.04])) ** 2)
    # Of four points a factor two apart: their scatter over 2, and log(2) squared times 5.
    np.testing.assert_allclose(
        data.order_half_width[1], 2 * np.sqrt(scatter / 2 / 5) / np.log(2), rtol=1e-10
    )
    assert to_xarray(ROWS[1].study).source.values.tolist() == ["thm:yours"]


def test_training_paths_and_comparisons_have_their_axes():
    path = training_path()
    data = to_xarray(path)
    assert data.density.dims == ("time", "position")
    np.testing.assert_array_equal(data.time, path.times)
    np.testing.assert_allclose((data.density * data.weight).sum("position"), 1, rtol=1e-12)
    changed = to_xarray(compare(influence(), influence(examples=5)))
    assert changed.paired == "True"
    np.testing.assert_allclose(changed.gap_error, 0, atol=1e-14)  # each rounded in its own way


UNITS = {
    "1": "density regional_average gap lim symmetric_contrast terminal_contrast",
    "(loss/state)^2": "energy total example_energy channel_energy hop_energy head_energy "
    "regional_channel_energy regional_cross_terms regional_hop_energy",
    "loss/state": "vector cone local covector",
    "state": "state",
    "loss": "loss risk",
    "loss^2": "relative_energy",
}


@pytest.mark.parametrize("kind", ["channels", "comparison", "explanation", "training path"])
def test_every_number_has_its_units_and_its_error_the_same(kind):
    expected = {name: units for units, names in UNITS.items() for name in names.split()}
    data = to_xarray(of_kind(kind))
    units_by_name = {
        name.removesuffix("_without_queries").removesuffix("_error"): variable.units
        for name, variable in data.data_vars.items()
        if "units" in variable.attrs
    }
    assert units_by_name == {name: expected[name] for name in units_by_name}


@pytest.mark.parametrize("kind", LABELLED)
def test_netcdf_of_every_kind_is_opened_by_others(kind, tmp_path):
    data = to_xarray(of_kind(kind), model="mine")
    data.to_netcdf(tmp_path / "found.nc", engine="scipy")
    with xarray.open_dataset(tmp_path / "found.nc", engine="scipy") as again:
        xarray.testing.assert_equal(again.load(), data)
        assert again.attrs["scaling"] == data.attrs["scaling"]
    name = next(iter(data.data_vars))
    with netcdf_file(tmp_path / "found.nc", mmap=False) as raw:
        assert vars(raw)["model"] == b"mine"
        np.testing.assert_array_equal(raw.variables[name][:], data[name].values)


def test_tables_are_along_the_axes_that_are_asked_for():
    result = influence()
    table = to_pandas(result, tokens=WORDS)
    assert list(table.index.names) == ["position"] and table.text.tolist() == WORDS
    np.testing.assert_array_equal(table.density, result.density)
    assert {"density_error", "energy", "weight", "token"} <= set(table.columns)
    assert "regional_average" not in table.columns
    long = to_pandas(result, "example position")
    assert len(long) == 5 * LENGTH
    np.testing.assert_array_equal(long.example_energy[3], np.asarray(result.example_energies)[3])
    with pytest.raises(ValueError, match="by: got 'layer', expected 'example position' or 'pos"):
        to_pandas(result, "layer")


def test_what_does_not_fit_is_refused_by_name():
    result = influence()
    array = numbers(0, 3, LENGTH)
    for message, call in {
        "tokens: got 2 of them, expected 7": lambda: to_xarray(result, tokens=["a", "b"]),
        "grid: got CellGrid.*the result's own": lambda: to_xarray(result, grid=lim.token_grid(7)),
        "grid: got 5 of them, expected 7": lambda: to_xarray(channels(), grid=lim.token_grid(5)),
        "tokens: got 1 of them, expected none": lambda: to_xarray(ROWS, tokens=["a"]),
        "values: got 2 axes, expected 1: position": lambda: to_xarray(array, axes="position"),
        "result: got Influence with axes 'position'": lambda: to_xarray(result, axes="position"),
        "result: got list, expected one of adjoint.Channels": lambda: to_xarray([result]),
        "result: got list": lambda: to_xarray([]),
        "result: got 3.0": lambda: to_xarray(3.0),
        "traced": lambda: jax.jit(lambda x: to_xarray(x, axes="position").sizes)(jnp.ones(3)),
    }.items():
        with pytest.raises(ValueError, match=f"(?s){message}"):
            call()


@pytest.mark.slow
def test_without_xarray_all_else_works_and_the_message_names_the_extra(tmp_path):
    program = """
import sys
import jax.numpy as jnp
import lim_jax as lim
lim.results.to_xarray, lim.results.save, lim.results.compare
print(*{"diffrax", "lineax", "pandas", "xarray.core"} & set(sys.modules))
sys.modules["xarray"] = sys.modules["pandas"] = None  # as if they were not installed
found = lim.Influence.from_energies(jnp.ones((2, 4)), lim.boundary_regions(lim.token_grid(4), 0.25))
lim.results.save(found, "found.npz")
print(type(lim.results.load("found.npz")).__name__)
for label in (lim.results.to_xarray, lim.results.to_pandas):
    try:
        label(found)
    except ModuleNotFoundError as error:
        print(error)
"""
    done = run_python("-c", program, folder=tmp_path)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "", "what keeping an influence does not need was loaded"
    assert lines[1] == "Influence" and len(lines) == 4
    assert all('pip install "lim_jax[xarray]"' in line for line in lines[2:])
