# pyright: reportArgumentType=false
"""Values that no function can take: each raises when it is known, under jit and grad as well."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import random_labels, random_states

import lim_jax as lim
from lim_jax import training
from lim_jax._argument_error import MARK, Refusal, refusal
from lim_jax._checks import require_floats
from lim_jax._errors import translate_errors
from lim_jax._jit import filter_jit
from lim_jax.adjoint.terminal_covectors import readout_support
from lim_jax.grid import cell_embedding
from lim_jax.paper.simulation import gate_gramians, gate_influence
from lim_jax.training import (
    Penalty,
    fourth_moments,
    importance_weights,
    influence_penalty,
    reweight_positions,
    risk_and_penalty,
    sensitivity_norm,
)

pytestmark = pytest.mark.usefixtures("as_users_run")
GRID = lim.token_grid(4)
LOGITS = random_states(1, 4, 5)
LABELS = random_labels(2, 4, 5)
REGIONS = lim.boundary_regions(GRID, 0.25)


def linear_loss(params, x, y):
    return jnp.sum(x)


def sum_of_logarithms(params, x, y):
    return jnp.sum(jnp.log(x))


def sum_of_cubes(params):
    return jnp.sum(params**3)


def array(values):
    return jax.device_put(np.asarray(values))


def full(shape, value):
    return array(np.full(shape, value))


def states_at(times):
    flow = lim.ContinuousFlow(lambda time: lambda x, context, grid: -x)
    return flow.trajectory(full((4, 6), 1.0), GRID, array(times)).states


BELOW_ZERO = full((2, 4, 6), -1.0)


def scaled_roots(params, x, y):
    return params * jnp.sum(jnp.sqrt(x))


def scaled_sum(params, x, y):
    return params * jnp.sum(x)


ROOTS_OF_ZERO = scaled_roots, array(1.0), (full((2, 4, 6), 0.0), None), GRID
LINEAR = scaled_sum, array(2.0), (full((2, 4, 6), 1.0), None), GRID


def seen(x):
    return 3 * x.reshape(1, -1)


def gramians_of(step, mode="forward"):
    return lim.observability.observability_gramians(seen, full((4, 1), 1.0), step, mode)


def scaled_seen(params, x):
    return params * seen(x)


def own_value(params, x, y):
    return params


def balanced_traces(loss=own_value, **changed):
    """Algorithm 3's objective by probes, of four positions that are seen alike."""
    options = {"probes": full((1, 6), 1.0), "strength": 1.0, "step": 1.0} | changed
    batch = full((2, 4, 6), 1.0), None
    return training.observability_objective(loss, scaled_seen, array(1.0), batch, GRID, **options)


def injected_traces(loss=own_value, **changed):
    """The same objective by injected noise."""
    options = {"injected": full((2, 1, 1, 24), 1.0), "strength": 1.0, "step": 1.0} | changed
    batch = full((2, 4, 6), 1.0), None
    return training.injected_objective(loss, scaled_seen, array(1.0), batch, GRID, **options)


def nan_loss(params, x, y):
    return params * jnp.nan


def influence_of(x, y=None, loss=linear_loss, **options):
    return lambda: lim.influence(loss, None, (x, y), GRID, **options)


def penalty_of_pools(pools, **options):
    pools = None if pools is None else array(pools)
    batch = full((2, 4, 6), 1.0), None
    return influence_penalty(linear_loss, None, batch, GRID, Penalty(pools=pools, **options))


