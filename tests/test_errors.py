# pyright: reportArgumentType=false
"""Bad input: each gets an error that names what was got, what was expected, and the cure."""

import dataclasses
import importlib
import pickle
import sys

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lazy_loader
import numpy as np
import pytest
from jax import export
from reference.networks import (
    byte_network,
    layer_of,
    random_flow,
    random_labels,
    random_states,
)

import lim_jax as lim
from lim_jax import (
    adjoint,
    explanations,
    observability,
    plots,
    training,
)
from lim_jax._argument_error import MissingPackage, Refusal
from lim_jax._checks import as_int, error_if, require_extra, warn_of_miscompiling_jaxlib
from lim_jax._errors import RefusedValue
from lim_jax.adjoint.cone import cone_mass, joint_cone
from lim_jax.adjoint.criteria import recency_survival
from lim_jax.grid.partition import interval_weights
from lim_jax.loss import LocalReadout, last_token
from lim_jax.observability.gramian import layer_steps
from lim_jax.paper.simulation import gate_gramians, gate_influence
from lim_jax.probes import gaussian_probes, sample_mean
from lim_jax.report.wording import verdict
from lim_jax.training import (
    Penalty,
    balanced_density,
    gramian_penalty,
    influence_penalty,
    risk_and_penalty,
)

pytestmark = pytest.mark.usefixtures("as_users_run")
GRID = lim.token_grid(4)
STATES = random_states(0, 4, 6)
WINDOWS = jax.device_put(np.arange(10).reshape(2, 5))
LOGITS = random_states(1, 4, 5)
LABELS = random_labels(2, 4, 5)


def linear_loss(params, x, y):
    return jnp.sum(x)


def influence_in_regions(delta):
    return lim.Influence.from_energies(full((2, 4), 1.0), lim.boundary_regions(GRID, delta))


def influence_of_nan():
    influence = influence_in_regions(0.3)
    return dataclasses.replace(influence, energy=array([1.0, np.nan, 1.0, 1.0]))


def dynamics():
    return training.DensityDynamics(GRID, full(4, 1.0), full(4, 1.0))


def attention():
    return layer_of(random_flow()).attention


def array(values, dtype=None):
    return jax.device_put(np.asarray(values, dtype))


def full(shape, value):
    return array(np.full(shape, value))


def influence_of(x, y=None, loss=linear_loss, **options):
    return lambda: lim.influence(loss, None, (x, y), GRID, **options)


def explained(**mistaken):
    """An explanation of which one argument is mistaken; the model is looked at first."""
    right = {"model": byte_network(4), "windows": WINDOWS, "query_weights": last_token(4)}
    options = {"regions": lim.boundary_regions(GRID, 0.3), "key": jax.random.key(0)}
    return explanations.explain(**{**right, **options, **mistaken})


def penalty_of_closure(weight):
    batch = full((2, 4, 6), 1.0), None
    return influence_penalty(lambda params, x, y: jnp.sum((x @ weight) ** 2), None, batch, GRID)


def penalty_of_pools(pools, **options):
    pools = None if pools is None else array(pools)
    batch = full((2, 4, 6), 1.0), None
    return influence_penalty(linear_loss, None, batch, GRID, Penalty(pools=pools, **options))


def scaled_sum(params, x, y):
    return params * jnp.sum(x)


SCALED = scaled_sum, full((), 1.0), (full((2, 4, 6), 1.0), None), GRID


def balanced_traces(objective, noise, **options):
    def seen(params, x):
        return x.reshape(1, -1)

    loss, *problem = SCALED
    return objective(loss, seen, *problem, noise, strength=1.0, step=1.0, **options)


def penalty_of_readout(weight):
    def loss(readout, x, y):
        return lim.cross_entropy(readout(x, GRID), LABELS, GRID)

    readout = lim.TokenwiseReadout(lambda token: jnp.tanh(token @ weight))
    return influence_penalty(loss, readout, (full((2, 4, 6), 1.0), None), GRID)


