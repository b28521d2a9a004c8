"""Token ids: no function of a loss and a batch freezes the embedding."""

import ast
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import difference_by_calls
from reference.networks import VOCABULARY, random_labels, random_states

import lim_jax as lim
from lim_jax import training
from lim_jax.density import LossOfIds, adjoint_energies
from lim_jax.density.adjoints import losses_and_adjoints

LENGTH = 5
WIDTH = 4
WORDS = 7
GRID = lim.graded_grid(LENGTH)
IDS = jax.device_put(np.array([[3, 1, 3, 3, 0], [2, 3, 1, 6, 6]]))  # their gradients add up
LABELS = random_labels(3, 2, LENGTH, VOCABULARY)
READOUT = lim.BandReadout(random_states(4, WIDTH, VOCABULARY), 0.5)
NOISE = random_states(6, 2, 1, 2, WIDTH)
PARAMS = {
    "words": random_states(1, WORDS, WIDTH),
    "places": random_states(2, LENGTH, WIDTH),
    "mixing": random_states(5, WIDTH, WIDTH),
}
MOVED = random_states(7, WORDS, WIDTH)


@jax.jit
def embed(params, ids, y=None):
    return params["words"][ids] + params["places"]


def ahead(params, x):
    """A layer that looks back, with weights that are not one at any position."""
    return jnp.tanh(jnp.cumsum(x, axis=0) @ params["mixing"]) + x / 2


@jax.jit
def loss_of_states(params, x, y):
    return lim.cross_entropy(READOUT(ahead(params, x), GRID), y, GRID)


LOSS = LossOfIds(embed, loss_of_states)


def shifted_loss(params, shift, y):
    """The same loss by a plain one: states move by a shift, at which zero stands for x."""
    ids, labels = y
    return loss_of_states(params, embed(params, ids) + shift, labels)


SHIFTS = jax.device_put(np.zeros((2, LENGTH, WIDTH))), (IDS, LABELS)


def observations(params, x):
    """The last token at two depths."""
    return jnp.stack([x[-1], ahead(params, x)[-1]])


def only_words(params, direction):
    """A direction of all parameters in which nothing but the words' embedding moves."""
    still = jax.tree.map(jnp.zeros_like, params)
    return still | {"words": direction}


def weighed(profile):
    return jnp.vdot(profile, 1 + jnp.arange(profile.size, dtype=float).reshape(profile.shape))


def moments(f, p, b):
    found = training.fourth_moments(f, p, b, GRID, only_words(p, MOVED))
    return found.adjoint.value + found.sensitivity.value


def largest(losses, adjoints, power):
    return (losses**2).sum() + (adjoints**power).sum()


def in_mixing(apart):
    """One number of both gradients in the mixing, which the embedding moves too."""
    _, gradients = apart
    return weighed(gradients.risk["mixing"]) + 0.1 * weighed(gradients.penalty["mixing"])


def in_two(batch):
    """A stream with a ragged end."""
    return [batch, jax.tree.map(lambda leaf: leaf[:1], batch)]


# Of f, p, b: a loss, parameters and a batch.
SCALARS = {
    "influence": lambda *lpb: weighed(lim.influence(*lpb, grid=GRID).density),
    "influence_stream": lambda f, p, b: weighed(
        lim.influence_stream(f, p, in_two(b), GRID).energy
    ),
    "adjoint_energies": lambda *lpb: weighed(adjoint_energies(*lpb, grid=GRID)),
    "losses_and_adjoints": lambda *lpb: sum(map(weighed, losses_and_adjoints(*lpb, grid=GRID))),
    "influence_penalty": lambda *lpb: training.influence_penalty(*lpb, grid=GRID),
    "balanced_objective": lambda *lpb: training.balanced_objective(*lpb, grid=GRID, strength=2.0),
    "constrained_objective": lambda *lpb: training.constrained_objective(
        *lpb, grid=GRID, limit=0.0, multiplier=2.0, stiffness=1.0
    ),
    "risk_and_penalty": lambda *lpb: in_mixing(
        training.risk_and_penalty(*lpb, grid=GRID, previous=jnp.arange(5.0), memory=0.25)[:2]
    ),
    "functional_of_adjoints": lambda *lpb: training.functional_of_adjoints(
        largest, *lpb, grid=GRID, options=4
    ),
    "separate_gradients": lambda *lpb: in_mixing(
        training.separate_gradients(largest, *lpb, grid=GRID, options=4)
    ),
    "observability_objective": lambda f, p, b: training.observability_objective(
        f, observations, p, b, GRID, random_states(8, 1, WIDTH), strength=2.0, step=0.5
    )[0],
    "injected_objective": lambda f, p, b: training.injected_objective(
        f, observations, p, b, GRID, NOISE, strength=2.0, step=0.5
    )[0],
    "risk": training.risk,
    "density_dynamics": lambda f, p, b: weighed(
        training.density_dynamics(f, p, b, GRID, only_words(p, MOVED)).rate
    ),
    "fourth_moments": moments,
    "sensitivity_norm": lambda *lpb: training.sensitivity_norm(
        *lpb, grid=GRID, steps=1, exponent=2, key=jax.random.key(0)
    ).values[-1],
}  # fmt: skip
BATCHES = {"batch", "batches"}
OBSERVING = ("observability_objective", "injected_objective")


def public_functions():
    """Every file's functions for others, with the names of their arguments."""
    for file in Path(lim.__file__).parent.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                yield node.name, {argument.arg for argument in arguments}


