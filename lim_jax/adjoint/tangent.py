r"""The linearised field, its local operator and its kernel apart.

The derivative of a field at x in its first slot is the local operator B (the query path and the
tokenwise network), that in its second slot the Volterra kernel K, diagonal block included:
:math:`D\mathscr F(X) = K + B` (`eq:attention-linearization-exact`). Adjoints are taken in the
grid's pairing, so covectors stay densities. Of attention, with its kernel :math:`A^h` and a head's
keys :math:`k^h`, values :math:`v^h`, outputs :math:`o^h` and queries :math:`q^h`,

.. math:: K(p, q) = \sum_h A^h(p, q)\, W_O^h \Bigl[Dv^h(q) + \bigl(v^h(q) - o^h(p)\bigr)
          \otimes Dk^h(q)^\top q^h(p) / \sqrt{d_k}\Bigr]

(`eq:attention-nonlocal-kernel`, projected as in `eq:multihead-volterra-derivative`). Gates and a
norm of the output act on row p alone: the row's gates stand between :math:`W_O^h` and the bracket,
the norm's derivative at p before the sum, and their own derivatives in x are in B. Blocks are
densities: the Jacobian's block is :math:`\hat K_{ij} = W_{ij} K(p_i, p_j)`, :math:`K/L` on tokens.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from lim_jax._checks import described, error_if, require, require_callable
from lim_jax._precision import beyond_rounding, promote
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.attention import causal_attention, continued_kernel, score_slopes
from lim_jax.network.experts import MixtureOfExperts
from lim_jax.network.field import SumOfFields, TransformerField
from lim_jax.network.gated_delta import GatedDelta, KimiDelta
from lim_jax.network.latent import LatentAttention
from lim_jax.network.mamba2 import Mamba2
from lim_jax.network.masks import Rope
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.ring import RingAttention
from lim_jax.network.short_convolution import ShortConvolution
from lim_jax.network.slots import Field, State
from lim_jax.network.tiled_attention import blocked_attention
from lim_jax.network.tokenwise import FeedForward, GatedFeedForward, NormedResidual

BLOCKS_OF_SOFTMAX = (
    "Take cone_mass or probed_cone_mass of a state: blocks in closed form are those of a softmax."
)
# A subclass may override what makes these causal, so types are compared and not instances.
CAUSAL_FIELDS = {
    TransformerField, SumOfFields, CausalAttention, LatentAttention, GatedDelta, KimiDelta,
    Mamba2, ShortConvolution, NormedResidual, FeedForward, GatedFeedForward, MixtureOfExperts,
}  # fmt: skip
Sources = tuple[Float[Array, "groups size"], Float[Array, "groups features"]]


class Parts(NamedTuple):
    r"""The images of one tangent or covector under the local operator B and the kernel K.

    Attributes
    ----------
    local
        :math:`B\xi` of a tangent :math:`\xi`, or :math:`B^*P` of a covector P.
    kernel
        :math:`K\xi` of a tangent, or :math:`K^*P` of a covector.
    """

    local: State
    kernel: State


def push_forward(field: Field, x: State, tangent: State, grid: Grid) -> Parts:
    r"""Carry a tangent through the linearised field: :math:`B\xi` and :math:`K\xi` apart.

    `eq:volterra-linearization`. Their sum is :math:`D\mathscr F(X)\xi`: of one head
    `eq:attention-linearization-exact`, of a whole field `eq:multihead-volterra-derivative`.

    Parameters
    ----------
    field
        Any function ``field(x, context, grid)`` of the two slots, for example a `TransformerField`
        or its ``attention``.
    x
        The state at which the field is linearised, of shape ``(length, width)``; it stands in both
        slots.
    tangent
        :math:`\xi`, a change of the state, of the shape and the precision of x.
    grid
        The positions of x.

    Returns
    -------
    Parts
        :math:`B\xi` and :math:`K\xi`, changes of the field's output.

    Raises
    ------
    ValueError
        If the field cannot be called, x or the tangent does not fit the grid, or the tangent has
        another width or precision than x.

    Examples
    --------
    >>> field = lambda x, context, grid: 2 * x + 3 * context
    >>> parts = push_forward(field, jnp.ones((2, 1)), jnp.ones((2, 1)), lim.token_grid(2))
    >>> parts.local.tolist(), parts.kernel.tolist()
    ([[2.0], [2.0]], [[3.0], [3.0]])
    """
    _require_tangent(field, x, tangent, grid, "tangent")
    require(
        tangent.dtype == x.dtype,
        "tangent",
        got=f"{tangent.dtype}",
        expected=f"the state's {x.dtype}",
        cure="Cast one of them: a tangent lies in the space of its state.",
    )
    _, push = jax.linearize(lambda x, context: field(x, context, grid), x, x)
    still = jnp.zeros_like(tangent)
    return Parts(push(tangent, still), push(still, tangent))


def pull_back(field: Field, x: State, covector: State, grid: Grid) -> Parts:
    """Carry a covector back through the linearised field: :math:`B^*P` and :math:`K^*P` apart.

    `eq:volterra-adjoint`, by one vector-Jacobian product in both slots.

    Parameters
    ----------
    field
        Any function ``field(x, context, grid)`` of the two slots, for example a `TransformerField`
        or its ``attention``.
    x
        The state at which the field is linearised, of shape ``(length, width)``; it stands in both
        slots.
    covector
        P, a density, of the shape of x.
    grid
        The positions of x.

    Returns
    -------
    Parts
        :math:`B^*P` and :math:`K^*P`, densities.

    Raises
    ------
    ValueError
        If the field cannot be called, x or the covector does not fit the grid, or the covector has
        another width than x.

    Examples
    --------
    >>> field = lambda x, context, grid: 2 * x + 3 * context
    >>> parts = pull_back(field, jnp.ones((2, 1)), jnp.ones((2, 1)), lim.token_grid(2))
    >>> parts.local.tolist(), parts.kernel.tolist()
    ([[2.0], [2.0]], [[3.0], [3.0]])
    """
    _require_tangent(field, x, covector, grid, "covector")
    weights = grid.weights[:, None]
    _, transposed = jax.vjp(lambda x, context: field(x, context, grid), x, x)
    local, kernel = transposed(weights * covector)
    return Parts(local / weights, kernel / weights)


def local_blocks(field: Field, x: State, grid: Grid) -> Float[Array, "length width width"]:
    """Compute the local operator as one matrix :math:`B_i` for each token.

    `eq:attention-local-operator` and the tokenwise derivatives. B mixes no tokens, so a tangent
    that is the same at every token reads a column of all blocks at once, exactly.

    Parameters
    ----------
    field
        Any function ``field(x, context, grid)`` that reads its first slot token by token, for
        example a `TransformerField` or its ``attention``.
    x
        The state at which the field is linearised, of shape ``(length, width)``; it stands in both
        slots.
    grid
        The positions of x.

    Returns
    -------
    Array
        :math:`B_i` of shape ``(length, width, width)``: row a and column b of each matrix is the
        derivative of the output's component a in the state's component b.

    Raises
    ------
    ValueError
        If the field cannot be called, or x does not fit the grid.
    EquinoxRuntimeError
        If a field that is none of this library's moves a token by its neighbours in the first slot:
        every other token is moved, and the rest must stand still.

    Examples
    --------
    >>> field = lambda x, context, grid: jnp.sin(x)
    >>> local_blocks(field, jnp.zeros((2, 1)), lim.token_grid(2)).tolist()
    [[[1.0]], [[1.0]]]
    """
    _require_tangent(field, x, x, grid, "x")
    _, push = jax.linearize(lambda x_: field(x_, x, grid), x)
    basis = jnp.eye(x.shape[1], dtype=x.dtype)
    blocks = jax.vmap(lambda e: push(jnp.broadcast_to(e[None], x.shape)), out_axes=2)(basis)
    if causal_by_construction(field):
        return blocks
    pushed = push(jnp.ones_like(x).at[1::2].set(0))
    message = (
        "field: got a first slot that mixes tokens, expected one that is read token by token. "
        "Read what mixes them from the second slot, the context."
    )
    return error_if(blocks, beyond_rounding(pushed.at[::2].set(0), pushed), message)


class KernelFactors(NamedTuple):
    r"""The factors of the blocks :math:`K(p_i, p_j)` of attention, over heads h and positions.

    Make them with `kernel_factors`. Derivatives of keys and values are taken one token at a time.

    Attributes
    ----------
    attention
        The attention, its arrays in float32 at least.
    states
        The states at which it is linearised, of shape ``(length, width)``.
    rope
        What queries and keys know of their positions (`AttentionMask.rope`), or None.
    kernel
        :math:`A^h(p_i, p_j)`, a density in j, of shape ``(heads, length, length)``: each row's
        products with the prefix weights sum to one, or to less where there is a sink.
    query
        :math:`q^h_i/\sqrt{d_k}`, of shape ``(heads, length, size)``.
    value
        :math:`v^h_j`, of shape ``(heads, length, features)``.
    output
        What a head reads, :math:`o^h_i` (`eq:one-head-attention-mean-value`), of the values' shape.
    slope
        The derivative of capped scores in the scores before the cap, of the kernel's shape; None
        where scores have no cap.
    gates
        The factors of what heads read, of the outputs' shape; None where there are no gates.
    """

    attention: CausalAttention
    states: State
    rope: Rope | None
    kernel: Float[Array, "heads length length"]
    query: Float[Array, "heads length size"]
    value: Float[Array, "heads length features"]
    output: Float[Array, "heads length features"]
    slope: Float[Array, "heads length length"] | None = None
    gates: Float[Array, "heads length features"] | None = None

    def source(self, j: Array) -> tuple[Callable[[Array], Sources], Float[Array, " width"]]:
        """Return the map of one token to its keys and values at position j, and the token there.

        Parameters
        ----------
        j
            The number of the position, from 0, which may be traced.

        Returns
        -------
        tuple
            A function of a token's state, ``(width,)``, to its key and value in every group of
            heads, and the state :math:`X(j)`.

        Raises
        ------
        ValueError
            If a number that is known before tracing is none of the state's positions.
        """
        last = len(self.states) - 1
        require(
            isinstance(j, Tracer) or 0 <= int(j) <= last,
            "j",
            got=f"{j}",
            expected=f"a position from 0 to {last}",
            cure="Pass one of the state's positions.",
        )
        rope = jax.tree.map(lambda rows: rows[j][None], self.rope)

        def key_and_value(token: Float[Array, " width"]) -> Sources:
            """Compute the key and the value of one token."""
            key, value = self.attention.sources(token[None], rope)
            return key[:, 0], value[:, 0]

        return key_and_value, self.states[j]

    def source_jacobians(
        self, j: Array
    ) -> tuple[Float[Array, "groups size width"], Float[Array, "groups features width"]]:
        r"""Return the derivatives :math:`Dk^g` and :math:`Dv^g` at j, of every group of heads."""
        source, token = self.source(j)
        return jax.jacfwd(source)(token)

    def steps(self, j: Array) -> Float[Array, "heads length features"]:
        """Return :math:`v^h_j - o^h_i` over i: the outputs' derivative in a score, over A."""
        steps = self.value[:, j][:, None, :] - self.output
        return steps if self.slope is None else self.slope[:, :, j, None] * steps

    def project_output(self, heads: Float[Array, "heads length features"]) -> State:
        """Apply gates, :math:`W_O` and the norm of the output to the heads' outputs."""
        return self.attention.project_output(heads, self.gates)

    def push_output(self, tangent: Float[Array, "heads length features"]) -> State:
        """Carry a tangent of the heads' outputs through `project_output`."""
        return jax.jvp(self.project_output, (self.output,), (tangent,))[1]

    def pull_output(self, covector: State) -> Float[Array, "heads length features"]:
        """Carry a covector back through `project_output`."""
        return jax.vjp(self.project_output, self.output)[1](covector)[0]

    def column(self, j: Array) -> Float[Array, "length width width"]:
        """Compute column j's blocks :math:`K(p_i, p_j)` (`eq:attention-nonlocal-kernel`)."""
        keys, values = (by_head(jacobian, len(self.query)) for jacobian in self.source_jacobians(j))
        scores = jnp.einsum("hik,hkb->hib", self.query, keys)
        tangents = values[:, None] + self.steps(j)[:, :, :, None] * scores[:, :, None, :]
        tangents = self.kernel[:, :, j, None, None] * tangents
        return jax.vmap(self.push_output, in_axes=3, out_axes=2)(tangents)

    def push_column(self, j: Array, tangent: Float[Array, " width"]) -> State:
        r"""Compute :math:`K(p_i, p_j)\xi` over i, without the blocks."""
        source, token = self.source(j)
        _, moves = jax.jvp(source, (token,), (tangent,))
        keys, values = (by_head(move, len(self.query)) for move in moves)
        scores = jnp.einsum("hik,hk->hi", self.query, keys)
        tangents = values[:, None] + scores[:, :, None] * self.steps(j)
        return self.push_output(self.kernel[:, :, j, None] * tangents)

    def pull_column(self, j: Array, covector: State) -> State:
        """Compute :math:`K(p_i, p_j)^* P_i` over i, without the blocks."""
        heads = self.kernel[:, :, j, None] * self.pull_output(covector)
        heads = jnp.swapaxes(heads, 0, 1)
        scores = jnp.einsum("ihv,hiv->ih", heads, self.steps(j))
        keys = scores[:, :, None] * jnp.swapaxes(self.query, 0, 1)
        source, token = self.source(j)

        def key_and_value_by_head(token: Float[Array, " width"]) -> Sources:
            """Compute one token's key and value, repeated for every query head."""
            key, value = source(token)
            return by_head(key, len(self.query)), by_head(value, len(self.query))

        _, pull = jax.vjp(key_and_value_by_head, token)
        return jax.vmap(lambda key, value: pull((key, value))[0])(keys, heads)


