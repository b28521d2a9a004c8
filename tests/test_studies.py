"""The room that became three hands on to them, for one minor version, and says so."""

import re
from pathlib import Path

import pytest
from reference.as_users import run_python

import lim_jax as lim

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("explain", "explanations.explain"),
        ("account", "explanations.account"),
        ("section4", "paper.section4"),
        ("gallery", "paper.gallery"),
        ("paper", "paper"),
        ("Setting", "validation.Setting"),
        ("validation", "validation"),
    ],
)
def test_what_it_handed_out_is_found_in_its_new_place(name, place):
    expected = lim
    for part in place.split("."):
        expected = getattr(expected, part)
    message = f"lim_jax.studies.{name} goes with the next minor version: take lim_jax.{place}."
    with pytest.warns(DeprecationWarning, match=f"^{re.escape(message)}$"):
        assert getattr(lim.studies, name) is expected


def test_the_line_that_is_warned_of_is_the_users():
    shown = "import warnings; warnings.simplefilter('default'); "
    done = run_python("-c", shown + "from lim_jax.studies import explain", folder=ROOT)
    assert done.stderr.startswith("<string>:1: DeprecationWarning: lim_jax.studies.explain goes")


def test_a_name_that_is_not_there_is_refused_as_by_every_door():
    with pytest.raises(AttributeError, match="explainn: got .* lim_jax.explanations.explain"):
        lim.studies.explainn  # noqa: B018
    assert {"explain", "section4", "validate"} <= set(dir(lim.studies))
