r"""Why a network uses the positions that it uses: density, channels and certificates of a loss.

Density, channels and certificates of a `CausalLM` on contexts, under query weights that say
where the loss asks; and its cone mass, which is the network's alone. At the input or at a later
depth: where early layers change the scale of the state, the channels of the input say little else.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from lim_jax._checks import (
    ARRAYS,
    described,
    require,
    require_floats,
    require_key,
    require_kind,
    require_known,
)
from lim_jax.adjoint.certificate import Certificate, certificate_table
from lim_jax.adjoint.cone import JointCone, cone_mass, joint_cone
from lim_jax.adjoint.criteria import primacy_noncancellation, recency_survival, right_biased_queries
from lim_jax.adjoint.deficits import (
    REGIONS,
    bootstrap_bounds,
    double_deficit,
    exact_characterisation,
)
from lim_jax.adjoint.ledger import (
    CHANNELS,
    RegionalChannels,
    boundary_strengths,
    regional_channels,
    relative_energies,
)
from lim_jax.adjoint.queries import readout_residual_energies
from lim_jax.adjoint.residual import amplification, interaction_norms
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import HOPS, counted_depth, parts_of_context
from lim_jax.grid.measure import require_on_grid
from lim_jax.grid.partition import Regions, regional_averages, require_regions
from lim_jax.models.causal import CausalLM
from lim_jax.network.slots import State
from lim_jax.probes import Estimate, sample_mean

Profile = Float[Array, " length"]
Windows = Int[Array, "examples tokens"]


MEASURED = "Measure it with lim.influence."


class Explanation(NamedTuple):
    r"""Which positions of the state at depth k matter to a model under a loss, and why.

    Attributes
    ----------
    depth
        k: the state is :math:`X_k`, its covector :math:`P_k`, and the layers are those from k on.
    influence
        The density, its errors and indices.
    without_queries
        The same with the positions left out that the loss asks from, which hold most of the
        influence of a last-token loss; None where it asks from all of a region.
    channel_energies
        :math:`\mathbb E\|P_\alpha(p)\|^2` of the residual (`eq:residual-influence-component`), the
        cone and the local channel at depth k.
    relative_energies
        The same relative to the state's scale (`ledger.relative_energies`), to be compared between
        depths.
    hop_energies
        :math:`\mathbb E\|P_k^{(r)}(p)\|^2` by attention hops (`hops.attention_hops`), in the order
        of `account.HOPS`. Energies of parts: like the channels' they need not sum to that of the
        sum.
    regional
        The channels' products over the regions.
    head_energies
        :math:`\int \mathbb E\|P\|^2` of what every head of every layer adds to the cone channel.
    terminal_contrast
        :math:`\mathsf R_{\rm res}` over :math:`\mathbb E\|P_T\|^2`'s mean, with the standard
        error over examples of its numerator.
    certificates
        The paper's criteria, of the flow from depth k on.
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

    def __str__(self) -> str:
        """What `explanation_table` says of it."""
        return explanation_table(self)

    @property
    def regional_hop_energies(self) -> Float[Array, "3 hops"]:
        """`hop_energies` averaged over the left, the middle and the right."""
        return regional_averages(self.hop_energies.T, self.influence.regions)

    def record(self) -> dict[str, Any]:
        """Everything as plain numbers and strings."""
        regions, energies, rest = self.influence.regions, self.regional, self.without_queries
        hops = self.regional_hop_energies.tolist()
        strengths = boundary_strengths(energies, regions)
        by_region = {
            region: {
                **_named(CHANNELS, energies.energies[b].tolist()),
                "cross terms": float(energies.cross_terms[b]),
                "total": float(energies.totals[b]),
            }
            for b, region in enumerate(REGIONS)
        }
        return {
            "depth": self.depth,
            **self.influence.record(),
            "without_queries": None if rest is None else rest.record(),
            "channel_energies": _named(CHANNELS, self.channel_energies.tolist()),
            "relative_energies": _named(CHANNELS, self.relative_energies.tolist()),
            "hop_energies": _named(HOPS, self.hop_energies.tolist()),
            "regional_hop_energies": _named(REGIONS, [_named(HOPS, found) for found in hops]),
            "regional_energies": by_region,
            "boundary_strengths": _numbers(strengths),
            "head_energies": self.head_energies.tolist(),
            "terminal_contrast": _numbers(self.terminal_contrast),
            "certificates": [certificate.record() for certificate in self.certificates],
        }


