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
from lim_jax._checks import require_floats
from lim_jax._errors import in_our_words
from lim_jax._refusal import MARK, Refusal, refusal
from lim_jax.adjoint.queries import readout_support
from lim_jax.grid import cell_embedding
from lim_jax.paper.simulation import gate_gramians
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


BELOW_ZERO = full((2, 4, 6), -1.0)


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
    "nan query weight where support is asked": (
        lambda: readout_support(array([0.0, np.nan, 0.0, 1.0]), 1),
        "query_weights: got NaN or infinite values",
    ),
    "negative deployment": (
        lambda: importance_weights(array([-1.0, 1, 1, 3]), full(4, 1.0), GRID),
        "deployed: expected a finite density of position, nowhere negative",
    ),
    "nan in training's density": (
        lambda: importance_weights(full(4, 1.0), array([np.nan, 1, 1, 1]), GRID),
        "trained: expected a finite density",
    ),
    "training nowhere": (
        lambda: importance_weights(full(4, 1.0), full(4, 0.0), GRID),
        "trained: expected a finite density of position, nowhere negative and not zero",
    ),
    "infinite epsilon in an array": (
        lambda: lim.indices(full(3, 1.0), array(np.inf)),
        "epsilon: got NaN or infinite",
    ),
    "a loss that is nan where its gradients are not": (
        influence_of(BELOW_ZERO, loss=sum_of_logarithms),
        "loss: got NaN or infinite values.*Gradients may be finite where a loss is not",
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
        "pools: expected weights nowhere negative, and no pool without any",
    ),
    "an empty pool": (
        lambda: penalty_of_pools([[1.0, 1, 0, 0], [0, 0, 0, 0]]),
        "pools: expected weights nowhere negative, and no pool without any",
    ),
    "infinite epsilon of a penalty": (
        lambda: penalty_of_pools(None, epsilon=array(np.inf)),
        "epsilon: got NaN or infinite",
    ),
    "negative epsilon of a penalty": (
        lambda: penalty_of_pools(None, epsilon=array(-1e-3)),
        "epsilon: expected nothing below zero, got others",
    ),
    "a negative weight that is moved": (
        lambda: reweight_positions(
            array([-1.0, 1, 1, 1]), full(4, 1.0), 1.0, GRID, rate=0.5, smallest=0.1, largest=8.0
        ),
        "smallest, largest: expected weights nowhere negative",
    ),
    "a negative energy": (
        lambda: training.balanced_density(array([[-1.0, 2]]), full(2, 0.5), epsilon=0.0),
        "energies: expected nothing below zero",
    ),
    "interval that holds no weight": (
        lambda: reweight_positions(
            full(4, 1.0), full(4, 1.0), 1.0, GRID, rate=0.5, smallest=0.0, largest=0.0
        ),
        "smallest, largest: expected weights nowhere negative, 0 <= smallest",
    ),
    "states that are not finite along continuous depth": (
        lambda: lim.ContinuousFlow(lambda time: lambda x, context, grid: -x)(
            full((4, 6), np.inf), GRID
        ),
        "x: got NaN or infinite",
    ),
    "position outside": (
        lambda: cell_embedding(array(np.arange(4.0)), GRID, array([1.5])),
        r"expected numbers in \[0, 1\]",
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
    words = r"x: got shape \(3, 2\), expected \(4, width\). Pass one row for each position."
    with pytest.raises(Refusal, match=words):
        require_floats(np.ones((3, 2)), "x", "length width", length=4)
    said = "derivative: got .Reverse-mode differentiation does not work for lax.while_loop"
    with pytest.raises(Refusal, match=said), in_our_words():
        jax.grad(lambda x: jax.lax.while_loop(lambda x: x < 1, lambda x: 2 * x, x))(0.5)
