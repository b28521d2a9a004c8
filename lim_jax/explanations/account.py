r"""What every token of one context does: its energy, by channel, by hops and by depth.

Where `explanation` averages over contexts, an account keeps the tokens of one, to be laid beside
its text.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lim_jax._checks import (
    counted,
    require_callable,
    require_example,
    require_floats,
    require_kind,
)
from lim_jax._errors import filter_jit
from lim_jax.adjoint.hops import pull_back_hops
from lim_jax.adjoint.sites import attention_of, require_attention
from lim_jax.adjoint.stages import pull_back_stages
from lim_jax.adjoint.sweep import SIGNATURE
from lim_jax.grid.cells import token_grid
from lim_jax.grid.integrals import inner
from lim_jax.grid.measure import Grid
from lim_jax.models.causal import CausalLM, Queries
from lim_jax.models.ids import padded_length, require_window
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.slots import State

Scalar = Float[Array, ""]
Profile = Float[Array, " length"]

HOPS = ("0 hops", "1 hop", "2 hops", "3 or more hops")


class TokenAccount(NamedTuple):
    r"""Energies of one context, by token: squared norms of covectors, which are densities.

    Energies of parts need not sum to that of the sum: parts may oppose or help each other.

    Attributes
    ----------
    loss
        Of the context.
    query_weights
        Where the loss asks, and with which weight.
    channels
        :math:`\|P_\alpha(p)\|^2` of the residual, the cone and the local channel at depth k, in
        the order of `ledger.CHANNELS`.
    hops
        :math:`\|P_k^{(r)}(p)\|^2` by attention hops, in the order of `HOPS`.
    heads
        :math:`\int \|P\|^2` of what every head of the layers from k on adds to the cone channel.
    by_depth
        :math:`\|P_j(p)\|^2` at every depth j; the last is that of :math:`P_T`.
    """

    loss: Scalar
    query_weights: Profile
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
    terminal_loss: Callable[[CausalLM, State, Any], Scalar] = CausalLM.terminal_loss,
) -> TokenAccount:
    """Account for the influence of every token of one context.

    Compiled once for each length, precision, depth and loss.

    Parameters
    ----------
    model
        Any: from `models.load`, or `models.byte_model`.
    window
        A context of L ids with the id after it, as in `CausalLM.example`.
    query_weights
        Where the loss asks: `loss.teacher_forcing`, `loss.last_token`, or others.
    depth
        Of the state whose tokens are judged: 0 is the input, k that after k layers.
    terminal_loss
        `CausalLM.terminal_loss` or `CausalLM.terminal_margin_loss`.

    Raises
    ------
    ValueError
        Where the window holds no context and an id after it, the weights are not one for each
        place of it, or `depth` is no whole number from 0 to the last layer's.
    EquinoxRuntimeError
        Where an id is outside the vocabulary, or the weights do not sum to one.

    Examples
    --------
    >>> from lim_jax.loss import teacher_forcing
    >>> from lim_jax.models.language import byte_model
    >>> model = byte_model(5, width=4, heads=2, depth=3, key=jax.random.key(0))
    >>> window = jnp.array(list(b"hello!"))
    >>> found = account_of_context(model, window, teacher_forcing(5), depth=1)
    >>> found.energy.shape, found.hops.shape, found.heads.shape, found.depth
    ((5,), (4, 5), (2, 2), 1)
    """
    require_kind(model, CausalLM, "model", "Take models.load(folder), or models.byte_model.")
    require_window(window, "window")
    length = window.shape[0] - 1
    require_floats(query_weights, "query_weights", "length", length=length)
    depth = counted_depth(depth, model.flow)
    require_callable(terminal_loss, "terminal_loss", "terminal_loss(model, state, y)")
    asked = asked_of_windows(model, window[None], query_weights)
    weights = jnp.asarray(query_weights).astype(model.embedding.dtype)
    one = jax.tree.map(lambda leaf: leaf[0], asked)
    parts = parts_of_ids(model, jnp.asarray(window[:-1]), one, depth, terminal_loss)
    return TokenAccount(
        parts.loss,
        weights,
        jax.jit(_squares)(parts.vectors),
        parts.hop_energies,
        parts.head_energies,
        parts.by_depth,
    )


def asked_of_windows(
    model: CausalLM,
    windows: Int[Array | np.ndarray, "examples tokens"] | Sequence[Any],
    query_weights: Float[Array | np.ndarray, "*examples length"] | Sequence[Any],
) -> Queries:
    """What is asked of windows, at the places alone where their weights are not zero.

    Compiled programs serve some numbers of places, so that a few may ask the first one with no
    weight; the head reads no more than that.

    Parameters
    ----------
    model
        In whose precision the weights are.
    windows
        Ids with the one after each context; of several lengths a list of rows.
    query_weights
        Of all windows, or a row for each.

    Examples
    --------
    >>> from lim_jax.models.language import byte_model
    >>> model = byte_model(3, width=4, heads=2, depth=1, key=jax.random.key(0))
    >>> found = asked_of_windows(model, np.array([[7, 8, 9, 5]]), np.array([0.0, 0.5, 0.5]))
    >>> found.targets.tolist(), found.places.tolist(), found.weights.tolist()
    ([[9, 5, 0]], [[1, 2, 0]], [[0.5, 0.5, 0.0]])
    """
    targets = [np.asarray(window)[1:] for window in windows]
    shared = getattr(query_weights, "ndim", 2) == 1
    weights = [
        np.asarray(query_weights if shared else query_weights[n]) for n in range(len(targets))
    ]
    places = [np.flatnonzero(row) for row in weights]
    size = min(max(map(len, targets)), padded_length(max(1, *map(len, places))))

    def asked(rows: Sequence[np.ndarray]) -> np.ndarray:
        """The rows at the places alone, all of one size."""
        return np.stack(
            [np.pad(row[at], (0, size - len(at))) for row, at in zip(rows, places, strict=True)]
        )

    every = [np.arange(len(row)) for row in targets]
    chosen = asked(weights).astype(model.embedding.dtype)
    return Queries(*jax.device_put((asked(targets), chosen, asked(every))))


def counted_depth(depth: Any, flow: ResidualFlow) -> int:
    """Return a depth before one of a flow's layers; refuse any other."""
    last = flow.depth - 1
    expected = f"a whole number from 0 to {last}, the last layer's depth"
    return counted(depth, "depth", least=0, most=last, expected=expected)


