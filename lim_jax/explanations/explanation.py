r"""Why a network uses the positions that it uses: density, channels and certificates of a loss.

Density, channels and certificates of a `CausalLM` on contexts, under query weights that say
where the loss asks; and its cone mass, which is the network's alone. At the input or at a later
depth: where early layers change the scale of the state, the channels of the input say little else.
"""

from collections.abc import Callable, Iterable
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
    require_name,
)
from lim_jax.adjoint.certificate import Certificate, certificate_table
from lim_jax.adjoint.cone import cone_mass
from lim_jax.adjoint.criteria import right_biased_queries
from lim_jax.adjoint.deficits import (
    REGIONS,
    bootstrap_bounds,
    double_deficit,
    exact_characterisation,
)
from lim_jax.adjoint.krylov import NormBounds
from lim_jax.adjoint.ledger import (
    CHANNELS,
    RegionalChannels,
    boundary_strengths,
    regional_channels,
    relative_energies,
)
from lim_jax.adjoint.queries import readout_residual_energies
from lim_jax.adjoint.residual import amplification
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import (
    HOPS,
    ContextParts,
    asked_of_windows,
    counted_depth,
    parts_of_ids,
)
from lim_jax.explanations.certificates import (
    Adjoints,
    Judged,
    primacy_of_the_cone,
    survival_of_recency,
)
from lim_jax.explanations.tables import density_rows, index_lines, regional_lines
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.grid.partition import Regions, regional_averages, require_regions
from lim_jax.models.causal import CausalLM, Queries
from lim_jax.network.slots import State
from lim_jax.probes import Estimate, sample_mean

Scalar = Float[Array, ""]
Profile = Float[Array, " length"]
Windows = Int[Array, "examples tokens"]


class Explanation(NamedTuple):
    r"""Which positions of the state at depth k matter to a model under a loss, and why.

    Attributes
    ----------
    depth
        k: the state is :math:`X_k`, its covector :math:`P_k`, and the layers are those from k on.
    influence
        The density, its errors and indices, with the energies of every context.
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
    query_weights: Float[Array, "*examples length"],
    regions: Regions,
    *,
    key: Key[Array, ""],
    depth: int = 0,
    terminal_loss: Callable[[CausalLM, State, Any], Scalar] = CausalLM.terminal_loss,
    certificates: Judged = "deciding",
    progress: Callable[[list[int]], Iterable[int]] = iter,
) -> Explanation:
    """Measure the density, channels, hops, heads and certificates of a model on contexts.

    Some two gradients' worth for each context, but for certificates: where a criterion cannot hold
    it is told by less than all of its numbers, as `certificates` says.

    Not for use inside `jax.jit`: certificates judge concrete numbers.

    Parameters
    ----------
    model
        Any: from `models.load`, or `models.byte_model`.
    windows
        Contexts of L ids with the id after each.
    query_weights
        Where the loss asks: `loss.teacher_forcing`, `loss.last_token`, or others; of all contexts,
        or a row for each.
    regions
        On the token grid of L, in the model's precision: ``token_grid(L, model.embedding.dtype)``.
    key
        For the norms' random starts and the bootstrap.
    depth
        Of the state whose positions are judged: 0 is the input, k that after k layers.
    terminal_loss
        `CausalLM.terminal_loss` or `CausalLM.terminal_margin_loss`. Right-biased queries, a
        criterion of the cross-entropy, are judged under the first alone, and where all contexts are
        asked alike.
    certificates
        ``"deciding"`` stops where a criterion is seen to be vacuous; ``"all"`` computes its numbers
        all the same, which takes many times as long.

    Raises
    ------
    ValueError
        Where the model is no `CausalLM`, the windows are no ids of L + 1 columns, the query
        weights are not of L positions, `depth` is no whole number from 0 to the last layer's, or
        `certificates` is another word.
    """
    _require_case(model, windows, regions)
    each = len(np.shape(query_weights)) == 2
    count, length = len(windows), regions.grid.size
    axes = "examples length" if each else "length"
    require_floats(query_weights, "query_weights", axes, length=length, examples=count)
    require_key(key)
    require_name(certificates, ("deciding", "all"), "certificates", "See explain.")
    depth = counted_depth(depth, model.flow)
    norms_key, bootstrap_key = jax.random.split(key)
    rest = regions_without_queries(query_weights, regions)
    asked = asked_of_windows(model, windows, query_weights)
    each_found = [
        _measure(model, windows[at, :-1], _one_of(asked, at), regions.grid, depth, terminal_loss)
        for at in progress(list(range(len(windows))))
    ]
    found = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each_found)
    averaged = _averaged(found, regions, rest)
    regional, adjoints = averaged["regional"], found.adjoints
    of_network = model, adjoints, regions, depth
    judges = (
        lambda: _of_queries(model, windows, query_weights, found, regions, terminal_loss),
        lambda: (survival_of_recency(*of_network, norms_key, certificates),),
        lambda: (primacy_of_the_cone(*of_network, terminal_loss, certificates),),
        lambda: (double_deficit(regional, bootstrap_bounds(regional, key=bootstrap_key)),),
        lambda: (exact_characterisation(regional),),
    )
    numbers = progress(list(range(len(judges))))
    judged = tuple(one for number in numbers for one in judges[number]())
    return Explanation(depth, certificates=judged, **averaged)


def _of_queries(
    model: CausalLM,
    windows: Windows,
    query_weights: Float[Array, "*examples length"],
    found: "_Measured",
    regions: Regions,
    terminal_loss: Any,
) -> tuple[Certificate, ...]:
    """Right-biased queries, where one law of them is asked of all contexts by cross-entropy."""
    rows = np.atleast_2d(np.asarray(query_weights))
    if terminal_loss is not CausalLM.terminal_loss or (rows != rows[0]).any():
        return ()
    weights = jax.device_put(rows[0].astype(model.embedding.dtype))
    energies = _residual_energies(model, found.last, windows[:, 1:], regions)
    terminal = found.adjoints.vectors[:, 0]
    return (right_biased_queries(weights, energies, terminal, regions),)


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


def regions_without_queries(
    query_weights: Float[Array, "*examples length"], regions: Regions
) -> Regions | None:
    """The regions without the positions that are asked; None where one would be left empty.

    Of weights of several contexts, without those that are asked in any.

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
    several = getattr(query_weights, "ndim", 1) == 2
    axes = "examples length" if several else "length"
    require_on_grid(query_weights, regions.grid, "query_weights", axes)
    asked = (np.atleast_2d(query_weights) > 0).any(axis=0)
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
    """What is computed under jit, of a context; stacked, of all."""

    adjoints: Adjoints
    last: Float[Array, "*examples length width"]
    relative_energies: Float[Array, "*examples 3 length"]
    hop_energies: Float[Array, "*examples hops length"]
    head_energies: Float[Array, "*examples layers heads"]