def explain(
    model: CausalLM,
    windows: Windows,
    query_weights: Profile,
    regions: Regions,
    *,
    key: Key[Array, ""],
    depth: int = 0,
) -> Explanation:
    """Measure the density, channels and certificates of a model on contexts.

    Not for use inside `jax.jit`: certificates judge concrete numbers.

    Parameters
    ----------
    model
        Any: from `models.load`, or `models.byte_model`.
    windows
        Contexts of L ids with the id after each.
    query_weights
        Where the loss asks: `loss.teacher_forcing`, `loss.last_token`, or others.
    regions
        On the token grid of L, in the model's precision: ``token_grid(L, model.embedding.dtype)``.
    key
        For the norms' random starts and the bootstrap.
    depth
        Of the state whose positions are judged: 0 is the input, k that after k layers.

    Raises
    ------
    ValueError
        Where the model is no `CausalLM`, the windows are no ids of L + 1 columns, the query
        weights are not of L positions, or `depth` is no whole number from 0 to the last layer's.
    """
    _require_case(model, windows, regions)
    require_floats(query_weights, "query_weights", "length", length=regions.grid.size)
    require_key(key)
    depth = counted_depth(depth, model.flow)
    query_weights = query_weights.astype(model.embedding.dtype)
    norms_key, bootstrap_key = jax.random.split(key)
    rest = regions_without_queries(query_weights, regions)
    found = _measure(model, windows, query_weights, regions, depth, norms_key)
    averaged = _averaged(found, regions, rest)
    regional = averaged["regional"]
    bounds = bootstrap_bounds(regional, key=bootstrap_key)
    certificates = (
        right_biased_queries(query_weights, found.residual_energies, found.terminal, regions),
        recency_survival(found.terminal, found.initial, found.amplification, regions),
        primacy_noncancellation(found.cone, regions),
        double_deficit(regional, bounds),
        exact_characterisation(regional),
    )
    return Explanation(depth, certificates=certificates, **averaged)


def _require_case(model: Any, windows: Any, regions: Any) -> None:
    """Refuse what is no model, no ids with the one after each, or no regions."""
    require_kind(model, CausalLM, "model", "Take models.load(folder), or models.byte_model.")
    require_regions(regions)
    length = regions.grid.size
    whole = isinstance(windows, ARRAYS) and jnp.issubdtype(windows.dtype, jnp.integer)
    require(
        whole and windows.ndim == 2 and windows.shape[1] == length + 1 and len(windows) > 0,
        "windows",
        got=described(windows),
        expected=f"ids, whole numbers of shape (examples, {length + 1})",
        cure="A context has the id after it too: models.sample_windows(ids, length, count).",
    )


def regions_without_queries(query_weights: Profile, regions: Regions) -> Regions | None:
    """The regions without the positions that are asked; None where one would be left empty.

    Examples
    --------
    >>> from lim_jax.grid import boundary_regions, token_grid
    >>> regions = boundary_regions(token_grid(4), 0.4)
    >>> found = regions_without_queries(jax.numpy.array([0.0, 0.0, 0.0, 1.0]), regions)
    >>> found is not None and found.left_out
    (3,)
    >>> regions_without_queries(jax.numpy.ones(4) / 4, regions) is None
    True
    """
    require_regions(regions)
    require_on_grid(query_weights, regions.grid, "query_weights", "length")
    asked = np.asarray(query_weights) > 0
    whole = (np.asarray(regions.weights)[:, ~asked].sum(axis=1) == 0).any()
    return None if whole else regions.without(np.flatnonzero(asked).tolist())


@eqx.filter_jit
def average_cone_mass(model: CausalLM, windows: Windows, regions: Regions) -> Estimate:
    """Average the exact cone mass over layers and contexts, in the operator norm, as a density.

    It is of the network alone: no loss enters. Standard errors are over contexts.

    Parameters
    ----------
    model, windows, regions
        As in `explain`.
    """
    _require_case(model, windows, regions)
    flow, grid = model.flow, regions.grid

    def of_layer(x: State, layer: tuple[Any, Array]) -> tuple[State, Profile]:
        return flow.transition(layer, x, grid), cone_mass(layer[0].attention, x, grid)

    def mass(window: Int[Array, " tokens"]) -> Profile:
        return flow.scan(of_layer, model.embed(window[:-1]))[1].mean(axis=0)

    return sample_mean(jax.lax.map(mass, windows))


