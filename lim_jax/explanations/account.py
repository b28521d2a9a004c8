"""What every token of one context does: its energy, by channel, by hops and by depth."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import as_int, require_floats, require_kind, require_known
from lim_jax._jit import cached_jit, filter_jit
from lim_jax.adjoint.hops import pull_back_hops
from lim_jax.adjoint.sites import most_heads, require_attention
from lim_jax.adjoint.stages import SparseRows, pull_back_stages
from lim_jax.density.adjoints import Loss, check_finite
from lim_jax.grid.cells import token_grid
from lim_jax.grid.integrals import inner
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.models.causal import CausalLM, LossOfLogits, Targets, as_loss_of_logits
from lim_jax.models.ids import require_window
from lim_jax.models.padding import padded_length, padded_size
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.kv_cache import has_kv_cache
from lim_jax.network.slots import State

PerPosition = Float[Array, " length"]

# Pulling back single rows reads whole rows of attention, so it pays only where at most one row in
# FEW asks.
FEW = 8
HOPS = ("0 hops", "1 hop", "2 hops", "3 or more hops")


class TokenBreakdown(NamedTuple):
    r"""Energies of one context, by token: squared norms of covectors, which are densities.

    Energies of parts need not sum to the energy of the sum.

    Attributes
    ----------
    loss
        The loss of the context, in nats.
    query_weights
        Where the loss asks: one weight for each token.
    channels
        The energies of the channels, in the order of `ledger.CHANNELS`, at depth k.
    hops
        The energies by attention hops, in the order of `HOPS`, at depth k.
    heads
        The integrals of the energies of what each head adds to the cone, of the layers from k on.
    by_depth
        :math:`\|P_j(p)\|^2` at every depth j, the last :math:`P_T`'s.
    """

    loss: Scalar
    query_weights: PerPosition
    channels: Float[Array, "3 length"]
    hops: Float[Array, "hops length"]
    heads: Float[Array, "layers heads"]
    by_depth: Float[Array, "times length"]

    @property
    def depth(self) -> int:
        """The depth k of the account."""
        return self.by_depth.shape[0] - 1 - self.heads.shape[0]

    @property
    def energy(self) -> Float[Array | np.ndarray, " length"]:
        r""":math:`\|P_k(p)\|^2` at the depth k of the account."""
        return self.by_depth[self.depth]


def account_of_context(
    model: CausalLM,
    window: Int[Array | np.ndarray, " tokens"],
    query_weights: Float[Array | np.ndarray, " length"],
    depth: int = 0,
    loss: Loss = CausalLM.loss,
    progress: Callable[[list], Iterable] = iter,
) -> TokenBreakdown:
    """Account for the influence of every token of one context.

    Compiled once for each padded length (`padding.padded_length`), precision and loss. Not for use
    inside a transformation of the window or the weights, whose numbers say how much is computed.

    Parameters
    ----------
    model
        The language model, of `models.load`, `models.open` or `byte_model`.
    window
        A context of L ids with the id after it, which is a target only.
    query_weights
        Where the loss asks, one weight for each of the L positions, of sum one:
        `loss.teacher_forcing`, `loss.last_token`, or others.
    depth
        The depth of the state whose tokens are judged: 0, the default, is the input, k that after k
        layers, up to the last layer's input.
    loss
        `CausalLM.loss`, the default, `CausalLM.margin_loss` or `CausalLM.own_margin_loss`.
    progress
        A wrapper of the list of layers, all there and all back, for example ``tqdm.tqdm``.

    Returns
    -------
    TokenBreakdown
        The energies of the context's tokens by channel, by hops and by depth, and those of heads.

    Raises
    ------
    ValueError
        If the window is no array of at least two ids, there is not a weight for each position, one
        of the two is traced, the depth is not that before a layer, or the loss is another.
    EquinoxRuntimeError
        If an id is outside the vocabulary, the weights do not sum to one, or the loss or an energy
        is not finite.

    Examples
    --------
    >>> from lim_jax.loss import teacher_forcing
    >>> from lim_jax.models.small_models import byte_model
    >>> model = byte_model(5, width=4, heads=2, depth=3, key=jax.random.key(0))
    >>> window = jnp.array(list(b"hello!"))
    >>> account = account_of_context(model, window, teacher_forcing(5), depth=1)
    >>> account.energy.shape, account.hops.shape, account.heads.shape, account.depth
    ((5,), (4, 5), (2, 2), 1)
    """
    require_kind(model, CausalLM, "model", "Take models.load(folder), or models.byte_model.")
    require_window(window, "window")
    length = window.shape[0] - 1
    require_floats(query_weights, "query_weights", "length", length=length)
    require_known(window, "window")
    require_known(query_weights, "query_weights")
    depth = as_depth(depth, model.flow)
    loss = as_loss_of_logits(loss)
    size = padded_size(model, length)
    targets = targets_of_windows(model, np.asarray(window)[None], query_weights, size)
    ids = jax.device_put(np.pad(np.asarray(window)[:-1], (0, size - length)))
    target = jax.tree.map(lambda leaf: leaf[0], targets)
    parts = parts_of_ids(model, ids, target, depth, loss, progress)
    weights = jnp.asarray(query_weights).astype(model.embedding.dtype)
    channels, hops, heads, by_depth = _without_padding(parts, length)
    account = TokenBreakdown(parts.loss, weights, channels, hops, heads, by_depth)
    return check_finite(account, (), parts.loss[None], by_depth)


def targets_of_windows(
    model: CausalLM,
    windows: Int[Array | np.ndarray, "examples tokens"] | Sequence[Any],
    query_weights: Float[Array | np.ndarray, "*examples length"] | Sequence[Any],
    padded: int | None = None,
) -> Targets:
    """Return the targets of windows, only at positions whose query weights are not zero."""
    targets = [np.asarray(window)[1:] for window in windows]
    shared = getattr(query_weights, "ndim", 2) == 1
    weights = [
        np.asarray(query_weights if shared else query_weights[n]) for n in range(len(targets))
    ]
    positions = [np.flatnonzero(row) for row in weights]
    most = max(map(len, targets)) if padded is None else padded
    size = min(most, padded_length(max(1, *map(len, positions))))

    def at_queries(rows: Sequence[np.ndarray]) -> np.ndarray:
        """Return the rows' entries at these positions, padded with zeros to one size."""
        return np.stack(
            [np.pad(row[at], (0, size - len(at))) for row, at in zip(rows, positions, strict=True)]
        )

    every = [np.arange(len(row)) for row in targets]
    query_weights_there = at_queries(weights).astype(model.embedding.dtype)
    return Targets(*jax.device_put((at_queries(targets), query_weights_there, at_queries(every))))


