r"""A layer whose heads read a state that their prefix wrote, as a field in two slots.

.. math:: S_j = \text{decay}_j(S_{j-1}) + \text{write}_j(k_j, v_j), \qquad o_i = S_i^\top q_i

A causal Volterra operator: `context` holds keys, values, decays, writes and the rows before each
token's own in the convolutions; `x` holds the query with its own row, and the output gate. So the
local operator mixes no tokens, and all that a token gives to another goes through the kernel. On
the token grid: in the continuum decays and writes per token would be rates,
:math:`\dot S = -\gamma S + \beta k v^\top`, and a convolution a sum of its taps.

A log weight :math:`u_j` of the grid (`Grid.weighted`) multiplies what token j leaves behind by
:math:`e^{u_j}`: what it writes into the state, and its rows in the convolutions of later tokens. A
state is one for all rows, so that rows of the token's own part read it weighted too.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lim_jax._checks import require
from lim_jax._precision import promote
from lim_jax._products import linear, matmul
from lim_jax.grid.cells import Starts
from lim_jax.grid.measure import Grid
from lim_jax.network.convolution import current_tap, earlier_taps, packed_starts
from lim_jax.network.multihead import by_head, project, project_joined
from lim_jax.network.norms import GroupedNorm, Norm
from lim_jax.network.slots import State, log_weights_by_head, require_pair
from lim_jax.weights import Weight

Heads = Float[Array, "heads rows features"]
RecurrentState = Float[Array, "heads size features"]


class Sources(NamedTuple):
    """What heads read of the slot `context`: a leading axis of heads, or of their groups."""

    earlier: Float[Array, "groups rows size"]  # of the query, the rows before its own
    key: Float[Array, "groups rows size"]
    value: Float[Array, "heads rows features"]
    # The logarithm of what is left of the state, or of its part of each feature of keys.
    decay: Float[Array, "heads rows decays"]
    write: Float[Array, "heads rows"]  # how much of the key and value is written into it


class Memory(NamedTuple):
    """What a layer knows of the tokens before: states, and the last rows of its convolutions."""

    state: Float[Array, "*layers heads size features"]
    rows: tuple[Array, Array, Array]  # of queries, keys and values, one less than taps


class Chunk(NamedTuple):
    """Neighbouring rows as (groups, heads of a group, rows, ...), and what is left of writes."""

    query: Array
    key: Array
    value: Array
    write: Array
    # In each feature of keys, or in all alike:
    within: Array  # of row j in row i, zero where j is later or of another context
    since: Array  # of the state before the chunk, in row i
    until: Array  # of row j, after the chunk


class RecurrentMixer(eqx.Module):
    r"""Pre-normed heads that read states: what `GatedDelta` and `Mamba2` have in common.

    A subclass gives decays and writes, and where it has them maps of keys and queries and a skip.

    Attributes
    ----------
    norm
        A map of one token before the matrices.
    query, key
        One matrix for each group of heads, which share its queries and keys.
    value, gate, output
        One matrix for each head: to its values, to the factors of what it reads, and back to the
        width.
    query_bias, key_bias, value_bias, gate_bias, output_bias
        Added after the respective matrix, or None.
    query_taps, key_taps, value_taps
        Taps of a causal convolution of every feature, a token's own one last; None for none.
    query_tap_bias, key_tap_bias, value_tap_bias
        Added after the convolution, or None.
    activation, gate_activation
        Elementwise maps of the convolved queries, keys and values, and of the gates.
    rate, rate_bias
        w and b of each head's :math:`\Delta_j = \mathrm{softplus}(\langle w,
        \mathrm{LN}(c)_j\rangle + b)`; None for :math:`\Delta_j = 1`. In checkpoints ``dt`` or
        ``a``, and ``dt_bias``.
    log_decay
        The logarithm of a in each head's decay :math:`e^{-a\Delta_j}`; ``A_log`` in checkpoints.
    head_norm
        A norm of what heads read, or None.
    norm_before_gate
        Whether that norm comes before the gates or after them.
    sharded_axes
        The axis of each array, that of heads or of groups of them, along which devices may share
        it, counted from the last.
    chunk
        How many rows are read together, a power of two.
    """

    norm: Norm
    query: Float[Weight, "groups size width"]
    key: Float[Weight, "groups size width"]
    value: Float[Weight, "heads features width"]
    rate: Float[Weight, "heads width"] | None
    rate_bias: Float[Weight, " heads"] | None
    log_decay: Float[Weight, " heads"]
    gate: Float[Weight, "heads features width"]
    output: Float[Weight, "heads width features"]
    query_taps: Float[Weight, "groups size taps"] | None
    key_taps: Float[Weight, "groups size taps"] | None
    value_taps: Float[Weight, "heads features taps"] | None
    head_norm: GroupedNorm | None = None
    query_bias: Float[Weight, "groups size"] | None = None
    key_bias: Float[Weight, "groups size"] | None = None
    value_bias: Float[Weight, "heads features"] | None = None
    gate_bias: Float[Weight, "heads features"] | None = None
    output_bias: Float[Weight, " width"] | None = None
    query_tap_bias: Float[Weight, "groups size"] | None = None
    key_tap_bias: Float[Weight, "groups size"] | None = None
    value_tap_bias: Float[Weight, "heads features"] | None = None
    activation: Callable[[Array], Array] = eqx.field(static=True, default=jax.nn.silu)
    gate_activation: Callable[[Array], Array] = eqx.field(static=True, default=jax.nn.silu)
    norm_before_gate: bool = eqx.field(static=True, default=True)
    sharded_axes: ClassVar[Mapping[str, int]] = {
        "query": -3, "key": -3, "value": -3, "gate": -3, "output": -3, "query_taps": -3,
        "key_taps": -3, "value_taps": -3, "query_bias": -2, "key_bias": -2, "value_bias": -2,
        "gate_bias": -2, "query_tap_bias": -2, "key_tap_bias": -2, "value_tap_bias": -2,
        "rate": -2, "rate_bias": -1, "log_decay": -1,
    }  # fmt: skip
    chunk: ClassVar[int] = 64

    def __check_init__(self):
        """Raise ValueError unless groups divide the heads."""
        heads = self.value.shape[-3]
        groups = self.key.shape[-3]
        require(
            heads % groups == 0,
            "groups",
            got=f"{heads} heads in {groups} groups",
            expected="a number that divides the heads",
            cure=(
                "Take a divisor of the heads: each group of queries and keys serves as many heads."
            ),
        )

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Compute the heads' outputs, with queries from `x` and states written by `context`."""
        require_pair(x, context, grid, self.output.shape[-2])
        return self.project_output(self.reads(x, self.sources(context, grid), grid), self.gates(x))

    def sources(self, context: State, grid: Grid) -> Sources:
        """Compute all that heads read from the context, row by row."""
        normed = jax.vmap(self.norm)(context)
        starts = packed_starts(grid)
        decay, write = self.decays_and_writes(normed)
        weights = log_weights_by_head(grid, len(write))
        if weights is not None:
            weights = jnp.exp(weights)
            write = weights * write

        def parts(name: str) -> tuple[Array, Array]:
            """Return the convolution's terms of the rows before each token, and of its own row."""
            rows, taps, bias = self._convolution(name, normed)
            if weights is not None:  # which may be those of each head
                rows, taps, bias = (by_head(each, len(write)) for each in (rows, taps, bias))
            weighted = rows if weights is None else weights[:, :, None] * rows
            return bias[:, None, :] + earlier_taps(weighted, taps, starts), current_tap(rows, taps)

        earlier, _ = parts("query")
        key, value = (self.activation(jnp.add(*parts(name))) for name in ("key", "value"))
        return Sources(earlier, self.transform_key(key), value, decay, write)

    def reads(self, x: State, sources: Sources, grid: Grid) -> Heads:
        """Compute what every head reads from the states for each row of `x`."""
        rows, taps, _ = self._convolution("query", jax.vmap(self.norm)(x))
        earlier, key, value, decay, write = sources
        current = by_head(current_tap(rows, taps), len(earlier))
        query = self.transform_query(self.activation(earlier + current))
        output, _ = self.rule(query, key, value, decay, write, packed_starts(grid), None)
        return self.with_skip(output, value)

    def advance(
        self, x: Float[Array, "rows width"], count: Int[Array, ""], memory: Memory | None = None
    ) -> tuple[Float[Array, "rows width"], Memory]:
        """Map rows that follow those of `memory`, and return the memory after `count` of them."""
        normed = jax.vmap(self.norm)(x)
        lasts = []
        convolved = []
        for number, name in enumerate(("query", "key", "value")):
            rows, taps, bias = self._convolution(name, normed)
            shape = rows.shape[0], taps.shape[2] - 1, rows.shape[2]
            before = jnp.zeros(shape, rows.dtype) if memory is None else memory.rows[number]
            mixed = earlier_taps(rows, taps, before=before) + current_tap(rows, taps)
            convolved.append(self.activation(bias[:, None, :] + mixed))
            history = jnp.concatenate([before, rows], axis=1)
            lasts.append(jax.lax.dynamic_slice_in_dim(history, count, shape[1], axis=1))
        query, key, value = convolved
        decay, write = self.decays_and_writes(normed)
        later = (jnp.arange(len(x)) >= count)[None]
        decay = jnp.where(later[..., None], 0, decay)
        write = jnp.where(later, 0, write)
        state = None if memory is None else memory.state
        heads, state = self.rule(
            self.transform_query(query), self.transform_key(key), value, decay, write, None, state
        )
        output = self.project_output(self.with_skip(heads, value), self.gates(x))
        return output, Memory(state, tuple(lasts))

    def rows(self, name: str, normed: State) -> Array:
        """Map tokens by one of the matrices, with its bias."""
        return project(getattr(self, name), getattr(self, f"{name}_bias"), normed)

    def _convolution(self, name: str, normed: State) -> tuple[Array, Array, Array]:
        """Return projected tokens, and the taps and the bias of the convolution over them."""
        rows = self.rows(name, normed)
        taps = getattr(self, f"{name}_taps")
        bias = getattr(self, f"{name}_tap_bias")
        if taps is None:  # one tap of 1 leaves the tokens as they are
            taps = jnp.ones((len(rows), rows.shape[2], 1), rows.dtype)
        if bias is None:
            bias = jnp.zeros_like(taps[:, :, 0])
        return rows, taps, bias

    def gates(self, x: Float[Array, "rows width"]) -> Heads:
        """Return the gates of the heads' outputs for each row."""
        return self.gate_activation(self.rows("gate", jax.vmap(self.norm)(x)))

    def project_output(self, heads: Heads, gates: Heads) -> Float[Array, "rows width"]:
        """Apply gates, norm and output matrix to the heads' outputs."""
        if self.head_norm is None:
            normed = heads * gates
        elif self.norm_before_gate:
            normed = self.head_norm(heads) * gates
        else:
            normed = self.head_norm(heads * gates)
        return project_joined(self.output, self.output_bias, normed)

    def rates(self, normed: Float[Array, "rows width"]) -> Float[Array, "heads rows"]:
        r"""Compute the rates :math:`\Delta_j` of each head."""
        if self.rate is None or self.rate_bias is None:
            return jnp.ones((len(self.value), len(normed)), normed.dtype)
        return jax.nn.softplus(linear(self.rate, normed).T + self.rate_bias[:, None])

    def transform_key(self, key: Array) -> Array:
        """Return keys as they are written, from convolved rows."""
        return key

    def transform_query(self, query: Array) -> Array:
        """Return queries as they read, from convolved rows."""
        return query

    def with_skip(self, output: Heads, value: Heads) -> Heads:
        """Return what heads read, plus a term of the token's own value if the layer has one."""
        return output

    def decays_and_writes(self, normed: State) -> tuple[Array, Array]:
        """Return `Sources.decay` and `Sources.write`."""
        raise NotImplementedError

    def rule(
        self,
        query: Array,
        key: Array,
        value: Array,
        decay: Array,
        write: Array,
        starts: Starts | None,
        state: RecurrentState | None,
    ) -> tuple[Heads, RecurrentState]:
        """Compute what heads read, and the state after the last row; `state` is the one before."""
        groups, length = key.shape[:2]
        heads = len(value)
        size = min(self.chunk, 1 << (length - 1).bit_length())  # a power of two, one for one row
        fill = -length % size

        def cut(rows: Array) -> Array:
            """Cut rows into chunks, which come first, with an axis of groups."""
            filled = jnp.pad(rows, ((0, 0), (0, fill), *((0, 0) for _ in rows.shape[2:])))
            shape = groups, len(rows) // groups, -1, size, *rows.shape[2:]
            return jnp.moveaxis(filled.reshape(shape), 2, 0)

        # The last chunk is filled up by rows that neither decay nor write.
        rows = tuple(map(cut, promote((query, key, value, decay, write))))
        begins = starts if starts is None else jnp.pad(starts, (0, fill), mode="edge")
        numbers = size * jnp.arange(len(rows[0]))
        if state is None:
            state = jnp.zeros((heads, key.shape[2], value.shape[2]), rows[2].dtype)

        def step(state: Array, chunk: tuple[Array, tuple[Array, ...]]) -> tuple[Array, Array]:
            """Read one chunk, and return the state after it."""
            first, rows = chunk
            return self.read_chunk(state, _make_chunk(rows, first, begins))

        # Of a chunk all but its first state is made anew on the way back: half of the memory.
        step = jax.checkpoint(step, prevent_cse=False)
        group_state = state.reshape(groups, heads // groups, *state.shape[1:])
        after, output = jax.lax.scan(step, group_state, (numbers, rows))
        output = jnp.moveaxis(output, 0, 2).reshape(heads, length + fill, -1)[:, :length]
        return output.astype(value.dtype), after.reshape(state.shape)

    def read_chunk(self, state: Array, chunk: Chunk) -> tuple[Array, Array]:
        """Return the state after a chunk, and what its rows read."""
        query, key, _, _, within, since, until = chunk
        writes = self.writes(state, chunk)
        output = matmul(since * query, state) + matmul(scores(query, key, within), writes)
        remaining = since[..., -1, :, None] * state
        return remaining + matmul(jnp.swapaxes(until * key, -1, -2), writes), output

    def writes(self, state: Array, chunk: Chunk) -> Array:
        """Return what each row of a chunk writes along its key, by the state before the chunk."""
        raise NotImplementedError


def scores(query: Array, key: Array, within: Array) -> Array:
    """Compute products of a chunk's queries and keys, each times the key's remaining share."""
    if within.shape[-1] == 1:
        return matmul(query, jnp.swapaxes(key, -1, -2)) * within[..., 0]
    return jnp.sum(query[..., :, None, :] * key[..., None, :, :] * within, axis=-1)


def _make_chunk(rows: tuple[Array, ...], first: Array, begins: Starts | None) -> Chunk:
    """Make a chunk of rows with what remains of writes; `first` is the number of its first row."""
    query, key, value, decay, write = rows
    place = jnp.arange(decay.shape[-2])
    # What is left of row j in row i, a sum over the rows m between: the difference of sums from the
    # start would lose the digits of small decays behind large ones.
    i = place[:, None, None]
    j = place[None, :, None]
    m = place[None, None, :]
    between = ((j < m) & (m <= i)).astype(decay.dtype)
    total = jnp.einsum("ijm,ghmd->ghijd", between, decay, precision=jax.lax.Precision.HIGHEST)
    if begins is None:
        begin = jnp.full_like(place, -1)  # one context, which began before this chunk
    else:
        begin = jax.lax.dynamic_slice_in_dim(begins, first, len(place)) - first
    visible = (place[None, :] <= place[:, None]) & (place[None, :] >= begin[:, None])
    reads_state = begin < 0  # its context began before the chunk
    is_read_later = place >= begin[-1]  # it is of the last row's context
    within = jnp.where(visible[None, None, ..., None], jnp.exp(total), 0)
    since = jnp.where(reads_state[None, None, :, None], jnp.exp(jnp.cumsum(decay, axis=-2)), 0)
    until = jnp.where(is_read_later[None, None, :, None], jnp.exp(total[..., -1, :, :]), 0)
    return Chunk(query, key, value, write, within, since, until)
