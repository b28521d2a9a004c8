"""Notebooks run from top to bottom; their own assertions hold.

`remedies` takes the longest: half of it is 180 steps of training.
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_what_it_asserts_holds(notebook, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    source = notebook.read_text(encoding="utf-8")
    if "jax_num_cpu_devices" in source:  # which is settled before JAX starts
        paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": paths}
        subprocess.run([sys.executable, notebook], check=True, env=environment)
        return
    monkeypatch.setattr(plt, "show", lambda: None)
    promotion = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    double = "jax_enable_x64" in source
    with jax.enable_x64(double), promotion[0], promotion[1]:  # as users run
        names = runpy.run_path(str(notebook))
    shown = [plt.figure(number).axes for number in plt.get_fignums()]
    assert all(figure[-1].get_xlabel() and figure[-1].get_ylabel() for figure in shown)
    HELD.get(notebook.stem, lambda *_: None)(names, shown)
    plt.close("all")


def remedies_are_on_one_pair_of_axes(_, shown):
    labels = [str(line.get_label()) for line in shown[0][0].lines]
    assert [label.partition(" ±")[0] for label in labels] == [
        "no penalty",
        "positions",
        "regions",
        "uniform",
    ]


def records_take_all_shares(names, shown):
    """Bars are of the records' shares, and the page shows the prompt."""
    upper, lower = shown[0]
    heights = [bar.get_height() for bar in lower.patches]
    np.testing.assert_allclose(sum(heights), 1, rtol=1e-6)
    assert len(upper.patches) == len(heights) == names["RECORDS"]
    assert names["name"] in Path("real_model.html").read_text(encoding="utf-8")


def the_suspect_is_gone(names, _):
    """What was asked again has all documents but the one that gave most."""
    texts = {document.title: document.text for document in names["documents"]}
    read = "".join(names["without"].context.tokens)
    gone = [title for title, text in texts.items() if text not in read]
    assert gone == [names["suspect"].name] == [names["answer"].parts[0].name]


HELD = {
    "remedies": remedies_are_on_one_pair_of_axes,
    "real_model": records_take_all_shares,
    "poisoned": the_suspect_is_gone,
}
