"""Causal language models over token ids."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer

from lim_jax._checks import (
    as_int,
    error_if,
    error_if_got,
    require,
    require_floats,
    require_indices,
    require_kind,
    require_optional,
    require_positive,
    widen_integers,
)
from lim_jax._precision import computing
from lim_jax._products import product
from lim_jax.grid.cells import Starts, token_grid
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.loss import losses
from lim_jax.loss.losses import Labels, Slices
from lim_jax.loss.readouts import Logits
from lim_jax.network.caps_and_sinks import capped
from lim_jax.network.flow import ResidualFlow
from lim_jax.network.masks import AttentionMask, SwitchedMask
from lim_jax.network.norms import Norm
from lim_jax.network.slots import State
from lim_jax.weights import Rows, gather_rows, slice_rows

PerPosition = Float[Array, " length"]


# Logits are made of so many words at a time, and of fewer where many positions are asked, so that
# those of a large vocabulary are never all in memory.
WORDS_AT_ONCE = 8192
LOGITS_AT_ONCE = 2**24
EXAMPLE = "Make it of a window of ids by model.example."
OWN_IDS = "Take the ids of this model's own tokenizer."
ONE_EACH = "Take loss.teacher_forcing or loss.last_token of the context's length."


class Targets(NamedTuple):
    r"""The targets of a loss on one context, with their weights and positions.

    Attributes
    ----------
    targets
        The answer to each query: its id, of shape ``(queries,)``, or a row of weights of all words,
        of shape ``(queries, vocabulary)``.
    weights
        :math:`\alpha`, one for each query, of sum one, as `loss.teacher_forcing` and
        `loss.last_token` give them.
    positions
        The positions of the queries, from 0, whose logits alone are made; None for a query at every
        position.
    starts
        Where the context of each position begins (`grid.segment_starts`), in packed rows and after
        padding on the left; None for one context from the row's beginning.
    log_weights
        An additive attention mask, in the scores' units; None for none.
    parts
        The number of each position's part, for a mask of parts (`Grid.weighted`); None for none.
    """

    targets: Labels
    weights: Float[Array, " queries"]
    positions: Int[Array, " queries"] | None = None
    starts: Starts | None = None
    log_weights: Float[Array, " length"] | None = None
    parts: Int[Array, " length"] | None = None


@dataclass(frozen=True)
class LossOfLogits:
    """A loss ``from_logits(logits, y)`` of a language model at the positions that are asked.

    Logits are `loss.losses.Slices` where they never stand all at once. Files of interrupted runs
    know the loss by its `name`.
    """

    name: str
    from_logits: Callable[[Logits | Slices, Targets], Scalar]

    def _identity(self) -> tuple[str]:
        """Return what a digest reads in place of this object: its name."""
        return (self.name,)

    def terminal(self, model: "CausalLM", state: State, y: Targets) -> Scalar:
        """Compute the loss of the network's last state; only positions of queries are read."""
        return self.from_logits(model.logits_of_queries(state, y), y)

    def __call__(self, model: "CausalLM", x: State, y: Targets) -> Scalar:
        """Compute the loss of one embedded context."""
        return self.terminal(model, model.last_state(x, y), y)

    def __get__(self, model: Any, owner: Any) -> Any:
        """Return the loss with a model bound, as for a method: ``model.loss``."""
        return self if model is None else jax.tree_util.Partial(self, model)


def as_loss_of_logits(loss: Any) -> LossOfLogits:
    """Return the loss unchanged; raise ValueError unless it is a `LossOfLogits`."""
    require_kind(loss, LossOfLogits, "loss", "Take CausalLM.loss or CausalLM.margin_loss.")
    return loss


def _cross_entropy(logits: Logits | Slices, y: Targets) -> Scalar:
    """Compute the cross-entropy of targets, from all logits or from slices of them."""
    if isinstance(logits, Slices):
        return losses.sliced_cross_entropy(logits, y.targets, y.weights)
    return losses.autoregressive_cross_entropy(logits, y.targets, y.weights)


def _margin_loss(logits: Logits | Slices, y: Targets) -> Scalar:
    """Compute the margin loss of targets, from all logits or from slices of them."""
    if isinstance(logits, Slices):
        return losses.sliced_margin_loss(logits, y.targets, y.weights)
    return losses.margin_loss(logits, y.targets, y.weights)


