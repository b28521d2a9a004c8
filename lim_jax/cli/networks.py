"""A network of one's own, held as the memory of the machine allows."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from lim_jax import models
from lim_jax._checks import AnyPath, as_path, require_known
from lim_jax._resuming import write_whole
from lim_jax.models import CausalLM
from lim_jax.models.hub import model_path
from lim_jax.weights import FetchedLayers

GIB = 2**30
HELD, WHOLE, FILES = "weights.txt", "in memory", "in their files"
AVAILABLE = Path("/proc/meminfo")


def require_model(model: AnyPath, download: bool) -> None:
    """Refuse a name that is not in the cache, unless it is downloaded: a terminal is asked once.

    Parameters
    ----------
    model
        A folder, a GGUF file or a name.
    download
        Whether a name is downloaded without asking.

    Raises
    ------
    ValueError
        As in `models.model_path`.
    """
    try:
        model_path(model, download=download)
    except ValueError as missing:
        if download or not sys.stdin.isatty():
            raise
        print(missing, file=sys.stderr)
        if not input("Download it now? [y/N] ").strip().lower().startswith("y"):
            raise
        model_path(model, download=True)


def network_within(
    path: AnyPath, memory: float | None, tokens: int, unfinished: AnyPath
) -> CausalLM:
    """Read a network whole where that fits the memory, else leave its weights in their files.

    Parameters
    ----------
    path
        A folder or a file of weights.
    memory
        GiB that may be used; None for all that is free, or as a run that was interrupted had it.
    tokens
        How many tokens are measured at once.
    unfinished
        The folder of what an interrupted run has finished.

    Raises
    ------
    ValueError
        Where the memory is no positive number, and as in `models.load`.
    """
    if memory is not None:
        require_known(memory, "memory", expected="a positive number of GiB", cure="Leave it out.")
    network = models.open(path)
    needed = models.profile_memory(network, tokens)
    most = free_memory() if memory is None else memory * GIB
    kept = as_path(unfinished, "unfinished") / HELD
    # What was measured is of weights that were held in one way.
    as_before = memory is None and kept.exists()
    fits = kept.read_bytes() == WHOLE.encode() if as_before else needed.whole <= most
    held = WHOLE if fits else f"{FILES}, read a layer at a time"
    took = needed.whole if fits else needed.walked
    tqdm.write(
        f"Weights stay {held}: about {took / GIB:.1f} GiB for {tokens} tokens"
        + ("." if fits else f", whole {needed.whole / GIB:.1f} of {most / GIB:.1f} GiB.")
    )
    return models.load(path) if fits else network


def noted(items: Iterable, network: CausalLM, unfinished: AnyPath) -> Iterator:
    """The items; where one is done, it is noted how the network is held, for a run that goes on."""
    held = FILES if isinstance(network.flow.layers, FetchedLayers) else WHOLE
    for item in items:
        yield item
        write_whole(
            as_path(unfinished, "unfinished") / HELD, lambda file: file.write(held.encode())
        )


def free_memory() -> int:
    """What the device, or on a CPU the machine, has left, in bytes."""
    (device, *_) = jax.local_devices()
    stats: dict[str, Any] = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    if AVAILABLE.exists():
        found = dict(line.split(":") for line in AVAILABLE.read_text().splitlines())
        return 1024 * int(found["MemAvailable"].split()[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
