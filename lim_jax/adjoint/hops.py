r"""The input adjoint by the number of attention layers that the loss passed on its way back.

.. math:: P_k = \sum_r P_k^{(r)}, \qquad
          P_k^{(r)} = (I + \varepsilon\zeta B^*)P_{k+1}^{(r)}
          + \varepsilon\zeta K^*P_{k+1}^{(r-1)}, \qquad P_M^{(0)} = P_T

The order r counts the kernels :math:`K^*` on the way back from the loss. So order 0 stays at the
loss's queries, order 1 is what they read directly, order 2 what they read from tokens that had read
it. A channel of `ledger` says which operator of a layer wrote a covector last; an order says how
the whole covector came from the loss: a layer that only rescales the state changes no order's
share. Vectors are densities.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lim_jax._checks import as_int
from lim_jax._jit import filter_jit
from lim_jax.adjoint.ledger import cone_by_head
from lim_jax.adjoint.sites import attention_sites
from lim_jax.adjoint.stages import Covectors, SparseRows, Stage, linearised_stages
from lim_jax.adjoint.sweep import Example, TerminalLoss, run_forward
from lim_jax.adjoint.tangent import Parts
from lim_jax.grid.measure import Grid, Scalar
from lim_jax.network.flow import ResidualFlow, require_flow
from lim_jax.network.slots import State


@filter_jit
def attention_hops(
    flow: ResidualFlow, terminal_loss: TerminalLoss, example: Example, grid: Grid, highest: int
) -> Float[Array, "times hops length width"]:
    """Split the adjoint at every depth by attention hops, in one reverse sweep.

    Exact for the recursion itself, stage by stage in split layers: the rows of each depth k sum to
    :math:`P_k`. Row 0 is zero at every token whose own terminal covector is zero. One array of the
    result's size is kept.

    Parameters
    ----------
    flow
        The depth flow, whose ``step`` is `euler` or `split`.
    terminal_loss
        A function ``terminal_loss(state, y)`` that returns a scalar, for example a cross-entropy of
        a readout.
    example
        A pair ``(x, y)``: the input :math:`X_0`, of shape ``(length, width)``, and its labels, any
        pytree, or None where the loss looks at none.
    grid
        The positions of x, in the precision of x.
    highest
        The number of hops from which on they are taken together, a positive whole number known
        before tracing.

    Returns
    -------
    Array
        Densities of shape ``(depth + 1, highest + 1, length, width)``: row r < `highest` of depth k
        is :math:`P_k^{(r)}`, the last row holds `highest` or more hops. Index 0 of the first axis
        is the input.

    Raises
    ------
    ValueError
        If the step is another one, `flow` is no `ResidualFlow`, the loss no function, the example
        no pair, x does not fit the grid, or `highest` is no such number.

    Examples
    --------
    Two layers of causal averaging, and a loss that asks from the last of two tokens.

    >>> two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), lim.limits.averaging_attention())
    >>> flow, x, grid = ResidualFlow(two, horizon=2.0), jnp.ones((2, 1)), lim.token_grid(2)
    >>> hops = attention_hops(flow, lambda state, y: state[y, 0] / 2, (x, 1), grid, 2)
    >>> hops[0, :, :, 0].tolist()
    [[0.0, 1.0], [1.0, 1.0], [0.75, 0.25]]
    """
    (_, states), _, gradient = run_forward(flow, terminal_loss, example, grid)
    hops = jnp.zeros((as_int(highest, "highest") + 1, *gradient.shape), gradient.dtype)
    hops = hops.at[0].set(gradient / grid.weights[:, None])

    def backward(hops, layer, state):
        """Pull the covectors of each number of hops back through one layer."""
        hops, _, _ = pull_back_hops(flow, layer, state, hops, grid)
        return hops, hops

    _, by_depth = flow.scan(backward, hops, states[:-1], reverse=True)
    return jnp.concatenate([by_depth, hops[None]])


def pull_back_hops(
    flow: ResidualFlow,
    layer: tuple[Any, Scalar],
    state: State,
    hops: Covectors,
    grid: Grid,
    sparse: SparseRows | None = None,
) -> tuple[Covectors, SparseRows | None, list[Stage]]:
    """Carry the covectors of each number of hops back through one layer.

    Parameters
    ----------
    flow, grid
        The flow, of step `euler` or `split`, and the positions.
    layer
        The pair of a field and its increment that `flow.scan` hands to its body.
    state
        The state before the layer.
    hops
        :math:`P_{k+1}^{(r)}`, densities: row r has r hops, or with `sparse` r + 1; the last row
        also holds all higher orders.
    sparse
        The covector of no hops by itself, zero but at a few positions; None if it is row 0 of
        `hops`.

    Returns
    -------
    tuple
        :math:`P_k^{(r)}` in rows as above; the sparse covector before the layer, or None; and the
        layer's stages, the last first, each with the sum of all these covectors at it.
    """
    stages = []
    for field, at, pull in linearised_stages(flow, layer, state, grid):
        parts, sparse_parts, heads = pull(hops, sparse)
        covector = hops.sum(axis=0)
        local = parts.local.sum(axis=0)
        kernel = parts.kernel.sum(axis=0)
        from_sparse = jnp.zeros_like(kernel)  # what the sparse covector gives to one hop
        if sparse is not None and sparse_parts is not None:
            local_rows = sparse._replace(rows=sparse_parts.local)
            from_sparse = sparse_parts.kernel
            covector += sparse.dense(len(state))
            local += local_rows.dense(len(state))
            sparse = sparse._replace(rows=sparse.rows + local_rows.rows)
            kernel = kernel + from_sparse
        stages.append(Stage(field, at, covector, Parts(local, kernel), heads))
        one_more = jnp.roll(parts.kernel, 1, axis=0).at[0].set(from_sparse)
        hops = (hops + parts.local + one_more).at[-1].add(parts.kernel[-1])
    return hops, sparse, stages


@filter_jit
def one_hop_by_head(
    flow: ResidualFlow, terminal_loss: TerminalLoss, example: Example, grid: Grid, depth: int = 0
) -> Float[Array, "layers heads length width"]:
    r"""Split the covector of exactly one hop, row 1 of `attention_hops`, by layer and head.

    A head's kernel acts on the covector of no hops, and local operators carry its image on:

    .. math:: \Bigl[\prod_{k\le j<l}(I + \varepsilon\zeta B_j^*)\Bigr]\,
              \varepsilon\zeta K_{l,h}^*\,P_{l+1}^{(0)}, \qquad l = k, \dots, M - 1,

    in a split layer with the local operators of its network before the head's kernel. Each layer's
    heads are carried by themselves: as many pullbacks as there are heads and pairs of layers.

    Parameters
    ----------
    flow
        The depth flow, whose ``step`` is `euler` or `split`, and some of whose layers have heads.
    terminal_loss
        A function ``terminal_loss(state, y)`` that returns a scalar, for example a cross-entropy of
        a readout.
    example
        A pair ``(x, y)``: the input :math:`X_0`, of shape ``(length, width)``, and its labels, any
        pytree, or None where the loss looks at none.
    grid
        The positions of x, in the precision of x.
    depth
        k, the layer at whose input :math:`P_k^{(1)}` is split: a whole number below the number of
        layers, known before tracing. The default 0 splits that of the network's input.

    Returns
    -------
    Array
        Densities of shape ``(layers, heads, length, width)``, a row for each layer from k on; zero
        in layers without attention, and in place of the heads that a layer lacks beside the one
        with most. The sum over layers and heads is :math:`P_k^{(1)}`.

    Raises
    ------
    ValueError
        If no layer has heads, a split layer has several sublayers with heads, the step is another
        one, `flow` is no `ResidualFlow`, the loss no function, the example no pair, x does not fit
        the grid, or `depth` is no such number.

    Examples
    --------
    >>> two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), lim.limits.averaging_attention())
    >>> flow, x, grid = ResidualFlow(two, horizon=2.0), jnp.ones((2, 1)), lim.token_grid(2)
    >>> loss = lambda state, y: state[y, 0] / 2
    >>> one_hop_by_head(flow, loss, (x, 1), grid)[:, 0, :, 0].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    require_flow(flow)
    depth = as_int(
        depth,
        "depth",
        least=0,
        most=flow.depth - 1,
        expected=f"a layer from 0 to {flow.depth - 1}, known before tracing",
    )
    direct = attention_hops(flow, terminal_loss, example, grid, 1)[:, 0]
    states = flow.trajectory(example[0], grid).states
    heads_by_layer = cone_by_head(attention_sites(flow, states, direct, grid), grid)
    layers = jnp.arange(flow.depth)

    def carry_back(start: tuple[Array, Array]) -> Float[Array, "heads length width"]:
        """Carry a layer's heads back to `depth` by local operators alone."""
        source, heads = start

        def backward(heads, layer, state, index):
            """Carry the heads through one layer if it lies below their own."""

            def add_local(heads):
                """Add what the layer's local operators carry, one stage after the other."""
                for _, _, pull in linearised_stages(flow, layer, state, grid):
                    heads = heads + pull(heads, None).parts.local
                return heads

            below_source = (depth <= index) & (index < source)
            return jax.lax.cond(below_source, add_local, lambda heads: heads, heads), None

        return flow.scan(backward, heads, states[:-1], layers, reverse=True)[0]

    return jax.lax.map(carry_back, (layers[depth:], heads_by_layer[depth:]))
