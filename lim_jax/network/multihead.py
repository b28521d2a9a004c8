"""Causal attention of many heads as a field: a softmax over tokenwise maps of its two slots."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from lim_jax._checks import as_int, require, require_key, require_optional
from lim_jax._jit import filter_jit
from lim_jax._products import linear
from lim_jax._random import fan_in
from lim_jax.grid.measure import Grid
from lim_jax.network.attention import causal_attention
from lim_jax.network.caps_and_sinks import Shaping
from lim_jax.network.masks import AttentionMask, Rope, SwitchedMask
from lim_jax.network.norms import HeadNorm, LayerNorm, Norm, normalise_heads, normalise_rows
from lim_jax.network.positions import Rotary
from lim_jax.network.slots import State, log_weights_by_head, require_pair
from lim_jax.weights import Weight

Attend = Callable[..., Array]


class CausalAttention(eqx.Module):
    r"""Pre-normed causal multi-head attention on any grid.

    A softmax over tokenwise maps: `queries` :math:`q_i = W_Q \mathrm{LN}(x)_i` of the slot `x`, and
    `sources`, the keys :math:`k_j = W_K \mathrm{LN}(c)_j` and values
    :math:`v_j = W_V \mathrm{LN}(c)_j` of the slot `context`; on the token grid `eq:masked-mha`, in
    the continuum `eq:continuum-causal-attention`. What else checkpoints bring is optional.

    Attributes
    ----------
    norm, output_norm
        Maps of one token, before the matrices (`equinox.nn.Identity` for none) and after the heads'
        sum and its bias, or None.
    query, key, value, output
        One matrix for each head, of keys and values for each group of heads: with H heads in G
        groups head h reads group :math:`\lfloor hG/H \rfloor`. The images of `output`,
        :math:`W_O`, are added.
    query_bias, key_bias, value_bias, output_bias
        Added after the respective matrix, or None, each by itself.
    query_norm, key_norm, value_norm
        Maps of one head's query, key or value, after the bias and before it is rotated, or None; a
        `norms.AcrossHeads` maps all heads' together.
    gate
        :math:`W_G`, one block for each head: what head h reads for row i is multiplied by
        :math:`\sigma(W_G^h \mathrm{LN}(x)_i)`, feature by feature, before :math:`W_O`; or None.
    mask
        What a row sees, and how queries and keys know their positions (`AttentionMask`), or where
        layers differ a `masks.SwitchedMask`.
    scale, cap
        What products of queries and keys are multiplied by, None for :math:`1/\sqrt{d_k}`, and what
        scores are capped at (`caps_and_sinks`), or None: known before tracing.
    sinks
        One for each head, which takes attention and gives nothing (`caps_and_sinks`), or None.
    rope_before_qk_norm
        Whether queries and keys are rotated before their norms, not after.
    attend
        How one head attends: `causal_attention`, or where devices share a context `RingAttention`.
    sharded_axes
        The axis of each array, that of heads, along which devices may share it, counted from the
        last.

    Raises
    ------
    ValueError
        Where sizes do not fit one another, or `scale` or `cap` is not positive and finite.
    """

    norm: Norm
    query: Float[Weight, "heads size width"]
    key: Float[Weight, "groups size width"]
    value: Float[Weight, "groups features width"]
    output: Float[Weight, "heads width features"]
    query_bias: Float[Weight, "heads size"] | None = None
    key_bias: Float[Weight, "groups size"] | None = None
    value_bias: Float[Weight, "groups features"] | None = None
    output_bias: Float[Weight, " width"] | None = None
    query_norm: HeadNorm | None = None
    key_norm: HeadNorm | None = None
    output_norm: Norm | None = None
    mask: AttentionMask | SwitchedMask = AttentionMask()
    scale: float | None = eqx.field(static=True, default=None)
    cap: float | None = eqx.field(static=True, default=None)
    sinks: Float[Weight, " heads"] | None = None
    gate: Float[Weight, "heads features width"] | None = None
    value_norm: HeadNorm | None = None
    rope_before_qk_norm: bool = eqx.field(static=True, default=False)
    attend: Attend = eqx.field(static=True, default=causal_attention)
    # Devices may share an array along this axis, counted from the last: heads attend independently.
    sharded_axes: ClassVar[Mapping[str, int]] = {
        "query": -3, "key": -3, "value": -3, "output": -3, "gate": -3,
        "query_bias": -2, "key_bias": -2, "value_bias": -2, "sinks": -1,
    }  # fmt: skip

    def __check_init__(self):
        """Raise ValueError unless heads, groups, rotated features and gate fit one another."""
        require_optional(self.scale, "scale", "Pass None for one over the root of a head's size.")
        require_optional(self.cap, "cap", "Pass None for scores without a cap.")
        heads, size, _ = self.query.shape[-3:]
        groups = self.key.shape[-3]
        require(
            heads % groups == 0,
            "groups",
            got=f"{heads} heads in {groups} groups",
            expected="a number that divides the heads",
            cure="Take a divisor of the heads: each group of keys and values serves as many heads.",
        )
        require(
            self.mask.rotary_dim <= size,
            "rotary",
            got=f"{self.mask.rotary_dim} features that are rotated",
            expected=f"at most {size}, the size of a head",
            cure="Make frequencies for some or all of a head's features.",
        )
        heads, width, features = self.output.shape[-3:]
        sizes = (heads, features, width) if self.gate is None else self.gate.shape[-3:]
        require(
            sizes == (heads, features, width),
            "gate",
            got=f"sizes {sizes}",
            expected=f"{heads, features, width}: heads, a head's features, the width",
            cure="Pass a gate of the output's sizes.",
        )

    @classmethod
    @filter_jit
    def init(
        cls,
        width: int,
        *,
        heads: int = 1,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        rotary: Rotary | None = None,
        window: int | None = None,
        attend: Attend = causal_attention,
        norm_eps: float = 1e-5,
        key: Key[Array, ""],
    ) -> "CausalAttention":
        r"""Make random attention: Gaussian matrices of variance one over their fan-in.

        Parameters
        ----------
        width
            The width of a state, at least 2.
        heads
            How many heads attend; they divide the width, unless `head_dim` is given.
        num_kv_heads
            How many keys and values there are, a number that divides the heads, which share them in
            groups; by default each head has its own.
        head_dim
            The size of a head's queries, keys and values; by default ``width // heads``.
        bias
            Whether each matrix has a bias, which is zero.
        rotary
            How queries and keys are rotated along the positions; None for not at all.
        window
            How many positions a row sees, the last ones with its own; None for the whole prefix.
        attend
            How one head attends: `causal_attention`, the default, or a `RingAttention`.
        norm_eps
            The :math:`\eta` of the `LayerNorm` before the matrices.
        key
            The random key of the matrices.

        Returns
        -------
        CausalAttention
            The attention.

        Raises
        ------
        ValueError
            If a size is no positive whole number, the heads do not divide the width or the keys
            and values the heads, or more features are rotated than a head has.
        """
        width = as_int(width, "width", least=2)
        heads = as_int(heads, "heads")
        num_kv_heads = heads if num_kv_heads is None else as_int(num_kv_heads, "num_kv_heads")
        require_key(key)
        require(
            head_dim is not None or width % heads == 0,
            "heads",
            got=f"{heads} heads at width {width}",
            expected="a number that divides the width",
            cure="Pass head_dim= for any other.",
        )
        size = width // heads if head_dim is None else as_int(head_dim, "head_dim")
        keys = jax.random.split(key, 4)
        kv_zeros = jnp.zeros((num_kv_heads, size)) if bias else None
        return cls(
            norm=LayerNorm.init(width, norm_eps),
            query=fan_in(keys[0], heads, size, width),
            key=fan_in(keys[1], num_kv_heads, size, width),
            value=fan_in(keys[2], num_kv_heads, size, width),
            output=fan_in(keys[3], heads, width, size) / math.sqrt(heads),
            query_bias=jnp.zeros((heads, size)) if bias else None,
            key_bias=kv_zeros,
            value_bias=kv_zeros,
            output_bias=jnp.zeros(width) if bias else None,
            mask=AttentionMask(window=window, positions=rotary),
            attend=attend,
        )

    def __call__(self, x: State, context: State, grid: Grid) -> State:
        """Compute the heads' outputs: queries of `x`, keys and values of `context`."""
        require_pair(x, context, grid, self.output.shape[-2])
        rope = self.rope(grid)
        query = self.queries(x, rope)
        sources = self.sources(context, rope)
        key, value = (by_head(grouped, query.shape[0]) for grouped in sources)
        return self.attended(query, key, value, self.gates(x), grid)

    def attended(
        self,
        query: Float[Array, "heads length size"],
        key: Float[Array, "heads length size"],
        value: Float[Array, "heads length features"],
        gates: Float[Array, "heads length features"] | None,
        grid: Grid,
    ) -> State:
        """Compute the attention of every head, multiply by the gates, and project."""
        grid = self.prefixes(grid)
        log_weights = log_weights_by_head(grid, len(query))

        def attend(*vectors: Array, **shaping: Any) -> Array:
            """Compute one head's attention, with its own log weights if there are any."""
            head_grid = replace(grid, log_weights=vectors[3]) if len(vectors) > 3 else grid
            return self.attend(*vectors[:3], grid=head_grid, **shaping)

        weights = () if log_weights is None else (log_weights,)
        return self.project_output(self.map_heads(attend, query, key, value, *weights), gates)

    def map_heads(self, function: Callable[..., Array], *vectors: Array) -> Array:
        """Map ``function(*vectors, shaping=...)`` over the heads; without `shaping` if plain."""
        if self.cap is None and self.sinks is None:
            return jax.vmap(function)(*vectors)

        def shaped(sink: Array | None, *vectors: Array) -> Array:
            """Call the function with this head's cap and sink."""
            return function(*vectors, shaping=Shaping(self.cap, sink))

        return jax.vmap(shaped)(self.sinks, *vectors)

    def project_output(
        self,
        heads: Float[Array, "heads rows features"],
        gates: Float[Array, "heads rows features"] | None,
    ) -> Float[Array, "rows width"]:
        """Apply gates, :math:`W_O` with its bias and the output's norm to the heads' outputs."""
        gated = heads if gates is None else gates * heads
        projected = project_joined(self.output, self.output_bias, gated)
        return normalise_rows(self.output_norm, projected)

    def prefixes(self, grid: Grid) -> Grid:
        """Return the grid with the prefixes that rows attend to."""
        return self.mask.prefixes(grid)

    def rope(self, grid: Grid) -> Rope | None:
        """Return what positions give queries and keys, a row for each token; None if nothing."""
        return self.mask.rope(grid)

    def queries(
        self, x: Float[Array, "rows width"], rope: Rope | None
    ) -> Float[Array, "heads rows size"]:
        """Compute the queries of any tokens, row by row; without `rope` they know no positions."""
        query = project(self.query, self.query_bias, jax.vmap(self.norm)(x))
        if self.rope_before_qk_norm:
            return self.scaled(
                normalise_heads(self.query_norm, self.mask.encode_queries(query, rope))
            )
        return self.mask.encode_queries(self.scaled(normalise_heads(self.query_norm, query)), rope)

    def gates(self, x: Float[Array, "rows width"]) -> Float[Array, "heads rows features"] | None:
        """Compute the gates of the heads' outputs for each row, or return None without a gate."""
        if self.gate is None:
            return None
        return jax.nn.sigmoid(project(self.gate, None, jax.vmap(self.norm)(x)))

    def scaled(self, query: Float[Array, "heads rows size"]) -> Float[Array, "heads rows size"]:
        """Multiply queries so that scores have the factor `scale`."""
        return query if self.scale is None else self.scale * math.sqrt(query.shape[-1]) * query

    def sources(
        self, context: Float[Array, "rows width"], rope: Rope | None
    ) -> tuple[Float[Array, "groups rows size"], Float[Array, "groups rows features"]]:
        """Compute the keys and values of any tokens, row by row."""
        normed = jax.vmap(self.norm)(context)
        key = project(self.key, self.key_bias, normed)
        value = normalise_heads(self.value_norm, project(self.value, self.value_bias, normed))
        if self.rope_before_qk_norm:
            return normalise_heads(self.key_norm, self.mask.encode_keys(key, rope)), value
        return self.mask.encode_keys(normalise_heads(self.key_norm, key), rope), value

    def left_trace(self, z: Float[Array, " width"]) -> Float[Array, " width"]:
        r"""Compute attention's output at position 0 from the state there.

        :math:`W_O[W_{V,1}\mathrm{LN}(X(0)), \dots]` (`eq:continuum-attention-left-trace`), gated
        and normed as in every row: the limit from the right, and the rule of the first token.

        Parameters
        ----------
        z
            The state at position 0, of shape ``(width,)``.

        Returns
        -------
        Float[Array, " width"]
            What attention adds there.

        Raises
        ------
        ValueError
            With sinks, which take all attention at the left end.
        """
        require(
            self.sinks is None,
            "sinks",
            got="sinks",
            expected="attention without sinks",
            cure=(
                "Take a token_grid, or attention without sinks: in the continuum a sink takes all "
                "attention at the left end."
            ),
        )
        _, features = self.sources(z[None], None)
        return self.project_output(by_head(features, self.output.shape[0]), self.gates(z[None]))[0]


