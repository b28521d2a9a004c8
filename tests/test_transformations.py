"""The contract: every nesting of transformations, on the loss and on the density.

Each case is a scalar function of a point, the parameters and the batch's inputs; each
transformation of it is compared with central differences of what it differentiates. Nearly all
time goes into compiling, so every transformation of a function is one program: which of the
function's results is meant, at which point and along which direction are its arguments.
"""

from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.architectures import architecture_flow
from reference.differences import difference_by_calls, on_host
from reference.light import light_flow
from reference.networks import VOCABULARY, random_labels, random_states, randomised

import lim_jax as lim
from lim_jax.adjoint.sites import attention_sites

LENGTH = 6
WIDTH = 4
BATCH = 2
GRID = lim.midpoint_grid(LENGTH)
X = random_states(2, BATCH, LENGTH, WIDTH)
Y = random_labels(3, BATCH, LENGTH, VOCABULARY)
PROFILE = np.sin(np.arange(1.0, LENGTH + 1))


def network(step):
    """Light and plain, or of split layers with all that checkpoints bring, norms among it."""
    if step == "everything":
        flow = architecture_flow("everything", 1, depth=2, width=WIDTH)
    else:
        flow = light_flow(1, width=WIDTH, heads=2, step=step)
    return flow, lim.BandReadout(random_states(4, WIDTH, VOCABULARY), 0.4)


def attentive(step):
    """The same of attention alone, half the program: for what is made of attention's parts."""
    flow, readout = network(step)
    return replace(flow, layers=flow.layers.attention), readout


def example_loss(params, x, y):
    flow, readout = params
    return lim.cross_entropy(readout(flow(x, GRID), GRID), y, GRID)


def influence(params, x):
    """The loss, and of its influence the density along a profile and the index."""
    found = lim.influence(example_loss, params, (x, Y), GRID)
    losses = jax.vmap(example_loss, in_axes=(None, 0, 0))(params, x, Y)
    return losses.mean(), PROFILE @ found.density, found.indices().lim


def read_loss(readout):
    return lambda state, y: lim.cross_entropy(readout(state, GRID), y, GRID)


def adjoint(params, x):
    flow, readout = params

    covectors = lim.adjoint_trajectory(flow, read_loss(readout), (x[0], Y[0]), GRID).covectors
    return jnp.sum(covectors[0] * X[1]), jnp.sum(covectors[1] ** 2)


def ledger(params, x):
    """The local channel and the joint cone."""
    flow, readout = params
    by_channel = lim.adjoint.channels(flow, read_loss(readout), (x[0], Y[0]), GRID)
    sites = attention_sites(flow, by_channel.states, by_channel.covectors, GRID)
    joint = lim.adjoint.joint_cone(jax.tree.map(lambda leaf: leaf[None], sites), GRID)
    return jnp.sum(by_channel.local**2), joint.energy @ PROFILE


def hops(params, x):
    """The adjoint after no hop, and after one or more."""
    flow, readout = params
    by_hop = lim.adjoint.attention_hops(flow, read_loss(readout), (x[0], Y[0]), GRID, 1)
    return jnp.sum(by_hop[0, 0] * X[1]), jnp.sum(by_hop[0, 1] ** 2)


def masked(params, x):
    """The mask gradient at log weights that are the input's."""
    flow, readout = params
    grid = GRID.weighted(x[0, :, 0], jnp.arange(LENGTH) // 2)
    gradient = lim.adjoint.mask_gradient(flow, read_loss(readout), (x[0], Y[0]), grid)
    return PROFILE @ gradient.total, jnp.sum(gradient.by_head**2)


def one_loss(params, x):
    return (example_loss(params, x[0], Y[0]),)


def density_alone(params, x):
    """Without the losses, whose derivatives it is made of."""
    return (PROFILE @ lim.influence(example_loss, params, (x, Y), GRID).density,)


# A function of the point, and the combination of its results that is the quantity.
QUANTITIES = {
    "one loss": (one_loss, (1.0,)),
    "loss": (influence, (1.0, 0.0, 0.0)),
    "density": (influence, (0.0, 1.0, 0.0)),
    "index": (influence, (0.0, 0.0, 1.0)),
    "density alone": (density_alone, (1.0,)),
    "adjoint": (adjoint, (1.0, 1.0)),
    "ledger": (ledger, (1.0, 1.0)),
    "hops": (hops, (1.0, 1.0)),
}

# What is compiled may be forgotten after a test, so those that share programs stand together, here
# and below.
CASES = [
    pytest.param("loss", lim.euler, id="loss-euler"),
    pytest.param("density", lim.euler, id="density-euler"),
    pytest.param("index", lim.euler, id="index-euler", marks=pytest.mark.slow),
    pytest.param("density alone", "everything", id="density-everything", marks=pytest.mark.slow),
    pytest.param("adjoint", lim.split, id="adjoint-split", marks=pytest.mark.slow),
    pytest.param("ledger", lim.euler, id="ledger-euler", marks=pytest.mark.slow),
    pytest.param("hops", lim.euler, id="hops-euler", marks=pytest.mark.slow),
]


def dot(left, right):
    return sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), left, right)))