def test_the_list_is_of_all_functions_of_a_loss_and_a_batch():
    found = {n for n, names in public_functions() if "loss" in names and names & BATCHES}
    others = {"gradient_flow", "embedded", "embedded_on", "require_pair"}
    of_states_too = {"adjoint_growth", "penalty_premises"}  # whose size a shift has not
    assert found == {*SCALARS, *others, *of_states_too}


@eqx.filter_jit
def value_and_gradient(name, words):
    """In the words' embedding alone, and the value by a plain loss: of shifted states if it may be.

    Observations see states.
    """

    def value(words):
        return SCALARS[name](LOSS, PARAMS | {"words": words}, (IDS, LABELS))

    params = PARAMS | {"words": words}
    states = loss_of_states, params, (jax.vmap(embed, (None, 0))(params, IDS), LABELS)
    plain = states if name in OBSERVING else (shifted_loss, params, SHIFTS)
    return *jax.value_and_grad(value)(words), SCALARS[name](*plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCALARS)
def test_the_embedding_is_not_frozen(name):
    """Its gradient against central differences; values against a plain loss of shifted states."""
    value, gradient, plain = value_and_gradient(name, PARAMS["words"])
    expected = difference_by_calls(
        lambda words: value_and_gradient(name, words)[0], PARAMS["words"], MOVED
    )
    assert abs(expected) > 1e-4 * abs(float(value))
    np.testing.assert_allclose(np.vdot(gradient, MOVED), expected, rtol=1e-6)
    assert not np.asarray(gradient)[[4, 5]].any()  # words that are not there
    np.testing.assert_allclose(value, plain, rtol=1e-12)


@pytest.mark.slow
def test_gradient_flow_moves_the_embedding():
    """One Euler step is minus the risk's gradient, by differences."""
    path = training.gradient_flow(
        LOSS,
        PARAMS,
        (IDS, LABELS),
        GRID,
        [0.0, 0.5],
        solver=diffrax.Euler(),
        stepsize_controller=diffrax.ConstantStepSize(),
        first_step=0.5,
    )
    start, end = np.asarray(path.params["words"])
    expected = difference_by_calls(
        lambda words: value_and_gradient("risk", words)[0], PARAMS["words"], MOVED
    )
    assert abs(expected) > 1e-4
    np.testing.assert_allclose(np.vdot(end - start, MOVED), -0.5 * expected, rtol=1e-6)


def test_the_gradient_of_a_penalty_goes_forward_over_reverse():
    """Of a loss whose gradient runs a loop of a length known late, which no reverse mode passes."""

    @jax.custom_vjp
    def cubed(x):
        return x**3

    def forward(x):
        return cubed(x), x

    def backward(x, cotangent):
        count = jnp.astype(2 + 0 * x.sum(), int)
        return (3 * jax.lax.fori_loop(0, count, lambda _, power: x * power, cotangent),)

    cubed.defvjp(forward, backward)
    table = random_states(1, WORDS, WIDTH)

    def penalty(table, cube):
        loss = LossOfIds(lambda table, ids, y: table[ids], lambda table, x, y: jnp.sum(cube(x)))
        return training.influence_penalty(loss, table, (IDS, None), GRID)

    gradient = jax.jit(jax.grad(lambda table: penalty(table, cubed)))(table)
    expected = jax.jit(jax.grad(lambda table: penalty(table, lambda x: x**3)))(table)
    np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-14)
    assert np.abs(np.asarray(gradient)).max() > 1e-3


def test_ids_are_mapped_over():
    def energy(ids, labels):
        return lim.influence(LOSS, PARAMS, (ids[None], labels[None]), GRID).energy

    x = jax.vmap(embed, (None, 0))(PARAMS, IDS)
    gradients = jax.jit(jax.vmap(jax.grad(loss_of_states, argnums=1), (None, 0, 0)))
    euclidean = np.asarray(gradients(PARAMS, x, LABELS))
    expected = (euclidean**2).sum(axis=2) / np.asarray(GRID.weights) ** 2
    np.testing.assert_allclose(jax.jit(jax.vmap(energy))(IDS, LABELS), expected, rtol=1e-11)


REFUSED = {
    "ids to a loss of states": (loss_of_states, IDS, "int.*LossOfIds"),
    "states to a loss of ids": (LOSS, SHIFTS[0], "whole numbers.*of states"),
    "ids that are floats": (LOSS, jax.device_put(np.asarray(IDS, float)), "whole numbers"),
    "ids of one example": (LOSS, jax.device_put(np.asarray(IDS)[0]), r"\(examples, length\)"),
    "ids off the grid": (LossOfIds(lambda p, ids, y: p["words"][ids], loss_of_states),
                         jax.device_put(np.ones((2, 4), int)), r"\(examples, 5, width\)"),
}  # fmt: skip


# A risk has no grid, and a plain loss may well be of ids.
ANYWHERE = ("states to a loss of ids", "ids that are floats", "ids of one example")


@pytest.mark.parametrize(
    "name, case",
    [
        (name, case)
        for name in ("influence", "influence_stream", "balanced_objective")
        for case in REFUSED
    ]
    + [("risk", case) for case in ANYWHERE],
)
def test_batches_that_do_not_fit_their_loss_are_refused(name, case, as_users_run):
    loss, x, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"batch: .*{message}"):
        SCALARS[name](loss, PARAMS, (x, LABELS))


def test_what_embeds_nothing_is_refused(as_users_run):
    with pytest.raises(ValueError, match="embed: got an array"):
        LossOfIds(PARAMS["words"], loss_of_states)
