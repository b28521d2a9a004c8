"""What jobs cost: counts by hand, the compiler's own account, and jobs that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import random_flow, random_states

import lim_jax as lim
from lim_jax.cost.counting import operations
from lim_jax.cost.job import job_cost, require_fits
from lim_jax.network import tiled_attention, tiles

LENGTH = 10
WIDTH = 6
HIDDEN = 7
HEADS = 2
SIZE = 3
DEPTH = 4
EXAMPLES = 5


@pytest.mark.slow
def test_operations_of_a_network_are_those_of_its_matrices():
    """Projections, scores, sums over values, and the tokenwise network; for each layer."""
    flow = random_flow(depth=DEPTH)
    grid = lim.token_grid(LENGTH)
    x = random_states(0, EXAMPLES, LENGTH, WIDTH)
    cost = job_cost(lambda flow, x: jax.vmap(lambda x: flow(x, grid))(x), flow, x)
    projections = 4 * LENGTH * WIDTH * HEADS * SIZE
    attention = 2 * HEADS * LENGTH**2 * SIZE
    tokenwise = 2 * LENGTH * WIDTH * HIDDEN
    assert cost.operations == 2 * EXAMPLES * DEPTH * (projections + attention + tokenwise)


@pytest.mark.slow
def test_a_gradient_costs_more_and_shapes_suffice():
    flow = random_flow(depth=DEPTH)
    grid = lim.token_grid(LENGTH)

    def gradient(flow, x):
        return jax.grad(lambda flow: flow(x, grid).sum())(flow)

    def states(flow, x):
        return flow(x, grid)

    x = random_states(0, LENGTH, WIDTH)
    forward = job_cost(states, flow, x)
    backward = job_cost(gradient, flow, x)
    assert 2.5 * forward.operations < backward.operations < 5 * forward.operations
    assert backward.temporary >= DEPTH * LENGTH * WIDTH * 8  # the states it keeps
    assert forward == job_cost(states, *jax.eval_shape(lambda: (flow, x)))


@pytest.mark.slow
@pytest.mark.parametrize("derivative", ["value", "gradient", "gradient of gradient"])
def test_tiles_ahead_of_the_diagonal_do_not_count(derivative, monkeypatch):
    """Three rows of tiles have six on and below the diagonal; examples and layers repeat them."""
    monkeypatch.setattr(tiles, "TILE", 4)

    def job(x, layers):
        def layer(x, scale):
            return scale * tiled_attention.blocked_attention(
                x, x, x, lim.token_grid(x.shape[0])
            ), None

        def total(x):
            return jnp.sum(jax.lax.scan(layer, x, layers)[0] ** 2)

        slope = jax.grad(total)
        functions = {"value": total, "gradient": slope}
        again = jax.grad(lambda x: jnp.sum(slope(x) ** 2))
        return jax.vmap(functions.get(derivative, again))(x)

    def counted(length, examples):
        x, layers = (jax.ShapeDtypeStruct(s, float) for s in ((examples, length, 3), (2,)))
        return operations(jax.make_jaxpr(job)(x, layers))

    assert counted(12, 5) == 5 * 6 * counted(4, 1)


@pytest.mark.slow
def test_a_branch_that_a_counter_chooses_counts_as_often_as_it_is_taken():
    def job(matrix):
        def step(total, i):
            def cheap(m):
                return m @ m[:, 0]

            def dear(m):
                return (m @ m)[:, 0]

            return total + jax.lax.switch(i % 3, [cheap, dear, cheap], matrix), i // 2

        total, halves = jax.lax.scan(step, matrix[0], jnp.arange(7))
        products = [jax.lax.cond(half > 1, lambda m: m @ m, lambda m: m, matrix) for half in halves]
        return total, products

    matrix = np.ones((4, 4))
    cheap = 2 * 4**2
    dear = 2 * 4**3
    assert job_cost(job, matrix).operations == 5 * cheap + (2 + 3) * dear


def test_branches_count_as_the_dearest_and_loops_as_often_as_they_run():
    matrix = np.ones((4, 4))

    def job(flag, matrix):
        once = jax.lax.cond(flag, lambda m: m @ m, lambda m: jnp.tile(m @ m[:, :1], 4), matrix)
        return jax.lax.fori_loop(0, 6, lambda _, m: m @ m, once)

    assert job_cost(job, np.array(True), matrix).operations == 7 * 2 * 4**3


@jax.custom_jvp
def squared(matrix):
    return matrix @ matrix


@squared.defjvp
def _squared_jvp(primals, tangents):
    (matrix,) = primals
    (tangent,) = tangents
    return matrix @ matrix, tangent @ matrix + matrix @ tangent


@jax.custom_vjp
def cubed(matrix):
    return matrix @ matrix @ matrix


def _cubed_backward(matrix, covector):
    return (covector @ matrix,)  # one product, whatever the true derivative is


cubed.defvjp(lambda matrix: (cubed(matrix), matrix), _cubed_backward)


def embedding_gradient(table):
    ids = np.array([2, 0, 2])
    return jax.grad(lambda table: jnp.sum(jnp.tanh(table[ids] @ table.T)))(table)


def chosen_by_a_reduction(matrix):
    """The last branch and the dearest: 0 | 1 | 2 is 3."""
    index = jax.lax.reduce(jnp.arange(3), 0, lambda a, b: a | b, (0,))
    return jax.lax.switch(index, [lambda m: m] * 3 + [lambda m: m @ m], matrix)


def searched(matrix):
    """Its condition takes all that the loop takes."""
    return jax.lax.while_loop(lambda m: m[0] @ m[0] < 9, lambda m: m @ m, matrix)


def solved(matrix):
    """A solver of two products, which is called, and its transpose of three, which is not."""

    def transposed(multiply, vector):
        return multiply(multiply(multiply(vector)))

    return jax.lax.custom_linear_solve(
        lambda vector: matrix @ vector,
        matrix[0],
        lambda multiply, vector: multiply(multiply(vector)),
        transposed,
    )


SIDE = 4
JOBS = {
    # Vectors times the matrix's rows, and both factors of that in the gradient.
    "the gradient of an embedding lookup": (embedding_gradient, 3 * (2 * 3 * SIDE**2)),
    "a scatter": (lambda m: m.at[np.array([0, 2])].add(m[:2]) @ m[0], 2 * SIDE**2),
    "a scatter by a function": (lambda m: m.at[0].apply(jnp.sin) @ m[0], 2 * SIDE**2),
    "a sum by segments": (
        lambda m: jax.ops.segment_sum(m @ m, np.array([0, 1, 1, 0]), 2),
        2 * SIDE**3,
    ),
    "a sort": (lambda m: jax.lax.sort((m, m @ m), num_keys=2), 2 * SIDE**3),
    "a reduction": (
        lambda m: jax.lax.reduce(m @ m, 0.0, lambda a, b: a * b + a, (0,)),
        2 * SIDE**3,
    ),
    "a reduction of windows": (
        lambda m: jax.lax.reduce_window(m @ m, 0.0, lambda a, b: a * b, (2, 2), (1, 1), "VALID"),
        2 * SIDE**3,
    ),
    "a branch chosen by a reduction": (chosen_by_a_reduction, 2 * SIDE**3),
    "custom_jvp": (squared, 2 * SIDE**3),
    "custom_jvp, its gradient": (jax.grad(lambda m: squared(m).sum()), 3 * 2 * SIDE**3),
    "custom_vjp": (cubed, 2 * 2 * SIDE**3),
    "custom_vjp, its gradient": (jax.grad(lambda m: cubed(m).sum()), 3 * 2 * SIDE**3),
    "a loop of unknown length": (searched, 2 * SIDE + 2 * SIDE**3),
    # Work-efficient: 2n - 2 - log2(n) products of n = 8 matrices.
    "an associative scan": (
        lambda m: jax.lax.associative_scan(jnp.matmul, jnp.stack([m] * 8)),
        11 * 2 * SIDE**3,
    ),
    "a checkpointed gradient": (
        jax.grad(lambda m: jax.checkpoint(lambda m: jnp.tanh(m @ m))(m).sum()),
        (2 + 2) * 2 * SIDE**3,
    ),
    "a linear solve": (solved, 2 * 2 * SIDE**2),
}


@pytest.mark.parametrize("job, expected", JOBS.values(), ids=JOBS)
def test_only_what_is_called_is_counted(job, expected):
    """A scatter's own program takes two numbers, the scatter three arrays."""
    traced = jax.make_jaxpr(job)(jax.ShapeDtypeStruct((SIDE, SIDE), float))
    assert operations(traced) == expected


def test_the_gradient_of_a_language_model_in_its_embedding_has_a_cost():
    cost = job_cost(embedding_gradient, np.ones((SIDE, SIDE)))
    assert cost.operations == 3 * (2 * 3 * SIDE**2) and cost.outputs == 8 * SIDE**2


def test_jobs_that_do_not_fit_are_refused_before_they_run():
    size = 200_000  # a matrix of 320 GB
    rows = jax.ShapeDtypeStruct((size, 2), float)
    cost = job_cost(lambda x: (x @ x.T) @ x, rows)
    assert cost.memory > 8 * size**2
    assert cost.memory == cost.temporary + cost.arguments + cost.outputs > cost.temporary
    assert cost.outputs == cost.arguments == 16 * size
    with pytest.raises(ValueError, match="influence_stream"):
        require_fits(cost, 2**34)