def as_depth(depth: Any, flow: ResidualFlow) -> int:
    """Return the depth as an int; raise ValueError unless it is that before one of the layers."""
    last = flow.depth - 1
    return as_int(
        depth,
        "depth",
        least=0,
        most=last,
        expected=f"a whole number from 0 to {last}, the last layer's depth",
    )


class ContextParts(NamedTuple):
    """What one context's adjoint is made of at depth k; energies are as in `TokenBreakdown`."""

    loss: Scalar
    state: State  # X_k
    last: State  # X_M
    vectors: Float[Array, "3 length width"]  # of `ledger.CHANNELS`; their sum is P_k
    hop_energies: Float[Array, "hops length"]
    head_energies: Float[Array, "layers heads"]
    by_depth: Float[Array, "times length"]
    growths: Float[Array, " depth"]  # |P_j - P_{j+1}| / |P_{j+1}| of every layer j
    attention_input: tuple[State, State]  # the state and the covector there, in layer k


class _Sweep(NamedTuple):
    """What goes back through the layers: the covector, and from depth k on its parts."""

    covector: State
    hops: Float[Array, "hops length width"]
    few: SparseRows | None
    cone: State
    local: State
    attention_input: tuple[State, State]


def parts_of_context(
    flow: ResidualFlow,
    terminal_loss: Callable[[State, Any], Scalar],
    example: tuple[State, Any],
    grid: Grid,
    depth: int,
    progress: Callable[[list], Iterable] = iter,
    positions: Int[Array, " places"] | None = None,
) -> ContextParts:
    """Split one context's adjoint into its parts, in one sweep back with a program per layer.

    `positions`, if given, are the only ones where the covector without hops is not zero, which
    saves a fourth.
    """
    require_attention(flow)
    x, y = example
    numbers = list(range(flow.depth))
    states = [x]
    back = []
    steps = iter(progress([*numbers, *reversed(numbers)]))
    # Each is waited for: else all are begun at once, and progress is told of none that ends.
    for number in islice(steps, flow.depth):
        ahead = _ahead(flow, jnp.asarray(number), states[-1], grid)
        states.append(jax.block_until_ready(ahead))
    loss, sweep = _begin_sweep(terminal_loss, states[-1], y, grid, positions)
    terminal = sweep.covector
    for number in steps:
        separate = number >= depth
        at = (jnp.asarray(number), states[number])
        sweep, layer_numbers = jax.block_until_ready(_back(flow, sweep, *at, grid, separate))
        back.append(layer_numbers)
    fields = _collect_parts(terminal, sweep, back, depth)
    return ContextParts(loss, states[depth], states[-1], *fields, sweep.attention_input)


