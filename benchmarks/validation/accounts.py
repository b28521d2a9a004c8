r"""What matters to networks that were trained: by record, by channel, by attention hop.

Plain numbers by seed, to be kept beside what they retrieve.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from benchmarks.validation.laws import uniform_law
from benchmarks.validation.retrievers import (
    ANSWER_LOSS,
    MARGIN_LOSS,
    Retrievers,
    Setting,
    answer_batch,
    draw,
)
from lim_jax._jit import filter_jit
from lim_jax.adjoint.hops import attention_hops
from lim_jax.density.adjoints import adjoint_energies
from lim_jax.density.statistics import Influence
from lim_jax.explanations.explanation import explain
from lim_jax.grid.cells import token_grid
from lim_jax.grid.partition import Regions, boundary_regions
from lim_jax.loss.query_weights import last_token
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.tasks.prompts import Example, record_weights

DELTA = 0.2


def influence_record(setting: Setting, models: Retrievers, test: Example) -> dict[str, Any]:
    """Return LIM, Z and the density of records by seed, of the answers' cross-entropy and margin.

    The place that asks is left out of regions and records: it is most of the influence, whatever
    the others do. Of a record the density is relative to the mean over records.
    """
    grid = token_grid(setting.task.length)
    regions = boundary_regions(grid, DELTA).without([grid.size - 1])
    influences = _influences(models, test, regions)
    return {name: np.asarray(part).tolist() for name, part in influences.items()}


@filter_jit
def _influences(models: Retrievers, test: Example, regions: Regions) -> dict[str, Array]:
    """Measure the influence of every seed's network, along a leading axis."""

    def influence_of_model(model: Retrievers) -> dict[str, Array]:
        """Measure one network's influence by either loss."""
        parts = {}
        for name, loss in (("answer", ANSWER_LOSS), ("margin", MARGIN_LOSS)):
            energies = adjoint_energies(loss, model, answer_batch(test), regions.grid)
            influence = Influence.from_energies(energies, regions)
            record_energies = influence.energy[:-1].reshape(-1, 2).sum(axis=1)
            parts |= {
                f"{name}_lim": influence.indices().lim,
                f"{name}_total": influence.total,
                f"{name}_records": record_energies / record_energies.mean(),
            }
        return parts

    return eqx.filter_vmap(influence_of_model)(models)


def explained_record(
    setting: Setting, models: Retrievers, count: int, key: Key[Array, ""]
) -> dict[str, Any]:
    """Return channel energies over the regions, certificates, and `evidence_record`, by seed.

    Of `count` contexts of the uniform law.
    """
    batch_key, norms_key = jax.random.split(key)
    batch = setting._replace(batch=count)
    examples = draw(batch, uniform_law(setting.task.records), key=batch_key)
    windows = jnp.asarray(examples.window)
    grid = token_grid(setting.task.length)
    regions = boundary_regions(grid, DELTA)
    asks = last_token(grid.size)
    arrays, static = eqx.partition(models, eqx.is_array)
    seeds = jax.tree.leaves(arrays)[0].shape[0]
    channels = []
    certificates = []
    for number in range(seeds):
        leaves = jax.tree.map(lambda leaf: np.asarray(leaf)[number], arrays)  # noqa: B023
        model = eqx.combine(jax.device_put(leaves), static)
        explanation = explain(model, windows, asks, regions, key=norms_key, certificates="all")
        channels.append(explanation.regional.energies.tolist())
        certificates.append(
            {
                certificate.name: {
                    "holds": certificate.holds,
                    "margin": certificate.margin,
                    "vacuous": bool(certificate.vacuous),
                    "concluded": certificate.concluded,
                }
                for certificate in explanation.certificates
            }
        )
    return {
        "channels": channels,
        "certificates": certificates,
        **evidence_record(setting, models, examples),
    }


def evidence_record(setting: Setting, models: Retrievers, examples: Example) -> dict[str, Any]:
    r"""Return the gold record's share of the margin's influence, and by how many attention hops.

    By seed, averaged over examples: ``"evidence"``, its share of all records' influence; and
    ``"hops"``, of the energies :math:`\int_{\rm gold} \|P_0^{(r)}\|^2` the share of every number
    r of hops, from none to one for each layer (`adjoint.attention_hops`).
    """
    shares, hops = _evidence(setting, models, examples)
    return {"evidence": np.asarray(shares).tolist(), "hops": np.asarray(hops).tolist()}


@filter_jit
def _evidence(
    setting: Setting, models: Retrievers, examples: Example
) -> tuple[Float[Array, " seeds"], Float[Array, "seeds hops"]]:
    records = setting.task.records
    grid = token_grid(setting.task.length)
    pools = record_weights(jnp.asarray(examples.records[0]), grid.weights, records)
    ids, y = answer_batch(examples)

    def shares_of_model(model: CausalLM) -> tuple[Array, Array]:
        """Average the gold record's shares over examples."""

        def shares_of_example(ids: Int[Array, " length"], y: Targets, gold: Int[Array, ""]):
            """Return the gold record's share of all records' influence, and of that by hops."""
            example = model.embed(ids), y
            margin = partial(CausalLM.margin_loss.terminal, model)
            hops = attention_hops(model.flow, margin, example, grid, setting.depth)[0]
            total = jnp.sum(hops.sum(axis=0) ** 2, axis=1) @ pools.T
            by_hop = jnp.sum(hops**2, axis=2) @ pools.T
            return total[gold] / total.sum(), by_hop[:, gold] / by_hop[:, gold].sum()

        shares = jax.vmap(shares_of_example)(ids, y, jnp.asarray(examples.gold[:, 0]))
        return jax.tree.map(lambda values: values.mean(axis=0), shares)

    return eqx.filter_vmap(shares_of_model)(models)
