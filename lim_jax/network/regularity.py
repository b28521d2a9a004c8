r"""How steep and how large a pre-norm field can be, for all states: `prop:transformer-lipschitz`.

Layer normalisation makes a field's constants depend on its parameters alone, through the norms of
their blocks (`ass:bounded`). Every function takes one field, or one whose arrays have a leading
axis: then each constant holds for all of these fields and for their convex combinations, such as
`linear_control` between them, since norms are convex.

States are compared in :math:`L^2` of the continuum, or of a token, midpoint or graded grid; not of
Gauss--Legendre panels, whose prefix weights have signs. Below, :math:`h(p) = \|X(p) - Y(p)\|` and
:math:`(Hh)(p) = p^{-1}\int_0^p h` is Hardy's average, whose norm on :math:`L^2` is at most 2. On
tokens that is Copson's inequality; on other cells it may be false, and `hardy_bound` says so.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lim_jax._checks import (
    as_finite_nonnegative,
    as_nonnegative,
    described,
    require,
    require_floats,
)
from lim_jax._jit import filter_jit
from lim_jax._precision import norm, promote
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid, Scalar, require_on_grid
from lim_jax.network.attention import causal_attention
from lim_jax.network.field import TransformerField
from lim_jax.network.masks import AttentionMask
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.norms import LayerNorm, Norm
from lim_jax.network.positions import Rotary
from lim_jax.network.ring import RingAttention
from lim_jax.network.slots import Field, State
from lim_jax.network.tokenwise import FeedForward

HARDY = 2.0
# The largest |slope| of activations on the whole line. Those of GELU and SiLU are rounded upwards:
# GELU's is largest at the root of 2, that of its approximation at 1.4185, SiLU's at 2.3994.
GELU_SLOPES = {False: 1.12890415, True: 1.12899307}
SLOPES: tuple[tuple[Callable[[Array], Array], float], ...] = (
    (jnp.tanh, 1.0), (jax.nn.relu, 1.0), (jax.nn.sigmoid, 0.25), (jax.nn.softplus, 1.0),
    (jax.nn.silu, 1.09983933), (jax.nn.gelu, GELU_SLOPES[True]),
)  # fmt: skip

Heads = Float[Array, " heads"]


class AttentionRegularity(NamedTuple):
    r"""The constants of causal attention, step by step.

    Attributes
    ----------
    score
        :math:`B`, with :math:`|s_X(p,q)| \le B` and the kernel
        :math:`a_X(p,q) \le e^{2B}/p` (`eq:attention-density-hardy-bound`), for each head.
    score_local, score_past
        :math:`|s_X - s_Y|(p,q)` is at most the first times :math:`h(p)` and the second times
        :math:`h(q)` (`eq:score-l2-difference`).
    kernel_local, kernel_hardy, head_local, head_hardy
        :math:`\int_0^p |a_X - a_Y|\,dq` is at most the first times :math:`h(p)` and the second
        times :math:`(Hh)(p)` (`eq:normalized-kernel-l1-difference`), and the same of one head's
        output (`eq:attention-pointwise-hardy-stability`).
    head
        The head's Lipschitz constant (`eq:global-l2-attention-stability`).
    lipschitz, bound, control
        The Lipschitz constant and bound of all heads together, behind :math:`W_O`, and the constant
        in the parameters, at every state, from their Euclidean norm.
    """

    score: Heads
    score_local: Heads
    score_past: Heads
    kernel_local: Heads
    kernel_hardy: Heads
    head_local: Heads
    head_hardy: Heads
    head: Heads
    lipschitz: Scalar
    bound: Scalar
    control: Scalar


class FeedForwardRegularity(NamedTuple):
    """The constants of a tokenwise network.

    Attributes
    ----------
    radius
        A bound on what the activation is applied to.
    slope
        The activation's Lipschitz constant, on the whole line.
    lipschitz, bound, control
        The Lipschitz constant and bound of the network, and the constant in the parameters, at
        every state, from their Euclidean norm.
    """

    radius: Scalar
    slope: Scalar
    lipschitz: Scalar
    bound: Scalar
    control: Scalar


class FieldRegularity(NamedTuple):
    """The constants of a complete field, from those of its sublayers.

    Attributes
    ----------
    attention
        The constants of attention, an `AttentionRegularity`.
    feed_forward
        The constants of the tokenwise network, a `FeedForwardRegularity`.
    """

    attention: AttentionRegularity
    feed_forward: FeedForwardRegularity

    @property
    def lipschitz(self) -> Scalar:
        r""":math:`C_F` of `eq:transformer-field-state-lipschitz`, the same at every radius."""
        return self.attention.lipschitz + self.feed_forward.lipschitz

    @property
    def bound(self) -> Scalar:
        r""":math:`M_R` of `eq:transformer-field-uniform-bound`, the same at every radius."""
        return self.attention.bound + self.feed_forward.bound

    @property
    def control(self) -> Scalar:
        r"""The Lipschitz constant :math:`C_\theta` in the parameters, in their Euclidean norm.

        At every state: `prop:transformer-lipschitz` supposes one, and as normalised tokens are
        bounded it holds.
        """
        return jnp.hypot(self.attention.control, self.feed_forward.control)


@filter_jit
def attention_regularity(attention: CausalAttention) -> AttentionRegularity:
    r"""Compute a Lipschitz constant and a bound of attention, uniform over all states.

    By the steps of `prop:transformer-lipschitz`. With the bound :math:`C` and the slope
    :math:`\ell` of LN, :math:`c_q = \|W_Q\| C + \|b_Q\|` and so on: :math:`B = c_q c_k/\sqrt{d_k}`,
    the scores' slopes are :math:`\ell\|W_Q\|c_k/\sqrt{d_k}` and :math:`\ell\|W_K\|c_q/\sqrt{d_k}`,
    the kernel's are twice these, the second times :math:`e^{2B}` (along the segment between the
    scores, where the paper takes the quotient identity), and a head's are :math:`c_v` times the
    kernel's, to the second of which :math:`e^{2B}\ell\|W_V\|` is added. Hardy's inequality doubles
    the second.

    In the parameters nothing is exponential: a probability moves by at most the largest change of a
    score, so a head by :math:`c_v\,|ds| + |dv|`, where
    :math:`|ds| \le (|dq|\,c_k + c_q\,|dk|)/\sqrt{d_k}` and
    :math:`|dq| \le C\,|dW_Q| + |db_Q| + \|W_Q\|\,|du|`, and a normalised token by
    :math:`|du| \le \sqrt{d}\,|d\gamma| + |d\beta|`. The blocks are summed by Cauchy's inequality.

    Parameters
    ----------
    attention
        The attention, exactly a `CausalAttention` with `LayerNorm`; or one whose arrays have a
        leading axis, for constants that hold for all of these and their convex combinations. Its
        positions may be a `Rotary` of amplitude one, which keeps the norms of keys and queries and
        so the constants.

    Returns
    -------
    AttentionRegularity
        The constants, step by step; those of heads have one number for each.

    Raises
    ------
    ValueError
        For whatever else these steps do not know: another class of attention or of norm, without
        which nothing bounds the scores, other sums than the library's own, norms of heads, windows,
        gates, and scores or outputs that are shaped.

    Examples
    --------
    >>> attention = CausalAttention.init(4, heads=2, norm_eps=0.1, key=jax.random.key(0))
    >>> constants = attention_regularity(jax.tree.map(lambda leaf: 0.2 * leaf, attention))
    >>> constants.score.shape, float(constants.lipschitz) < 1
    ((2,), True)
    """
    _require_covered(attention)
    heads, size = attention.query.shape[-3:-1]
    token, slope = norm_constants(attention.norm)

    def bounds(matrices: Array, bias: Array | None) -> tuple[Heads, Heads]:
        """Return each head's norm of the matrix, and its bound on the vectors that it makes."""
        norms = _operator_norms(matrices)
        vectors = norms * token + _vector_norms(bias, matrices.shape[-3])
        return by_head(norms, heads), by_head(vectors, heads)

    query_norm, queries = bounds(attention.query, attention.query_bias)
    key_norm, keys = bounds(attention.key, attention.key_bias)
    value_norm, values = bounds(attention.value, attention.value_bias)
    scale = math.sqrt(size)
    score = queries * keys / scale
    local = slope * query_norm * keys / scale
    past = slope * key_norm * queries / scale
    growth = jnp.exp(2 * score)
    kernel_local = 2 * local
    kernel_hardy = _times(2 * past, growth)
    head_local = values * kernel_local
    head_hardy = _times(values, kernel_hardy) + _times(slope * value_norm, growth)
    head = head_local + HARDY * head_hardy
    # By a head's query, key and value, each of C|dW| + |db| + |W||du|.
    slopes = (values * keys / scale, values * queries / scale, 1.0)
    separate = jnp.linalg.norm(_root(*slopes)) * _root(token, 1.0)
    shared = jnp.linalg.norm(slopes[0] * query_norm + slopes[1] * key_norm + value_norm)
    by_parameters = _root(separate, shared * math.sqrt(attention.query.shape[-1] + 1))
    output_matrix = jnp.concatenate(jnp.unstack(attention.output, axis=-3), axis=-1)
    output = _operator_norms(output_matrix[..., None, :, :])[0]
    output_bias = attention.output_bias
    return AttentionRegularity(
        score=score,
        score_local=local,
        score_past=past,
        kernel_local=kernel_local,
        kernel_hardy=kernel_hardy,
        head_local=head_local,
        head_hardy=head_hardy,
        head=head,
        lipschitz=_times(output, jnp.linalg.norm(head)),
        bound=output * jnp.linalg.norm(values) + _vector_norms(output_bias, 1)[0],
        control=_root(1.0, jnp.linalg.norm(values), output * by_parameters),
    )


