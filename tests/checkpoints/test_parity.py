"""Checkpoints beside transformers, where that is installed; `benchmarks/parity.py` has the rest."""

import json
from importlib.util import find_spec

import pytest
from reference.as_users import ROOT, run_python

MISSING = [name for name in ("torch", "transformers") if find_spec(name) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason='needs torch and transformers: pip install ".[parity]"')
def test_two_families_are_those_of_transformers_in_logits_influence_blocks_and_cone(tmp_path):
    """Parallel blocks with partial rotary positions; grouped queries with Llama 3's scaling."""
    script = ROOT / "benchmarks" / "parity.py"
    results = tmp_path / "parity.json"
    options = ("--precisions", "float32", "--results", results)
    done = run_python(script, "gpt_neox", "llama, 3", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text(encoding="utf-8"))["rows"]
    names = ["gpt_neox", "gpt_neox, serial", "llama, 3"]  # a family's name asks for all of it
    assert [row.pop("configuration") for row in rows] == names
    for row in rows:
        assert row.pop("precision") == "float32"
        assert {"logits", "influence", "kernel", "cone"} <= set(row)
        assert max(row.values()) < 1e-5, row
