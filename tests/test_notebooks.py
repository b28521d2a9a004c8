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
    assert plt.get_fignums()
    plt.close("all")