def compiled(transformation):
    """A transformation of a quantity at a point along a direction, compiled once a function."""

    @partial(jax.jit, static_argnums=0)
    def program(function, combination, point, direction):
        return transformation(lambda at: dot(combination, function(*at)), point, direction)

    def of_quantity(name, point, direction):
        return on_host(program(*QUANTITIES[name], point, direction))

    return of_quantity


@compiled
def jvp_of_value_and_grad(quantity, point, direction):
    """The value and the gradient, and the change of both."""
    return jax.jvp(jax.value_and_grad(quantity), (point,), (direction,))


@compiled
def jvp_and_grad_of_jvp(quantity, point, direction):
    return jax.value_and_grad(lambda at: jax.jvp(quantity, (at,), (direction,))[1])(point)


@compiled
def grads_and_grad_of_grad(quantity, point, direction):
    """The value and the gradient, and the gradient of that along the direction."""

    def slope(at):
        value, gradient = jax.value_and_grad(quantity)(at)
        return dot(gradient, direction), (value, gradient)

    along, found = jax.grad(slope, has_aux=True)(point)
    return found, along


@compiled
def vmap_of_grad(quantity, points, direction):
    return jax.vmap(jax.value_and_grad(quantity))(points)


def derivatives(name, point, direction):
    """Forms of the first derivative along a direction, and of the second as pytrees.

    In reverse a gradient's derivative is that by forward mode, transposed: one program less.
    """
    slope, of_jvp = jvp_and_grad_of_jvp(name, point, direction)
    (_, gradient), of_grad = grads_and_grad_of_grad(name, point, direction)
    slopes = {"grad": dot(gradient, direction), "jvp": slope}
    return slopes, {"grad of jvp": of_jvp, "grad of grad": of_grad}


def dear_derivatives(name, point, direction):
    """The same by one program, where programs are dear: of adjoints, and of everything.

    Forms of second order differ by nesting only: one stands for those of the plain network.
    """
    (_, gradient), (slope, along) = jvp_of_value_and_grad(name, point, direction)
    function, _ = QUANTITIES[name]
    jax.eval_shape(partial(jax.jvp, function), point, direction)  # by itself it is traced only
    return {"grad": dot(gradient, direction), "jvp": slope}, {"jvp of grad": along}


def differences(name, point, direction, of=grads_and_grad_of_grad):
    """Central ones of the value and of the gradient, by calls of what is compiled already."""
    return difference_by_calls(lambda moved: of(name, moved, direction)[0], point, direction)


def nowhere(tree):
    return jax.tree.map(np.zeros_like, tree)


@pytest.mark.slow
@pytest.mark.parametrize("name, step", CASES[:2])
def test_gradients_under_vmap_and_jit_are_those_without(name, step):
    """Dear by the gradient's gradient, of third order, which comes with the gradient alone."""
    several = [network(step), randomised(network(step), seed=9, scale=0.3)]
    points = [on_host((params, X)) for params in several]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *points)
    together = vmap_of_grad(name, stacked, None)
    for index, point in enumerate(points):
        alone, _ = grads_and_grad_of_grad(name, point, point)
        picked = jax.tree.map(lambda leaf: leaf[index], together)  # noqa: B023
        chex.assert_trees_all_close(picked, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_second_derivatives_in_the_input():
    """Dear by the gradient of the jvp, which the nestings below call again."""
    params, direction = on_host((network(lim.euler), random_states(6, LENGTH, WIDTH)))
    along = nowhere(params), np.stack([direction, nowhere(direction)])
    point = params, np.asarray(X)
    forms = derivatives("loss", point, along)[1]
    forms = {form: BATCH * found[1][0] for form, found in forms.items()}
    forms["jvp of grad"] = jvp_of_value_and_grad("one loss", point, along)[1][1][1][0]
    hessian = jax.jit(jax.hessian(example_loss, argnums=1))(params, point[1][0], np.asarray(Y)[0])
    forms["hessian"] = np.tensordot(hessian, direction, axes=2)
    expected = BATCH * differences("loss", point, along)[1][1][0]
    for form, found in forms.items():
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9, err_msg=form)


