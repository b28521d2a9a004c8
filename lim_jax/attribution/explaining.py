"""Networks explained, each under each loss: what is finished is read from its file."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lim_jax import explanations
from lim_jax.adjoint.sites import reads_by_softmax
from lim_jax.attribution.measuring import Bar, no_bar
from lim_jax.attribution.time_budget import MASSES, Case
from lim_jax.explanations.certificates import Judged
from lim_jax.explanations.explanation import average_cone_mass
from lim_jax.explanations.windows import Windows
from lim_jax.grid.partition import Regions
from lim_jax.models import CausalLM
from lim_jax.models.losses import LossName, loss_kind
from lim_jax.probes import Estimate
from lim_jax.prompts.contexts import Context
from lim_jax.results import load, save


def stem(name: str) -> str:
    """What a case is called in the names of files."""
    return name.replace(", ", "_").replace(" ", "_")


class ReadContexts(NamedTuple):
    """Windows, one array where they have one length, and what is asked; no contexts in the demo."""

    windows: Windows
    contexts: list[Context]

    @property
    def lengths(self) -> list[int]:
        """How many tokens each context has."""
        return [len(window) - 1 for window in self.windows]

    @property
    def named(self) -> list[bool]:
        """Which contexts have named parts."""
        return [bool(context.spans) for context in self.contexts]


def recorded_contexts(unfinished: Path) -> int | None:
    """How many contexts an interrupted run explained."""
    files = sorted(unfinished.glob("*.npz"))
    return load(files[0])["contexts"] if files else None


def stacked_rows(rows: list[np.ndarray]) -> Any:
    """One array of rows of one length; of several, the list."""
    return jax.device_put(np.stack(rows)) if len({row.size for row in rows}) == 1 else rows


def cases_of(
    networks: Mapping[str, CausalLM], read: ReadContexts, loss: LossName
) -> dict[str, Case]:
    """Each network under what is asked of it, by name."""
    asked = {loss: (loss_kind(loss), [context.weights for context in read.contexts])}
    if not read.contexts:
        no_answers = [np.zeros(length, bool) for length in read.lengths]
        kinds = {"teacher forcing": loss_kind("next-token"), "last token": loss_kind("last-token")}
        asked = {how: (kind, [*map(kind.weights, no_answers)]) for how, kind in kinds.items()}
    return {
        f"{name} network, {how}": Case(
            network, stacked_rows([row.astype(network.embedding.dtype) for row in rows]), kind.loss
        )
        for name, network in networks.items()
        for how, (kind, rows) in asked.items()
    }


def explained_cases(
    cases: Mapping[str, Case],
    windows: Windows,
    regions: Regions,
    key: jax.Array,
    depth: int,
    certificates: Judged,
    unfinished: Path,
    bar: Bar = no_bar,
) -> tuple[dict[str, explanations.Explanation], dict[str, Estimate]]:
    """Explanations by network and loss, and cone masses by network, each written when computed."""

    def once(name: str, compute: Callable[[], Any]) -> Any:
        return _once(unfinished / f"{stem(name)}.npz", len(windows), compute)

    def explained(name: str, case: Case) -> Any:
        units = iter(("context", "criterion"))  # the bar is first of contexts, then of criteria
        return explanations.explain(
            case.network, windows, case.weights, regions, key=key, depth=depth, loss=case.loss,
            certificates=certificates,
            progress=lambda numbers: bar(numbers, desc=name, unit=next(units)),
        )  # fmt: skip

    results = {name: once(name, partial(explained, name, case)) for name, case in cases.items()}
    masses = {}
    for name, network in {name.split(",")[0]: case.network for name, case in cases.items()}.items():
        # Exact masses are of blocks in closed form.
        if certificates == "all" and reads_by_softmax(network.flow):
            mass = partial(average_cone_mass, network, windows[:MASSES], regions)
            for _ in bar([name], desc=f"cone mass of the {name}"):
                masses[name] = once(f"cone mass, {name}", mass)
    return results, masses


def _once(path: Path, contexts: int, compute: Callable[[], Any]) -> Any:
    """A result read from its file, or computed and written there with its number of contexts."""
    if not path.exists():
        save({"contexts": contexts, "result": compute()}, path)
    return load(path)["result"]
