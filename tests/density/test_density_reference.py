"""The influence of a random network, for every scheme, readout and loss, against plain NumPy."""

from functools import cache
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_network
from reference.differences import central_difference
from reference.networks import (
    LENGTH,
    SCHEMES,
    VOCABULARY,
    WIDTH,
    random_flow,
    random_labels,
    random_states,
    randomised,
)

import lim_jax as lim
from lim_jax.loss import last_token, teacher_forcing

GRID = lim.token_grid(LENGTH)
EXAMPLES = 2
STATES = random_states(2, EXAMPLES, LENGTH, WIDTH)
LABELS = random_labels(3, EXAMPLES, LENGTH, VOCABULARY)
OUT = random_states(4, WIDTH, VOCABULARY)
HIDDEN = random_states(5, WIDTH, VOCABULARY)
OUTER = random_states(7, VOCABULARY, VOCABULARY)
POSITION_WEIGHTS = jax.device_put(0.5 + np.arange(LENGTH) / LENGTH)
ALPHA = jax.device_put(np.arange(LENGTH) / 66)
UNIFORM = np.full(LENGTH, 1 / LENGTH)


class TwoLayerReadout(eqx.Module):
    """A nonlinear tokenwise map, as a user would write it."""

    inner: jax.Array
    outer: jax.Array

    def __call__(self, z):
        return jnp.tanh(z @ self.inner) @ self.outer


READOUTS = {
    "linear": lim.LinearReadout(OUT),
    "biased": lim.LinearReadout(OUT, jax.device_put(np.arange(VOCABULARY) / 3)),
    "tokenwise": lim.TokenwiseReadout(TwoLayerReadout(HIDDEN, OUTER)),
    "zero": lim.BandReadout(OUT, 0.3, "zero"),
    "renormalised": lim.BandReadout(OUT, 0.3, "renormalised"),
    "reflecting": lim.BandReadout(OUT, 0.3, "reflecting"),
}


def autoregressive(alpha):
    return lambda logits, labels: lim.autoregressive_cross_entropy(logits, labels, alpha)


# Our loss of logits and labels; the reference's weights and the factor on its labels.
LOSSES = {
    "token": (lambda z, y: lim.cross_entropy(z, y, GRID), UNIFORM, 1.0),
    "unnormalised-labels": (lambda z, y: lim.cross_entropy(z, 2.5 * y, GRID), UNIFORM, 2.5),
    "position-weighted": (
        lambda z, y: lim.cross_entropy(z, y, GRID, POSITION_WEIGHTS),
        UNIFORM * np.asarray(POSITION_WEIGHTS),
        1.0,
    ),
    "continuation": (autoregressive(teacher_forcing(LENGTH)), UNIFORM, 1.0),
    "teacher-forcing": (
        autoregressive(teacher_forcing(LENGTH, continuation=False)),
        np.append(np.full(LENGTH - 1, 1 / (LENGTH - 1)), 0),
        1.0,
    ),
    "last-token": (autoregressive(last_token(LENGTH)), np.eye(LENGTH)[-1], 1.0),
    "subset": (
        autoregressive(jax.device_put(np.eye(LENGTH)[[2, 7, 9]].sum(axis=0) / 3)),
        np.eye(LENGTH)[[2, 7, 9]].sum(axis=0) / 3,
        1.0,
    ),
    "any-weights": (autoregressive(ALPHA), np.asarray(ALPHA), 1.0),
}
CASES = list(product(READOUTS, LOSSES))


@cache
def network(scheme):
    return random_flow(step=SCHEMES[scheme], depth=2, horizon=1.5)


def all_losses(flow, readouts, x, y):
    states = flow(x, GRID)
    logits = {name: readout(states, GRID) for name, readout in readouts.items()}
    return jnp.stack([LOSSES[loss][0](logits[readout], y) for readout, loss in CASES])


def selected_loss(params, x, y):
    """One of all losses, picked by a row of the identity, so that one compilation serves all."""
    flow, readouts, selector = params
    return selector @ all_losses(flow, readouts, x, y)


@cache
def differences(scheme):
    """The central differences of all losses in each entry of the input, along the last axis."""
    flow = network(scheme)

    def along(direction):
        return central_difference(
            lambda x: all_losses(flow, READOUTS, x, LABELS[0]), STATES[0], direction
        )

    directions = np.eye(LENGTH * WIDTH).reshape(-1, LENGTH, WIDTH)
    slopes = jax.jit(lambda directions: jax.lax.map(along, directions))(directions)
    return np.asarray(slopes).reshape(LENGTH, WIDTH, len(CASES))


@cache
def perturbed_terminal_states(scheme, example):
    """Terminal states of the NumPy network, one for each complex step in the input."""
    flow = network(scheme)
    arrays = jax.tree.map(np.asarray, flow.layers)
    layers = [jax.tree.map(lambda leaf: leaf[k], arrays) for k in range(flow.depth)]  # noqa: B023
    moved = numpy_network.perturbed(np.asarray(STATES[example]))
    return numpy_network.flow(layers, moved, flow.horizon, scheme, flow.profile)


@cache
def reference_logits(name, scheme, example):
    states = perturbed_terminal_states(scheme, example)
    if name == "linear":
        return states @ np.asarray(OUT)
    if name == "biased":
        return states @ np.asarray(OUT) + np.arange(VOCABULARY) / 3
    if name == "tokenwise":
        return np.tanh(states @ np.asarray(HIDDEN)) @ np.asarray(OUTER)
    return numpy_network.band_average(states, 0.3, name) @ np.asarray(OUT)


def reference_gradient(scheme, readout, loss, example):
    _, weights, factor = LOSSES[loss]
    logits = reference_logits(readout, scheme, example)
    values = numpy_network.cross_entropy(logits, factor * np.asarray(LABELS[example]), weights)
    return numpy_network.derivative(values).reshape(LENGTH, WIDTH)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("readout, loss", CASES)
def test_influence_is_that_of_the_numpy_network_and_of_differences(scheme, readout, loss):
    case = CASES.index((readout, loss))
    params = (network(scheme), READOUTS, jnp.asarray(np.eye(len(CASES))[case]))
    result = lim.influence(selected_loss, params, (STATES, LABELS), GRID)
    gradients = [reference_gradient(scheme, readout, loss, b) for b in range(EXAMPLES)]
    energy = np.mean([((LENGTH * gradient) ** 2).sum(axis=1) for gradient in gradients], axis=0)
    total = energy.sum() / LENGTH
    np.testing.assert_allclose(result.energy, energy, rtol=1e-12, atol=1e-12 * total)
    np.testing.assert_allclose(result.density, energy / total, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(differences(scheme)[..., case], gradients[0], rtol=0, atol=1e-8)


def test_the_complex_step_differentiates_a_known_function():
    x = np.array([[0.3, -1.2]])
    moved = numpy_network.perturbed(x)
    gradient = numpy_network.derivative((np.exp(moved) * moved).sum(axis=(1, 2)))
    np.testing.assert_allclose(gradient, (np.exp(x) * (1 + x)).ravel(), rtol=1e-15)


def test_randomised_leaves_nothing_zero():
    tree = randomised(network("euler"), seed=9)
    assert all(np.all(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(tree))