def _own_margin_loss(logits: Logits | Slices, y: Targets) -> Scalar:
    """Compute the margin loss of the likeliest words instead of the targets."""
    likeliest = (
        losses.sliced_answers(logits) if isinstance(logits, Slices) else logits.argmax(axis=1)
    )
    return _margin_loss(logits, y._replace(targets=likeliest))


class CausalLM(eqx.Module):
    r"""A causal language model: embeddings of ids and positions, a network, a last norm and a head.

    Logits are :math:`\mathrm{norm}(X_M)\,W^\top`, with W the head, or the embedding if the two are
    tied. The states between are those of `flow`, so every diagnostic of a flow is one of the model.

    Attributes
    ----------
    embedding
        A row for each word, of shape ``(vocabulary, width)``: an array, or `weights.HalfRows` or
        `weights.FetchedRows`.
    positions
        A learned row for each position, added to the word's; None for networks with other
        positions.
    flow
        The network, a `network.ResidualFlow`.
    norm
        The last norm, a map of one token.
    head
        A row for each word, as `embedding` has them; None if the head is the embedding.
    head_bias
        Added to the logits, one number for each word; None for none.
    embedding_scale, logit_scale
        What embedded words, and logits with their bias, are multiplied by.
    logit_cap
        The cap c of the scaled logits z, which become :math:`c\tanh(z/c)`; None for none.
    trained
        The length of the longest contexts in training, if known: `embed` warns of longer ones.
    longest
        The length of the longest contexts that are computed as the network's publisher does, and
        why not beyond; None if all are.

    Raises
    ------
    ValueError
        Where a scale or the cap is not positive and finite, or `trained` is no positive whole
        number.
    """

    embedding: Rows
    positions: Float[Array, "positions width"] | None
    flow: ResidualFlow
    norm: Norm
    head: Rows | None = None
    head_bias: Float[Array, " vocabulary"] | None = None
    embedding_scale: float = eqx.field(static=True, default=1.0)
    logit_scale: float = eqx.field(static=True, default=1.0)
    logit_cap: float | None = eqx.field(static=True, default=None)
    trained: int | None = eqx.field(static=True, default=None)
    longest: tuple[int, str] | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        """Raise ValueError unless scales, caps and lengths are positive."""
        expected = "a positive finite number"
        cure = "Take a checkpoint's own number."
        for name in ("embedding_scale", "logit_scale"):
            require_positive(getattr(self, name), name, expected=expected, cure=cure)
        require_optional(self.logit_cap, "logit_cap", cure)
        if self.trained is not None:
            as_int(self.trained, "trained")

    @property
    def vocabulary(self) -> int:
        """The number of words."""
        return self.embedding.shape[0]

    @property
    def limit(self) -> tuple[int, str] | None:
        """The greatest number of ids of a context, and the reason for it; None without a limit."""
        if self.positions is None:
            return self.longest
        return self.positions.shape[0], "the places that the network knows"

    def embed(self, ids: Integer[Array, " length"], y: Targets | None = None) -> State:
        """Return the input states :math:`X_0` of one row of ids, whose influence is measured.

        Learned positions are counted from where each context begins, which ``y.starts`` says. A row
        of one context that is longer than `trained` gives a `UserWarning`.

        Parameters
        ----------
        ids
            The ids of the row, without the one after it.
        y
            The row's `Targets`, of which ``starts`` alone is read; None for one context.

        Returns
        -------
        State
            A row for each id, of shape ``(length, width)``: the embedding's row times
            `embedding_scale`, and the position's, if it is learned.

        Raises
        ------
        ValueError
            If ids are no whole numbers along one axis, or more than the `limit`.
        EquinoxRuntimeError
            If an id is outside the vocabulary, or a packed context longer than the `limit`.
        """
        require_indices(ids, "ids")
        ids = _check_numbers(ids, "ids", self.vocabulary, OWN_IDS)
        length = ids.shape[0]
        positions = slice(length)
        most, why = self.limit or (length, "")
        if y is None or y.starts is None:
            self._warn_beyond(length)
            require(
                length <= most,
                "ids",
                got=f"{length} of them",
                expected=f"at most {most}, {why}",
                cure="Cut the context to that length.",
            )
        else:
            positions = jnp.arange(length) - y.starts.astype(int)
            message = (
                f"ids: got a longer context, expected at most {most} ids in each, {why}. Cut them "
                "to that length."
            )
            if self.limit is not None:
                ids = error_if(ids, positions >= most, message)
        rows = gather_rows(self.embedding, ids)
        rows = rows if self.embedding_scale == 1 else self.embedding_scale * rows
        return rows if self.positions is None else rows + self.positions[positions]

    def _warn_beyond(self, length: int) -> None:
        """Warn if a context is longer than those that the network was made for."""
        if self.trained is not None and length > self.trained:
            warnings.warn(
                f"ids: got a context of {length}, expected at most {self.trained}, for which the "
                "network was made. Cut it: what is measured beyond may say little of the network.",
                stacklevel=2,
            )

    def same_rope(self, length: int, other: int) -> bool:
        """Tell whether contexts of two lengths have the same rotary frequencies."""

        def is_mask(node: Any) -> bool:
            """Tell whether a node is the mask of an attention."""
            return isinstance(node, AttentionMask | SwitchedMask)

        nodes = jax.tree.leaves(self.flow.kinds, is_leaf=is_mask)
        return all(mask.same_rope(length, other) for mask in nodes if is_mask(mask))

    def readout(self, state: State, grid: Grid) -> Logits:
        """Return the logits of the next word at every position, of the network's last states.

        Parameters
        ----------
        state
            The last states :math:`X_M` of `flow`, of shape ``(length, width)``.
        grid
            Their grid; each state is read by itself.

        Returns
        -------
        Logits
            A row of logits for each position, of shape ``(length, vocabulary)``.
        """
        # All logits are in memory in the end, so the size does not depend on the positions.
        slices = self._slices(state, min(WORDS_AT_ONCE, self.vocabulary))
        starts = range(0, self.vocabulary - slices.size, slices.size)
        before = [slices.of(jnp.array(start)) for start in starts]
        last = slices.of(jnp.array(self.vocabulary - slices.size))
        return jnp.concatenate([*before, last[:, len(starts) * slices.size - self.vocabulary :]], 1)

    def _slices(self, state: State, size: int) -> Slices:
        """Return the logits at every position in slices of `size` words, computed when used."""
        normed = jax.vmap(self.norm)(state)
        head = self.embedding if self.head is None else self.head

        def of(start: Int[Array, ""]) -> Float[Array, "length size"]:
            """Compute the logits of `size` words from the number `start` on."""
            # An einsum, since `linear` would copy the transposed head.
            with computing(self.flow.compute):
                logits = product(normed, slice_rows(head, start, size), ((0, 1), (2, 1), (0, 2)))
            if self.head_bias is not None:
                logits += jax.lax.dynamic_slice_in_dim(self.head_bias, start, size)[None, :]
            logits = logits if self.logit_scale == 1 else self.logit_scale * logits
            return capped(logits, self.logit_cap)

        return Slices(of, size, self.vocabulary, normed.dtype)

    def logits(self, ids: Integer[Array, " length"], y: Targets | None = None) -> Logits:
        """Return the logits of the next word at every position of a row of ids.

        Parameters
        ----------
        ids
            The ids of the row.
        y
            The row's `Targets`, of which ``starts``, for packed rows, and the mask are read; None
            for one context.

        Returns
        -------
        Logits
            A row of logits for each position, of shape ``(length, vocabulary)``.

        Raises
        ------
        ValueError
            If ids are no whole numbers along one axis, or more than the `limit`.
        EquinoxRuntimeError
            If an id is outside the vocabulary, or a packed context longer than the `limit`.
        """
        x = self.embed(ids, y)
        grid = _grid_of(x, y)
        return self.readout(self.flow(x, grid), grid)

    def example(
        self, window: Integer[Array, " tokens"], query_weights: PerPosition
    ) -> tuple[State, Targets]:
        r"""Return one example ``(x, y)`` of a window of L + 1 ids, whose last is a target only.

        Of many windows, ``jax.vmap(model.example, in_axes=(0, None))(windows, query_weights)``.

        Parameters
        ----------
        window
            The context's ids and the id after them; the last is a target only.
        query_weights
            :math:`\alpha`, one weight for each of the L positions, of sum one
            (`loss.teacher_forcing`, `loss.last_token`).

        Returns
        -------
        tuple of State and Targets
            The embedded context, and the targets with their weights in the states' precision.

        Raises
        ------
        ValueError
            If the window is no array of whole numbers, or there is not a weight for each position.
        """
        require_indices(window, "window")
        length = len(window) - 1
        require_floats(query_weights, "query_weights", "length", ONE_EACH, length=length)
        x = self.embed(window[:-1])
        return x, Targets(window[1:], query_weights.astype(x.dtype))

    loss = LossOfLogits("CausalLM.loss", _cross_entropy)
    """The next-word cross-entropy of one embedded context, in nats."""

    margin_loss = LossOfLogits("CausalLM.margin_loss", _margin_loss)
    """Minus the answers' log odds (`loss.margin_loss`), of one embedded context."""

    own_margin_loss = LossOfLogits("CausalLM.own_margin_loss", _own_margin_loss)
    """`margin_loss` of the network's own likeliest words (`loss.own_margin_loss`), not targets."""

    def terminal_loss(self, state: State, y: Targets) -> Scalar:
        """Compute `loss` of the network's last state, as the adjoint's ledgers take it.

        As in ``channels(model.flow, model.terminal_loss, (x, y), grid)``, of
        ``grid.starting(y.starts)`` if contexts are packed, and of ``grid.weighted(...)`` for a
        mask.

        Parameters
        ----------
        state
            The last states :math:`X_M` of `flow`, of shape ``(length, width)``.
        y
            The targets of the context, their weights and positions.

        Returns
        -------
        Scalar
            The next-word cross-entropy, in nats, weighted over the queries.

        Raises
        ------
        ValueError
            If `y` is no `Targets`, or its parts do not fit one another or the state.
        EquinoxRuntimeError
            If weights do not sum to one, or an id or a position is outside its range.
        """
        return CausalLM.loss.terminal(self, state, y)

    def words_at_once(self, queries: int) -> int:
        """Return how many words' logits are computed at once for a number of queries."""
        most = min(WORDS_AT_ONCE, LOGITS_AT_ONCE // max(1, queries))
        return min(self.vocabulary, max(1, most))

    def last_state(self, x: State, y: Targets) -> State:
        """Return the network's last states of one context, with the packing and mask of `y`."""
        require_kind(y, Targets, "y", EXAMPLE)
        return self.flow(x, _grid_of(x, y))

    def logits_of_queries(
        self, state: State, y: Targets
    ) -> Float[Array, "queries vocabulary"] | Slices:
        """Return the logits at the queries' positions, in slices of words if there are many."""
        require_kind(y, Targets, "y", EXAMPLE)
        if y.positions is not None:
            state = state[
                _check_numbers(
                    y.positions, "positions", state.shape[0], "Count the context's places from 0."
                )
            ]
        queries = y.weights.shape[0]
        length = state.shape[0]
        require(
            queries == length,
            "positions",
            got=f"{queries} queries of a context of {length} places",
            expected="a query at every place, or the place of each",
            cure="Name them: Targets(targets, weights, positions).",
        )
        size = self.words_at_once(queries)
        if size < self.vocabulary:
            return self._slices(state, size)
        return self.readout(state, _grid_of(state))


def _check_numbers(
    numbers: Integer[Array, "..."], name: str, count: int, cure: str
) -> Int[Array, "..."]:
    """Return numbers; their use raises where one is not from 0 to below `count`."""
    numbers = widen_integers(numbers)
    last = count - 1
    return error_if_got(
        numbers,
        name,
        got={"a number below zero": numbers < 0, f"a number above {last}": numbers > last},
        expected=f"numbers from 0 to {last}",
        cure=cure,
    )


def _grid_of(x: State, y: Targets | None = None) -> Grid:
    """Return the token grid of a row in its precision, with the packing and mask of `y`."""
    grid = token_grid(x.shape[0], x.dtype)
    if y is None:
        return grid
    grid = grid if y.starts is None else grid.starting(y.starts)
    return grid if y.log_weights is None else grid.weighted(y.log_weights, y.parts)