def kernel_factors(attention: CausalAttention, x: State, grid: Grid) -> KernelFactors:
    """Evaluate the factors of the blocks of `eq:attention-nonlocal-kernel`, in float32 at least.

    Parameters
    ----------
    attention
        The attention sublayer, for example ``field.attention``: `CausalAttention` that attends by a
        function of this library.
    x
        The states at which it is linearised, of shape ``(length, width)``.
    grid
        The positions of x.

    Returns
    -------
    KernelFactors
        The factors; ``factors.column(j)``, j an array, forms the blocks :math:`K(p_i, p_j)`, and
        ``push_column`` and ``pull_column`` apply them without forming them.

    Raises
    ------
    ValueError
        If `attention` is anything else, whose blocks have no closed form here, or x does not fit
        the grid.

    Examples
    --------
    >>> averaging, x = lim.limits.averaging_attention(), jnp.ones((2, 1))
    >>> factors = kernel_factors(averaging, x, lim.token_grid(2))
    >>> factors.column(jnp.array(0))[:, 0, 0].tolist()  # 1/p_i, of the mean over the prefix
    [2.0, 1.0]
    """
    _require_attention(attention, x, grid)
    attention, x = promote((attention, x))
    rope = attention.rope(grid)
    grid = attention.prefixes(grid.in_single_precision)
    query = attention.queries(x, rope)
    key, value = (by_head(grouped, len(query)) for grouped in attention.sources(x, rope))
    kernel = attention.map_heads(partial(continued_kernel, grid=grid), query, key)
    prefix = grid.prefix_weights().astype(kernel.dtype)
    output = jnp.einsum("hij,hjv->hiv", prefix[None] * kernel, value)
    slope = None
    if attention.cap is not None:
        slope = jax.vmap(partial(score_slopes, cap=attention.cap))(query, key)
    query = query / math.sqrt(query.shape[-1])
    gates = attention.gates(x)
    return KernelFactors(attention, x, rope, kernel, query, value, output, slope, gates)


