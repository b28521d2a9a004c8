"""Results as JSON: valid for every reader, and with all numbers."""

import json

import jax
import numpy as np
import pytest
from reference.made_results import (
    CERTIFICATES,
    KINDS,
    LENGTH,
    ROWS,
    channels,
    explanation,
    influence,
    of_kind,
)

from lim_jax.results.records import to_json


def strictly(text):
    """Read JSON as the standard has it: NaN and Infinity are no numbers."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_result_is_valid_json(kind):
    assert strictly(to_json(of_kind(kind), indent=2))


def test_numbers_are_exact_and_named():
    found = strictly(to_json(channels()))
    assert list(found) == list(channels()._fields)
    np.testing.assert_array_equal(found["cone_by_depth"], channels().cone_by_depth)
    certificate = strictly(to_json(CERTIFICATES))[0]
    assert certificate == {**strictly(json.dumps({**CERTIFICATES[0].record(), "premises": []})),
                           "premises": certificate["premises"]}  # fmt: skip
    assert certificate["premises"][1] == {
        "statement": "b is finite", "value": "Infinity", "holds": False
    }  # fmt: skip
    assert strictly(to_json(ROWS))[1]["order"]["value"] == ROWS[1].study.order.value


def test_what_is_not_finite_is_a_word_that_python_reads():
    text = to_json({"a": [float("nan"), np.float32(-np.inf), 1.5], "b": np.array([np.inf, 2.0])})
    found = strictly(text)
    assert found == {"a": ["NaN", "-Infinity", 1.5], "b": ["Infinity", 2.0]}
    assert float(found["a"][1]) == -np.inf and np.isnan(float(found["a"][0]))


def test_an_influence_says_all_of_its_results():
    result = influence()
    found = strictly(to_json(result))
    energies, kept = np.asarray(result.example_energies), np.asarray(result.regions.kept_weights)
    mean = energies.mean(axis=0)
    np.testing.assert_allclose(found["total"], kept @ mean, rtol=1e-12)
    np.testing.assert_allclose(
        found["density"], np.where(kept > 0, mean, 0) / (kept @ mean), rtol=1e-12
    )
    np.testing.assert_allclose(found["positions"], result.grid.nodes)
    assert found["examples"] == 5 and found["left_out"] == [0, 2] and found["length"] == LENGTH
    assert found["delta"] == 1 / 3
    np.testing.assert_allclose(found["index_errors"]["gap"], result.index_errors().gap)
    one = strictly(to_json(influence(examples=1)))
    assert one["total_error"] == one["index_errors"]["lim"] == "Infinity"
    assert strictly(to_json(explanation()))["without_queries"]["left_out"] == [0, 2]


def test_what_has_no_numbers_yet_or_none_at_all_is_refused():
    with pytest.raises(ValueError, match="result: got traced arrays"):
        jax.jit(lambda x: len(to_json({"x": x})))(1.0)
    with pytest.raises(ValueError, match="result: got object"):
        to_json({"x": object()})


def test_results_print_as_text_that_says_what_they_are(capsys):
    print(channels(), CERTIFICATES[0], explanation(), sep="\n")
    shown = capsys.readouterr().out
    assert shown.startswith("channels of 4 layers, 7 positions and 2 components\n")
    assert shown.count("one of them (eq:one): vacuous: never here") == 2  # alone, and explained
    assert "at depth 1" in shown and "influence density, error" in shown
    jax.vmap(lambda x: print(channels()._replace(loss=x)) or x)(np.ones(3))
    assert capsys.readouterr().out.startswith("channels of 4 layers")