class Slowed(eqx.Module):
    rate: jax.Array

    def __call__(self, time):
        return lambda x, context, grid: -self.rate * x


def loss_of_a_flow(params, x, y):
    """Of a flow with diffrax's default adjoint, which has no forward mode."""
    steps = {"stepsize_controller": diffrax.ConstantStepSize(), "first_step": 0.5}
    flow = lim.ContinuousFlow(Slowed(params), solver=diffrax.Heun(), max_steps=2, **steps)
    return jnp.sum(flow(x, GRID))


FLOWED = loss_of_a_flow, full((), 1.0), (full((1, 4, 6), 1.0), None), GRID
NO_FORWARD_MODE = (
    r"derivative: got .*custom_vjp.* Take adjoint=diffrax.DirectAdjoint\(\) for a ContinuousFlow"
)


def on_explicit_axes(array):
    return jax.device_put(array, jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P("data")))


STATIC = {
    "a mesh of explicit axes": (
        influence_of(on_explicit_axes(STATES[None])),
        r"batch: got float64\[1@data,4,6\], expected axes of type Auto\. Make the mesh with axis_",
    ),
    "wrong rank": (influence_of(STATES), r"batch: got x of shape \(4, 6\).*x\[None\]"),
    "wrong length": (influence_of(full((2, 5, 6), 1.0)), r"expected \(examples, 4, width\)"),
    "zero examples": (influence_of(full((0, 4, 6), 1.0)), "at least one example"),
    "other number of labels": (
        influence_of(full((2, 4, 6), 1.0), full((3, 4), 1.0)),
        "the same number in x and in every leaf of y",
    ),
    "integers": (influence_of(full((2, 4, 6), 1)), "batch: got an array of int64.*Embed"),
    "vector loss": (
        influence_of(full((2, 4, 6), 1.0), loss=lambda params, x, y: x[0]),
        r"loss: got an array of float64 with shape \(6,\), expected a scalar",
    ),
    "regions of another grid": (
        influence_of(full((2, 4, 6), 1.0), regions=lim.boundary_regions(lim.midpoint_grid(4), 0.3)),
        "regions: got regions of",
    ),
    "no batches": (
        lambda: lim.influence_stream(linear_loss, None, [], GRID),
        "batches: got none",
    ),
    "delta zero": (lambda: lim.boundary_regions(GRID, 0.0), "strictly between 0 and 1/2"),
    "delta one half": (lambda: lim.boundary_regions(GRID, 0.5), "delta: got 0.5"),
    "delta nan": (lambda: lim.boundary_regions(GRID, float("nan")), "delta: got nan"),
    "traced delta": (
        lambda: jax.jit(lambda delta: lim.boundary_regions(GRID, delta).weights)(0.2),
        "known before tracing",
    ),
    "unknown convention": (
        lambda: lim.boundary_regions(GRID, 0.2, "cells"),
        '"overlap" or "points"',
    ),
    "empty region": (
        lambda: lim.boundary_regions(lim.token_grid(10), 0.1, "points"),
        "no node in the left region of 10 positions at delta = 1/10.*larger delta",
    ),
    "length for a grid": (
        lambda: lim.integral(STATES, 4),
        r"grid: got 4, expected a Grid.*token_grid\(48\)",
    ),
    "nodes for a grid": (
        lambda: lim.cross_entropy(LOGITS, LABELS, GRID.nodes),
        r"grid: got an array of float64 with shape \(4,\), expected a Grid",
    ),
    "a width for regions": (
        lambda: lim.regional_averages(STATES, 0.2),
        r"regions: got 0.2, expected Regions of a grid.*boundary_regions\(grid, delta\)",
    ),
    "values of another length": (
        lambda: lim.integral(random_states(0, 5, 6), GRID),
        r"values: got shape \(5, 6\), expected \(4, \.\.\.\)",
    ),
    "a list of values": (
        lambda: lim.integral([1.0, 2.0, 3.0, 4.0], GRID),
        "values: got list, expected a floating-point array",
    ),
    "complex values": (
        lambda: lim.inner(STATES, np.asarray(STATES) + 1j, GRID),
        "right: got an array of complex128",
    ),
    "Gramians with a row more": (
        lambda: gramian_penalty(full((5, 2, 2), 1.0), GRID),
        r"gramians: got shape \(5, 2, 2\), expected \(4, width, width\)",
    ),
    "Gramians that are not square": (
        lambda: gramian_penalty(full((4, 2, 3), 1.0), GRID),
        r"gramians: got shape \(4, 2, 3\)",
    ),
    "whole numbers for a dtype": (
        lambda: lim.token_grid(4, dtype=int),
        "dtype: got <class 'int'>, expected a floating-point dtype",
    ),
    "traced length": (
        lambda: jax.jit(lambda size: lim.token_grid(size).weights)(4),
        "size: got an array of int64.*known before tracing",
    ),
    "infinite eta": (lambda: lim.LayerNorm.init(3, norm_eps=np.inf), "norm_eps: got inf"),
    "eta of a norm made by hand": (
        lambda: lim.LayerNorm(full(3, 1.0), full(3, 0.0), np.nan),
        "norm_eps: got nan",
    ),
    "infinite epsilon": (
        lambda: lim.indices(full(3, 1.0), np.inf),
        "epsilon: got inf, expected a finite number",
    ),
    "no probes": (
        lambda: gaussian_probes(0, 2, key=jax.random.key(0)),
        "count: got 0, expected a whole number.*at least one probe",
    ),
    "no samples": (lambda: sample_mean(full((0, 3), 1.0)), r"samples: got shape \(0, 3\)"),
    "no energies": (
        lambda: balanced_density(full((0, 4), 1.0), GRID.weights, epsilon=0.0),
        r"energies: got shape \(0, 4\), expected \(examples, places\) with no axis empty",
    ),
    "pools of another length": (
        lambda: penalty_of_pools([[1.0, 1, 0], [0, 0, 1]]),
        r"pools: got shape \(2, 3\), expected \(pools, 4\). Pass one row of integral weights",
    ),
    "a target for positions where there are pools": (
        lambda: penalty_of_pools([[1.0, 1, 0, 0], [0, 0, 1, 1]], target=full(4, 1.0)),
        r"target: got shape \(4,\), expected \(2,\). Pass one number for each position or pool",
    ),
    "a function for an estimator": (
        lambda: penalty_of_pools(None, estimate=jnp.mean),
        r"estimate: got .*, expected an instance of Estimator. Take balanced_density, or make one",
    ),
    "an average of another statistic": (
        lambda: risk_and_penalty(
            linear_loss,
            full((), 1.0),
            (full((2, 4, 6), 1.0), None),
            GRID,
            previous=full(3, 1.0),
            memory=0.5,
        ),
        r"previous: got shape \(3,\), expected \(4,\), that of the estimator's statistic",
    ),
    "certificate of NaN": (
        lambda: recency_survival(
            full((1, 4, 2), np.nan),
            full((1, 4, 2), 1.0),
            full(1, 0.1),
            lim.boundary_regions(GRID, 0.3),
        ),
        "got NaN or infinite values, expected finite ones",
    ),
    "flow for a network": (
        lambda: lim.adjoint_trajectory(STATES, jnp.dot, (STATES, None), GRID),
        "flow: got an array of float64.*expected an instance of ResidualFlow",
    ),
    "a state without its labels": (
        lambda: lim.adjoint_trajectory(random_flow(), jnp.dot, STATES, GRID),
        r"example: got an array of float64.*expected a pair \(x, y\).*Pass .*\(x, None\)",
    ),
    "influences of two lengths": (
        lambda: influence_of(full((1, 4, 6), 1.0))().merge(
            lim.influence(linear_loss, None, (full((1, 5, 6), 1.0), None), lim.token_grid(5))
        ),
        r"other: got influence over .*cells=5.*, expected .*cells=4.*contexts of two lengths",
    ),
    "a list to merge": (
        lambda: influence_of(full((1, 4, 6), 1.0))().merge([1.0]),
        "other: got no influence, expected influence over Regions",
    ),
    "a length for influence's grid": (
        lambda: lim.influence(linear_loss, None, (full((2, 4, 6), 1.0), None), 4),
        r"grid: got 4, expected a Grid.*token_grid\(48\)",
    ),
    "a width for influence's regions": (
        influence_of(full((2, 4, 6), 1.0), regions=0.2),
        r"regions: got 0.2, expected Regions of a grid.*boundary_regions\(grid, delta\)",
    ),
    "a width for the regions of a stream": (
        lambda: lim.influence_stream(linear_loss, None, [], GRID, 0.2),
        "regions: got 0.2, expected Regions",
    ),
    "a number to name a stream": (
        lambda: lim.influence_stream(linear_loss, None, [], GRID, run=3),
        "run: got 3, expected a text. Pass a string.",
    ),
    "a list to draw": (
        lambda: plots.influence_profile([1.0, 2.0]),
        "result: got list, expected an instance of Influence.*from_energies",
    ),
    "a pair to explain": (
        lambda: explained(model=(None, None)),
        "model: got tuple, expected an instance of CausalLM.*models.load",
    ),
    "a tangent in another precision than its state": (
        lambda: adjoint.push_forward(attention(), STATES, STATES.astype("float32"), GRID),
        "tangent: got float32, expected the state's float64. Cast one",
    ),
    "a layer's weight below zero": (
        lambda: layer_steps(-1.0, STATES),
        "step: got -1.0, expected nothing below zero",
    ),
    "a layer's weight that is nan": (
        lambda: layer_steps(float("nan"), STATES),
        "step: got nan, expected a finite number",
    ),
    "an infinite weight of a layer": (
        lambda: layer_steps(float("inf"), STATES),
        "step: got inf, expected a finite number",
    ),
    "a terminal loss of vectors": (
        lambda: adjoint.adjoint_trajectory(random_flow(), lambda x, y: x[0], (STATES, None), GRID),
        r"terminal_loss: got an array of float64 with shape \(6,\), expected a scalar",
    ),
    "a terminal covector of vectors": (
        lambda: adjoint.terminal_adjoint(lambda x, y: x[0], (STATES, None), GRID),
        r"terminal_loss: got an array of float64 with shape \(6,\), expected a scalar",
    ),
    "observations along one axis": (
        lambda: observability.observability_gramians(lambda x: x.ravel(), STATES, 1.0),
        r"observations: got shape \(24,\), expected a row for each layer",
    ),
    "probed observations along one axis": (
        lambda: observability.probed_observability(
            lambda x: x.ravel(), STATES, 1.0, full((2, 6), 1.0)
        ),
        r"observations: got shape \(24,\), expected a row for each layer",
    ),
    "a risk of nothing": (
        lambda: training.risk(linear_loss, None, (STATES[None][:0], None)),
        "batch: got no example, expected at least one",
    ),
    "a target of other places than the dynamics'": (
        lambda: dynamics().discrepancy_rate(array([[1.0], [1.0]])),
        r"target: got shape \(2, 1\), expected \(4,\)",
    ),
    "a risk of vectors": (
        lambda: training.risk(lambda params, x, y: x[0], None, (STATES[None], None)),
        r"loss: got an array of float64 with shape \(6,\), expected a scalar",
    ),
    "a direction of another structure": (
        lambda: training.density_dynamics(*SCALED, {"weight": full((), 1.0)}),
        "direction: got dict, expected arrays with the shapes and dtypes of those of the param",
    ),
    "a direction of another shape": (
        lambda: training.density_dynamics(*SCALED, full(2, 1.0)),
        r"direction: got an array of float64 with shape \(2,\), expected arrays with the shapes",
    ),
    "a direction of another precision": (
        lambda: training.density_dynamics(*SCALED, array(1.0, "float32")),
        "direction: got an array of float32",
    ),
    "a norm of another exponent": (
        lambda: training.sensitivity_norm(*SCALED, exponent=3, key=jax.random.key(0)),
        "exponent: got 3, expected 2 or 4",
    ),
    "memory of no earlier energies": (
        lambda: risk_and_penalty(*SCALED, memory=0.9),
        "memory: got 0.9 without previous, expected 0. Pass what the step before returned",
    ),
    "memory of no earlier traces": (
        lambda: balanced_traces(training.observability_objective, full((1, 6), 1.0), memory=0.9),
        "memory: got 0.9 without previous",
    ),
    "memory of no earlier injected traces": (
        lambda: balanced_traces(
            training.injected_objective, full((1, 1, 1, 24), 1.0), memory=full((), 0.9)
        ),
        r"memory: got an array of float64 with shape \(\) without previous",
    ),
    "densities of no influence": (
        lambda: plots.draw_densities(plots.new_figure("density")[1], {}),
        "results: got none, expected influences by name, at least one",
    ),
    "densities without names": (
        lambda: plots.draw_densities(plots.new_figure("density")[1], [1.0]),
        "results: got list, expected influences by name",
    ),
    "a density alone where an influence is drawn": (
        lambda: plots.draw_densities(plots.new_figure("density")[1], {"a": full(4, 1.0)}),
        r"results\['a'\]: got an array of float64 with shape .*expected an instance of Influence",
    ),
    "no curves": (
        lambda: plots.error_against_cost([], "products"),
        "curves: got none.*Take what limits.measure returns second",
    ),
    "a context's number below zero": (
        lambda: lim.models.contexts(WINDOWS, segments=full((2, 5), -1)),
        "segments: got numbers below one",
    ),
    "a context's number of zero where the mask keeps": (
        lambda: lim.models.contexts(WINDOWS, full((2, 5), 1), segments=full((2, 5), 0)),
        "segments: got numbers below one.*zero is padding, where the mask is zero too",
    ),
    "probes of another width": (
        lambda: observability.probed_observability(
            lambda x: x.reshape(1, -1), STATES, 1.0, full((2, 5), 1.0)
        ),
        r"probes: got shape \(2, 5\), expected \(probes, 6\)",
    ),
    "noise for other observations": (
        lambda: training.injected_objective(
            linear_loss,
            lambda params, x: x.reshape(1, -1),
            None,
            (STATES[None], None),
            GRID,
            full((1, 2, 1, 5), 1.0),
            strength=1.0,
            step=1.0,
        ),
        r"injected: got entries of shape \(1, 5\), expected \(1, 24\), as observed",
    ),
    "training times that do not increase": (
        lambda: training.gradient_flow(
            linear_loss, full((), 1.0), (STATES[None], None), GRID, times=[0.0, 1.0, 1.0]
        ),
        r"times: got \[0.0, 1.0, 1.0\], expected finite training times that increase",
    ),
    "training times that are one in single precision": (
        lambda: training.gradient_flow(
            linear_loss,
            jnp.float32(1),
            (STATES[None].astype(jnp.float32), None),
            lim.token_grid(GRID.size, jnp.float32),
            times=[0.0, 1.0, 1.0 + 1e-9],
        ),
        r"times: got \[0.0, 1.0, 1.000000001\], expected finite training times that increase",
    ),
    "windows in a pair": (
        lambda: explained(windows=(WINDOWS, None)),
        r"windows: got an array of int64 with shape \(2, 5\) at index 0, expected ids, .*sample_",
    ),
    "windows without the id after them": (
        lambda: explained(windows=WINDOWS[:, 1:]),
        r"windows: got an array of int64 with shape \(2, 4\), expected ids",
    ),
    "a width to explain over": (
        lambda: explained(regions=0.2),
        "regions: got 0.2, expected Regions",
    ),
    "query weights of another length": (
        lambda: explained(query_weights=last_token(5)),
        r"query_weights: got shape \(5,\), expected \(4,\)",
    ),
    "a seed for a key": (lambda: explained(key=0), "key: got 0, expected one random key"),
    "a loss that closes over what is differentiated": (
        lambda: jax.grad(penalty_of_closure)(full((6, 5), 0.5)),
        "loss: got a function that closes over what is differentiated.*through params",
    ),
    "a readout that closes over what is differentiated": (
        lambda: jax.jvp(penalty_of_readout, (full((6, 5), 0.5),), (full((6, 5), 1.0),)),
        "loss: got a function that closes over .*such as a readout's.*LinearReadout",
    ),
    "a penalty through diffrax's default adjoint": (
        lambda: risk_and_penalty(*FLOWED),
        NO_FORWARD_MODE,
    ),
    "influences over other regions": (
        lambda: influence_in_regions(0.2).merge(influence_in_regions(0.3)),
        "other: got influence over",
    ),
    "empty grid": (lambda: lim.token_grid(0), "size: got 0"),
    "fractional grid": (lambda: lim.token_grid(4.0), "size: got 4.0"),
    "state of another width": (
        lambda: random_flow()(random_states(0, 4, 5), GRID),
        r"x: got shape \(4, 5\), expected \(4, 6\). Embed the input in the layers' width",
    ),
    "state of another length": (
        lambda: random_flow()(random_states(0, 5, 6), GRID),
        "x: got shape",
    ),
    "batched state": (
        lambda: random_flow().trajectory(random_states(0, 2, 4, 6), GRID),
        "vmap over a batch",
    ),
    "state of another precision": (
        lambda: random_flow()(array(STATES, np.float32), GRID),
        "x: got float32, expected the grid's float64.*dtype=float32",
    ),
    "integer state": (lambda: random_flow()(full((4, 6), 1), GRID), "Embed integer tokens"),
    "layers without a common axis": (
        lambda: lim.ResidualFlow(layer_of(random_flow())),
        "share one leading layer axis",
    ),
    "layers without arrays": (lambda: lim.ResidualFlow(()), "leading layer axis"),
    "horizon": (
        lambda: lim.ResidualFlow(random_flow().layers, horizon=0.0),
        "horizon: got 0.0, expected a positive depth",
    ),
    "split of a field without sublayers": (
        lambda: lim.split(lambda x, context, grid: x, STATES, GRID, 1.0),
        "without sublayers",
    ),
    "norm of width one": (lambda: lim.LayerNorm.init(1), "width: got 1.*eqx.nn.Identity"),
    "norm without regularisation": (
        lambda: lim.LayerNorm.init(3, norm_eps=0.0),
        "norm_eps: got 0.0",
    ),
    "heads that do not divide": (
        lambda: lim.CausalAttention.init(6, heads=4, key=jax.random.key(0)),
        "4 heads at width 6.*head_dim=",
    ),
    "readout of another width": (
        lambda: lim.LinearReadout(full((5, 3), 1.0))(STATES, GRID),
        r"x: got shape \(4, 6\), expected \(4, 5\)",
    ),
    "readout of a batch": (
        lambda: lim.TokenwiseReadout(jnp.tanh)(random_states(0, 2, 4, 6), GRID),
        "Pass one example, with a row for each position",
    ),
    "narrow band": (
        lambda: lim.BandReadout(full((6, 3), 1.0), 0.2)(STATES, GRID),
        r"bandwidth: got 0.2, expected from 0.25 \(the widest cell\) to 1",
    ),
    "wide band": (lambda: lim.BandReadout(full((6, 3), 1.0), 1.2)(STATES, GRID), "to 1"),
    "a window of two tokens": (
        lambda: LocalReadout(full((4, 2, 3, 6), 1.0))(STATES, GRID),
        "blocks: got a window of 2 tokens, expected an odd number",
    ),
    "blocks of another length": (
        lambda: LocalReadout(full((5, 1, 3, 6), 1.0))(STATES, GRID),
        r"blocks: got shape \(5, 1, 3, 6\), expected \(4, window, vocabulary, 6\)",
    ),
    "a length in place of the grid of intervals": (
        lambda: interval_weights(48, [(0, 0.2)]),
        "grid: got 48, expected a Grid",
    ),
    "unknown edges": (lambda: lim.BandReadout(full((6, 3), 1.0), 0.5, "periodic"), "edges: got"),
    "class numbers of another length": (
        lambda: lim.cross_entropy(LOGITS, array([0, 1, 2]), GRID),
        r"labels: got an array of int64 with shape \(3,\) .* expected integers of shape \(4,\)",
    ),
    "class numbers as floats": (
        lambda: lim.cross_entropy(LOGITS, array([0.0, 1.0, 2.0, 3.0]), GRID),
        "labels: got an array of float64",
    ),
    "integer labels": (
        lambda: lim.cross_entropy(LOGITS, full((4, 5), 1), GRID),
        "labels: got an array of int64",
    ),
    "logits of another length": (
        lambda: lim.cross_entropy(LOGITS, LABELS, lim.token_grid(5)),
        r"logits: got shape \(4, 5\), expected \(5, vocabulary\)",
    ),
    "unknown norm": (
        lambda: cone_mass(attention(), STATES, GRID, "nuclear"),
        'norm: got \'nuclear\', expected "operator" or "frobenius"',
    ),
    "unknown normalisation": (
        lambda: cone_mass(attention(), STATES, GRID, normalisation="token"),
        'expected "density" or "finite"',
    ),
    "weights with signs": (
        lambda: joint_cone(None, lim.gauss_grid(4)),
        "grid: got PanelGrid, expected a grid of cells",
    ),
    "unknown route": (
        lambda: observability.observability_gramians(lambda x: x, STATES, 1.0, "jacrev"),
        r"mode: got 'jacrev', expected \"forward\" or \"reverse\" or \"cheapest\"",
    ),
    "a density of NaN to draw": (
        lambda: plots.influence_profile(influence_of_nan()),
        "results: got NaN or infinite values",
    ),
    "a verdict on NaN": (
        lambda: verdict(influence_of_nan()),
        "influence: got an influence with a gap of NaN",
    ),
    "a shift by no number": (
        lambda: training.parameter_shift(jnp.sum, jnp.sum, full(3, 1.0), np.nan),
        "strength: got nan, expected a finite number",
    ),
    "gates of another length": (
        lambda: gate_gramians(full(4, 0.0)),
        r"gates: got shape \(4,\), expected \(48,\)",
    ),
    "gates of another length in an influence": (
        lambda: gate_influence(full(4, 0.0)),
        r"gates: got shape \(4,\), expected \(48,\)",
    ),
    "weights of another length in an influence of gates": (
        lambda: gate_influence(full(48, 0.0), full(4, 1.0)),
        r"weights: got shape \(4,\), expected \(48,\)",
    ),
    "a size that an export leaves open, with checks": (
        lambda: export.export(jax.jit(checked))(
            jax.ShapeDtypeStruct(export.symbolic_shape("examples"), float)
        ),
        "shape: got a symbolic size, .*examples.*expected known sizes .* EQX_ON_ERROR=off",
    ),
}


