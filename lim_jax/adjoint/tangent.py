r"""The linearised field: the one place where the local operator and the kernel are told apart.

The derivative of a field at x in its first slot is the local operator B (the query path and the
tokenwise network), that in its second slot the Volterra kernel K, diagonal block included:
:math:`D\mathscr F(X) = K + B` (`eq:attention-linearization-exact`). A layer of a network is one
or several residual stages, each with its own K and B; a sublayer is a field like any other.
Adjoints are taken in the grid's pairing, so covectors stay densities.

Blocks of attention's kernel are known in closed form. With :math:`A^h` the attention kernel and
:math:`k^h`, :math:`v^h`, :math:`o^h`, :math:`q^h` a head's keys, values, outputs and queries,

.. math:: K(p, q) = \sum_h A^h(p, q)\, W_O^h \Bigl[Dv^h(q) + \bigl(v^h(q) - o^h(p)\bigr)
          \otimes Dk^h(q)^\top q^h(p) / \sqrt{d_k}\Bigr]

(`eq:attention-nonlocal-kernel`, projected as in `eq:multihead-volterra-derivative`). Gates and a
norm of the output act on row p alone: the row's gates stand between :math:`W_O^h` and the bracket,
the norm's derivative at p before the sum, and what they owe to x is in B. Whatever makes
keys and values of one token, only its derivative at that token enters: without norms of keys and
positions :math:`Dk^h = W_K^h D\mathrm{LN}` and :math:`Dv^h = W_V^h D\mathrm{LN}`. Blocks are
densities: the Jacobian's block is :math:`\hat K_{ij} = W_{ij} K(p_i, p_j)`, that is
:math:`K/L` on tokens.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lim_jax._checks import described, require, require_callable
from lim_jax._errors import filter_jit
from lim_jax._precision import beyond_rounding, widened
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid, require_on_grid
from lim_jax.network.attention import continued_kernel, score_slopes
from lim_jax.network.multihead import CausalAttention, by_head
from lim_jax.network.slots import Field, State
from lim_jax.network.span import Turns

Scalar = Float[Array, ""]
Sources = tuple[Float[Array, "groups size"], Float[Array, "groups features"]]


class Parts(NamedTuple):
    r"""What the local operator and the kernel make of one tangent or covector.

    Attributes
    ----------
    local
        :math:`B\xi` or :math:`B^* P`.
    kernel
        :math:`K\xi` or :math:`K^* P`.
    """

    local: State
    kernel: State


def push_forward(field: Field, x: State, tangent: State, grid: Grid) -> Parts:
    r"""Carry a tangent through the linearised field: :math:`B\xi` and :math:`K\xi` apart.

    `eq:volterra-linearization`. Their sum is :math:`D\mathscr F(X)\xi`: of one head
    `eq:attention-linearization-exact`, of a whole field `eq:multihead-volterra-derivative`.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> field = lambda x, context, grid: 2 * x + 3 * context
    >>> parts = push_forward(field, jnp.ones((2, 1)), jnp.ones((2, 1)), token_grid(2))
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
    r"""Carry a covector back through the linearised field: :math:`B^*P` and :math:`K^*P` apart.

    `eq:volterra-adjoint`, by one vector-Jacobian product in both slots.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> field = lambda x, context, grid: 2 * x + 3 * context
    >>> parts = pull_back(field, jnp.ones((2, 1)), jnp.ones((2, 1)), token_grid(2))
    >>> parts.local.tolist(), parts.kernel.tolist()
    ([[2.0], [2.0]], [[3.0], [3.0]])
    """
    _require_tangent(field, x, covector, grid, "covector")
    weights = grid.weights[:, None]
    _, transposed = jax.vjp(lambda x, context: field(x, context, grid), x, x)
    local, kernel = transposed(weights * covector)
    return Parts(local / weights, kernel / weights)


def local_blocks(field: Field, x: State, grid: Grid) -> Float[Array, "length width width"]:
    r"""The local operator as one matrix :math:`B_i` for each token.

    `eq:attention-local-operator` and the tokenwise derivatives. B does not mix tokens, so a
    tangent that is the same at every token reads a column of all blocks at once: exact, for any
    field, by as many Jacobian-vector products as there are features.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> field = lambda x, context, grid: jnp.sin(x)
    >>> local_blocks(field, jnp.zeros((2, 1)), token_grid(2)).tolist()
    [[[1.0]], [[1.0]]]
    """
    _require_tangent(field, x, x, grid, "x")
    _, push = jax.linearize(lambda x_: field(x_, x, grid), x)
    basis = jnp.eye(x.shape[1], dtype=x.dtype)
    return jax.vmap(lambda e: push(jnp.broadcast_to(e[None], x.shape)), out_axes=2)(basis)