def _one_of(asked: Queries, at: int) -> Queries:
    return jax.tree.map(lambda leaf: leaf[at], asked)


def _measure(
    model: CausalLM,
    ids: Int[Array, " length"],
    asked: Queries,
    grid: Grid,
    depth: int,
    terminal_loss: Callable[[CausalLM, State, Any], Scalar],
) -> _Measured:
    parts = parts_of_ids(model, ids, asked, depth, terminal_loss)
    products, relative = _of_parts(parts, grid, depth)
    adjoints = Adjoints(ids, asked, parts.vectors, products, parts.met)
    return _Measured(adjoints, parts.last, relative, parts.hop_energies, parts.head_energies)


@eqx.filter_jit
def _of_parts(
    parts: ContextParts, grid: Grid, depth: int
) -> tuple[Float[Array, " layers"], Float[Array, "3 length"]]:
    """The layers' amplification from below, and the channels' relative energies."""
    growths = parts.growths[depth:]
    below = amplification(NormBounds(growths, growths)).products
    return below, relative_energies(parts.vectors, parts.state, grid)


@eqx.filter_jit
def _residual_energies(
    model: CausalLM,
    last: Float[Array, "examples length width"],
    targets: Int[Array, "examples length"],
    regions: Regions,
) -> Profile:
    return readout_residual_energies(model.readout, last, targets, regions)


@eqx.filter_jit
def _averaged(found: _Measured, regions: Regions, rest: Regions | None) -> dict[str, Any]:
    """The parts of an `Explanation` that are averages over examples, by name."""
    vectors = found.adjoints.vectors
    regional = regional_channels(vectors, regions)
    energies = (vectors.sum(axis=1) ** 2).sum(axis=2)
    contrasts = regional.products[:, 2, 0, 0] - regional.products[:, 1, 0, 0]
    scale = regions.grid.weights @ (vectors[:, 0] ** 2).sum(axis=2).mean(axis=0)
    return {
        "influence": Influence.from_energies(energies, regions, keep_examples=True),
        "without_queries": None if rest is None else Influence.from_energies(energies, rest),
        "channel_energies": (vectors**2).sum(axis=3).mean(axis=0),
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
        **density_rows(found, rest),
        **{f"{name} energy": regional.energies[:, a] for a, name in enumerate(CHANNELS)},
        "cross terms": regional.cross_terms,
        **{f"energy of {name}": hops[:, r] for r, name in enumerate(HOPS)},
    }
    lines = [
        *regional_lines(f"at depth {result.depth}", rows),
        *index_lines(found, rest),
        f"boundary strengths: primacy {float(strengths.primacy):.4g}, "
        f"recency {float(strengths.recency):.4g}",
        "right-minus-middle contrast of the terminal covector, over its mean: "
        f"{float(contrast.value):+.3f} ± {float(contrast.error):.3f}",
        certificate_table(result.certificates),
    ]
    return "\n".join(lines)
