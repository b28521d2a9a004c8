r"""Depth: residual recursions over layers.

.. math:: X_{k+1} = X_k + \varepsilon\,\zeta(t_k)\,\mathscr F_{\theta_k}(X_k), \qquad
          t_k = k\varepsilon,\quad \varepsilon = T/M

A GPT-2 block is `steps.split` with a horizon of as many units as there are layers. The limit in
depth is `continuous_flow.ContinuousFlow`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree, Shaped

from lim_jax._checks import (
    error_if_got,
    require,
    require_callable,
    require_kind,
    require_name,
    require_positive,
)
from lim_jax._precision import PRECISIONS, computing
from lim_jax._products import is_linear
from lim_jax.grid.measure import Grid, Scalar, require_on_grid
from lim_jax.network.layer_kinds import LayerIndex, LayersByKind, kinds_of, layer_of
from lim_jax.network.slots import State
from lim_jax.network.steps import euler
from lim_jax.network.tiled_attention import ATTENTION_OUTPUTS
from lim_jax.weights import FetchedLayers, in_memory, like_of

Result = TypeVar("Result")


class Trajectory(NamedTuple):
    r"""The states :math:`X_0, \dots, X_M` along depth, of a flow or of its tangent."""

    times: Float[Array, " times"]
    states: Float[Array, "times length width"]


def unit_profile(time: Scalar) -> Scalar:
    r"""Return the depth profile :math:`\zeta \equiv 1`."""
    return jnp.ones_like(time)


class ResidualFlow(eqx.Module):
    r"""A residual network of M layers on the depth interval [0, T].

    Call it to get the terminal state :math:`X_M`; `trajectory` gives all states. A `scan` runs
    over the layers, so compile time does not grow with depth.

    Attributes
    ----------
    layers
        One field whose arrays have a leading layer axis: the layerwise control
        :math:`\theta_0,\dots,\theta_{M-1}`; or `weights.FetchedLayers`, whose weights come to
        the processor a layer at a time; or, where layers differ in kind, `LayersByKind` of these.
    horizon
        :math:`T`; the step is :math:`\varepsilon = T/M`.
    profile
        The depth profile :math:`\zeta`, finite and not negative (`ass:depth-profile`).
    step
        `euler`, `split`, `heun`, `strang`, `rk4`, or any function of the same arguments.
    remat
        What the backward pass computes again: "full" for all of a layer but attention's outputs,
        "save_matmuls" for all but the products of tokens with matrices, which are then saved in the
        forward pass, in some three times the memory. On a CPU that made gradients of wide layers
        up to 1.3 times as fast and others slower; what differentiates a gradient was slower too.
    compute
        The precision of products in layers, attention's and those of all derivatives too, in
        JAX's words: "bfloat16" rounds operands in float32 and sums in float32, as all else is
        computed. None is for what `jax.default_matmul_precision` says.

    Raises
    ------
    ValueError
        Where the layers have no common leading axis, the horizon is not positive, `remat` or
        `compute` has no such name, or (when called) the state does not fit the grid or the layers,
        or the profile is negative, infinite or not a number at a layer.
    EquinoxRuntimeError
        Where a profile that depends on traced values is so.

    Examples
    --------
    >>> keys = jax.random.split(jax.random.key(0), 8)
    >>> layers = jax.vmap(lambda key: lim.TransformerField.init(6, heads=2, key=key))(keys)
    >>> flow = ResidualFlow(layers, step=lim.split)
    >>> x = jax.random.normal(jax.random.key(1), (5, 6))
    >>> flow(x, lim.token_grid(5)).shape, flow.trajectory(x, lim.token_grid(5)).states.shape
    ((5, 6), (9, 5, 6))
    """

    layers: PyTree
    horizon: float = eqx.field(static=True, default=1.0)
    profile: Callable[[Scalar], Scalar] = eqx.field(static=True, default=unit_profile)
    step: Callable[[Any, State, Grid, Scalar], State] = eqx.field(static=True, default=euler)
    remat: str = eqx.field(static=True, default="full")
    compute: str | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        """Raise ValueError unless the layers share an axis and the options are known."""
        require_name(
            self.remat,
            ("full", "save_matmuls"),
            "remat",
            "Take save_matmuls where memory suffices and one derivative is taken, else full.",
        )
        if self.compute is not None:
            require_name(
                self.compute,
                PRECISIONS,
                "compute",
                "Leave it out for what JAX's configuration says.",
            )
        require_callable(self.profile, "profile", "of depth")
        require_callable(self.step, "step", "step(field, x, grid, increment)")
        require_horizon(self.horizon)
        if isinstance(self.layers, FetchedLayers | LayersByKind):
            return
        axes = {leaf.shape[:1] for leaf in jax.tree.leaves(eqx.filter(self.layers, eqx.is_array))}
        require(
            len(axes) == 1 and not axes & {(), (0,)},
            "layers",
            got=f"leading axes {sorted(axes)}",
            expected="arrays that share one leading layer axis, not empty",
            cure="Build the layers under vmap over keys, or stack them with jax.tree.map.",
        )

    @property
    def depth(self) -> int:
        """The number of layers, :math:`M`."""
        if isinstance(self.layers, LayersByKind):
            return len(self.layers.order)
        if isinstance(self.layers, FetchedLayers):
            return self.layers.depth
        return jax.tree.leaves(eqx.filter(self.layers, eqx.is_array))[0].shape[0]

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The field of each kind of layers, whose arrays may be shapes alone."""
        kinds = kinds_of(self.layers)
        return tuple(map(like_of, kinds))

    @property
    def is_offloaded(self) -> bool:
        """Whether any layers are fetched one at a time instead of being in memory."""
        return any(isinstance(kind, FetchedLayers) for kind in kinds_of(self.layers))

    def __call__(self, x: State, grid: Grid) -> State:
        """Apply all layers to :math:`X_0`, and return :math:`X_M`."""
        require_state(x, grid)
        return self.scan(lambda x, layer: (self.transition(layer, x, grid), None), x)[0]

    def trajectory(self, x: State, grid: Grid) -> Trajectory:
        r"""Flow from :math:`X_0`, keeping every state.

        Parameters
        ----------
        x
            The input state :math:`X_0`, of shape ``(length, width)``.
        grid
            The positions.

        Returns
        -------
        Trajectory
            The depth times :math:`t_0, \dots, t_M`, and the states at them.

        Raises
        ------
        ValueError
            If the state does not fit the grid or the layers, or the profile is negative, infinite
            or not a number at a layer.
        EquinoxRuntimeError
            If a profile that depends on traced values is so.
        """
        require_state(x, grid)

        def step(x, layer):
            """Apply one layer, and keep the state after it."""
            x = self.transition(layer, x, grid)
            return x, x

        _, states = self.scan(step, x)
        return Trajectory(self._times(x.dtype), jnp.concatenate([x[None], states]))

    def transition(self, layer: tuple[Any, Scalar], x: State, grid: Grid) -> State:
        """Apply one layer by the flow's `step`.

        Parameters
        ----------
        layer
            A pair of the layer's field and its increment, as `scan` hands it to its body.
        x
            The state before the layer.
        grid
            The positions.

        Returns
        -------
        State
            The state after it.
        """
        field, increment = layer
        return self.step(field, x, grid, increment)

    def scan(
        self,
        body: Callable[..., tuple[PyTree, PyTree]],
        carry: PyTree,
        *inputs: PyTree[Shaped[Array, "depth ..."]],
        reverse: bool = False,
    ) -> tuple[PyTree, PyTree]:
        r"""Scan a function over the layers.

        Parameters
        ----------
        body
            ``body(carry, (field, increment), *inputs)``, which returns the next carry and a result;
            the increment of layer k is :math:`\varepsilon\,\zeta(t_k)`.
        carry
            What the first layer is given; its first leaf has the increments' precision.
        *inputs
            What each layer is given besides, with a leading axis of the depth.
        reverse
            Whether to go from the last layer to the first.

        Returns
        -------
        tuple of PyTree and PyTree
            The last carry, and the results with a leading axis of the depth, in the order of the
            layers.
        """
        entries, call = self._entries()
        increments = self._increments(jax.tree.leaves(carry)[0].dtype)

        def layer_body(carry, scanned):
            """Call the body with the field and increment of one layer."""
            entry, increment, *inputs = scanned
            return call(lambda field: body(carry, (field, increment), *inputs), entry)

        rematerialised = jax.checkpoint(layer_body, prevent_cse=False, policy=self._policy())
        scanned = entries, increments, *inputs
        with computing(self.compute):
            return jax.lax.scan(rematerialised, carry, scanned, reverse=reverse)

    def scan_by_kind(
        self, body: Callable[..., tuple[PyTree, PyTree]], carry: PyTree, *inputs: tuple[PyTree, ...]
    ) -> tuple[PyTree, tuple[PyTree, ...]]:
        """Scan ``body(carry, (field, increment), *inputs)`` over layers of several kinds.

        `inputs` are tuples with an entry for each kind, whose arrays have an axis of that kind's
        layers; results come back so.
        """
        layers = self.layers
        if not isinstance(layers, LayersByKind):
            carry, result = self.scan(body, carry, *(each for (each,) in inputs))
            return carry, (result,)
        increments = self._increments(jax.tree.leaves(carry)[0].dtype)
        kinds = range(len(layers.kinds))

        def run(kind: int, carry: PyTree, position: LayerIndex, increment: Scalar) -> Any:
            """Call the body with the layer at a position among those of one kind."""
            kind_inputs = jax.tree.map(lambda leaf: leaf[position], [each[kind] for each in inputs])
            layer = layer_of(layers.kinds[kind], position), increment
            return body(carry, layer, *kind_inputs)

        # All steps of a scan return the same shapes, and those of results differ from kind to kind:
        # each step returns a result for every kind, zeros for all but its layer's own.
        first = jnp.zeros((), int), increments[0]
        shapes = [jax.eval_shape(partial(run, kind), carry, *first)[1] for kind in kinds]
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def run_and_pad(kind: int, carry: PyTree, position: LayerIndex, increment: Scalar) -> Any:
            """Run the body for one kind, and put its result among zeros for the others."""
            carry, result = run(kind, carry, position, increment)
            return carry, [*zeros[:kind], result, *zeros[kind + 1 :]]

        branches = [partial(run_and_pad, kind) for kind in kinds]

        def step(carry: PyTree, scanned: Any) -> tuple[PyTree, list[PyTree]]:
            """Call the body with the next layer, whatever its kind."""
            (kind, position), increment = scanned
            return jax.lax.switch(kind, branches, carry, position, increment)

        with computing(self.compute):
            carry, padded = jax.lax.scan(step, carry, (layers.entries, increments))

        order = np.array(layers.order)

        def without_zeros(kind: int, results: PyTree) -> PyTree:
            """Return the results of one kind, at the steps of its own layers."""
            return jax.tree.map(lambda leaf: leaf[np.flatnonzero(order == kind)], results)

        return carry, tuple(map(without_zeros, kinds, padded))

    def in_order(self, results: tuple[Array, ...]) -> Shaped[Array, "depth ..."]:
        """Put results of the layers of each kind, such as `scan_by_kind` has, in their order."""
        if not isinstance(self.layers, LayersByKind):
            return results[0]
        # A stable sort by kind has each layer where its own kind's results have it.
        by_kind = np.argsort(self.layers.order, kind="stable")
        return jnp.concatenate(results)[np.argsort(by_kind)]

    def _policy(self) -> Callable[..., Any]:
        """Return the policy of what `jax.checkpoint` saves in a layer, by `remat`."""
        policies = jax.checkpoint_policies
        union = policies.save_from_both_policies
        outputs = policies.save_only_these_names(ATTENTION_OUTPUTS)
        if self.remat == "full":
            return outputs
        # Attention's own products have axes of heads in common: they are remade all the same.
        return union(union(policies.dots_with_no_batch_dims_saveable, is_linear), outputs)

    def at_layer(
        self, function: Callable[[tuple[Any, Scalar]], Result], number: LayerIndex, dtype: DTypeLike
    ) -> Result:
        """Call a function with one layer.

        Parameters
        ----------
        function
            ``function((field, increment))``, of the layer's field and its increment.
        number
            The layer's number, from 0, which may be traced.
        dtype
            The precision of the increment, that of the states.

        Returns
        -------
        Any
            What the function returns.
        """
        entries, call = self._entries()
        increment = self._increments(dtype)[number]
        entry = jax.tree.map(lambda leaf: leaf[number], entries)
        with computing(self.compute):
            return call(lambda field: function((field, increment)), entry)

    def _increments(self, dtype: DTypeLike) -> Float[Array, " depth"]:
        """Return each layer's increment: the step in depth times the profile at its start."""
        increments = self.horizon / self.depth * jax.vmap(self.profile)(self._times(dtype)[:-1])
        starts = np.linspace(0.0, self.horizon, self.depth, endpoint=False)
        return require_depth_profile(increments, self.profile, starts, dtype)

    def _entries(self) -> tuple[PyTree, Callable[[Callable[[Any], Any], PyTree], Any]]:
        """Return what `scan` runs over: an entry for each layer, along a leading axis; and `call`.

        ``call(function, entry)`` returns what the function returns for the field of that layer. No
        field is returned itself, since those of several kinds are of several types: there `call`
        is a switch between kinds, whose branches agree on what the function returns alone.
        """
        layers = self.layers
        if isinstance(layers, LayersByKind):
            return layers.entries, layers.call
        if isinstance(layers, FetchedLayers):
            return jnp.arange(self.depth), lambda function, number: function(layers.layer(number))
        arrays, static = eqx.partition(layers, eqx.is_array)
        return arrays, lambda function, arrays: function(in_memory(eqx.combine(arrays, static)))

    def _times(self, dtype: DTypeLike) -> Float[Array, " times"]:
        """Return the depth times of all states, from 0 to the horizon."""
        return jnp.linspace(0.0, self.horizon, self.depth + 1, dtype=dtype)