class KernelFactors(NamedTuple):
    r"""What the blocks :math:`K(p_i, p_j)` are made of, over heads h and positions.

    The derivatives of keys and values are not kept: they are taken at one token at a time.

    Attributes
    ----------
    attention, states, turns
        The sublayer, where it is linearised, and what it knows of the positions.
    kernel
        :math:`A^h(p_i, p_j)`, a density in j.
    query
        :math:`q^h_i/\sqrt{d_k}`.
    value, output
        :math:`v^h_j` and :math:`o^h_i` (`eq:one-head-attention-mean-value`).
    slope
        What changes of scores are multiplied by where scores are capped (`score_slopes`), or None.
    gates
        Which share of what is read a row lets through, or None.
    """

    attention: CausalAttention
    states: State
    turns: Turns | None
    kernel: Float[Array, "heads length length"]
    query: Float[Array, "heads length size"]
    value: Float[Array, "heads length features"]
    output: Float[Array, "heads length features"]
    slope: Float[Array, "heads length length"] | None = None
    gates: Float[Array, "heads length features"] | None = None

    def source(self, j: Array) -> tuple[Callable[[Array], Sources], Float[Array, " width"]]:
        """The map of one token to its keys and values at position j, and the token there."""
        turns = jax.tree.map(lambda rows: rows[j][None], self.turns)

        def of_token(token: Float[Array, " width"]) -> Sources:
            key, value = self.attention.sources(token[None], turns)
            return key[:, 0], value[:, 0]

        return of_token, self.states[j]

    def slopes(
        self, j: Array
    ) -> tuple[Float[Array, "groups size width"], Float[Array, "groups features width"]]:
        r"""The derivatives :math:`Dk^g` and :math:`Dv^g` at j, of every group of heads."""
        source, token = self.source(j)
        return jax.jacfwd(source)(token)

    def steps(self, j: Array) -> Float[Array, "heads length features"]:
        """:math:`v^h_j - o^h_i` over i, by which a score's change moves the outputs."""
        steps = self.value[:, j][:, None, :] - self.output
        return steps if self.slope is None else self.slope[:, :, j, None] * steps

    def mixed(self, heads: Float[Array, "heads length features"]) -> State:
        """What attention makes of what its heads read at every position."""
        return self.attention.mixed(heads, self.gates)

    def after(self, moved: Float[Array, "heads length features"]) -> State:
        """What gates, :math:`W_O` and the norm of the output make of changes of what is read."""
        return jax.jvp(self.mixed, (self.output,), (moved,))[1]

    def before(self, covector: State) -> Float[Array, "heads length features"]:
        """The transpose of `after`."""
        return jax.vjp(self.mixed, self.output)[1](covector)[0]

    def column(self, j: Array) -> Float[Array, "length width width"]:
        r"""The blocks :math:`K(p_i, p_j)` of one column over i (`eq:attention-nonlocal-kernel`)."""
        keys, values = (by_head(slope, len(self.query)) for slope in self.slopes(j))
        scores = jnp.einsum("hik,hkb->hib", self.query, keys)
        moved = values[:, None] + self.steps(j)[:, :, :, None] * scores[:, :, None, :]
        moved = self.kernel[:, :, j, None, None] * moved
        return jax.vmap(self.after, in_axes=3, out_axes=2)(moved)

    def push_column(self, j: Array, tangent: Float[Array, " width"]) -> State:
        r""":math:`K(p_i, p_j)\xi` over i, without the blocks."""
        source, token = self.source(j)
        _, moves = jax.jvp(source, (token,), (tangent,))
        keys, values = (by_head(move, len(self.query)) for move in moves)
        scores = jnp.einsum("hik,hk->hi", self.query, keys)
        moved = values[:, None] + scores[:, :, None] * self.steps(j)
        return self.after(self.kernel[:, :, j, None] * moved)

    def pull_column(self, j: Array, covector: State) -> State:
        r""":math:`K(p_i, p_j)^* P_i` over i, without the blocks."""
        heads = self.kernel[:, :, j, None] * self.before(covector)
        heads = jnp.swapaxes(heads, 0, 1)
        scores = jnp.einsum("ihv,hiv->ih", heads, self.steps(j))
        keys = scores[:, :, None] * jnp.swapaxes(self.query, 0, 1)
        source, token = self.source(j)

        def of_heads(token: Float[Array, " width"]) -> Sources:
            key, value = source(token)
            return by_head(key, len(self.query)), by_head(value, len(self.query))

        _, pull = jax.vjp(of_heads, token)
        return jax.vmap(lambda key, value: pull((key, value))[0])(keys, heads)