def causal_by_construction(field: Any) -> bool:
    """Tell whether a field, its sublayers and its attend function are this library's."""
    if type(field) not in CAUSAL_FIELDS:
        return False
    if isinstance(field, CausalAttention):
        functions = causal_attention, blocked_attention
        return type(field.attend) is RingAttention or any(
            field.attend is function for function in functions
        )
    return all(map(causal_by_construction, getattr(field, "sublayers", ())))


def looks_ahead(field: Field, x: State, grid: Grid) -> Bool[Array, ""]:
    r"""Return whether a field takes anything to the positions before a cut from those after it.

    `rem:attention-measure-scope` excludes such fields: a statistic of the whole context adds a
    channel that is not Volterra's. The test makes one pull for each of some :math:`\log_2 L` cuts,
    before the second position, before the last, and evenly between: a random covector before the
    cut must give nothing after it, in either slot. It does not see what reads less far ahead
    between two cuts, and nothing on panels, whose prefix integrals are of an interpolant.

    Parameters
    ----------
    field
        Any function ``field(x, context, grid)`` of the two slots.
    x
        The state at which the field is linearised, of shape ``(length, width)``; it stands in both
        slots.
    grid
        The positions of x. With one position, or on Gauss--Legendre panels, the answer is False
        without a test.

    Returns
    -------
    Array
        A boolean of shape ``()``.

    Raises
    ------
    ValueError
        If the field cannot be called, or x does not fit the grid.

    Examples
    --------
    >>> x, grid = jnp.ones((4, 1)), lim.token_grid(4)
    >>> [bool(looks_ahead(field, x, grid)) for field in (
    ...     lambda x, context, grid: jnp.cumsum(context, axis=0),
    ...     lambda x, context, grid: context + context.mean(axis=0, keepdims=True),
    ... )]
    [False, True]
    """
    _require_tangent(field, x, x, grid, "x")
    if grid.size == 1 or not isinstance(grid, CellGrid):
        return jnp.array(False)
    # An odd number, so that one of the cuts is the middle.
    cuts = np.linspace(1, grid.size - 1, 2 * (grid.size.bit_length() // 2) + 1).astype(int)
    covector = jnp.asarray(np.random.default_rng(0).standard_normal(x.shape), x.dtype)
    _, pull = jax.vjp(lambda x, context: field(x, context, grid), x, x)

    def crosses(cut: Array) -> Bool[Array, ""]:
        """Tell whether what is read before a cut depends on tokens after it."""
        before = (jnp.arange(grid.size) < cut)[:, None]
        gradients = jnp.stack(pull(jnp.where(before, covector, 0)))
        return beyond_rounding(jnp.where(before, 0, gradients), gradients)

    return jnp.any(jax.lax.map(crosses, jnp.asarray(np.unique(cuts))))


def _require_tangent(field: Any, x: State, tangent: State, grid: Grid, name: str) -> None:
    """Raise ValueError unless the field can be called, and x and the tangent fit the grid."""
    require_callable(field, "field", "field(x, context, grid)")
    require_on_grid(x, grid, "x", "length width")
    require_on_grid(tangent, grid, name, "length width", width=x.shape[1])


def _require_attention(attention: Any, x: State, grid: Grid) -> None:
    """Raise ValueError unless attention is softmax of this library, and x fits the grid."""
    got = described(attention)
    if isinstance(attention, CausalAttention):
        got = f"{got} that attends by {described(attention.attend)}"
    require(
        isinstance(attention, CausalAttention) and causal_by_construction(attention),
        "attention",
        got=got,
        expected="CausalAttention with an attend function of this library",
        cure=f"Pass for example field.attention. {BLOCKS_OF_SOFTMAX}",
    )
    require_on_grid(x, grid, "x", "length width")
