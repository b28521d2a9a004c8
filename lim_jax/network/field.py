r"""The causal Transformer as a vector field with two slots.

A field is evaluated as ``field(x, context, grid)``: queries and everything tokenwise come from
`x`, keys and values from `context`. The vector field of the depth flow is its diagonal
``field(x, x, grid)``; the two partial derivatives are the local operator and the Volterra kernel.

States are arrays of shape ``(length, width)``, one example at a time; `vmap` for a batch. To give
a network one field for each layer, build them under `vmap` over keys.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lim_jax._checks import (
    counted,
    require,
    require_floats,
    require_key,
)
from lim_jax._random import gaussian
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.attention import causal_attention
from lim_jax.network.norms import LayerNorm, Norm, RMSNorm, require_width
from lim_jax.network.positions import Rotary, Turns

State = Float[Array, "length width"]
Field = Callable[[State, State, Grid], State]
Attend = Callable[[Array, Array, Array, Grid], Array]


class CausalAttention(eqx.Module):
    r"""Pre-normed causal multi-head attention on any grid.

    A softmax over tokenwise maps: `queries` of the slot `x`, and `sources`, the keys and values of
    the slot `context`. :math:`q_i = W_Q \mathrm{LN}(x)_i`, :math:`k_j = W_K \mathrm{LN}(c)_j` and
    :math:`v_j = W_V \mathrm{LN}(c)_j`; on the token grid `eq:masked-mha`, in the continuum
    `eq:continuum-causal-attention`. Everything else that checkpoints bring is optional: biases,
    fewer keys than queries, norms of queries and keys, rotary positions.

    Attributes
    ----------
    norm
        A map of one token; `equinox.nn.Identity` for none.
    query
        One matrix for each head.
    key, value
        One matrix for each group of heads (grouped queries). With H heads in G groups, head h
        reads group :math:`\lfloor hG/H \rfloor`; without grouping G = H.
    output
        :math:`W_O`, cut into one block for each head; the heads' images are added.
    query_bias, key_bias, value_bias, output_bias
        Added after the respective matrix, or None, each by itself.
    query_norm, key_norm
        Maps of one head's query or key, after the bias and before it turns, or None.
    rotary
        How queries and keys turn with their positions, or None.
    window
        How many positions of the grid a row sees, the last ones with its own (sliding windows), or
        None for its whole prefix. It counts positions, so it has no continuum limit.
    attend
        How one head attends: `attention.causal_attention`, or on a GPU for first-order use
        `fused.fused_attention`.

    Raises
    ------
    ValueError
        Where the heads are no multiple of the groups, or more features turn than a head has.
    """

    norm: Norm
    query: Float[Array, "heads size width"]
    key: Float[Array, "groups size width"]
    value: Float[Array, "groups features width"]
    output: Float[Array, "heads width features"]
    query_bias: Float[Array, "heads size"] | None = None
    key_bias: Float[Array, "groups size"] | None = None
    value_bias: Float[Array, "groups features"] | None = None
    output_bias: Float[Array, " width"] | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    rotary: Rotary | None = None
    window: int | None = eqx.field(static=True, default=None)
    attend: Attend = eqx.field(static=True, default=causal_attention)

    def __check_init__(self):
        if self.window is not None:
            counted(self.window, "window", cure="None is for attention to the whole prefix.")
        heads, size, _ = self.query.shape[-3:]
        _require_groups(heads, self.key.shape[-3])
        turning = 0 if self.rotary is None else 2 * len(self.rotary.frequencies)
        require(
            turning <= size,
            "rotary",
            got=f"{turning} features that turn",
            expected=f"at most {size}, the size of a head",
            cure="Make frequencies for some or all of a head's features.",
        )

    @classmethod
    @eqx.filter_jit
    def init(
        cls,
        width: int,
        *,
        heads: int = 1,
        groups: int | None = None,
        head_size: int | None = None,
        bias: bool = False,
        rotary: Rotary | None = None,
        window: int | None = None,
        attend: Attend = causal_attention,
        eta: float = 1e-5,
        key: Key[Array, ""],
    ) -> "CausalAttention":
        r"""Gaussian matrices of variance one over their fan-in; zero biases.

        `head_size` is by default ``width // heads``, and then `heads` must divide `width`; `groups`
        is by default `heads`.

        Raises
        ------
        ValueError
            Where a size is not a positive whole number, the heads do not divide the width, or the
            groups do not divide the heads.

        Examples
        --------
        >>> attention = CausalAttention.init(8, heads=4, groups=2, key=jax.random.key(0))
        >>> attention.query.shape, attention.key.shape
        ((4, 2, 8), (2, 2, 8))
        """
        width, heads = counted(width, "width", least=2), counted(heads, "heads")
        groups = heads if groups is None else counted(groups, "groups")
        require_key(key)
        require(
            head_size is not None or width % heads == 0,
            "heads",
            got=f"{heads} heads at width {width}",
            expected="a number of heads that divides the width",
            cure="Pass head_size= to choose the heads' size freely.",
        )
        size = width // heads if head_size is None else counted(head_size, "head_size")
        keys = jax.random.split(key, 4)
        counts = (heads, groups, groups)
        query, key_, value = (
            _gaussian(k, count, size, width) for k, count in zip(keys[:3], counts, strict=True)
        )
        output = _gaussian(keys[3], heads, width, size) / math.sqrt(heads)
        zeros, of_groups = jnp.zeros((heads, size)), jnp.zeros((groups, size))
        zero_biases = (zeros, of_groups, of_groups, jnp.zeros(width))
        biases = zero_biases if bias else (None, None, None, None)
        norm = LayerNorm.init(width, eta)
        options = {"rotary": rotary, "window": window, "attend": attend}
        return cls(norm, query, key_, value, output, *biases, **options)

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Attend from `x` to `context`."""
        require_pair(x, context, grid)
        turns = self.turns(grid)
        query, sources = self.queries(x, turns), self.sources(context, turns)
        key, value = (by_head(grouped, query.shape[0]) for grouped in sources)
        attend = jax.vmap(self.attend, in_axes=(0, 0, 0, None))
        heads = attend(query, key, value, self.prefixes(grid))
        joined = jnp.swapaxes(heads, 0, 1).reshape(x.shape[0], -1)
        mixed = joined @ jnp.swapaxes(self.output, 1, 2).reshape(-1, x.shape[1])
        return mixed if self.output_bias is None else mixed + self.output_bias[None, :]

    def prefixes(self, grid: Grid) -> Grid:
        """The grid with the prefixes that rows attend to: those of the window, if there is one."""
        return grid if self.window is None else grid.windowed(self.window)

    def turns(self, grid: Grid) -> Turns | None:
        """What the tokenwise maps know of the positions, a row for each; None if nothing."""
        return None if self.rotary is None else self.rotary.turns(grid)

    def queries(
        self, x: Float[Array, "rows width"], turns: Turns | None
    ) -> Float[Array, "heads rows size"]:
        """Queries of any tokens, row by row, turned as `turns` says; None leaves them unturned."""
        require_width(x, self.query.shape[-1])
        query = _project(self.query, self.query_bias, jax.vmap(self.norm)(x))
        return self._placed(query, self.query_norm, turns)

    def sources(
        self, context: Float[Array, "rows width"], turns: Turns | None
    ) -> tuple[Float[Array, "groups rows size"], Float[Array, "groups rows features"]]:
        """Keys and values of any tokens, as `queries`: all that attention knows of the context."""
        require_width(context, self.query.shape[-1])
        normed = jax.vmap(self.norm)(context)
        key = _project(self.key, self.key_bias, normed)
        value = _project(self.value, self.value_bias, normed)
        return self._placed(key, self.key_norm, turns), value

    def _placed(self, vectors: Array, norm: Norm | None, turns: Turns | None) -> Array:
        """Normalise every head's vectors, then turn them to their positions."""
        normed = vectors if norm is None else jax.vmap(jax.vmap(norm))(vectors)
        if self.rotary is None or turns is None:
            return normed
        return self.rotary.turned(normed, turns)

    def left_trace(self, z: Float[Array, " width"]) -> Float[Array, " width"]:
        r"""What attention gives at position 0, from the state there.

        :math:`W_O[W_{V,1}\mathrm{LN}(X(0)), \dots]` (`eq:continuum-attention-left-trace`): the
        limit from the right, and the rule of the first token.
        """
        features = jnp.einsum("gvd,d->gv", self.value, self.norm(z))
        features = features if self.value_bias is None else features + self.value_bias
        mixed = jnp.einsum("hdv,hv->d", self.output, by_head(features, self.output.shape[0]))
        return mixed if self.output_bias is None else mixed + self.output_bias