TRACED = {
    "nan in the batch": (influence_of(full((2, 4, 6), np.nan)), "batch: got NaN"),
    "nan in the labels": (
        influence_of(full((2, 4, 6), 1.0), full((2, 4), np.inf)),
        "batch: got NaN or infinite",
    ),
    "nan in the gradient": (
        influence_of(full((2, 4, 6), 0.0), loss=lambda params, x, y: jnp.sum(jnp.sqrt(x))),
        "adjoint energies: got NaN",
    ),
    "query weights of sum 1.5": (
        lambda: lim.autoregressive_cross_entropy(LOGITS, LABELS, full(4, 0.375)),
        "query_weights: got another sum, expected non-negative weights that sum to one",
    ),
    "negative query weight": (
        lambda: lim.autoregressive_cross_entropy(LOGITS, LABELS, array([2.0, -1, 0, 0])),
        "query_weights: got a weight below zero or NaN, expected non-negative",
    ),
    "nan query weight": (
        lambda: lim.autoregressive_cross_entropy(LOGITS, LABELS, full(4, np.nan)),
        "query_weights: got a weight below zero or NaN, expected",
    ),
    "nan query weight where support is asked": (
        lambda: readout_support(array([0.0, np.nan, 0.0, 1.0]), 1),
        "query_weights: got NaN or infinite values",
    ),
    "negative deployment": (
        lambda: importance_weights(array([-1.0, 1, 1, 3]), full(4, 1.0), GRID),
        "deployed: got a number below zero, expected a finite density of position",
    ),
    "nan in training's density": (
        lambda: importance_weights(full(4, 1.0), array([np.nan, 1, 1, 1]), GRID),
        "trained: got NaN or infinity, expected a finite density",
    ),
    "training nowhere": (
        lambda: importance_weights(full(4, 1.0), full(4, 0.0), GRID),
        "trained: got zeros alone, expected a finite density of position",
    ),
    "infinite epsilon in an array": (
        lambda: lim.indices(full(3, 1.0), array(np.inf)),
        "epsilon: got NaN or infinite",
    ),
    "a loss that is nan where its gradients are not": (
        influence_of(BELOW_ZERO, loss=sum_of_logarithms),
        "loss: got NaN or infinite values.*gradients may be finite where a loss is not",
    ),
    "such a loss in a stream": (
        lambda: lim.influence_stream(sum_of_logarithms, None, [(BELOW_ZERO, None)], GRID),
        "loss: got NaN",
    ),
    "such a loss in a penalty": (
        lambda: influence_penalty(sum_of_logarithms, None, (BELOW_ZERO, None), GRID),
        "loss: got NaN",
    ),
    "such a loss in the gradients of both": (
        lambda: risk_and_penalty(
            lambda params, x, y: params * sum_of_logarithms(params, x, y),
            array(1.0),
            (BELOW_ZERO, None),
            GRID,
        )[1],
        "loss: got NaN",
    ),
    "such a loss in fourth moments": (
        lambda: fourth_moments(
            lambda params, x, y: params * sum_of_logarithms(params, x, y),
            array(1.0),
            (BELOW_ZERO, None),
            GRID,
            array(1.0),
        ),
        "loss: got NaN",
    ),
    "such a loss in the norm of sensitivity": (
        lambda: sensitivity_norm(
            lambda params, x, y: params * sum_of_logarithms(params, x, y),
            array(1.0),
            (BELOW_ZERO, None),
            GRID,
            steps=1,
            key=jax.random.key(0),
        ),
        "loss: got NaN",
    ),
    "gramians of such gates": (lambda: gate_gramians(full(48, -np.inf)), "gates: got NaN"),
    "an influence of such gates": (lambda: gate_influence(full(48, -np.inf)), "gates: got NaN"),
    "an influence of weights that are not finite": (
        lambda: gate_influence(full(48, 0.0), full(48, np.nan)),
        "weights: got NaN",
    ),
    "a band whose kernel is zero at all distances of positions": (
        lambda: lim.BandReadout(full((1, 2), 1.0), 0.5, kernel=jnp.zeros_like).matrix(GRID),
        "kernel: got a kernel whose values in a window sum to zero or NaN",
    ),
    "a shift of no parameters": (
        lambda: training.parameter_shift(sum_of_cubes, sum_of_cubes, full(3, np.nan), 1.0),
        "params: got NaN or infinite",
    ),
    "a shift by a slope that is not finite": (
        lambda: training.parameter_shift(jnp.sum, lambda p: jnp.sum(jnp.log(p)), full(3, 0.0), 1.0),
        "penalty's slope: got NaN or infinite",
    ),
    "nan in a penalty's batch": (
        lambda: influence_penalty(linear_loss, None, (full((2, 4, 6), np.nan), None), GRID),
        "batch: got NaN or infinite",
    ),
    "a negative weight in a pool": (
        lambda: penalty_of_pools([[1.0, 1, 0, 0], [0, 0, 2, -1]]),
        "pools: got a weight below zero or NaN, expected weights nowhere negative",
    ),
    "an empty pool": (
        lambda: penalty_of_pools([[1.0, 1, 0, 0], [0, 0, 0, 0]]),
        "pools: got a pool without any, expected weights nowhere negative",
    ),
    "infinite epsilon of a penalty": (
        lambda: penalty_of_pools(None, epsilon=array(np.inf)),
        "epsilon: got NaN or infinite",
    ),
    "negative epsilon of a penalty": (
        lambda: penalty_of_pools(None, epsilon=array(-1e-3)),
        "epsilon: got a number below zero, expected nothing below zero",
    ),
    "a negative weight that is moved": (
        lambda: reweight_positions(
            array([-1.0, 1, 1, 1]), full(4, 1.0), 1.0, GRID, rate=0.5, smallest=0.1, largest=8.0
        ),
        "smallest, largest: got a weight below zero, expected weights nowhere negative",
    ),
    "a negative energy": (
        lambda: training.balanced_density(array([[-1.0, 2]]), full(2, 0.5), epsilon=0.0),
        "energies: got a number below zero, expected nothing below zero",
    ),
    "interval that holds no weight": (
        lambda: reweight_positions(
            full(4, 1.0), full(4, 1.0), 1.0, GRID, rate=0.5, smallest=0.0, largest=0.0
        ),
        "smallest, largest: got a largest of zero or below, expected weights",
    ),
    "states that are not finite along continuous depth": (
        lambda: lim.ContinuousFlow(lambda time: lambda x, context, grid: -x)(
            full((4, 6), np.inf), GRID
        ),
        "x: got NaN or infinite",
    ),
    "a negative weight of a layer": (
        lambda: gramians_of(array([-1.0])),
        "step: got a number below zero, expected nothing below zero",
    ),
    "a layer's weight that is nan": (
        lambda: gramians_of(array([np.nan]), mode="reverse"),
        "step: got NaN or infinite",
    ),
    "an infinite weight of probed layers": (
        lambda: lim.observability.probed_observability(
            seen, full((4, 1), 1.0), array(np.inf), full((1, 1), 1.0)
        ),
        "step: got NaN or infinite",
    ),
    "a negative weight where noise is injected": (
        lambda: lim.observability.layer_injected_traces(
            seen, full((4, 1), 1.0), array([-1.0]), full((1, 1, 4), 1.0)
        ),
        "step: got a number below zero, expected nothing below zero",
    ),
    "a nan loss beside probed traces": (lambda: balanced_traces(nan_loss), "loss: got NaN"),
    "a nan loss beside injected traces": (lambda: injected_traces(nan_loss), "loss: got NaN"),
    "nan probes": (lambda: balanced_traces(probes=full((1, 6), np.nan)), "traces: got NaN"),
    "nan in earlier traces": (
        lambda: balanced_traces(previous=full(4, np.nan), memory=0.5),
        "previous: got NaN",
    ),
    "nan in earlier injected traces": (
        lambda: injected_traces(previous=full(4, np.nan), memory=0.5),
        "previous: got NaN",
    ),
    "a negative weight of a monitored position": (
        lambda: balanced_traces(weights=array([-1.0, 1, 1, 1])),
        "weights: got a number below zero, expected finite numbers",
    ),
    "a nan weight of a monitored position": (
        lambda: balanced_traces(weights=array([np.nan, 1, 1, 1])),
        "weights: got NaN or infinity, expected finite numbers",
    ),
    "monitored positions that weigh nothing": (
        lambda: balanced_traces(weights=full(4, 0.0)),
        "weights: got zeros alone, expected finite numbers",
    ),
    "nan adjoints in a penalty": (
        lambda: influence_penalty(*ROOTS_OF_ZERO),
        r"(density|adjoint energies): got NaN",  # the latter where nothing is known before
    ),
    "nan adjoints in the gradients of both": (
        lambda: risk_and_penalty(*ROOTS_OF_ZERO)[1],
        "adjoint energies: got NaN",
    ),
    "nan adjoints in fourth moments": (
        lambda: fourth_moments(*ROOTS_OF_ZERO, array(1.0)),
        "adjoint energies: got NaN",
    ),
    "nan adjoints in a sensitivity": (
        lambda: sensitivity_norm(*ROOTS_OF_ZERO, steps=1, key=jax.random.key(0)),
        "adjoint energies: got NaN",
    ),
    "a nan direction": (
        lambda: training.density_dynamics(*LINEAR, array(np.nan)),
        "direction: got NaN",
    ),
    "a nan direction of fourth moments": (
        lambda: fourth_moments(*LINEAR, array(np.nan)),
        "direction: got NaN",
    ),
    "a zero direction of fourth moments": (
        lambda: fourth_moments(*LINEAR, array(0.0)),
        "direction: got zeros, expected a direction",
    ),
    "a nan density, far from its target": (
        lambda: training.influence_discrepancy(array([np.nan, 1, 1, 1]), 1.0, GRID),
        "density, target: got NaN",
    ),
    "a nan target, traced": (
        lambda: filter_jit(training.influence_discrepancy)(full(4, 1.0), full((), np.nan), GRID),
        "density, target: got NaN",
    ),
    "a nan target of the dynamics": (
        lambda: training.DensityDynamics(GRID, full(4, 1.0), full(4, 1.0)).discrepancy_rate(
            full((), np.nan)
        ),
        "target: got NaN",
    ),
    "a nan target that is a float": (
        lambda: training.influence_discrepancy(full(4, 1.0), float("nan"), GRID),
        "density, target: got NaN",
    ),
    "nan in traces": (
        lambda: filter_jit(lambda traces: training.trace_penalty(traces, GRID))(full(4, np.nan)),
        "traces: got NaN",
    ),
    "nan in a gramian": (
        lambda: training.gramian_penalty(full((4, 2, 2), np.nan), GRID),
        "gramians: got NaN",
    ),
    "nan in an estimate of traces": (
        lambda: training.crossfit_penalty(full(4, 1.0), full(4, np.nan), GRID),
        "second: got NaN",
    ),
    "a nan weight that is moved to first order": (
        lambda: training.first_order_step(full(4, np.nan), full(4, 1.0), 1.0, GRID, rate=0.5),
        "weights, density, target: got NaN",
    ),
    "a nan target of a first-order step": (
        lambda: training.first_order_step(full(4, 1.0), full(4, 1.0), float("nan"), GRID, rate=0.5),
        "weights, density, target: got NaN",
    ),
    "position outside": (
        lambda: cell_embedding(array(np.arange(4.0)), GRID, array([1.5])),
        r"positions: got a number above one, expected numbers in \[0, 1\]",
    ),
    "position left of the context": (
        lambda: cell_embedding(array(np.arange(4.0)), GRID, array([-0.5])),
        "positions: got a number below zero or NaN",
    ),
    "a class below the first": (
        lambda: lim.cross_entropy(LOGITS, array([0, -1, 2, 3]), GRID),
        "labels: got a number below zero, expected class numbers from 0 to 4",
    ),
    "a class above the last": (
        lambda: lim.cross_entropy(LOGITS, array([0, 5, 2, 3]), GRID),
        "labels: got a number above 4, expected class numbers from 0 to 4",
    ),
    "a prefix from below the first position": (
        lambda: GRID.starting(array([-1, 0, 0, 0])).prefix_weights(),
        "starts: got a number below zero, expected numbers from 0 to the row's own",
    ),
    "a prefix from a later position": (
        lambda: GRID.starting(array([0, 0, 3, 0])).prefix_weights(),
        "starts: got a number above the row's own",
    ),
    "a negative energy of an example": (
        lambda: lim.Influence.from_energies(array([[1.0, 2, -1, 1]]), REGIONS).density,
        "energies: got a number below zero, expected finite numbers from 0 on",
    ),
    "an infinite energy of an example": (
        lambda: lim.Influence.from_energies(array([[1.0, 2, np.inf, 1]]), REGIONS).density,
        "energies: got NaN or infinity, expected finite numbers from 0 on",
    ),
    "depth times that fall": (
        lambda: states_at([0.5, 0.25]),
        "times: got a time below the one before, expected depth times that increase",
    ),
    "a depth time after the end": (
        lambda: states_at([0.5, 1.5]),
        "times: got a time above 1.0, expected depth times",
    ),
    "a depth time before the start": (
        lambda: states_at([-0.5, 0.5]),
        "times: got a time below zero or NaN, expected depth times",
    ),
    "weights that all vanish": (
        lambda: reweight_positions(
            full(4, 0.0), full(4, 1.0), 1.0, GRID, rate=0.5, smallest=0.0, largest=8.0
        ),
        "weights: got none above zero after the step, expected some",
    ),
    "limits of weights in the wrong order": (
        lambda: reweight_positions(
            full(4, 1.0), full(4, 1.0), 1.0, GRID, rate=0.5, smallest=2.0, largest=1.0
        ),
        "smallest, largest: got a smallest above the largest",
    ),
    "a memory of one": (
        lambda: balanced_traces(previous=full(4, 1.0), memory=array(1.0)),
        "memory: got a number from 1 on, expected from 0 to below 1",
    ),
}


