"""Why a network uses the positions that it uses: density, channels and certificates of a loss."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from lim_jax._checks import require_key, require_known, require_name
from lim_jax._jit import cached_jit, filter_jit
from lim_jax.adjoint.certificate import Certificate, certificate_table
from lim_jax.adjoint.cone import cone_mass
from lim_jax.adjoint.criteria import right_biased_queries
from lim_jax.adjoint.deficits import bootstrap_bounds, double_deficit, exact_characterisation
from lim_jax.adjoint.ledger import (
    CHANNELS,
    RESIDUAL,
    RegionalChannels,
    boundary_strengths,
    regional_channels,
    relative_energies,
)
from lim_jax.adjoint.sites import attention_of, reads_by_softmax
from lim_jax.adjoint.terminal_covectors import readout_residual_energies
from lim_jax.density.adjoints import Loss
from lim_jax.density.common_grid import energies_of_tokens, influence_of_contexts
from lim_jax.density.statistics import Influence, numbers_by_name
from lim_jax.explanations.account import (
    HOPS,
    ContextParts,
    as_depth,
    parts_of_ids,
    squares,
    targets_of_windows,
)
from lim_jax.explanations.certificates import Judged, primacy_of_the_cone, survival_of_recency
from lim_jax.explanations.influence_table import density_rows, index_lines, regional_lines
from lim_jax.explanations.windows import (
    QueryWeights,
    Windows,
    carried_to,
    regions_of_unasked,
    require_query_weights,
    require_windows,
    unasked_tokens,
)
from lim_jax.grid.measure import Grid
from lim_jax.grid.partition import MIDDLE, REGIONS, RIGHT, Regions, regional_averages
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets, as_loss_of_logits
from lim_jax.network.slots import State
from lim_jax.probes import Estimate, sample_mean

PerPosition = Float[Array, " length"]
States = Float[Array, "examples length width"]
Judge = Callable[[], tuple[Certificate, ...]]  # of a criterion, none where it does not apply
AVERAGED = ("channel_energies", "relative_energies", "hop_energies", "head_energies")


class Explanation(NamedTuple):
    r"""Which positions of the state at depth k matter to a model under a loss, and why.

    Attributes
    ----------
    depth
        k: the state is :math:`X_k`, its covector :math:`P_k`, and the layers are those from k on.
    influence
        The density, its errors and indices, with the energies of every context.
    without_queries
        The same of each context's tokens that the loss does not ask from, as if these were the
        whole context: the left is the first of them. None where a context has no such token.
    channel_energies, relative_energies
        :math:`\mathbb E\|P_\alpha(p)\|^2` of the residual (`eq:residual-influence-component`), the
        cone and the local channel at depth k; and relative to the state's scale
        (`ledger.relative_energies`), to be compared between depths.
    hop_energies
        :math:`\mathbb E\|P_k^{(r)}(p)\|^2` by attention hops, in the order of `account.HOPS`.
    regional
        The channels' products over the regions.
    head_energies
        :math:`\int \mathbb E\|P\|^2` of what every head of every layer adds to the cone channel.
    terminal_contrast
        :math:`\mathsf R_{\rm res}` over :math:`\mathbb E\|P_T\|^2`'s mean, a ratio of means, with
        its standard error over examples to first order; infinite for one.
    certificates
        The paper's criteria, of the flow from depth k on. Of contexts of several lengths those
        alone that average over the regions of each.
    token_energies
        :math:`\|P_k(p)\|^2` of each context, on the tokens of its own.
    """

    depth: int
    influence: Influence
    without_queries: Influence | None
    channel_energies: Float[Array, "3 length"]
    relative_energies: Float[Array, "3 length"]
    hop_energies: Float[Array, "hops length"]
    regional: RegionalChannels
    head_energies: Float[Array, "layers heads"]
    terminal_contrast: Estimate
    certificates: tuple[Certificate, ...]
    token_energies: tuple[PerPosition, ...] = ()

    def __str__(self) -> str:
        """Return the text of `explanation_table`."""
        return explanation_table(self)

    @property
    def regional_hop_energies(self) -> Float[Array, "3 hops"]:
        """`hop_energies` averaged over the left, the middle and the right."""
        return regional_averages(self.hop_energies.T, self.influence.regions)

    def record(self) -> dict[str, Any]:
        """Return the averages and certificates as plain numbers and strings.

        The energies of single contexts are not among them.
        """
        regions = self.influence.regions
        energies = self.regional
        without_queries = self.without_queries
        hops = self.regional_hop_energies.tolist()
        strengths = boundary_strengths(energies, regions)
        by_region = {
            region: {
                **_by_name(CHANNELS, energies.energies[b].tolist()),
                "cross terms": float(energies.cross_terms[b]),
                "total": float(energies.totals[b]),
            }
            for b, region in enumerate(REGIONS)
        }
        return {
            "depth": self.depth,
            **self.influence.record(),
            "without_queries": None if without_queries is None else without_queries.record(),
            "channel_energies": _by_name(CHANNELS, self.channel_energies.tolist()),
            "relative_energies": _by_name(CHANNELS, self.relative_energies.tolist()),
            "hop_energies": _by_name(HOPS, self.hop_energies.tolist()),
            "regional_hop_energies": _by_name(
                REGIONS, [_by_name(HOPS, energies_by_hop) for energies_by_hop in hops]
            ),
            "regional_energies": by_region,
            "boundary_strengths": numbers_by_name(strengths),
            "head_energies": self.head_energies.tolist(),
            "terminal_contrast": numbers_by_name(self.terminal_contrast),
            "certificates": [certificate.record() for certificate in self.certificates],
        }


def explain(
    model: CausalLM,
    windows: Windows,
    query_weights: QueryWeights,
    regions: Regions,
    *,
    key: Key[Array, ""],
    depth: int = 0,
    loss: Loss = CausalLM.loss,
    certificates: Judged = "deciding",
    progress: Callable[[list[int]], Iterable[int]] = iter,
) -> Explanation:
    """Measure the density, channels, hops, heads and certificates of a model on contexts.

    It takes the time of some two gradients for each context, and that of the certificates. Not for
    use inside a transformation: certificates judge concrete numbers.

    Parameters
    ----------
    model
        The language model, of `models.load`, `models.open` or `byte_model`.
    windows
        Contexts of L ids with the id after each, an array of ``(examples, L + 1)``; or a list of
        contexts of several lengths.
    query_weights
        Where the loss asks, weights of sum one: an array of L for all contexts, or a row for each.
        Right-biased queries are judged under `CausalLM.loss` alone, and where all contexts are
        asked alike.
    regions
        Regions on ``token_grid(L, model.embedding.dtype)``; of contexts of several lengths on any
        token grid, to which their profiles are carried, and with no position left out.
    key
        The random key of the norms' starts and of the bootstrap.
    depth
        The depth k of the state whose positions are judged: 0, the default, is the input, k that
        after k layers, up to the last layer's input.
    loss
        `CausalLM.loss`, the default, `CausalLM.margin_loss` or `CausalLM.own_margin_loss`.
    certificates
        ``"deciding"``, the default, leaves a criterion as soon as it is seen to be vacuous;
        ``"all"`` computes its numbers all the same, in many times the time.
    progress
        A wrapper of the list of contexts' numbers, and then of that of the criteria's, for example
        ``tqdm.tqdm``.

    Returns
    -------
    Explanation
        The averages over contexts with their certificates, and the energies of each context's
        tokens.

    Raises
    ------
    ValueError
        If windows, weights or regions do not fit one another, the depth is not that before a layer,
        the loss is another, or the model, the windows, the weights or the key are traced.
    EquinoxRuntimeError
        If an id is outside the vocabulary, or weights do not sum to one.
    """
    require_windows(model, windows, regions)
    require_query_weights(query_weights, windows)
    require_known(model, "model")
    require_known(windows, "windows")
    require_known(query_weights, "query_weights")
    loss = as_loss_of_logits(loss)
    require_key(key)
    require_known(key, "key")
    require_name(
        certificates,
        ("deciding", "all"),
        "certificates",
        "Pass one of these names, which explain describes.",
    )
    depth = as_depth(depth, model.flow)
    norms_key, bootstrap_key = jax.random.split(key)
    targets = targets_of_windows(model, windows, query_weights)
    same_length = {len(window) for window in windows} == {regions.grid.size + 1}
    measurements = []
    energies = []
    parts = []
    for at in progress(list(range(len(windows)))):
        ids = jnp.asarray(windows[at][:-1])
        asks = jax.tree.map(lambda leaf, at=at: leaf[at], targets)
        context_parts = parts_of_ids(model, ids, asks, depth, loss)
        measurement, energy = _reduce_context(context_parts, *carried_to(regions, len(ids)))
        measurements.append(measurement)
        energies.append(energy)
        # Covectors are large: they are kept for the certificates that need them alone.
        if same_length:
            parts.append((ids, asks, context_parts))
    averages = _average(_stack(measurements), regions)
    regional = averages["regional"]
    judges: list[Judge] = []
    if same_length:
        judges += _judges_of_covectors(
            model, windows, query_weights, regions, parts, depth, loss, norms_key, certificates
        )
    judges += [
        lambda: (double_deficit(regional, bootstrap_bounds(regional, key=bootstrap_key)),),
        lambda: (exact_characterisation(regional),),
    ]
    numbers = progress(list(range(len(judges))))
    judgements = tuple(certificate for number in numbers for certificate in judges[number]())
    return Explanation(
        depth,
        without_queries=_influence_without_queries(energies, query_weights, regions),
        certificates=judgements,
        token_energies=tuple(energies),
        **averages,
    )


def _influence_without_queries(
    energies: Sequence[Array], query_weights: QueryWeights, regions: Regions
) -> Influence | None:
    """Measure the influence of the tokens that are not asked, as `lim-jax profile` does."""
    unasked = unasked_tokens(len(energies), query_weights, regions)
    rest_regions = regions_of_unasked(unasked, regions)
    if rest_regions is None:
        return None
    return influence_of_contexts(energies_of_tokens(energies, unasked), rest_regions)


def _judges_of_covectors(
    model: CausalLM,
    windows: Windows,
    query_weights: QueryWeights,
    regions: Regions,
    parts: Sequence[tuple[Int[Array, " length"], Targets, ContextParts]],
    depth: int,
    loss: LossOfLogits,
    norms_key: Key[Array, ""],
    scope: Judged,
) -> list[Judge]:
    """Return functions that judge the criteria for which the covectors of contexts are needed.

    `parts` has the ids, the targets and the covectors of each context.
    """
    ids, targets, adjoints = _stack(parts)

    def judge_queries() -> tuple[Certificate, ...]:
        """Judge right-biased queries, where one law of them asks all contexts."""
        return _judge_queries(model, windows, query_weights, adjoints, regions, loss)

    def judge_recency() -> tuple[Certificate, ...]:
        """Judge the survival of recency."""
        return (survival_of_recency(model, ids, adjoints, regions, depth, norms_key, scope),)

    def judge_primacy() -> tuple[Certificate, ...]:
        """Judge the primacy of the cone channel."""
        examples = ids, targets
        return (
            primacy_of_the_cone(model, examples, adjoints, regions, depth, loss.terminal, scope),
        )

    if reads_by_softmax(model.flow):
        return [judge_queries, judge_recency, judge_primacy]
    # Pairs of positions are blocks of softmax attention only.
    return [judge_queries, judge_recency]


_residual_energies = cached_jit(readout_residual_energies)


def _judge_queries(
    model: CausalLM,
    windows: Windows,
    query_weights: QueryWeights,
    adjoints: ContextParts,
    regions: Regions,
    loss: LossOfLogits,
) -> tuple[Certificate, ...]:
    """Judge right-biased queries, if one law of them asks all contexts by cross-entropy."""
    rows = np.atleast_2d(np.asarray(query_weights))
    if loss is not CausalLM.loss or (rows != rows[0]).any():
        return ()
    weights = jax.device_put(rows[0].astype(model.embedding.dtype))
    targets = jnp.stack([jnp.asarray(window[1:]) for window in windows])
    energies = _residual_energies(model.readout, adjoints.last, targets, regions)
    return (right_biased_queries(weights, energies, adjoints.vectors[:, RESIDUAL], regions),)


def average_cone_mass(model: CausalLM, windows: Windows, regions: Regions) -> Estimate:
    """Average the exact cone mass over layers and contexts, in the operator norm, as a density."""
    masses = []
    for window in windows:
        context_regions, shares = carried_to(regions, len(window) - 1)
        mass = _cone_mass(model, jnp.asarray(window[:-1]), context_regions.grid)
        masses.append(mass if shares is None else shares @ mass)
    return sample_mean(jnp.stack(masses))


@filter_jit
def _cone_mass(model: CausalLM, ids: Int[Array, " length"], grid: Grid) -> PerPosition:
    """Compute a context's cone mass at each position, averaged over layers."""
    flow = model.flow

    def apply_and_measure(x: State, layer: tuple[Any, Array]) -> tuple[State, PerPosition]:
        """Apply one layer, and measure its attention's cone mass."""
        return flow.transition(layer, x, grid), cone_mass(attention_of(layer[0]), x, grid)

    return flow.scan(apply_and_measure, model.embed(ids))[1].mean(axis=0)


