"""A network from a terminal: whole in memory, or left in its files where it does not fit."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import psutil
from tqdm import tqdm

from lim_jax import models
from lim_jax._atomic_files import write_file
from lim_jax._terminal import in_one_line
from lim_jax.attribution.time_budget import estimate_seconds
from lim_jax.checkpoints.hub import model_path
from lim_jax.cli.run_in_words import duration
from lim_jax.models import CausalLM, LanguageModel

GIB = 2**30
LONG = 180.0  # seconds, from which it is said what bfloat16 would save
MUCH = 0.9  # the share of the time above which it saves too little to be said
PLACEMENT = "weights.txt"
WHOLE = "in memory"
FILES = "in their files"


def open_model(model: Path, download: bool, compute: str | None = None) -> LanguageModel:
    """Open a model by its path or name; a terminal is asked whether to download what is missing."""
    try:
        model_path(model, download=download)
    except ValueError as missing:
        if download or not sys.stdin.isatty():
            raise
        print(in_one_line(str(missing)), file=sys.stderr)
        if not _answered_yes("Download it now? [y/N] "):
            raise
        model_path(model, download=True)
    return LanguageModel.open(model, compute=compute)


def _answered_yes(question: str) -> bool:
    """Ask at the terminal, and tell whether the answer is yes: an end of input is no."""
    try:
        return input(question).strip().lower().startswith("y")
    except EOFError:
        return False


def network_within(
    model: LanguageModel, memory: float | None, tokens: int, unfinished: Path
) -> LanguageModel:
    """Read an opened model's weights where they fit the memory, else leave them in their files.

    `memory` is in GiB; None stands for all that is free, or for the placement recorded in
    `unfinished`.
    """
    needed = models.profile_memory(model.network, tokens)
    most = free_memory() if memory is None else memory * GIB
    recorded = unfinished / PLACEMENT
    # What an interrupted run measured is of weights that were placed in one way.
    as_before = memory is None and recorded.exists()
    fits = recorded.read_bytes() == WHOLE.encode() if as_before else needed.in_memory <= most
    placement = WHOLE if fits else f"{FILES}, read a layer at a time"
    takes = needed.in_memory if fits else needed.by_layers
    tqdm.write(
        f"Weights stay {placement}: about {takes / GIB:.1f} GiB for {tokens} tokens"
        + ("." if fits else f", whole {needed.in_memory / GIB:.1f} of {most / GIB:.1f} GiB.")
    )
    return model.loaded() if fits else model


def placement_bar(network: CausalLM, unfinished: Path) -> Callable[..., Iterable]:
    """Return a progress bar that records after each step how the weights are placed.

    A run that goes on places them so again: what it has kept is of weights in one place.
    """
    placement = FILES if network.flow.is_offloaded else WHOLE

    def bar(items: Sequence[Any], **options: Any) -> Iterator[Any]:
        """Show progress, and record the placement."""
        for item in tqdm(items, **options):
            yield item
            write_file(unfinished / PLACEMENT, placement.encode())

    return bar


def estimated_time(
    network: CausalLM,
    lengths: Sequence[int],
    contexts_on_page: int,
    contexts_to_answer: int = 0,
    cost: int = 3,
) -> str:
    """Say how long measuring is likely to take, and of bfloat16 whether it is worth its errors."""

    def seconds_in(compute: str | None) -> float:
        """Estimate the seconds with products in this precision, None for the network's."""
        return estimate_seconds(
            network, lengths, contexts_on_page, contexts_to_answer, cost, compute=compute
        )

    seconds = seconds_in(None)
    estimate = f"about {duration(seconds)}."
    chosen = network.flow.compute
    if chosen is None and seconds >= LONG:
        half = seconds_in("bfloat16")
        if half < MUCH * seconds:
            words = "--compute bfloat16, off by some per cent, would take"
            return f"{estimate} {words} about {duration(half)}."
    if chosen == "bfloat16":
        whole = seconds_in("float32")
        if seconds > MUCH * whole:
            words = "This machine gains little by bfloat16, which is off by some per cent: without"
            return f"{estimate} {words} --compute about {duration(whole)}."
    return estimate


def free_memory() -> int:
    """Return the free bytes of the device, or on a CPU of the machine."""
    (device, *_) = jax.local_devices()
    stats: dict[str, Any] = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return psutil.virtual_memory().available
