"""Several devices give the numbers of one: 8 virtual ones, and two processes.

The dearest tests: every layout, and each of the two processes, traces and compiles second order.
"""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("devices.py")
WEIGHTS = SCRIPT.with_name("spread_weights.py")


def run(*arguments, devices=1, script=SCRIPT):
    flags = os.environ.get("XLA_FLAGS", "")
    flags = f"{flags} --xla_force_host_platform_device_count={devices}"
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(SCRIPT.parents[1])},
    )


def lines(finished):
    assert finished.returncode == 0, finished.stderr[-2000:]
    return [line for line in finished.stdout.splitlines() if not line.startswith("[")]


SPREAD, RING = 16, 16  # lines


@pytest.fixture(scope="module")
def virtual(tmp_path_factory):
    """What is said of 8 virtual devices, in one process, and a file of one device's numbers."""
    file = tmp_path_factory.mktemp("devices") / "one"
    return run("virtual,ring", file, devices=8), file


@pytest.mark.slow
def test_eight_virtual_devices_share_examples_and_context(virtual):
    """Every job spread in two ways, attention by tiles, `shard_map` and penalties by it."""
    assert len(lines(virtual[0])) == SPREAD + RING


@pytest.mark.slow
def test_keys_and_values_go_round_a_ring_of_devices(virtual):
    """In every mode on graded grids and windows, in three jobs, in memory that falls with them."""
    assert len(lines(virtual[0])[SPREAD:]) == RING


@pytest.mark.slow
def test_two_processes_share_examples_and_then_a_context(virtual):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ThreadPoolExecutor() as both:
        for finished in both.map(lambda index: run(index, virtual[1], port), (0, 1)):
            assert len(lines(finished)) == 3


@pytest.mark.slow
def test_weights_are_spread_over_devices_and_processes(tmp_path):
    """Profile and gradients to 1e-12; on the devices of one process channels and hops too."""
    assert lines(run(tmp_path, devices=8, script=WEIGHTS)) == ["15 equal"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def process(index):
        return run(tmp_path, index, port, devices=4, script=WEIGHTS)

    with ThreadPoolExecutor() as both:
        for finished in both.map(process, (0, 1)):
            # The loopback network's own lines stand between, and may be cut by ours.
            assert finished.returncode == 0, finished.stderr[-2000:]
            assert "13 equal" in finished.stdout