def by_head(grouped: Float[Array, " groups *rest"], heads: int) -> Float[Array, " heads *rest"]:
    """Repeat the keys or values of a group for each of its heads."""
    groups = grouped.shape[0]
    return grouped if groups == heads else jnp.repeat(grouped, heads // groups, axis=0)


def project(
    matrices: Float[Weight, "heads size width"],
    bias: Float[Weight, "heads size"] | None,
    tokens: Float[Array, "length width"],
) -> Float[Array, "heads length size"]:
    """Map tokens by one matrix for each head, and add its bias."""
    heads, size, width = matrices.shape
    stacked = linear(matrices.reshape(heads * size, width), tokens)
    projected = jnp.swapaxes(stacked.reshape(-1, heads, size), 0, 1)
    return projected if bias is None else projected + bias[:, None, :]


def project_joined(
    matrices: Float[Weight, "heads width features"],
    bias: Float[Weight, " width"] | None,
    heads: Float[Array, "heads length features"],
) -> Float[Array, "length width"]:
    """Map the heads' vectors of each token, side by side, by their matrices, and add the bias."""
    joined = jnp.swapaxes(heads, 0, 1).reshape(heads.shape[1], -1)
    projected = linear(join_matrices(matrices), joined)
    return projected if bias is None else projected + bias[None, :]


def join_matrices(
    matrices: Float[Weight, "heads width features"],
) -> Float[Weight, "width joined"]:
    """Return the output matrices of all heads side by side, as one matrix."""
    # Rows of the width, as `project` has them: of columns a gradient takes 1.03 times as long.
    return jnp.swapaxes(matrices, 0, 1).reshape(matrices.shape[1], -1)
