"""A network from a terminal: whole in memory, or left in its files where it does not fit."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from lim_jax import models
from lim_jax._atomic_files import write_file
from lim_jax._checks import require_positive
from lim_jax._terminal import in_one_line
from lim_jax.attribution.time_budget import duration, measuring_seconds
from lim_jax.checkpoints.hub import model_path
from lim_jax.models import CausalLM, LanguageModel

GIB = 2**30
LONG = 180.0  # seconds, from which it is said what bfloat16 would save
MUCH = 0.9  # the share of the time above which it saves too little to be said
PLACEMENT = "weights.txt"
WHOLE = "in memory"
FILES = "in their files"
AVAILABLE = Path("/proc/meminfo")


def open_model(model: Path, download: bool, compute: str | None = None) -> LanguageModel:
    """Open a model by its path or name; a terminal is asked whether to download what is missing."""
    try:
        model_path(model, download=download)
    except ValueError as missing:
        if download or not sys.stdin.isatty():
            raise
        print(in_one_line(str(missing)), file=sys.stderr)
        if not input("Download it now? [y/N] ").strip().lower().startswith("y"):
            raise
        model_path(model, download=True)
    return LanguageModel.open(model, compute=compute)


def network_within(
    model: LanguageModel, memory: float | None, tokens: int, unfinished: Path
) -> LanguageModel:
    """Read an opened model's weights where they fit the memory, else leave them in their files.

    `memory` is in GiB; None stands for all that is free, or for the placement recorded in
    `unfinished`. Where the system does not say what is free, nothing is known to fit.
    """
    if memory is not None:
        require_positive(
            memory, "memory", expected="a positive number of GiB", cure="Leave it out."
        )
    needed = models.profile_memory(model.network, tokens)
    most = free_memory() if memory is None else memory * GIB
    recorded = unfinished / PLACEMENT
    # What an interrupted run measured is of weights that were placed in one way.
    as_before = memory is None and recorded.exists()
    known_to_fit = most is not None and needed.whole <= most
    fits = recorded.read_bytes() == WHOLE.encode() if as_before else known_to_fit
    placement = WHOLE if fits else f"{FILES}, read a layer at a time"
    takes = needed.whole if fits else needed.by_layers
    limit = "an unknown number of GiB: pass --memory" if most is None else f"{most / GIB:.1f} GiB"
    tqdm.write(
        f"Weights stay {placement}: about {takes / GIB:.1f} GiB for {tokens} tokens"
        + ("." if fits else f", whole {needed.whole / GIB:.1f} of {limit}.")
    )
    return model.loaded() if fits else model


def record_placement(items: Iterable, network: CausalLM, unfinished: Path) -> Iterator:
    """Yield the items; after each, record how the weights are placed, for a run that goes on."""
    placement = FILES if network.flow.is_offloaded else WHOLE
    for item in items:
        yield item
        write_file(unfinished / PLACEMENT, placement.encode())


def placed_bar(network: CausalLM, unfinished: Path) -> Callable[..., Iterable]:
    """Return a progress bar that records after each context how the weights are placed."""

    def bar(items: Sequence[Any], **options: Any) -> Iterable[Any]:
        of_contexts = options.get("unit") == "context"
        shown = tqdm(items, **options)
        return record_placement(shown, network, unfinished) if of_contexts else shown

    return bar


def estimated_time(
    network: CausalLM, lengths: Sequence[int], shown: int, answered: int = 0, cost: int = 3
) -> str:
    """Say how long measuring is likely to take; if long, also what bfloat16 would take."""
    seconds = measuring_seconds(network, lengths, shown, answered, cost)
    said = f"about {duration(seconds)}."
    if seconds < LONG or network.flow.compute is not None:
        return said
    half = measuring_seconds(network, lengths, shown, answered, cost, compute="bfloat16")
    if half >= MUCH * seconds:
        return said
    return f"{said} --compute bfloat16, off by some per cent, would take about {duration(half)}."


def free_memory() -> int | None:
    """Return the free bytes of the device, or on a CPU of the machine; None where unknown."""
    (device, *_) = jax.local_devices()
    stats: dict[str, Any] = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    if AVAILABLE.exists():
        lines = dict(line.split(":") for line in AVAILABLE.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    return None
