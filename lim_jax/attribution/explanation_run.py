"""A network explained on contexts: what is finished is read from its file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lim_jax import explanations
from lim_jax.adjoint.sites import reads_by_softmax
from lim_jax.attribution.profile_run import Bar, no_bar
from lim_jax.attribution.time_budget import MASSES, NetworkAndLoss
from lim_jax.explanations.certificates import Judged
from lim_jax.explanations.explanation import average_cone_mass
from lim_jax.explanations.windows import Windows
from lim_jax.grid.partition import Regions
from lim_jax.models import CausalLM
from lim_jax.models.loss_kinds import LossName, loss_kind
from lim_jax.probes import Estimate
from lim_jax.prompts.contexts import Context
from lim_jax.results import load, save

# In the folder of unfinished results.
EXPLANATION = "explanation.npz"
CONE_MASS = "cone_mass.npz"


class ContextBatch(NamedTuple):
    """Contexts, and their windows: one array where they have one length."""

    windows: Windows
    contexts: list[Context]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each context."""
        return [context.length for context in self.contexts]

    @property
    def named(self) -> list[bool]:
        """Whether each context has named parts."""
        return [bool(context.spans) for context in self.contexts]


def batch_contexts(contexts: list[Context]) -> ContextBatch:
    """Return contexts with their windows, which are one array if all have one length."""
    return ContextBatch(stack_rows([context.window for context in contexts]), contexts)


def count_recorded_contexts(unfinished: Path) -> int | None:
    """Return how many contexts an interrupted run explained; None where it explained none."""
    file = unfinished / EXPLANATION
    return load(file)["contexts"] if file.exists() else None


def stack_rows(rows: list[np.ndarray]) -> Any:
    """Stack rows of one length into an array; return rows of several lengths as they are."""
    return jax.device_put(np.stack(rows)) if len({row.size for row in rows}) == 1 else rows


def pair_with_loss(network: CausalLM, contexts: list[Context], loss: LossName) -> NetworkAndLoss:
    """Return a network with its loss and, in its precision, the contexts' query weights."""
    rows = [context.weights.astype(network.embedding.dtype) for context in contexts]
    return NetworkAndLoss(network, stack_rows(rows), loss_kind(loss).loss)


def explain_contexts(
    network_and_loss: NetworkAndLoss,
    windows: Windows,
    regions: Regions,
    key: jax.Array,
    depth: int,
    certificates: Judged,
    unfinished: Path,
    bar: Bar = no_bar,
) -> tuple[explanations.Explanation, Estimate | None]:
    """Explain a network on contexts, and measure its cone mass if all certificates are asked.

    Its place is None otherwise, and where a layer does not read by softmax. Each result is written
    to the folder `unfinished` when it is computed, and read from there in a run that goes on.
    """
    network, weights, loss = network_and_loss

    def explain() -> explanations.Explanation:
        """Explain the network on the contexts, with a bar for contexts and then for criteria."""
        return explanations.explain(
            network,
            windows,
            weights,
            regions,
            key=key,
            depth=depth,
            loss=loss,
            certificates=certificates,
            progress=partial(bar, desc="explaining", unit="step"),
        )

    result = _once(unfinished / EXPLANATION, len(windows), explain)
    mass = None
    # Exact masses are of blocks in closed form.
    if certificates == "all" and reads_by_softmax(network.flow):
        cone_mass = partial(average_cone_mass, network, windows[:MASSES], regions)
        for _ in bar([None], desc="cone mass"):
            mass = _once(unfinished / CONE_MASS, len(windows), cone_mass)
    return result, mass


def _once(path: Path, contexts: int, compute: Callable[[], Any]) -> Any:
    """Load a result from its file, which is computed and written first if it is missing."""
    if not path.exists():
        save({"contexts": contexts, "result": compute()}, path)
    return load(path)["result"]