def _require_exactly(value: object, kind: type, name: str, cure: str) -> None:
    """Raise ValueError unless the type is exactly this: a subclass may compute something else."""
    require(
        type(value) is kind, name, got=described(value), expected=f"a {kind.__name__}", cure=cure
    )


def _require_covered(attention: CausalAttention) -> None:
    """Raise ValueError at attention for which the paper's proposition is not proved."""
    steps = (
        "Pass a CausalAttention, of one matrix each for queries, keys and values: the proposition "
        "is proved for it."
    )
    _require_exactly(attention, CausalAttention, "attention", steps)
    attend = attention.attend
    mask = attention.mask
    require(
        attend is causal_attention or type(attend) is RingAttention,
        "attention",
        got=f"heads that attend by {_function_name(attend)}",
        expected="causal_attention or a RingAttention",
        cure="Take one of these: the proposition is proved for a softmax over the prefix.",
    )
    require(
        type(mask) is AttentionMask and mask.window is None and mask.chunk is None,
        "attention",
        got=f"{mask}",
        expected="rows that see their whole prefix",
        cure="Leave the mask out: Hardy's inequality holds for prefixes that begin at 0.",
    )
    assert isinstance(mask, AttentionMask)
    rotary = mask.positions
    plain = rotary is None or (type(rotary) is Rotary and rotary.amplitude == 1)
    # Each, where it is not None, changes queries, keys, values, scores or outputs.
    changes = "query_norm", "key_norm", "scale", "cap", "sinks", "output_norm", "gate", "value_norm"
    require(
        plain and all(getattr(attention, change) is None for change in changes),
        "attention",
        got=(
            "queries, keys, scores or outputs that are scaled, biased, capped, shared with a sink, "
            "normalised or gated"
        ),
        expected="attention without these",
        cure="Leave them out: the proposition is proved for attention without them.",
    )


