r"""What a reverse sweep keeps, counted from the network's sizes alone (`job_cost` compiles)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from lim_jax._checks import as_int, described, require


class Storage(NamedTuple):
    """What is kept of one example from the way ahead for the way back, in numbers.

    Attributes
    ----------
    states
        The layers' inputs.
    attention
        Dense attention's weights; zero where attention makes them anew by tiles.
    repeated
        Layers that are run again.
    """

    states: int
    attention: int
    repeated: int


def sweep_storage(
    depth: int, length: int, width: int, heads: int, *, checkpoints: Sequence[int] = ()
) -> Storage:
    r"""Count what one sweep back through M layers keeps (`subsec:algorithm-complexity`).

    Without checkpoints :math:`M L d_x` numbers of states and, which the paper leaves out, dense
    attention's :math:`M H L^2`. With layers in nested loops of :math:`s_1,\dots,s_k` steps,
    :math:`\prod_j s_j = M`, from the outermost, each step a checkpoint, :math:`\sum_j s_j\,L d_x`
    and one layer's :math:`H L^2`, while :math:`kM` layers are run again: :math:`M L d_x` for one
    loop (as `network.ResidualFlow` does), and :math:`2\log_2 M\,L d_x` for loops of two steps, the
    paper's :math:`O(L d_x\log M)`. A compiler keeps some arrays of one layer beside it.

    Parameters
    ----------
    depth
        M, the number of layers, at least 1.
    length
        L, the number of positions, at least 1.
    width
        :math:`d_x`, the width of a state, at least 1.
    heads
        H, the number of attention heads; 0 where attention goes by tiles.
    checkpoints
        :math:`s_1,\dots,s_k`, the numbers of steps of the nested loops, from the outermost, whose
        product is `depth`; none by default. One loop over all layers is ``[depth]``.

    Returns
    -------
    Storage
        For each example, how many numbers of states and of attention are kept, and how many layers
        are run again.

    Raises
    ------
    ValueError
        If a size is no whole number that large, or the loops do not multiply to the depth.

    Examples
    --------
    >>> storage = sweep_storage(64, 8192, 64, heads=1)
    >>> storage.attention // storage.states  # L/d_x
    128
    >>> loops = [64], [8, 8], [2] * 6
    >>> [sweep_storage(64, 8192, 64, 1, checkpoints=s).states // (8192 * 64) for s in loops]
    [64, 16, 12]
    """
    sizes = {"depth": depth, "length": length, "width": width}
    depth, length, width = (as_int(size, name) for name, size in sizes.items())
    heads = as_int(heads, "heads", least=0)
    listed = isinstance(checkpoints, Sequence) and not isinstance(checkpoints, str)
    require(
        listed,
        "checkpoints",
        got=described(checkpoints),
        expected="a list of whole numbers",
        cure=f"Pass for example [{depth}] for one loop over all layers.",
    )
    loops = [as_int(steps, "checkpoints") for steps in checkpoints]
    require(
        not loops or math.prod(loops) == depth,
        "checkpoints",
        got=f"loops of {math.prod(loops)} steps in all",
        expected=f"{depth}, one for each layer",
        cure="Take loops whose numbers of steps multiply to the depth, or none.",
    )
    return Storage(
        states=(sum(loops) if loops else depth) * length * width,
        attention=(1 if loops else depth) * heads * length**2,
        repeated=len(loops) * depth,
    )