def checked(x):
    return error_if(x, x < 0, "x: expected no negative number, got one.")


@pytest.mark.slow
@pytest.mark.parametrize("call, message", STATIC.values(), ids=STATIC)
def test_static_mistakes_raise_before_tracing(call, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()


def test_a_miscompiling_jaxlib_is_named():
    with pytest.warns(RuntimeWarning, match="0.10.2 miscompiles"):
        warn_of_miscompiling_jaxlib("0.10.2")
    warn_of_miscompiling_jaxlib("0.10.1")


def test_a_package_that_is_asked_for_is_not_loaded(tmp_path, monkeypatch):
    (tmp_path / "package_of_an_extra.py").write_text(
        "raise RuntimeError('it was loaded')", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    require_extra("package_of_an_extra", "report")
    monkeypatch.setitem(sys.modules, "package_of_an_extra", None)  # as if it were not installed
    message = r'package_of_an_extra: got no .*pip install "lim_jax\[report\]"'
    with pytest.raises(MissingPackage, match=message) as raised:
        require_extra("package_of_an_extra", "report")
    assert raised.value.name == "package_of_an_extra"
    monkeypatch.delitem(sys.modules, "package_of_an_extra")
    package = lazy_loader.load("package_of_an_extra")
    require_extra("package_of_an_extra", "report")
    with pytest.raises(RuntimeError, match="it was loaded"):
        dir(package)


MISSING = {
    "a module of old": (lim, "penalties", "lim_jax.training.influence_penalty"),
    "a name of a room at the front door": (
        lim,
        "influence_penalty",
        r"expected lim_jax.training.influence_penalty\.",
    ),
    "a name of another room": (
        lim.training,
        "cone_mass",
        r"lim_jax.training.cone_mass: got a name .*, expected lim_jax.adjoint.cone_mass\.",
    ),
    "a name misspelt": (lim, "boundry_regions", "lim_jax.boundary_regions"),
    "a name like one of the room": (
        lim.training,
        "influence_penalties",
        "expected lim_jax.training.influence_penalty, ",
    ),
    "a name like one of the room and like others before it": (
        lim.plots,
        "influence_plot",
        "expected lim_jax.plots.influence_profile, ",
    ),
    "a name like no other": (
        lim,
        "quux",
        r"lim_jax.quux: got .*one of dir\(lim_jax\). Look in the rooms of lim_jax: adjoint, ",
    ),
}


@pytest.mark.parametrize("room, name, message", MISSING.values(), ids=MISSING)
def test_a_name_that_is_not_there_is_looked_for(room, name, message):
    with pytest.raises(AttributeError, match=message):
        getattr(room, name)


def test_a_module_that_is_a_function_now_is_not_imported():
    with pytest.raises(ModuleNotFoundError, match="lim_jax.influence"):
        importlib.import_module("lim_jax.influence")
    assert callable(lim.influence) and not hasattr(lim, "__wrapped__")


def test_a_readout_that_closes_over_arrays_goes_through_the_jit_of_modules():
    """To `jax.jit` a function is no array, and it says so before anything of ours runs."""
    weight = full((6, 5), 0.5)
    readout = lim.TokenwiseReadout(lambda token: token @ weight)
    expected = lim.LinearReadout(weight)(STATES, GRID)
    np.testing.assert_allclose(eqx.filter_jit(readout)(STATES, GRID), expected)
    with pytest.raises(TypeError, match="function"):
        jax.jit(lambda readout: readout(STATES, GRID))(readout)


def test_an_error_of_ours_comes_back_from_another_process():
    """Its class hides the module that holds it, by which pickle would look for it."""
    for error in (
        Refusal("x: got 1, expected 2."),
        RefusedValue("x: got NaN, expected numbers."),
        MissingPackage("a: got none", name="altair"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert getattr(again, "name", None) == getattr(error, "name", None)


@pytest.mark.parametrize(
    ("number", "bounds", "message"),
    [
        (2**32, {"least": 0, "most": 2**32 - 1}, "from 0 to 4294967295. Pass"),
        (0, {}, "at least 1. Pass"),
    ],
)
def test_a_whole_number_out_of_range_is_told_its_range(number, bounds, message):
    with pytest.raises(
        ValueError, match=f"seed: got {number}, expected a whole number.* {message}"
    ):
        as_int(number, "seed", **bounds)