class ContextParts(NamedTuple):
    r"""What one context's adjoint is made of at depth k.

    Attributes
    ----------
    loss
        Of the context.
    state, last
        :math:`X_k` and :math:`X_M`.
    vectors
        The residual, the cone and the local channel at depth k, in the order of `ledger.CHANNELS`;
        the first is :math:`P_T`, and their sum :math:`P_k`.
    hop_energies
        :math:`\|P_k^{(r)}(p)\|^2` by attention hops, in the order of `HOPS`.
    head_energies
        :math:`\int \|P\|^2` of what every head of the layers from k on adds to the cone channel.
    by_depth
        :math:`\|P_j(p)\|^2` at every depth j.
    growths
        :math:`\|P_j - P_{j+1}\|/\|P_{j+1}\|` of every layer, which is at most :math:`\|B_j\|` of
        `residual.interaction_norms`; zero where :math:`P_{j+1}` is.
    met
        The state and the covector that attention meets in layer k.
    """

    loss: Scalar
    state: State
    last: State
    vectors: Float[Array, "3 length width"]
    hop_energies: Float[Array, "hops length"]
    head_energies: Float[Array, "layers heads"]
    by_depth: Float[Array, "times length"]
    growths: Float[Array, " depth"]
    met: tuple[State, State]


class _Sweep(NamedTuple):
    """What goes back through the layers: the covector, and from depth k on its parts."""

    covector: State
    hops: Float[Array, "hops length width"]
    cone: State
    local: State
    met: tuple[State, State]