def kernel_factors(attention: CausalAttention, x: State, grid: Grid) -> KernelFactors:
    """What every block of `eq:attention-nonlocal-kernel` needs, once, in float32 at least."""
    _require_attention(attention, x, grid)
    attention, x = widened((attention, x))
    turns, grid = attention.turns(grid), attention.prefixes(grid)
    query = attention.queries(x, turns)
    key, value = (by_head(grouped, len(query)) for grouped in attention.sources(x, turns))
    kernel = attention.of_heads(partial(continued_kernel, grid=grid), query, key)
    prefix = grid.prefix_weights().astype(kernel.dtype)
    output = jnp.einsum("hij,hjv->hiv", prefix[None] * kernel, value)
    slope = None
    if attention.cap is not None:
        slope = jax.vmap(partial(score_slopes, cap=attention.cap))(query, key)
    query, gates = query / math.sqrt(query.shape[-1]), attention.gates(x)
    return KernelFactors(attention, x, turns, kernel, query, value, output, slope, gates)


@filter_jit
def kernel_blocks(
    attention: CausalAttention, x: State, grid: Grid
) -> Float[Array, "length length width width"]:
    r"""Every block :math:`\hat K_{ij} = W_{ij}K(p_i, p_j)` of the Jacobian in the context slot.

    Euclidean, zero for j > i on token-type grids. Of :math:`L^2 d^2` numbers: to look at, on small
    examples; `cone_mass` streams.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> one = jnp.ones((1, 1, 1))
    >>> averaging = CausalAttention(lambda z: z, 0 * one, 0 * one, one, one)
    >>> kernel_blocks(averaging, jnp.ones((2, 1)), token_grid(2))[:, :, 0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    factors = kernel_factors(attention, x, grid)
    blocks = jax.vmap(factors.column, out_axes=1)(jnp.arange(grid.size))
    return grid.prefix_weights()[:, :, None, None] * blocks


def written_causal(field: Any) -> bool:
    """Whether a field, its sublayers and its attention's sums are the library's own: all causal."""
    parts = (field, *getattr(field, "sublayers", ()))
    attends = (getattr(part, "attend", field) for part in parts)
    modules = (getattr(part, "__module__", "") for part in (*parts, *attends))
    return all(module.startswith("lim_jax.") for module in modules)


def looks_ahead(field: Field, x: State, grid: Grid) -> Bool[Array, ""]:
    r"""Whether a field takes anything to the positions before a cut from those after it.

    What is excluded by `rem:attention-measure-scope`: a statistic of the whole context adds a
    channel that is not Volterra's. One pull for each of some :math:`\log_2 L` cuts, before the
    second position, before the last, and evenly between: a covector in general position before the
    cut must give nothing after it, in either slot. So seen is whatever reads as far ahead as cuts
    are apart, anywhere; and two or more positions that read one another at the beginning (a prefix
    of any length) or at the end. Not seen is what reads less far ahead between two cuts: later rows
    may read earlier positions, so a pull judges one cut, and all pairs would take
    :math:`L - 1` pulls. On panels, whose prefix integrals are of an interpolant, nothing is.

    Examples
    --------
    >>> from lim_jax.grid import token_grid
    >>> x, grid = jnp.ones((4, 1)), token_grid(4)
    >>> [bool(looks_ahead(field, x, grid)) for field in (
    ...     lambda x, context, grid: jnp.cumsum(context, axis=0),
    ...     lambda x, context, grid: context + context.mean(axis=0, keepdims=True),
    ... )]
    [False, True]
    """
    _require_tangent(field, x, x, grid, "x")
    if grid.size == 1 or not isinstance(grid, CellGrid):
        return jnp.array(False)
    # An odd number of them: the middle is one.
    cuts = np.linspace(1, grid.size - 1, 2 * (grid.size.bit_length() // 2) + 1).astype(int)
    covector = jnp.asarray(np.random.default_rng(0).standard_normal(x.shape), x.dtype)
    _, transposed = jax.vjp(lambda x, context: field(x, context, grid), x, x)

    def crossed(cut: Array) -> Bool[Array, ""]:
        before = (jnp.arange(grid.size) < cut)[:, None]
        pulled = jnp.stack(transposed(jnp.where(before, covector, 0)))
        return beyond_rounding(jnp.where(before, 0, pulled), pulled)

    return jnp.any(jax.lax.map(crossed, jnp.asarray(np.unique(cuts))))


def _require_tangent(field: Any, x: State, tangent: State, grid: Grid, name: str) -> None:
    require_callable(field, "field", "field(x, context, grid)")
    require_on_grid(x, grid, "x", "length width")
    require_on_grid(tangent, grid, name, "length width", width=x.shape[1])


def _require_attention(attention: Any, x: State, grid: Grid) -> None:
    require(
        isinstance(attention, CausalAttention),
        "attention",
        got=described(attention),
        expected="CausalAttention",
        cure="Pass the attention sublayer, for example field.attention.",
    )
    require(
        written_causal(attention),
        "attention",
        got=f"{type(attention).__name__} that attends by {described(attention.attend)}",
        expected="a class and sums of the library's own",
        cure="The closed form is theirs; cone_mass takes any causal field.",
    )
    require_on_grid(x, grid, "x", "length width")