@pytest.mark.parametrize("call, message", TRACED.values(), ids=TRACED)
def test_mistaken_values_raise(call, message):
    with pytest.raises(RuntimeError, match=message) as raised:
        jax.block_until_ready(call())
    assert "\n" not in str(raised.value)  # our words alone, without Equinox's


@pytest.mark.parametrize("call, message", TRACED.values(), ids=TRACED)
def test_mistaken_values_raise_under_jit_and_grad(call, message):
    def total(scale):
        leaves = [leaf for leaf in jax.tree.leaves(call()) if eqx.is_inexact_array(leaf)]
        return scale * sum(jnp.sum(leaf) for leaf in leaves)

    with pytest.raises(RuntimeError, match=message):
        eqx.filter_jit(jax.grad(total))(1.0).block_until_ready()


def test_errors_of_ours_are_told_from_others_by_type_or_mark():
    """And those of JAX that say what has no derivative are said in ours."""
    wrapped = f"INTERNAL: ... _EquinoxRuntimeError: {MARK}x: expected ones.\n\n\n---"
    assert refusal(RuntimeError(wrapped)) == "x: expected ones."
    assert refusal(RuntimeError(wrapped.replace(MARK, ""))) is None  # another's, of our form
    assert refusal(ValueError("zip() argument 2 is longer than argument 1")) is None
    words = r"x: got shape \(3, 2\), expected \(4, width\). Pass an array of this shape\."
    with pytest.raises(Refusal, match=words):
        require_floats(np.ones((3, 2)), "x", "length width", length=4)
    said = "derivative: got .Reverse-mode differentiation does not work for lax.while_loop"
    with pytest.raises(Refusal, match=said), translate_errors():
        jax.grad(lambda x: jax.lax.while_loop(lambda x: x < 1, lambda x: 2 * x, x))(0.5)
