"""Notebooks run from top to bottom; their own assertions hold."""

import runpy
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(notebook, monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: None)
    promotion = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with jax.enable_x64(False), promotion[0], promotion[1]:  # as users run
        runpy.run_path(str(notebook))
    shown = [plt.figure(number).axes for number in plt.get_fignums()]
    assert shown and all(axes.get_xlabel() and axes.get_ylabel() for (axes,) in shown)
    if notebook.stem == "remedies":  # before and after, on one pair of axes
        names = [str(line.get_label()) for line in shown[0][0].lines]
        assert [name.partition(" ±")[0] for name in names] == [
            "no penalty", "positions", "regions", "uniform"
        ]  # fmt: skip
    plt.close("all")
