"""Several devices give the numbers of one: 8 virtual ones, and two processes.

The dearest tests: every layout traces and compiles second order.
"""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("devices.py")


# Of XLA's CPU client, which has one for a device: sums that wait for another in two places at once
# would take all of them, and nobody would come.
THREADS = {"NPROC": "64"}


def run(*arguments, devices=1):
    flags = os.environ.get("XLA_FLAGS", "")
    flags = f"{flags} --xla_force_host_platform_device_count={devices}"
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **THREADS, "XLA_FLAGS": flags, "PYTHONPATH": str(SCRIPT.parents[1])},
    )


def lines(finished):
    assert finished.returncode == 0, finished.stderr[-2000:]
    return [line for line in finished.stdout.splitlines() if not line.startswith("[")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of NumPy's numbers."""
    return tmp_path_factory.mktemp("devices")


# Lines.
WEIGHTS = 3
SPREAD = 10
RING = 8


@pytest.fixture(scope="module")
def virtual(folder):
    """What is said of 8 virtual devices, in one process."""
    return run("weights,virtual,ring", folder, devices=8)


@pytest.fixture(scope="module")
def two(virtual, folder):
    """What is said by two processes."""
    assert virtual.returncode == 0, virtual.stderr[-2000:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ThreadPoolExecutor() as both:
        return list(both.map(lambda index: run(index, folder, port), (0, 1)))


@pytest.mark.slow
def test_eight_virtual_devices_share_examples_and_context(virtual):
    """Every job, attention by tiles, `shard_map` and penalties by it."""
    assert len(lines(virtual)) == WEIGHTS + SPREAD + RING


@pytest.mark.slow
def test_keys_and_values_go_round_a_ring_of_devices(virtual):
    """On graded grids and windows, rounded, in Algorithm 1, in memory that falls with them."""
    assert len(lines(virtual)[WEIGHTS + SPREAD :]) == RING


@pytest.mark.slow
def test_two_processes_share_examples_and_then_a_context(two):
    for finished in two:
        assert len([line for line in lines(finished) if "equal" not in line]) == 2


@pytest.mark.slow
def test_weights_are_spread_over_devices_and_processes(virtual, two):
    """Gradients to 1e-12; on the devices of one process profile, channels and hops too."""
    assert lines(virtual)[:WEIGHTS] == ["15 equal", "weights equal", "hybrid equal"]
    for finished in two:
        # The loopback network's own lines stand between, and may be cut by ours.
        assert finished.returncode == 0, finished.stderr[-2000:]
        assert "12 equal" in finished.stdout