class FeedForward(eqx.Module):
    r"""The tokenwise network :math:`W_2\,\sigma(W_1 \mathrm{LN}(x)_i + b_1) + b_2`.

    `eq:mlp-block`. A field whose `context` slot is not read.

    Attributes
    ----------
    norm
        A map of one token; `equinox.nn.Identity` for none.
    inner, inner_bias, outer, outer_bias
        :math:`W_1, b_1, W_2, b_2`.
    activation
        :math:`\sigma`, elementwise.
    """

    norm: Norm
    inner: Float[Array, "hidden width"]
    inner_bias: Float[Array, " hidden"]
    outer: Float[Array, "width hidden"]
    outer_bias: Float[Array, " width"]
    activation: Callable[[Array], Array] = eqx.field(static=True, default=jax.nn.gelu)

    @classmethod
    @eqx.filter_jit
    def init(
        cls,
        width: int,
        *,
        hidden: int | None = None,
        activation: Callable[[Array], Array] = jax.nn.gelu,
        eta: float = 1e-5,
        key: Key[Array, ""],
    ) -> "FeedForward":
        """Gaussian matrices of variance one over their fan-in; zero biases; hidden = 4 width.

        Examples
        --------
        >>> FeedForward.init(6, key=jax.random.key(0)).inner.shape
        (24, 6)
        """
        width = counted(width, "width", least=2)
        hidden = 4 * width if hidden is None else counted(hidden, "hidden")
        require_key(key)
        inner_key, outer_key = jax.random.split(key)
        return cls(
            LayerNorm.init(width, eta),
            _gaussian(inner_key, hidden, width),
            jnp.zeros(hidden),
            _gaussian(outer_key, width, hidden),
            jnp.zeros(width),
            activation,
        )

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Map every token of `x` by itself."""
        require_width(x, self.inner.shape[-1])
        require_pair(x, context, grid)
        # Whole matrices of tokens: a product for each token under vmap is half as fast on a CPU.
        hidden = self.activation(_affine(self.inner, self.inner_bias, jax.vmap(self.norm)(x)))
        return _affine(self.outer, self.outer_bias, hidden)


class GatedFeedForward(eqx.Module):
    r"""The gated tokenwise network :math:`W_D\,(\sigma(W_G z) \odot W_U z)` at z = LN(x)_i.

    SwiGLU where :math:`\sigma` is `jax.nn.silu`, GeGLU where it is `jax.nn.gelu`. A field whose
    `context` slot is not read, as `FeedForward`.

    Attributes
    ----------
    norm
        A map of one token; `equinox.nn.Identity` for none.
    gate, up, down
        :math:`W_G, W_U, W_D`.
    gate_bias, up_bias, down_bias
        Added after the respective matrix, or None, each by itself.
    activation
        :math:`\sigma`, elementwise.
    """

    norm: Norm
    gate: Float[Array, "hidden width"]
    up: Float[Array, "hidden width"]
    down: Float[Array, "width hidden"]
    gate_bias: Float[Array, " hidden"] | None = None
    up_bias: Float[Array, " hidden"] | None = None
    down_bias: Float[Array, " width"] | None = None
    activation: Callable[[Array], Array] = eqx.field(static=True, default=jax.nn.silu)

    @classmethod
    @eqx.filter_jit
    def init(
        cls,
        width: int,
        *,
        hidden: int | None = None,
        activation: Callable[[Array], Array] = jax.nn.silu,
        eta: float = 1e-5,
        key: Key[Array, ""],
    ) -> "GatedFeedForward":
        """Gaussian matrices of variance one over their fan-in behind an `RMSNorm`; no biases.

        `hidden` is by default 4 width.

        Examples
        --------
        >>> GatedFeedForward.init(6, hidden=16, key=jax.random.key(0)).gate.shape
        (16, 6)
        """
        width = counted(width, "width", least=2)
        hidden = 4 * width if hidden is None else counted(hidden, "hidden")
        require_key(key)
        gate_key, up_key, down_key = jax.random.split(key, 3)
        gate, up = (_gaussian(k, hidden, width) for k in (gate_key, up_key))
        down = _gaussian(down_key, width, hidden)
        return cls(RMSNorm.init(width, eta), gate, up, down, activation=activation)

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Map every token of `x` by itself."""
        require_width(x, self.gate.shape[-1])
        require_pair(x, context, grid)
        normed = jax.vmap(self.norm)(x)
        gate = self.activation(_affine(self.gate, self.gate_bias, normed))
        return _affine(self.down, self.down_bias, gate * _affine(self.up, self.up_bias, normed))


