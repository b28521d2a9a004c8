# pyright: reportArgumentType=false
"""Bad input: each gets an error that names what was got, what was expected, and the cure."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import layer_of, random_flow, random_labels, random_states

import lim_jax as lim
from lim_jax._checks import warn_of_miscompiling_jaxlib
from lim_jax.adjoint.cone import cone_mass, joint_cone
from lim_jax.grid import cell_embedding
from lim_jax.loss import query_subset
from lim_jax.observability.trace_estimates import observability_traces
from lim_jax.probes import orthogonal_probes

pytestmark = pytest.mark.usefixtures("as_users_run")
GRID = lim.token_grid(4)
STATES = random_states(0, 4, 6)
LOGITS, LABELS = random_states(1, 4, 5), random_labels(2, 4, 5)


def linear_loss(params, x, y):
    return jnp.sum(x)


def attention():
    return layer_of(random_flow()).attention


def array(values, dtype=None):
    return jax.device_put(np.asarray(values, dtype))


def full(shape, value):
    return array(np.full(shape, value))


def influence_of(x, y=None, loss=linear_loss, **options):
    return lambda: lim.influence(loss, None, (x, y), GRID, **options)


STATIC = {
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
        "loss: got .*expected a scalar",
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
    "empty grid": (lambda: lim.token_grid(0), "size: got 0"),
    "fractional grid": (lambda: lim.token_grid(4.0), "size: got 4.0"),
    "state of another width": (
        lambda: random_flow()(random_states(0, 4, 5), GRID),
        "state: got width 5.*expected width 6",
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
    "norm without regularisation": (lambda: lim.LayerNorm.init(3, eta=0.0), "eta: got 0.0"),
    "heads that do not divide": (
        lambda: lim.CausalAttention.init(6, heads=4, key=jax.random.key(0)),
        "4 heads at width 6.*head_size=",
    ),
    "readout of another width": (
        lambda: lim.LinearReadout(full((5, 3), 1.0))(STATES, GRID),
        r"x: got shape \(4, 6\), expected \(4, 5\)",
    ),
    "readout of a batch": (
        lambda: lim.TokenwiseReadout(jnp.tanh)(random_states(0, 2, 4, 6), GRID),
        "Readouts take one example",
    ),
    "narrow band": (
        lambda: lim.BandReadout(full((6, 3), 1.0), 0.2)(STATES, GRID),
        r"bandwidth: got 0.2, expected from 0.25 \(the widest cell\) to 1",
    ),
    "wide band": (lambda: lim.BandReadout(full((6, 3), 1.0), 1.2)(STATES, GRID), "to 1"),
    "unknown edges": (lambda: lim.BandReadout(full((6, 3), 1.0), 0.5, "periodic"), "edges: got"),
    "class numbers as labels": (
        lambda: lim.cross_entropy(LOGITS, array([0, 1, 2, 3]), GRID),
        "labels: got an array of int64 with shape.*one_hot",
    ),
    "integer labels": (
        lambda: lim.cross_entropy(LOGITS, full((4, 5), 1), GRID),
        "labels: got an array of int64",
    ),
    "logits of another length": (
        lambda: lim.cross_entropy(LOGITS, LABELS, lim.token_grid(5)),
        r"logits: got shape \(4, 5\), expected \(5, vocabulary\)",
    ),
    "no queries": (lambda: query_subset(4, array([], int)), "positions: got none"),
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
        lambda: observability_traces(lambda x: x, STATES, 1.0, 2, "jacrev", key=jax.random.key(0)),
        "mode: got 'jacrev', expected one of",
    ),
    "part of a rotation": (
        lambda: orthogonal_probes(3, 2, key=jax.random.key(0)),
        "count: got 3 probes of width 2",
    ),
}
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
        "query_weights: expected non-negative weights that sum to one",
    ),
    "negative query weight": (
        lambda: lim.autoregressive_cross_entropy(LOGITS, LABELS, array([2.0, -1, 0, 0])),
        "query_weights: expected non-negative",
    ),
    "nan query weight": (
        lambda: lim.autoregressive_cross_entropy(LOGITS, LABELS, full(4, np.nan)),
        "query_weights: expected",
    ),
    "query outside": (lambda: query_subset(4, array([4])), "positions: expected distinct"),
    "query twice": (lambda: query_subset(4, array([1, 1])), "positions: expected distinct"),
    "negative query": (lambda: query_subset(4, array([-1])), "positions: expected distinct"),
    "position outside": (
        lambda: cell_embedding(array(np.arange(4.0)), GRID, array([1.5])),
        r"expected numbers in \[0, 1\]",
    ),
}


@pytest.mark.parametrize("call, message", STATIC.values(), ids=STATIC)
def test_static_mistakes_raise_before_tracing(call, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()


@pytest.mark.parametrize("call, message", TRACED.values(), ids=TRACED)
def test_mistaken_values_raise(call, message):
    with pytest.raises(RuntimeError, match=message):
        jax.block_until_ready(call())


@pytest.mark.parametrize("call, message", TRACED.values(), ids=TRACED)
def test_mistaken_values_raise_under_jit_and_grad(call, message):
    def total(scale):
        leaves = [leaf for leaf in jax.tree.leaves(call()) if eqx.is_inexact_array(leaf)]
        return scale * sum(jnp.sum(leaf) for leaf in leaves)

    with pytest.raises(RuntimeError, match=message):
        eqx.filter_jit(jax.grad(total))(1.0).block_until_ready()


def test_a_miscompiling_jaxlib_is_named():
    with pytest.warns(RuntimeWarning, match="0.10.2 miscompiles"):
        warn_of_miscompiling_jaxlib("0.10.2")
    warn_of_miscompiling_jaxlib("0.10.1")