class _Measured(NamedTuple):
    """What is computed under jit, with a leading axis of examples except in the last two."""

    vectors: Float[Array, "examples 3 length width"]
    initial: Float[Array, "examples length width"]
    terminal: Float[Array, "examples length width"]
    amplification: Float[Array, "examples layers"]
    relative_energies: Float[Array, "examples 3 length"]
    hop_energies: Float[Array, "examples hops length"]
    head_energies: Float[Array, "examples layers heads"]
    cone: JointCone
    residual_energies: Profile


@eqx.filter_jit
def _measure(
    model: CausalLM,
    windows: Windows,
    query_weights: Profile,
    regions: Regions,
    depth: int,
    key: Key[Array, ""],
) -> _Measured:
    grid, flow = regions.grid, model.flow

    def one(window):
        example = model.example(window, query_weights)
        parts = parts_of_context(flow, model.terminal_loss, example, grid, depth)
        ledger, states = parts.ledger, parts.ledger.states
        vectors = ledger.at_depth(depth)
        norms = jax.tree.map(
            lambda leaf: leaf[depth:], interaction_norms(flow, example[0], grid, key=key)
        )
        measured = (
            vectors,
            ledger.covectors[depth],
            ledger.covectors[-1],
            amplification(norms).products,
            relative_energies(vectors, states[depth], grid),
            parts.hop_energies,
            parts.head_energies,
        )
        return measured, states[-1], parts.sites

    measured, last, sites = jax.lax.map(one, windows)
    energies = readout_residual_energies(model.readout, last, windows[:, 1:], regions)
    return _Measured(*measured, cone=joint_cone(sites, grid), residual_energies=energies)


@eqx.filter_jit
def _averaged(found: _Measured, regions: Regions, rest: Regions | None) -> dict[str, Any]:
    """The parts of an `Explanation` that are averages over examples, by name."""
    regional = regional_channels(found.vectors, regions)
    energies = (found.initial**2).sum(axis=2)
    contrasts = regional.products[:, 2, 0, 0] - regional.products[:, 1, 0, 0]
    scale = regions.grid.weights @ (found.terminal**2).sum(axis=2).mean(axis=0)
    return {
        "influence": Influence.from_energies(energies, regions),
        "without_queries": None if rest is None else Influence.from_energies(energies, rest),
        "channel_energies": (found.vectors**2).sum(axis=3).mean(axis=0),
        "relative_energies": found.relative_energies.mean(axis=0),
        "hop_energies": found.hop_energies.mean(axis=0),
        "regional": regional,
        "head_energies": found.head_energies.mean(axis=0),
        "terminal_contrast": sample_mean(contrasts / scale),
    }


def _named(names: tuple[str, ...], values: list[Any]) -> dict[str, Any]:
    return dict(zip(names, values, strict=True))


def _numbers(values: Any) -> dict[str, float]:
    return {name: float(value) for name, value in values._asdict().items()}


def explanation_table(result: Explanation) -> str:
    """Lay out an explanation: density, channels, hops, contrasts and certificates."""
    require_kind(result, Explanation, "result", "Take it from explain.")
    found, rest = result.influence, result.without_queries
    regional, contrast = result.regional, result.terminal_contrast
    hops = result.regional_hop_energies
    strengths = boundary_strengths(regional, found.regions)
    rows = {
        **_density_rows(found, rest),
        **{f"{name} energy": regional.energies[:, a] for a, name in enumerate(CHANNELS)},
        "cross terms": regional.cross_terms,
        **{f"energy of {name}": hops[:, r] for r, name in enumerate(HOPS)},
    }
    lines = [
        *_regional_lines(f"at depth {result.depth}", rows),
        *_index_lines(found, rest),
        f"boundary strengths: primacy {float(strengths.primacy):.4g}, "
        f"recency {float(strengths.recency):.4g}",
        "right-minus-middle contrast of the terminal covector, over its mean: "
        f"{float(contrast.value):+.3f} ± {float(contrast.error):.3f}",
        certificate_table(result.certificates),
    ]
    return "\n".join(lines)


