"""The contract: every nesting of transformations, on the loss and on the density.

Each case is a scalar function of a pytree of parameters; each transformation of it is compared
with central differences of what it differentiates.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import (
    VOCABULARY,
    central_difference,
    random_flow,
    random_labels,
    random_states,
    randomised,
)

import lim_jax as lim
from lim_jax.adjoint import tangent

LENGTH, WIDTH, BATCH = 6, 4, 2
GRID = lim.midpoint_grid(LENGTH)
X = random_states(2, BATCH, LENGTH, WIDTH)
Y = random_labels(3, BATCH, LENGTH, VOCABULARY)
PROFILE = jnp.sin(jnp.arange(1.0, LENGTH + 1))


def network(step):
    flow = random_flow(1, depth=2, width=WIDTH, step=step)
    return flow, lim.BandReadout(random_states(4, WIDTH, VOCABULARY), 0.4)


def example_loss(params, x, y):
    flow, readout = params
    return lim.cross_entropy(readout(flow(x, GRID), GRID), y, GRID)


def loss_of_parameters(params):
    return jax.vmap(example_loss, in_axes=(None, 0, 0))(params, X, Y).mean()


def density_of_parameters(params):
    return PROFILE @ lim.influence(example_loss, params, (X, Y), GRID).density


def index_of_parameters(params):
    return lim.influence(example_loss, params, (X, Y), GRID).indices().lim


def adjoint_of_parameters(params):
    flow, readout = params

    def terminal_loss(x):
        return lim.cross_entropy(readout(x, GRID), Y[0], GRID)

    covectors = lim.adjoint_trajectory(flow, terminal_loss, X[0], GRID).covectors
    return jnp.sum(covectors[0] * X[1]) + jnp.sum(covectors[1] ** 2)


def ledger_of_parameters(params):
    """The local channel and the joint cone, in one number."""
    flow, readout = params
    found = lim.adjoint.channels(
        flow, lambda state: lim.cross_entropy(readout(state, GRID), Y[0], GRID), X[0], GRID
    )
    sites = tangent.attention_sites(flow, found.states, found.covectors, GRID)
    joint = lim.adjoint.joint_cone(jax.tree.map(lambda leaf: leaf[None], sites), GRID)
    return jnp.sum(found.local**2) + joint.energy @ PROFILE


QUANTITIES = {
    "loss": loss_of_parameters,
    "density": density_of_parameters,
    "index": index_of_parameters,
    "adjoint": adjoint_of_parameters,
    "ledger": ledger_of_parameters,
}
CASES = [
    pytest.param("loss", lim.euler, id="loss-euler"),
    pytest.param("density", lim.euler, id="density-euler"),
    pytest.param("loss", lim.split, id="loss-split", marks=pytest.mark.slow),
    pytest.param("density", lim.split, id="density-split", marks=pytest.mark.slow),
    pytest.param("index", lim.euler, id="index-euler", marks=pytest.mark.slow),
    pytest.param("adjoint", lim.split, id="adjoint-split", marks=pytest.mark.slow),
    pytest.param("ledger", lim.split, id="ledger-split", marks=pytest.mark.slow),
]


def vdot(left, right):
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, left, right)))


@pytest.mark.parametrize("name, step", CASES)
def test_every_nesting_agrees_with_differences(name, step):
    function, params = QUANTITIES[name], network(step)
    first, second = randomised(params, seed=7), randomised(params, seed=8)

    @jax.jit
    def slopes(params):
        """Forms of the first derivative along `first`, the last by differences."""
        return {
            "grad": vdot(jax.grad(function)(params), first),
            "jvp": jax.jvp(function, (params,), (first,))[1],
            "differences": central_difference(function, params, first),
        }

    @jax.jit
    def curvatures(params):
        """Forms of the second derivative along `first` and `second`, the last by differences."""

        def slope(params):
            return jax.jvp(function, (params,), (first,))[1]

        def grad_slope(params):
            return vdot(jax.grad(function)(params), first)

        return {
            "jvp of grad": vdot(jax.jvp(jax.grad(function), (params,), (first,))[1], second),
            "grad of grad": vdot(jax.grad(grad_slope)(params), second),
            "grad of jvp": vdot(jax.grad(slope)(params), second),
            "differences": central_difference(grad_slope, params, second),
        }

    for forms, tolerance in ((slopes(params), 1e-7), (curvatures(params), 1e-6)):
        expected = forms.pop("differences")
        assert abs(float(expected)) > 1e-6, "a derivative that vanishes tests nothing"
        for form, value in forms.items():
            np.testing.assert_allclose(value, expected, rtol=tolerance, err_msg=form)


@pytest.mark.parametrize("name, step", CASES[:2])
def test_gradients_under_vmap_and_jit_are_those_without(name, step):
    function = QUANTITIES[name]
    several = [network(step), randomised(network(step), seed=9, scale=0.3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    together = jax.jit(jax.vmap(jax.value_and_grad(function)))(stacked)
    for index, params in enumerate(several):
        alone = jax.jit(jax.value_and_grad(function))(params)
        picked = jax.tree.map(lambda leaf: leaf[index], together)  # noqa: B023
        chex.assert_trees_all_close(picked, alone, rtol=1e-9, atol=1e-12)


def test_second_derivatives_in_the_input():
    params, x = network(lim.euler), X[0]
    tangent = random_states(6, LENGTH, WIDTH)

    def loss(x):
        return example_loss(params, x, Y[0])

    @jax.jit
    def forms(x):
        return {
            "hessian": jnp.tensordot(jax.hessian(loss)(x), tangent, axes=2),
            "jvp of grad": jax.jvp(jax.grad(loss), (x,), (tangent,))[1],
            "grad of grad": jax.grad(lambda x: jnp.vdot(tangent, jax.grad(loss)(x)))(x),
            "grad of jvp": jax.grad(lambda x: jax.jvp(loss, (x,), (tangent,))[1])(x),
            "differences": central_difference(jax.grad(loss), x, tangent),
        }

    found = forms(x)
    expected = found.pop("differences")
    for form, value in found.items():
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-9, err_msg=form)


def test_a_mixed_derivative_by_one_jvp_of_the_parameter_gradient():
    """Forward over reverse along an input tangent c gives the gradient of <c, P_0>."""
    params, c = network(lim.split), random_states(6, LENGTH, WIDTH)

    def along_c(params):
        return jnp.vdot(c, jax.grad(example_loss, argnums=1)(params, X[0], Y[0]))

    @jax.jit
    def both(params):
        mixed = jax.jvp(lambda x: jax.grad(example_loss)(params, x, Y[0]), (X[0],), (c,))[1]
        return mixed, jax.grad(along_c)(params)

    chex.assert_trees_all_close(*both(params), rtol=1e-10, atol=1e-13)


def test_a_stopped_gradient_is_zero_and_ours_is_not():
    params = network(lim.euler)

    def stopped(params):
        return density_of_parameters(jax.lax.stop_gradient(params))

    norms = [
        float(vdot(gradient, gradient))
        for gradient in (jax.grad(stopped)(params), jax.grad(density_of_parameters)(params))
    ]
    assert norms[0] == 0 and norms[1] > 1e-6