@filter_jit
def feed_forward_regularity(network: Field) -> FeedForwardRegularity:
    r"""Compute a Lipschitz constant and a bound of the tokenwise network.

    :math:`\|W_2\|\,\mathrm{Lip}(\sigma)\,\|W_1\|\,\ell` and
    :math:`\|W_2\|(\|\sigma(0)\mathbf 1\| + \mathrm{Lip}(\sigma)\,r) + \|b_2\|` with
    :math:`r = \|W_1\|C + \|b_1\|`. Of a gated network nothing bounds the slope so simply.
    """
    steps = (
        "Pass a FeedForward of two matrices and an activation: the proposition is proved for it."
    )
    _require_exactly(network, FeedForward, "network", steps)
    assert isinstance(network, FeedForward)
    require(
        network.output_norm is None,
        "network",
        got="a norm of its output",
        expected="none",
        cure="Leave output_norm out: a norm may enlarge small outputs and their changes by far.",
    )
    token, slope = norm_constants(network.norm)
    inner_norm = _operator_norms(network.inner[..., None, :, :])[0]
    outer_norm = _operator_norms(network.outer[..., None, :, :])[0]
    radius = inner_norm * token + _vector_norms(network.inner_bias, 1)[0]
    steepest = jnp.asarray(_activation_slope(network.activation), radius.dtype)
    hidden = network.inner.shape[-2]
    resting = math.sqrt(hidden) * jnp.abs(network.activation(jnp.zeros((), radius.dtype)))
    activated = resting + steepest * radius
    through = outer_norm * steepest
    shared = inner_norm * math.sqrt(network.inner.shape[-1] + 1)
    return FeedForwardRegularity(
        radius=radius,
        slope=steepest,
        lipschitz=outer_norm * steepest * inner_norm * slope,
        bound=outer_norm * activated + _vector_norms(network.outer_bias, 1)[0],
        control=_root(1.0, activated, through * _root(token, 1.0, shared)),
    )