def parts_of_context(
    flow: ResidualFlow,
    terminal_loss: Callable[[State, Any], Scalar],
    example: tuple[State, Any],
    grid: Grid,
    depth: int,
) -> ContextParts:
    r"""Take one context's adjoint apart, for the account of its tokens or for a mean over contexts.

    In one sweep back: the covectors by hops sum to the covector, so that what the layers' parts
    make of them sums to the channels, which no sweep of their own has to carry. Numbers are those
    of `ledger.channels`, `hops.attention_hops` and `ledger.cone_by_head`.

    Parameters
    ----------
    flow, terminal_loss, example, grid
        As in `ledger.channels`.
    depth
        k, from 0 to the last layer's.
    """
    require_attention(flow)
    require_callable(terminal_loss, "terminal_loss", SIGNATURE)
    require_example(example)
    depth = counted_depth(depth, flow)
    x, y = example
    states = flow.trajectory(x, grid).states
    loss, gradient = jax.value_and_grad(terminal_loss)(states[-1], y)
    terminal, still = gradient / grid.weights[:, None], jnp.zeros_like(gradient)
    hops = jnp.zeros((len(HOPS), *x.shape), terminal.dtype).at[0].set(terminal)

    def backward(sweep: _Sweep, layer: tuple[Any, Scalar], state: State, index: Array) -> Any:
        before = sweep.covector
        sweep, heads = jax.lax.cond(
            index >= depth,
            lambda sweep: _taken_apart(flow, sweep, layer, state, grid),
            lambda sweep: _passed(flow, sweep, layer, state, grid),
            sweep,
        )
        sizes = [jnp.sqrt(inner(one, one, grid)) for one in (sweep.covector - before, before)]
        growth = jnp.where(sizes[1] > 0, sizes[0] / jnp.where(sizes[1] > 0, sizes[1], 1), 0)
        return sweep, (_squares(sweep.covector), heads, growth)

    layers = jnp.arange(flow.depth)
    sweep = _Sweep(terminal, hops, still, still, (still, still))
    sweep, (energies, heads, growths) = flow.scan(
        backward, sweep, states[:-1], layers, reverse=True
    )
    return ContextParts(
        loss,
        states[depth],
        states[-1],
        jnp.stack([terminal, sweep.cone, sweep.local]),
        _squares(sweep.hops),
        heads[depth:],
        jnp.concatenate([energies, _squares(terminal)[None]]),
        growths,
        sweep.met,
    )


def _taken_apart(
    flow: ResidualFlow, sweep: _Sweep, layer: tuple[Any, Scalar], state: State, grid: Grid
) -> tuple[_Sweep, Float[Array, " heads"]]:
    """One layer back, by hops, channels and heads."""
    hops, stages = pull_back_hops(flow, layer, state, sweep.hops, grid)
    cone = sum(stage.parts.kernel.sum(axis=0) for stage in stages)
    local = sum(stage.parts.local.sum(axis=0) for stage in stages)
    ((attending, heads),) = ((one, one.heads) for one in stages if one.heads is not None)
    met = attending.state, attending.covector.sum(axis=0)
    covector = sweep.covector + cone + local
    moved = _Sweep(covector, hops, sweep.cone + cone, sweep.local + local, met)
    return moved, _squares(heads) @ grid.weights


def _passed(
    flow: ResidualFlow, sweep: _Sweep, layer: tuple[Any, Scalar], state: State, grid: Grid
) -> tuple[_Sweep, Float[Array, " heads"]]:
    """One layer back before the account's depth: the covector alone."""
    stages = pull_back_stages(flow, layer, state, sweep.covector, grid)
    added = sum(stage.parts.local + stage.parts.kernel for stage in stages)
    (attention,) = (found for stage in stages if (found := attention_of(stage.field)) is not None)
    return sweep._replace(covector=sweep.covector + added), jnp.zeros(
        attention.output.shape[0], sweep.covector.dtype
    )


@filter_jit
def parts_of_ids(
    model: CausalLM,
    ids: Int[Array, " length"],
    asked: Queries,
    depth: int,
    terminal_loss: Callable[[CausalLM, State, Any], Scalar],
) -> ContextParts:
    """`parts_of_context` of ids: the one program of accounts and of explanations.

    Parameters
    ----------
    model, depth, terminal_loss
        As in `account_of_context`.
    ids
        Of the context.
    asked
        One of `asked_of_windows`.
    """
    grid = token_grid(ids.shape[0], model.embedding.dtype)
    example = model.embed(ids), asked
    return parts_of_context(model.flow, partial(terminal_loss, model), example, grid, depth)


def _squares(vectors: Float[Array, "*parts width"]) -> Float[Array, "*parts"]:
    return jnp.sum(vectors**2, axis=-1)