@filter_jit
def _collect_parts(
    terminal: State, sweep: _Sweep, back: list, depth: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Return the fields of `ContextParts` from `vectors` to `growths`.

    `back` has what each layer gave, the last layer first.
    """
    energies, heads, growths = (jnp.stack(layers[::-1]) for layers in zip(*back, strict=True))
    hops = sweep.hops
    few = sweep.few
    hops = hops if few is None else jnp.concatenate([few.dense(len(terminal))[None], hops])
    vectors = jnp.stack([terminal, sweep.cone, sweep.local])
    by_depth = jnp.concatenate([energies, squares(terminal)[None]])
    return vectors, squares(hops), heads[depth:], by_depth, growths


@filter_jit
def _ahead(flow: ResidualFlow, number: Int[Array, ""], x: State, grid: Grid) -> State:
    """Return the state after the layer of this number."""
    return flow.at_layer(lambda layer: flow.transition(layer, x, grid), number, x.dtype)


@cached_jit
def _begin_sweep(
    terminal_loss: Callable[[State, Any], Scalar],
    last: State,
    y: Any,
    grid: Grid,
    positions: Int[Array, " places"] | None,
) -> tuple[Scalar, _Sweep]:
    """Compute the terminal loss, and the sweep that begins with its covector."""
    loss, gradient = jax.value_and_grad(terminal_loss)(last, y)
    terminal = gradient / grid.weights[:, None]
    still = jnp.zeros_like(gradient)
    hops = jnp.zeros((len(HOPS), *last.shape), terminal.dtype)
    if positions is None:
        return loss, _Sweep(terminal, hops.at[0].set(terminal), None, still, still, (still, still))
    # A position that is named twice has its row in shares.
    counts = jnp.zeros(len(last), terminal.dtype).at[positions].add(1)
    few = SparseRows(positions, terminal[positions] / counts[positions][:, None])
    return loss, _Sweep(terminal, hops[1:], few, still, still, (still, still))


@filter_jit
def _back(
    flow: ResidualFlow,
    sweep: _Sweep,
    number: Int[Array, ""],
    state: State,
    grid: Grid,
    separate: bool,
) -> tuple[_Sweep, tuple[PerPosition, Float[Array, " heads"], Scalar]]:
    """Pull a sweep back through a layer; return its energies, its heads' and its growth too."""
    before = sweep.covector
    pull = _pull_parts if separate else _pull_covector

    def back(layer: tuple[Any, Scalar]) -> tuple[_Sweep, Float[Array, " heads"]]:
        """Pull the sweep back through this layer."""
        return pull(flow, sweep, layer, state, grid)

    sweep, heads = flow.at_layer(back, number, state.dtype)
    sizes = [
        jnp.sqrt(inner(vectors, vectors, grid)) for vectors in (sweep.covector - before, before)
    ]
    growth = jnp.where(sizes[1] > 0, sizes[0] / jnp.where(sizes[1] > 0, sizes[1], 1), 0)
    return sweep, (squares(sweep.covector), heads, growth)


def _pull_parts(
    flow: ResidualFlow, sweep: _Sweep, layer: tuple[Any, Scalar], state: State, grid: Grid
) -> tuple[_Sweep, Float[Array, " heads"]]:
    """Pull a covector and its parts back through a layer, with the energy that each head adds."""
    hops, few, stages = pull_back_hops(flow, layer, state, sweep.hops, grid, sweep.few)
    cone = sum(stage.parts.kernel for stage in stages)
    local = sum(stage.parts.local for stage in stages)
    readers = [stage for stage in stages if stage.heads is not None]
    attention_input = (readers or stages)[0].state, (readers or stages)[0].covector
    energies = [squares(stage.heads) @ grid.weights for stage in readers if stage.heads is not None]
    heads = jnp.concatenate([*energies, jnp.zeros(most_heads(flow), state.dtype)])
    covector = sweep.covector + cone + local
    sweep_before = _Sweep(
        covector, hops, few, sweep.cone + cone, sweep.local + local, attention_input
    )
    return sweep_before, heads[: most_heads(flow)]


def _pull_covector(
    flow: ResidualFlow, sweep: _Sweep, layer: tuple[Any, Scalar], state: State, grid: Grid
) -> tuple[_Sweep, Float[Array, " heads"]]:
    """Pull the covector alone back through a layer, with zeros in place of heads' energies."""
    stages = pull_back_stages(flow, layer, state, sweep.covector, grid)
    change = sum(stage.parts.local + stage.parts.kernel for stage in stages)
    sweep_before = sweep._replace(covector=sweep.covector + change)
    return sweep_before, jnp.zeros(most_heads(flow), sweep.covector.dtype)


_embedded = cached_jit(CausalLM.embed)


def parts_of_ids(
    model: CausalLM,
    ids: Int[Array, " length"],
    targets: Targets,
    depth: int,
    loss: LossOfLogits,
    progress: Callable[[list], Iterable] = iter,
) -> ContextParts:
    """Split the adjoint of ids by `parts_of_context`, with targets of `targets_of_windows`."""
    grid = token_grid(ids.shape[0], model.embedding.dtype)
    example = (_embedded(model, ids), targets)
    terminal = jax.tree_util.Partial(loss.terminal, model)
    few = FEW * targets.targets.shape[0] <= ids.shape[0]
    positions = targets.positions if few and has_kv_cache(model.flow) else None
    return parts_of_context(model.flow, terminal, example, grid, depth, progress, positions)


@filter_jit
def _without_padding(parts: ContextParts, length: int) -> tuple[Array, Array, Array, Array]:
    """Return the energies of a context without its padding, as densities on its own grid."""
    # The padded grid's are densities of cells narrower than the context's own.
    share = length / parts.state.shape[0]
    channels, hops, by_depth = (
        share**2 * energies[:, :length]
        for energies in (squares(parts.vectors), parts.hop_energies, parts.by_depth)
    )
    return channels, hops, share * parts.head_energies, by_depth


def squares(vectors: Float[Array, "*parts width"]) -> Float[Array, "*parts"]:
    """Return the squares of vectors' Euclidean norms."""
    return jnp.sum(vectors**2, axis=-1)
