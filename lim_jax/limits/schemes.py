"""Layers that sample a control, perturbations of them, and the control's depth flow."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from lim_jax._checks import described, require
from lim_jax._jit import filter_jit
from lim_jax.network.continuous_flow import ContinuousFlow
from lim_jax.network.flow import ResidualFlow, unit_profile
from lim_jax.network.slots import State
from lim_jax.network.steps import euler

Control = Callable[[Array], Any]
Step = Callable[..., State]
Flows = tuple[ContinuousFlow, ContinuousFlow]


class Scheme(NamedTuple):
    r"""How a control becomes layers, and how a layer is applied.

    Parameters
    ----------
    step
        How a layer is applied: by default `euler`, or `split`, `heun`, `strang`, `rk4`, or another
        function ``step(field, x, grid, increment)``.
    offset
        Layer k is the control at :math:`(k + \text{offset})\,\varepsilon`: 0, the default, is the
        paper's, ½ keeps the order of a step of order 2.
    perturbation
        From the depth to what is added to the stacked layers, a pytree of their structure; by
        default nothing is added.

    Examples
    --------
    >>> field = lim.FeedForward.init(2, key=jax.random.key(0))
    >>> flow = Scheme(offset=0.5).recursion(lambda time: field, depth=4, horizon=1.0)
    >>> flow.depth, flow(jnp.ones((3, 2)), lim.token_grid(3)).shape
    (4, (3, 2))
    """

    step: Step = euler
    offset: float = 0.0
    perturbation: Callable[[int], PyTree] | None = None

    def recursion(
        self,
        control: Control,
        depth: int,
        horizon: float,
        profile: Callable[[Array], Array] = unit_profile,
    ) -> ResidualFlow:
        """Make the residual network of `depth` layers, the control's fields at their times."""
        times = (np.arange(depth) + self.offset) * (horizon / depth)
        change = None if self.perturbation is None else self.perturbation(depth)
        layers = _layers(control, jnp.asarray(times, float), change)
        return ResidualFlow(layers, horizon=horizon, profile=profile, step=self.step)

    def rate(self, depth: int, horizon: float) -> float:
        r"""Return the rate of the bracket, :math:`\varepsilon` times 1 plus the perturbation."""
        if self.perturbation is None:
            return horizon / depth
        leaves = jax.tree.leaves(self.perturbation(depth))
        sizes = np.sqrt(sum((np.asarray(leaf) ** 2).reshape(depth, -1).sum(1) for leaf in leaves))
        return horizon / depth * (1 + float(sizes.sum()))


@filter_jit
def _layers(control: Control, times: Float[Array, " depth"], change: PyTree) -> PyTree:
    """Sample the control at the times, plus a change if there is one."""
    layers = eqx.filter_vmap(control)(times)
    return layers if change is None else jax.tree.map(jnp.add, layers, change)


def perturbation(direction: PyTree, sizes: Callable[[int], np.ndarray]) -> Callable[[int], PyTree]:
    """Return a function that perturbs the layers of any depth along a direction, by `sizes`."""

    def at_depth(depth: int) -> PyTree:
        """Return the perturbation of every layer of a recursion of one depth."""
        # On the host: JAX would compile for every depth, each being a shape of its own.
        return jax.tree.map(
            lambda leaf: np.multiply.outer(sizes(depth), np.asarray(leaf)).astype(leaf.dtype),
            direction,
        )

    return at_depth


def reference_flows(
    control: Control, horizon: float = 1.0, profile: Callable[[Array], Array] = unit_profile
) -> Flows:
    """Return the depth flow by Tsit5 and by Dopri8, to 1e-13: the second is the reference."""

    def flow_by(solver: diffrax.AbstractSolver) -> ContinuousFlow:
        """Return the flow by one solver, to tolerances of 1e-13."""
        return ContinuousFlow(
            control,
            horizon=horizon,
            profile=profile,
            solver=solver,
            stepsize_controller=diffrax.PIDController(rtol=1e-13, atol=1e-13),
        )

    return flow_by(diffrax.Tsit5()), flow_by(diffrax.Dopri8())


def require_reference_flows(flows: Any, horizon: float) -> None:
    """Raise ValueError unless these are two depth flows to T, each solved in its own way."""
    pair = list(flows) if isinstance(flows, Sequence) else [flows]
    expected = f"two depth flows to {horizon:g}"
    require(
        len(pair) == 2 and all(isinstance(flow, ContinuousFlow) for flow in pair),
        "references",
        got=", ".join(map(described, pair)) or "none",
        expected=expected,
        cure="Pass two ContinuousFlows: the last gives the limit, the first its error. Grids are "
        "references where positions are refined.",
    )
    horizons = ", ".join(f"{flow.horizon:g}" for flow in pair)
    require(
        all(flow.horizon == horizon for flow in pair),
        "references",
        got=f"flows to {horizons}",
        expected=expected,
        cure="Pass the horizon of the study.",
    )
    require(
        not eqx.tree_equal(*pair),
        "references",
        got="one depth flow twice",
        expected="two, of which the first tells the error of the last",
        cure="Pass two solvers, or two tolerances: a flow is at no distance from itself.",
    )