def require_flow(flow: Any) -> None:
    """Raise ValueError unless this is a `ResidualFlow`."""
    require_kind(
        flow,
        ResidualFlow,
        "flow",
        "Make one of the layers; for a continuous flow take continuous_adjoint.",
    )


def require_horizon(horizon: float) -> None:
    """Raise ValueError unless this is a positive finite number known before tracing."""
    require_positive(
        horizon,
        "horizon",
        expected="a positive depth",
        cure="Take the number of layers for eps = 1: the horizon is T in eps = T/M.",
    )


def require_depth_profile(
    tree: PyTree, profile: Callable[[Scalar], Scalar], times: np.ndarray, dtype: DTypeLike
) -> PyTree:
    """Return `tree`; raise unless a profile is finite and not negative: `ass:depth-profile`."""
    # Where a profile depends on traced values, the use of `tree` raises.
    if profile is unit_profile:
        return tree
    # Concrete while tracing too, unless the profile itself closes over something traced.
    with jax.ensure_compile_time_eval():
        values = jax.vmap(profile)(jnp.asarray(times, dtype))
    expected = "finite values that are not negative"
    cure = "Pass none below zero; to reverse a field, negate its output."
    if isinstance(values, Tracer):
        violations = {"a value below zero or NaN": ~(values >= 0), "infinity": values == jnp.inf}
        return error_if_got(tree, "profile", got=violations, expected=expected, cure=cure)
    numbers = np.asarray(values)
    fails = ~((numbers >= 0) & (numbers < np.inf))
    require(
        not fails.any(),
        "profile",
        got=f"{numbers[fails.argmax()]} at depth time {times[fails.argmax()]:.6g}",
        expected=expected,
        cure=cure,
    )
    return tree


def require_state(x: State, grid: Grid) -> None:
    """Raise ValueError unless states fit the grid and its precision."""
    require_on_grid(
        x,
        grid,
        "x",
        "length width",
        "Embed integer tokens first. Flows take one example: vmap over a batch.",
    )
    expected = grid.weights.dtype
    require(
        x.dtype == expected,
        "x",
        got=x.dtype,
        expected=f"the grid's {expected}",
        cure=f"Make the grid with dtype={x.dtype}, or cast x.",
    )