def hardy_bound(grid: CellGrid) -> float:
    r"""Bound the norm of Hardy's average on a grid of cells, whose prefixes begin at 0.

    :math:`(Hh)_i = \sum_j W_{ij}h_j / \sum_j W_{ij}` has no negative entry, so for any positive u

    .. math:: \|H\|^2 = \varrho(H^*H) \le \max_j\,(H^*Hu)_j / u_j

    (Collatz and Wielandt), with the adjoint in the grid's :math:`L^2`. By u near
    :math:`p^{-1/2}`, which gives 4 in the continuum, and a few powers of :math:`H^*H`.
    """
    assert type(grid) is CellGrid and grid.starts is None and 0 <= grid.offset < 1
    weights = np.asarray(grid.weights, float)
    offset = float(grid.offset)  # the part of its own cell that a row does not read
    prefixes = np.cumsum(weights) - offset * weights

    def average_and_adjoint(u: Float[np.ndarray, " length"]) -> Float[np.ndarray, " length"]:
        """Apply the average and then its adjoint to a function of the cells."""
        mass = weights * u
        quotient = weights * (np.cumsum(mass) - offset * mass) / prefixes**2
        return np.cumsum(quotient[::-1])[::-1] - offset * quotient

    u = np.cumsum(weights) ** -0.5
    for _ in range(3):
        u = average_and_adjoint(u)
    return math.sqrt((average_and_adjoint(u) / u).max())


def field_regularity(field: TransformerField) -> FieldRegularity:
    """Compute a Lipschitz constant :math:`C_F` and a bound :math:`M_R` of a field, over all states.

    `prop:transformer-lipschitz` with its constants, from the norms of the parameters' blocks.
    Pre-norms make both independent of the states' radius R.

    Parameters
    ----------
    field
        The field, exactly a `TransformerField` of a `CausalAttention` and a `FeedForward`; or one
        whose arrays have a leading axis: the admissible set of `ass:bounded` is then the convex
        hull. An activation is known by its identity: `jnp.tanh` and `jax.nn`'s relu, sigmoid,
        softplus, silu and gelu (also as ``partial(jax.nn.gelu, approximate=False)``).

    Returns
    -------
    FieldRegularity
        The constants of the sublayers, and of their sum `lipschitz`, `bound` and `control`.

    Raises
    ------
    ValueError
        If the field is not exactly a `TransformerField`, or has sublayers or an activation that
        these steps do not know.

    Examples
    --------
    >>> field = TransformerField.init(4, norm_eps=0.1, key=jax.random.key(0))
    >>> field = jax.tree.map(lambda leaf: 0.2 * leaf, field)
    >>> x, y = jax.random.normal(jax.random.key(1), (2, 5, 4))
    >>> of = jax.jit(lambda x: field(x, x, lim.token_grid(5)))
    >>> moved = jnp.linalg.norm(of(x) - of(y))
    >>> bool(moved <= field_regularity(field).lipschitz * jnp.linalg.norm(x - y))
    True
    """
    _require_exactly(field, TransformerField, "field", "Take the layers of a flow: flow.layers.")
    return FieldRegularity(
        attention_regularity(field.attention), feed_forward_regularity(field.feed_forward)
    )