@pytest.mark.slow
def test_a_mixed_derivative_by_one_jvp_of_the_parameter_gradient():
    """Forward over reverse along an input tangent c gives the gradient of <c, P_0>."""
    params, c = on_host((network(lim.euler), random_states(6, LENGTH, WIDTH)))
    along_c = nowhere(params), np.stack([c, nowhere(c)])
    _, (_, mixed) = jvp_of_value_and_grad("one loss", (params, X), along_c)
    _, expected = grads_and_grad_of_grad("loss", (params, X), along_c)
    expected = jax.tree.map(lambda leaf: BATCH * leaf, expected[0])
    chex.assert_trees_all_close(mixed[0], expected, rtol=1e-10, atol=1e-13)


def test_a_stopped_gradient_is_zero_and_ours_is_not():
    point = on_host((network(lim.euler), X))

    @jax.jit
    @jax.grad
    def stopped(params):
        return influence(jax.lax.stop_gradient(params), X)[1]

    (_, ours), _ = grads_and_grad_of_grad("density", point, point)
    norms = [dot(gradient, gradient) for gradient in (on_host(stopped(point[0])), ours[0])]
    assert norms[0] == 0 and norms[1] > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name, step", CASES)
def test_every_nesting_agrees_with_differences(name, step):
    """Dear: a nesting is a program of its own, of second order or third."""
    params = (attentive if name in ("ledger", "hops") else network)(step)
    point = on_host((params, X))
    first, second = ((on_host(randomised(params, seed)), nowhere(X)) for seed in (7, 8))
    dear = step == "everything" or name in ("adjoint", "ledger", "hops")
    if dear:
        slopes, curvatures = dear_derivatives(name, point, first)
        slope, change = differences(name, point, first, jvp_of_value_and_grad)
    else:
        slopes, curvatures = derivatives(name, point, first)
        slope, change = differences(name, point, first)
    curvatures = {form: dot(found, second) for form, found in curvatures.items()}
    for forms, expected, tolerance in (
        (slopes, slope, 1e-7),
        (curvatures, dot(change, second), 1e-6),
    ):
        assert abs(float(expected)) > 1e-6, "a derivative that vanishes tests nothing"
        for form, found in forms.items():
            np.testing.assert_allclose(found, expected, rtol=tolerance, err_msg=form)


@pytest.mark.slow
@pytest.mark.parametrize("name, step", CASES)
def test_derivatives_where_people_debug_are_those_elsewhere(name, step):
    """Without jit, and where JAX looks for NaN."""
    params = (attentive if name in ("ledger", "hops") else network)(step)
    point = on_host((params, X))
    direction = on_host(randomised(params, 7)), nowhere(X)
    expected = jvp_of_value_and_grad(name, point, direction)
    for tool in (jax.disable_jit(), jax.debug_nans(True)):
        with tool:
            derivatives = jvp_of_value_and_grad(name, point, direction)
        chex.assert_trees_all_close(derivatives, expected, rtol=1e-9, atol=1e-11)


def mass(params, x):
    """The cone mass of the first layer."""
    first = jax.tree.map(lambda leaf: leaf[0], params[0].layers)
    return lim.adjoint.cone_mass(first, x[0], GRID)


def product_bound(params, x):
    norms = lim.adjoint.interaction_norms(params[0], x[0], GRID, key=jax.random.key(0))
    return lim.adjoint.amplification(norms).product


def balanced(params, x):
    return lim.training.balanced_objective(example_loss, params, (x, Y), GRID, strength=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("function", [ledger, hops, masked, mass, product_bound, balanced])
def test_values_under_vmap_and_jit_are_those_without(function):
    several = [on_host((attentive(lim.euler), X)) for _ in range(2)]
    several[1] = jax.tree.map(lambda leaf: 0.7 * leaf[..., ::-1], several[1])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *several)
    together = on_host(jax.jit(jax.vmap(function))(*stacked))
    alone = jax.jit(function)
    for index, point in enumerate(several):
        picked = jax.tree.map(lambda leaf: leaf[index], together)  # noqa: B023
        chex.assert_trees_all_close(picked, on_host(alone(*point)), rtol=1e-9, atol=1e-12)