@filter_jit
def _reduce_context(
    parts: ContextParts, regions: Regions, shares: Float[Array | np.ndarray, "cells length"] | None
) -> tuple[dict[str, Array], PerPosition]:
    """Reduce a context's parts to what is averaged over contexts, and its tokens' energies."""

    def on_common_grid(profiles: Float[Array, "*parts length"]) -> Float[Array, "*parts cells"]:
        """Average profiles over the cells that all contexts share."""
        return profiles if shares is None else profiles @ shares.T

    vectors = parts.vectors
    energy = squares(vectors.sum(axis=0))
    measurement = {
        "energy": on_common_grid(energy),
        "channel_energies": on_common_grid(squares(vectors)),
        "relative_energies": on_common_grid(relative_energies(vectors, parts.state, regions.grid)),
        "hop_energies": on_common_grid(parts.hop_energies),
        "head_energies": parts.head_energies,
        "products": regional_channels(vectors[None], regions).products[0],
        "terminal": regions.grid.weights @ squares(vectors[RESIDUAL]),
    }
    return measurement, energy


@filter_jit
def _stack(trees: Sequence[Any]) -> Any:
    """Stack the leaves of trees of one structure."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@cached_jit
def _average(measurements: dict[str, Array], regions: Regions) -> dict[str, Any]:
    """Average over contexts what `_reduce_context` measured, as the fields of an `Explanation`."""
    energies = measurements["energy"]
    products = measurements["products"]
    terminal = products[:, :, RESIDUAL, RESIDUAL]
    contrasts = terminal[:, RIGHT] - terminal[:, MIDDLE]
    sizes = measurements["terminal"]
    contrast = contrasts.mean() / sizes.mean()
    # The error of a ratio of means, of which both vary with the contexts.
    error = sample_mean((contrasts - contrast * sizes) / sizes.mean()).error
    means = {name: measurements[name].mean(axis=0) for name in AVERAGED}
    return means | {
        "influence": Influence.from_energies(energies, regions, keep_examples=True),
        "regional": RegionalChannels(products),
        "terminal_contrast": Estimate(contrast, error),
    }


def _by_name(names: tuple[str, ...], values: list[Any]) -> dict[str, Any]:
    """Return values under their names."""
    return dict(zip(names, values, strict=True))


def explanation_table(result: Explanation) -> str:
    """Lay out an explanation: density, channels, hops, contrasts and certificates."""
    influence = result.influence
    without_queries = result.without_queries
    regional = result.regional
    contrast = result.terminal_contrast
    error = f" ± {float(contrast.error):.3f}" if math.isfinite(contrast.error) else ""
    hops = result.regional_hop_energies
    strengths = boundary_strengths(regional, influence.regions)
    rows = {
        **density_rows(influence, without_queries),
        **{f"{name} energy": regional.energies[:, a] for a, name in enumerate(CHANNELS)},
        "cross terms": regional.cross_terms,
        **{f"energy of {name}": hops[:, r] for r, name in enumerate(HOPS)},
    }
    lines = [
        *regional_lines(f"at depth {result.depth}", rows),
        *index_lines(influence, without_queries),
        f"boundary strengths: primacy {float(strengths.primacy):.4g}, "
        f"recency {float(strengths.recency):.4g}",
        "right-minus-middle contrast of the terminal covector, over its mean: "
        f"{float(contrast.value):+.3f}{error}",
        certificate_table(result.certificates),
    ]
    return "\n".join(lines)