def trajectory_radius(
    fields: TransformerField,
    x: State,
    grid: Grid,
    times: Float[Array, "*times"],
    *,
    profile_bound: float = 1.0,
) -> Float[Array, "*times"]:
    r"""Bound :math:`\|X_t\|` along depth by :math:`\|X_0\| + t\,\|\zeta\|_\infty M_R`.

    `rem:bounded-state-preln`; in the grid's norm :math:`M_R` counts times the root of the grid's
    mass. It holds for the depth flow and for residual recursions by every step here, since each
    increment is a mean of bounded ones: on cells, and in the continuum as far as cells resolve it.
    On panels prefix weights have signs, so that attention may be larger than every value that it
    reads.

    Parameters
    ----------
    fields
        The layers of a flow, or the fields that a `linear_control` joins: one `TransformerField`,
        or one whose arrays have a leading axis, of the kind that `field_regularity` takes.
    x
        The input state :math:`X_0`, of shape ``(length, width)``.
    grid
        The positions, a grid of cells.
    times
        The depth times t, an array of any shape, not negative.
    profile_bound
        The bound :math:`\|\zeta\|_\infty` of the depth profile; 1 by default.

    Returns
    -------
    Float[Array, "*times"]
        The bound at each of the times, in the grid's :math:`L^2` norm.

    Raises
    ------
    ValueError
        If the grid is one of panels, the state does not fit it, the fields are not such as
        `field_regularity` takes, or `profile_bound` is a number below zero.
    EquinoxRuntimeError
        If a time is below zero, or a `profile_bound` that is an array.

    Examples
    --------
    >>> field = TransformerField.init(4, norm_eps=0.1, key=jax.random.key(0))
    >>> trajectory_radius(field, jnp.ones((5, 4)), lim.token_grid(5), jnp.zeros(1)).tolist()
    [2.0]
    """
    _require_exactly(fields, TransformerField, "fields", "Take the layers of a flow: flow.layers.")
    require_on_grid(x, grid, "x", "length width")
    require(
        isinstance(grid, CellGrid),
        "grid",
        got=type(grid).__name__,
        expected="a grid of cells, whose prefix weights are not negative",
        cure="Take token_grid, midpoint_grid or graded_grid.",
    )
    require_floats(times, "times", "*times", cure="Pass an array of depth times.")
    times = as_nonnegative(times, "times", "Pass times from 0 on, where a flow begins.")
    profile_bound = as_finite_nonnegative(profile_bound, "profile_bound")
    # The grid's norm is the Euclidean one of rows times the roots of their weights.
    start = norm(jnp.sqrt(grid.in_single_precision.weights)[:, None] * promote(x))
    mass = jnp.sqrt(grid.weights.sum())
    return start + times * profile_bound * mass * field_regularity(fields).bound


def norm_constants(norm: Norm) -> tuple[Scalar, Scalar]:
    r"""Return layer normalisation's bound, and its slope :math:`\|\gamma\|_\infty/\sqrt\eta`."""
    # The slope is largest where the token's variance vanishes.
    _require_exactly(
        norm,
        LayerNorm,
        "norm",
        "Pass a LayerNorm: without one the field is neither bounded nor Lipschitz on all states.",
    )
    assert isinstance(norm, LayerNorm)
    largest = jnp.max(jnp.abs(promote(norm.scale)))
    return norm.bound(), largest / math.sqrt(norm.norm_eps)


def _operator_norms(matrices: Float[Array, "*fields heads rows columns"]) -> Heads:
    """Return each head's largest operator norm over all fields."""
    norms = jnp.linalg.norm(promote(matrices), ord=2, axis=(-2, -1))
    return norms.reshape(-1, norms.shape[-1]).max(axis=0)


def _vector_norms(vectors: Float[Array, "..."] | None, heads: int) -> Heads:
    """Return each head's largest Euclidean norm of a bias over all fields; zeros without one."""
    if vectors is None:
        return jnp.zeros(heads)
    return jnp.linalg.norm(promote(vectors), axis=-1).reshape(-1, heads).max(axis=0)


def _function_name(function: object) -> str:
    """Return a function's name, or a description if it has none."""
    return getattr(function, "__name__", described(function))


def _activation_slope(activation: Any) -> float:
    """Return the Lipschitz constant of a known activation; raise ValueError at others."""
    if isinstance(activation, partial) and activation.func is jax.nn.gelu and not activation.args:
        options = activation.keywords
        if options.keys() == {"approximate"} and type(options["approximate"]) is bool:
            return GELU_SLOPES[options["approximate"]]
    slopes = [slope for function, slope in SLOPES if activation is function]
    require(
        len(slopes) == 1,
        "activation",
        got=_function_name(activation),
        expected="jnp.tanh, or jax.nn's relu, sigmoid, softplus, silu or gelu, themselves",
        cure="Take one of these: no bound is known for the slope of others.",
    )
    return slopes[0]


def _root(*terms: Array | float) -> Array:
    """Return the root of the sum of squares."""
    return jnp.sqrt(sum(jnp.square(term) for term in terms))


def _times(factor: Array, growth: Array) -> Array:
    """Multiply by a factor, where zero times infinity is zero."""
    return jnp.where(factor == 0, 0, factor * growth)