class TransformerField(eqx.Module):
    r"""The complete field :math:`\mathscr F = \mathrm{Attn} + \mathrm{FNN}`.

    `eq:complete-vector-field-finite` on tokens, `eq:induced-transformer-field` in the continuum.
    Its sublayers have separate norms. The split scheme applies them one after the other. In steps
    of one, that is a layer of GPT-2 or Llama; `flow.euler` in steps of one is exactly the parallel
    block of GPT-NeoX, :math:`x + \mathrm{Attn}(x) + \mathrm{FNN}(x)`.

    Attributes
    ----------
    attention
        The sublayer that reads the context.
    feed_forward
        A tokenwise field: `FeedForward`, `GatedFeedForward` or one's own.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> field = TransformerField.init(6, heads=2, key=jax.random.key(0))
    >>> x = jax.random.normal(jax.random.key(1), (5, 6))
    >>> eqx.filter_jit(field)(x, x, token_grid(5)).shape
    (5, 6)
    """

    attention: CausalAttention
    feed_forward: Field

    @classmethod
    @eqx.filter_jit
    def init(
        cls,
        width: int,
        *,
        heads: int = 1,
        head_size: int | None = None,
        hidden: int | None = None,
        activation: Callable[[Array], Array] = jax.nn.gelu,
        bias: bool = False,
        rotary: Rotary | None = None,
        attend: Attend = causal_attention,
        eta: float = 1e-5,
        key: Key[Array, ""],
    ) -> "TransformerField":
        """A random field: see `CausalAttention.init` and `FeedForward.init`."""
        require_key(key)
        attention_key, feed_forward_key = jax.random.split(key)
        return cls(
            CausalAttention.init(
                width,
                heads=heads,
                head_size=head_size,
                bias=bias,
                rotary=rotary,
                attend=attend,
                eta=eta,
                key=attention_key,
            ),
            FeedForward.init(
                width, hidden=hidden, activation=activation, eta=eta, key=feed_forward_key
            ),
        )

    @property
    def sublayers(self) -> tuple[CausalAttention, Field]:
        """The fields whose sum this is, in the order in which a layer applies them."""
        return self.attention, self.feed_forward

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Add the sublayers."""
        require_pair(x, context, grid)
        return self.attention(x, context, grid) + self.feed_forward(x, context, grid)


def require_pair(x: State, context: State, grid: Grid) -> None:
    """Refuse queries' and keys' states that do not fit the grid."""
    require_on_grid(x, grid, "x", "length width")
    require_on_grid(context, grid, "context", "length width")


def by_head(grouped: Float[Array, "groups *rest"], heads: int) -> Float[Array, "heads *rest"]:
    """Give every head what its group has.

    Examples
    --------
    >>> by_head(jnp.array([1.0, 2.0]), heads=4).tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    require_floats(grouped, "grouped", "groups *rest", "Its first axis is that of the groups.")
    heads, groups = counted(heads, "heads"), grouped.shape[0]
    _require_groups(heads, groups)
    return grouped if groups == heads else jnp.repeat(grouped, heads // groups, axis=0)


def _require_groups(heads: int, groups: int) -> None:
    require(
        heads % groups == 0,
        "groups",
        got=f"{heads} heads in {groups} groups",
        expected="a number of groups that divides the heads",
        cure="Every group of keys and values serves as many heads.",
    )


def _project(
    matrices: Float[Array, "heads size width"],
    bias: Float[Array, "heads size"] | None,
    tokens: Float[Array, "length width"],
) -> Float[Array, "heads length size"]:
    heads, size, width = matrices.shape
    together = tokens @ matrices.reshape(heads * size, width).T
    projected = jnp.swapaxes(together.reshape(-1, heads, size), 0, 1)
    return projected if bias is None else projected + bias[:, None, :]


def _affine(
    matrix: Float[Array, "out width"],
    bias: Float[Array, " out"] | None,
    tokens: Float[Array, "length width"],
) -> Float[Array, "length out"]:
    image = tokens @ matrix.T
    return image if bias is None else image + bias[None, :]


def _gaussian(key: Key[Array, ""], *shape: int) -> Float[Array, "..."]:
    return gaussian(key, shape) / math.sqrt(shape[-1])
