r"""The signed profile by position: what attention's reading of each place gives to what is asked.

Minus the mask gradient's density :math:`-g_j/\Delta p_j` (`adjoint.masking`) where all weights are
one, averaged on the common grid. Its integral is zero, but for networks with attention sinks.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lim_jax._partial_runs import within_checkpoint
from lim_jax.attribution.gradients import Tokens
from lim_jax.attribution.mask_gradients import answer_mask_gradient, with_documents_at
from lim_jax.attribution.orders import averages_of_lines
from lim_jax.attribution.parts import windows_and_ask
from lim_jax.attribution.profile_run import Bar, no_bar
from lim_jax.density.adjoints import LossOfIds
from lim_jax.density.common_grid import common_regions
from lim_jax.explanations.influence_table import regional_lines
from lim_jax.grid.cells import token_grid
from lim_jax.grid.interpolation import carrying_shares
from lim_jax.grid.partition import Regions
from lim_jax.models import CausalLM
from lim_jax.models.ids import scores_of_ids
from lim_jax.models.loss_kinds import LossName, loss_kind
from lim_jax.probes import Estimate, sample_mean
from lim_jax.prompts.contexts import Context
from lim_jax.prompts.document_orders import ShuffledContexts


class SignedProfile(NamedTuple):
    """The density by position and its integrals over the regions, means over so many contexts."""

    regions: Regions
    density: Estimate
    regional: Estimate
    contexts: int

    def record(self) -> dict[str, Any]:
        """Return the density and the regional integrals, with errors, as plain numbers."""
        estimates = {"density": self.density, "regional": self.regional}
        return {
            name: {
                "value": np.asarray(estimate.value).tolist(),
                "error": np.asarray(estimate.error).tolist(),
            }
            for name, estimate in estimates.items()
        }

    def __str__(self) -> str:
        """Return the integrals over the regions, with their errors, in lines of text."""
        meaning = "By how much the loss falls as attention reads more of each region:"
        rows = {"signed, sum over region": self.regional.value}
        if self.contexts > 1:
            rows["  error"] = self.regional.error
        return "\n".join([meaning, *regional_lines("", rows)[1:]])


def signed_profile(
    network: CausalLM,
    contexts: Sequence[Context],
    loss: LossName,
    *,
    delta: float = 0.2,
    orders: Sequence[ShuffledContexts] = (),
    checkpoint: Path | None = None,
    bar: Bar = no_bar,
) -> SignedProfile:
    """Measure the signed profile of contexts, with one gradient for each, and average it."""
    windows, queries = windows_and_ask(contexts)
    rows = scores_of_ids(
        _gains,
        network,
        windows,
        ask=queries,
        loss=loss_kind(loss).loss,
        checkpoint=within_checkpoint(checkpoint, "signed"),
        progress=partial(bar, desc="signed profile", unit="context"),
    )
    densities = [row.size * row for row in rows]
    densities = averages_of_lines(orders, densities) if orders else densities
    regions = common_regions([row.size for row in densities], delta, densities[0].dtype)
    grids = [token_grid(row.size) for row in densities]
    pairs = zip(grids, densities, strict=True)
    profiles = np.stack([carrying_shares(grid, regions.grid) @ row for grid, row in pairs])
    on_grid = jax.device_put(profiles.astype(densities[0].dtype))
    regional = sample_mean(on_grid @ regions.weights.T)
    return SignedProfile(regions, sample_mean(on_grid), regional, len(densities))


def _gains(loss: LossOfIds, model: CausalLM, ids: Any, y: Any, parts: Any) -> Tokens:
    """Return minus the mask gradient of each token, with documents at their full weight."""
    x = loss.embed(model, ids, y)
    return -answer_mask_gradient(loss.loss, model, x, with_documents_at(0.0, x, y, parts))