def influence_table(found: Influence, rest: Influence | None = None) -> str:
    """Lay out a density's regional averages and indices, and those without the queried tokens.

    Parameters
    ----------
    found
        The influence.
    rest
        The same without the tokens that the loss asks from, which hold most of it where they are
        few; None where it asks everywhere.

    Examples
    --------
    >>> from lim_jax.grid import boundary_regions, token_grid
    >>> energies = jax.numpy.array([[2.0, 1.0, 2.0], [2.0, 1.4, 2.0]])
    >>> found = Influence.from_energies(energies, boundary_regions(token_grid(3), "1/3"))
    >>> influence_table(found).splitlines()[-1][20:]
    'symmetric contrast +0.250: two errors within 10 % would take some 6 more contexts'
    """
    require_kind(found, Influence, "found", MEASURED)
    if rest is not None:
        require_kind(rest, Influence, "rest", MEASURED)
    rows = _density_rows(found, rest)
    return "\n".join([*_regional_lines("", rows), *_index_lines(found, rest)])


def contexts_needed(found: Influence, width: float = 0.1) -> int | None:
    r"""How many contexts make LIM known to `width` to either side, as two standard errors.

    That of LIM where it is within one of zero, a share by which the middle is below the boundary;
    else a part of it. By the error of these contexts, which falls like the root of their number.

    Parameters
    ----------
    found
        The influence of some contexts.
    width
        Half of the interval.

    Returns
    -------
    count
        At least two. None where one context alone was measured, which has no error.

    Examples
    --------
    >>> from lim_jax.grid import boundary_regions, token_grid
    >>> energies = jax.numpy.array([[2.0, 1.0, 2.0], [2.0, 1.4, 2.0]])
    >>> found = Influence.from_energies(energies, boundary_regions(token_grid(3), "1/3"))
    >>> round(float(found.index_errors().lim), 3), contexts_needed(found)
    (0.1, 8)
    """
    require_kind(found, Influence, "found", MEASURED)
    require_known(width, "width", expected="a positive finite number", cure="Try 0.1.")
    error, lim = float(found.index_errors().lim), float(found.indices().lim)
    if not math.isfinite(error):
        return None
    share = 2 * error / (width * max(1.0, abs(lim)))
    # A ratio that is whole but for rounding is whole.
    return max(2, math.ceil(float(found.count) * share**2 * (1 - 1e-9)))


def _density_rows(found: Influence, rest: Influence | None) -> dict[str, Any]:
    without = {} if rest is None else _averages("  queries left out", rest)
    return {**_averages("influence density", found), **without}


def _averages(name: str, found: Influence) -> dict[str, Any]:
    """Two rows: the regional averages of a density, and their standard errors."""
    return {name: found.indices()[:3], f"{name}, error": found.index_errors()[:3]}


def _regional_lines(title: str, rows: dict[str, Any]) -> list[str]:
    """A number for each region under its name."""
    lines = [f"{title:26s} " + " ".join(f"{region:>10s}" for region in REGIONS)]
    for name, values in rows.items():
        lines.append(f"{name:26s} " + " ".join(f"{float(value):10.4g}" for value in values))
    return lines


def _index_lines(found: Influence, rest: Influence | None) -> list[str]:
    if rest is None:
        return [_index_line(found)]
    share = 1 - float(rest.total / found.total)
    return [
        _index_line(found),
        f"The queried tokens hold {share:.1%} of the influence.",
        f"Without: {_index_line(rest)}",
    ]


def _index_line(found: Influence) -> str:
    indices, errors, count = found.indices(), found.index_errors(), int(found.count)
    needed = contexts_needed(found)
    enough = needed is not None and needed <= count
    more = "" if enough else ": one context has no error" if needed is None else (
        f": two errors within 10 % would take some {needed - count} more contexts"
    )  # fmt: skip
    return (
        f"LIM {float(indices.lim):+.3f} ± {float(errors.lim):.3f}, "
        f"symmetric contrast {float(indices.symmetric_contrast):+.3f}{more}"
    )
