"""Controls of the continuous depth flow: the field at each depth time."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import described, require, require_callable
from lim_jax.grid.measure import Scalar
from lim_jax.network.flow import require_horizon


class LayerwiseControl(eqx.Module):
    r"""The piecewise constant control :math:`\theta_t = \theta_k` on :math:`[t_k, t_{k+1})`.

    Attributes
    ----------
    layers
        One field whose arrays have a leading layer axis.
    horizon
        The depth :math:`T`, that of the `ContinuousFlow`, which the layers share evenly.
    """

    layers: PyTree
    horizon: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        """Raise ValueError unless the horizon is positive."""
        require_horizon(self.horizon)

    def __call__(self, time: Scalar) -> Any:
        """Return the layer at a depth time; a boundary belongs to the layer that it begins."""
        arrays, static = eqx.partition(self.layers, eqx.is_array)
        depth = jax.tree.leaves(arrays)[0].shape[0]
        # Solvers arrive at a boundary a rounding error early; that still begins the next layer.
        layer = jnp.floor(time * depth / self.horizon + jnp.sqrt(jnp.finfo(time.dtype).eps))
        index = jnp.clip(layer.astype(int), 0, depth - 1)
        return eqx.combine(jax.tree.map(lambda leaf: leaf[index], arrays), static)


class InterpolatedControl(eqx.Module):
    """A control that follows a path through parameter space, such as `linear_control` makes.

    Attributes
    ----------
    path
        A path of diffrax from depth times to fields.
    horizon
        The depth :math:`T` of the flow that the path is for.
    """

    path: diffrax.AbstractPath
    horizon: float = eqx.field(static=True)

    def __check_init__(self):
        """Raise ValueError unless the horizon is positive."""
        require_horizon(self.horizon)

    def __call__(self, time: Scalar) -> Any:
        """Return the field at a depth time."""
        return self.path.evaluate(time)


def linear_control(fields: PyTree, horizon: float = 1.0) -> InterpolatedControl:
    r"""Join the given fields by straight lines in parameter space.

    Parameters
    ----------
    fields
        One field whose arrays have a leading axis: its values at equally spaced depth times from 0
        to the `horizon`, both included; at least two.
    horizon
        The depth :math:`T` of the flow, which must have the same.

    Returns
    -------
    InterpolatedControl
        The control :math:`t \mapsto` field, for `ContinuousFlow`.

    Raises
    ------
    ValueError
        If the fields have other leaves than arrays of floats, or these share no leading axis, or
        there are fewer than two, or the horizon is not positive.

    Examples
    --------
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> fields = jax.vmap(lambda key: lim.FeedForward.init(2, key=key))(keys)
    >>> control = linear_control(fields, horizon=2.0)
    >>> bool(jnp.allclose(control(jnp.array(1.0)).inner, fields.inner[1]))
    True
    """
    require_horizon(horizon)
    leaves = jax.tree.leaves(fields)
    axes = {getattr(leaf, "shape", ())[:1] for leaf in leaves}
    floats = all(eqx.is_inexact_array(leaf) for leaf in leaves)
    require(
        floats and len(axes) == 1 and axes != {()},
        "fields",
        got=f"leading axes {sorted(axes)}" if floats else described(fields),
        expected="arrays of floats that share one leading axis, of the fields to join",
        cure="Make several with jax.vmap.",
    )
    count = leaves[0].shape[0]
    require(
        count > 1,
        "fields",
        got=f"{count}",
        expected="at least two to join",
        cure="Take LayerwiseControl for the same field at all times.",
    )
    knots = jnp.linspace(0.0, horizon, count, dtype=leaves[0].dtype)
    return InterpolatedControl(diffrax.LinearInterpolation(knots, fields), horizon)


def control_distance(
    layers: PyTree, control: Callable[[Scalar], Any], horizon: float = 1.0
) -> Float[Array, ""]:
    r"""Compute the :math:`L^1` distance between a layerwise control and another.

    .. math:: \|\theta^\varepsilon - \theta\|_{L^1(0,T)} =
              \sum_k \int_{t_k}^{t_{k+1}} \|\theta_k - \theta(t)\|\,dt

    (`eq:control-l1-convergence`), in the Euclidean norm of all parameters. The integrals are by
    four Gauss nodes a layer.

    Parameters
    ----------
    layers
        One field whose arrays have a leading layer axis, such as a flow's `layers`: the layerwise
        control :math:`\theta_0,\dots,\theta_{M-1}`.
    control
        The other control, :math:`t \mapsto` a field of the layers' structure; it should be smooth
        within each layer.
    horizon
        The depth :math:`T`, which the layers share evenly.

    Returns
    -------
    Float[Array, ""]
        The distance. Where the controls meet its derivative is taken as zero.

    Raises
    ------
    ValueError
        If the arrays of the layers share no leading axis, the control is no function, or the
        horizon is not positive.

    Examples
    --------
    >>> def norm(scale):
    ...     return lim.LayerNorm(scale, 0 * scale)
    >>> layers = jax.vmap(norm)(jnp.array([[0.0, 0.0], [2.0, 0.0]]))
    >>> distance = control_distance(layers, lambda time: norm(jnp.array([1.0, 0.0])), horizon=3.0)
    >>> round(float(distance), 12)
    3.0
    """
    require_horizon(horizon)
    require_callable(control, "control", "from depth to a field")
    arrays = eqx.filter(layers, eqx.is_inexact_array)
    axes = {leaf.shape[:1] for leaf in jax.tree.leaves(arrays)}
    require(
        len(axes) == 1 and axes != {()},
        "layers",
        got=f"leading axes {sorted(axes)}" if axes else described(layers),
        expected="arrays of floats that share a leading axis of layers",
        cure="Take the layers of a flow: flow.layers.",
    )
    depth = jax.tree.leaves(arrays)[0].shape[0]
    nodes, weights = np.polynomial.legendre.leggauss(4)
    times = horizon / depth * (np.arange(depth)[:, None] + (nodes + 1) / 2)
    dtype = jax.tree.leaves(arrays)[0].dtype
    fields = eqx.filter_vmap(eqx.filter_vmap(control))(jnp.asarray(times, dtype))

    def squares(ours: Array, theirs: Array) -> Array:
        """Compute squared distances of one array's controls, at all nodes of every layer."""
        gap = ours[:, None] - theirs
        return (gap**2).reshape(depth, len(nodes), -1).sum(axis=2)

    theirs = eqx.filter(fields, eqx.is_inexact_array)
    square = jax.tree.reduce(jnp.add, jax.tree.map(squares, arrays, theirs))
    # The root has no derivative where the controls meet.
    differ = square > 0
    distances = jnp.where(differ, jnp.sqrt(jnp.where(differ, square, 1)), 0)
    return horizon / depth * jnp.sum(distances @ jnp.asarray(weights / 2, dtype))
