r"""Causal attention of a context that several devices share: keys and values go round.

Each device holds a chunk of as many positions. In as many steps as there are devices all keys and
values pass every device, from neighbour to neighbour, and its rows grow tile by tile
(`tiled_attention`). So do the derivatives; in the pull what belongs to keys and values travels with
them. The scheme is that of Liu, Zaharia and Abbeel, "Ring attention with blockwise transformers for
near-infinite context" (2023).
"""

from typing import cast

import equinox as eqx
import jax
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxtyping import Array, Float

from lim_jax._checks import require
from lim_jax.grid.cells import CellGrid
from lim_jax.grid.measure import Grid
from lim_jax.network.caps_and_sinks import PLAIN, Shaping
from lim_jax.network.tiled_attention import require_heads, tiled_attention
from lim_jax.network.tiles import position_arrays, tiling


class RingAttention(eqx.Module):
    r"""One head of causal attention, :math:`o_i = \sum_j A_{ij}v_j`, by devices that share i and j.

    For ``TransformerField.init(..., attend=RingAttention(mesh, "context"))``, under `jit`, with
    states spread by ``PartitionSpec(..., "context", None)``. The same numbers and derivatives as
    `attention.causal_attention`. A device's temporary memory falls with the number of devices, in
    reverse mode, in forward mode, and forward over reverse as in Algorithm 1; reverse over reverse
    keeps the keys and values that have passed.

    Attributes
    ----------
    mesh
        The devices; other axes than `axis` may hold examples.
    axis
        The name of the mesh's axis over which the context is spread, of type Auto.

    Raises
    ------
    ValueError
        If the mesh has no such axis or one of another type; when called, for a grid of panels, or
        one whose positions the devices cannot share evenly, and for a sink.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> mesh = jax.make_mesh((1,), ("context",), axis_types=(AxisType.Auto,))
    >>> attend = RingAttention(mesh, "context")
    >>> values = jnp.array([[1.0], [3.0]])
    >>> attend(jnp.zeros((2, 1)), jnp.zeros((2, 1)), values, lim.token_grid(2)).tolist()
    [[1.0], [2.0]]
    """

    mesh: Mesh = eqx.field(static=True)
    axis: str = eqx.field(static=True)

    def __check_init__(self):
        """Raise ValueError unless the axis is one of the mesh and of type Auto."""
        require(
            self.axis in self.mesh.axis_names,
            "axis",
            got=repr(self.axis),
            expected=f"one of {self.mesh.axis_names}",
            cure="Name the mesh's axis over which the context is spread.",
        )
        kind = dict(zip(self.mesh.axis_names, self.mesh.axis_types, strict=True))[self.axis]
        require(
            kind is AxisType.Auto,
            "mesh",
            got=f"an axis {self.axis!r} of type {kind.name}",
            expected="AxisType.Auto",
            cure="Make the mesh with axis_types=(AxisType.Auto, ...).",
        )

    def __call__(
        self,
        query: Float[Array, "length size"],
        key: Float[Array, "length size"],
        value: Float[Array, "length features"],
        grid: Grid,
        shaping: Shaping = PLAIN,
    ) -> Float[Array, "length features"]:
        """Compute one head's attention; scores may be capped, and a sink raises ValueError."""
        require_heads(query, key, grid, value)
        require(
            shaping.sink is None,
            "sink",
            got="a sink",
            expected="attention without a sink",
            cure="Take causal_attention.",
        )
        devices = self.mesh.shape[self.axis]
        require(
            isinstance(grid, CellGrid) and grid.size % devices == 0,
            "grid",
            got=f"{type(grid).__name__} of {grid.size} positions over {devices} devices",
            expected="a CellGrid whose positions divide evenly over the devices",
            cure="Pad the context on the right, or take causal_attention.",
        )
        cells = cast(CellGrid, grid)
        arrays = jax.tree.leaves(position_arrays(cells))

        def attend(*here: Array) -> Array:
            """Compute the rows of this device."""
            return tiled_attention(*here, tiling=tiling(cells, self.axis), shaping=shaping)

        sharded = jax.shard_map(
            attend,
            mesh=self.mesh,
            axis_names={self.axis},
            check_vma=False,
            in_specs=PartitionSpec(self.axis),
            out_specs=PartitionSpec(self.axis),
        )
        return sharded(query, key, value, *arrays)
