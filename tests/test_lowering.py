"""Every job lowers for NVIDIA GPUs and TPUs, on a machine that has neither, without its checks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # one process, which all of them read
SCRIPT = Path(__file__).with_name("lowering.py")
JOBS = "algorithm 1", "mdot", "channels", "hops", "cone mass", "gramians", "profile", "ring"


@pytest.fixture(scope="module")
def calls():
    """Of the fused kernel, forward and backward, by job and platform: all of one process."""
    environment = {**os.environ, "EQX_ON_ERROR": "off", "PYTHONPATH": str(SCRIPT.parents[1])}
    finished = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300, env=environment
    )
    rows = [line.split(",") for line in finished.stdout.splitlines()]
    return {(job, platform): (int(f), int(b)) for job, platform, f, b in rows}, finished.stderr


@pytest.mark.parametrize("job", JOBS)
def test_jobs_lower_for_other_platforms(calls, job):
    counts, said = calls
    assert {platform for one, platform in counts if one == job} == {"cuda", "tpu"}, said[-2000:]
    assert {counts[job, platform] for platform in ("cuda", "tpu")} == {(0, 0)}


def test_one_program_is_of_any_number_of_examples(calls):
    counts, said = calls
    assert counts["numbers", "cpu"] == (1, 1), said[-2000:]


def test_influence_in_half_precision_takes_the_fused_kernel_where_it_is(calls):
    """Once forward in the layers' loop; once more and then backward in the loop of the sweep."""
    counts, said = calls
    assert [counts["influence", platform] for platform in ("cuda", "tpu", "cpu")] == [
        (2, 1),
        (0, 0),
        (0, 0),
    ], said[-2000:]
