"""What a sweep keeps, by formula and by the compiler's own account of dense attention."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import random_flow

import lim_jax as lim
from lim_jax.cost import job_cost, sweep_storage

WIDTH = 5
HEADS = 2


def layer(x, weights):
    """Dense causal attention of two heads, without parameters of the states' size."""
    scores = weights[:, None, None] * (x @ x.T)[None]
    scores = jnp.where(np.tri(len(x))[None] > 0, scores, -np.inf)
    return x + (jax.nn.softmax(scores, axis=2) @ x).sum(axis=0)


def nested(loops):
    """Layers in loops of loops, each of whose steps is a checkpoint; none for a plain loop."""
    run = layer
    for _ in loops:
        run = functools.partial(looped, jax.checkpoint(run))
    return run if loops else functools.partial(looped, layer)


def looped(step, x, weights):
    return jax.lax.scan(lambda x, one: (step(x, one), None), x, weights)[0]


@functools.cache
def gradients_cost(depth, length, loops):
    x, weights = (
        jax.ShapeDtypeStruct(s, float) for s in ((length, WIDTH), (*(loops or [depth]), HEADS))
    )
    return job_cost(jax.grad(lambda x, weights: nested(loops)(x, weights).sum()), x, weights)


def counted(depth, length, loops):
    return sweep_storage(depth, length, WIDTH, HEADS, checkpoints=loops)


def second_difference(of, shallow, deep):
    """From 4 layers to 16 and from 24 tokens to 48: what has no factor of both falls out."""
    of_deep, of_shallow = (
        of(depth, 48, loops) - of(depth, 24, loops) for depth, loops in ((16, deep), (4, shallow))
    )
    return of_deep - of_shallow


def kept(depth, length, loops):
    return gradients_cost(depth, length, loops).temporary / 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "shallow, deep",
    [((4,), (16,)), ((2, 2), (4, 4)), ((2, 2), (2, 2, 2, 2))],
    ids=["one loop", "two loops", "loops of two"],
)
def test_the_compiler_keeps_the_states_of_checkpoints_and_one_layers_weights(shallow, deep):
    """From 4 to 16 layers 12 states more in one loop, and 4 in two loops or in loops of two."""
    # `subsec:algorithm-complexity`.
    states = second_difference(lambda *sizes: counted(*sizes).states, shallow, deep)
    np.testing.assert_allclose(second_difference(kept, shallow, deep), states, rtol=0.05)
    assert second_difference(lambda *sizes: counted(*sizes).attention, shallow, deep) == 0


@pytest.mark.slow
def test_without_checkpoints_the_compiler_keeps_the_weights_of_every_layer():
    """Two arrays of their size, the softmax and its exponentials; states are small beside them."""
    # `subsec:algorithm-complexity`.
    weights = second_difference(lambda *sizes: counted(*sizes).attention, (), ())
    assert 1.5 * weights < second_difference(kept, (), ()) < 3 * weights
    assert weights > 20 * second_difference(lambda *sizes: counted(*sizes).states, (), ())


@pytest.mark.parametrize("loops", [(16,), (4, 4), (2, 2, 2, 2)])
def test_checkpoints_run_as_many_layers_again_as_they_say(loops):
    """A layer's three products, but for the last ones of its last run, which nobody reads."""
    # `subsec:algorithm-complexity`.
    more = gradients_cost(16, 24, loops).operations - gradients_cost(16, 24, ()).operations
    product = 2 * 24**2 * WIDTH
    assert more == (3 * counted(16, 24, loops).repeated - 2 * 16) * product


@pytest.mark.parametrize("loops", [(7,), (3, 5), (5, 3), (2, 2, 2, 2, 2), (4, 1, 2)])
def test_storage_is_that_of_the_sweep_step_by_step(loops):
    """The way back walked in Python: the most inputs alive at once, and all layers run."""
    peak = 0
    run = 0

    def back(loops, alive):
        nonlocal peak, run
        peak = max(peak, alive)
        run = run + math.prod(loops)  # ahead, keeping each step's input
        for step in reversed(range(loops[0] if loops else 0)):
            back(loops[1:], alive + step + 1)

    back(loops, 0)
    depth = math.prod(loops)
    storage = sweep_storage(depth, 11, 3, 2, checkpoints=loops)
    assert storage == (peak * 11 * 3, 2 * 11**2, run - depth)
    assert sweep_storage(depth, 11, 3, 2) == (depth * 11 * 3, depth * 2 * 11**2, 0)
    assert sweep_storage(depth, 11, 3, 0).attention == 0


@pytest.mark.slow
def test_a_residual_flow_keeps_one_state_for_each_layer():
    """`network.ResidualFlow` is one loop: six numbers for each of 16 tokens and 8 more layers."""
    grid = lim.token_grid(16)
    x = jax.ShapeDtypeStruct((16, 6), float)

    def temporary(depth):
        flow = random_flow(depth=depth)
        return job_cost(jax.grad(lambda x: flow(x, grid).sum()), x).temporary / 8

    deep, shallow = (sweep_storage(m, 16, 6, 2, checkpoints=[m]).states for m in (12, 4))
    np.testing.assert_allclose(temporary(12) - temporary(4), deep - shallow, rtol=0.05)


@pytest.mark.parametrize(
    "checkpoints, message",
    [
        ([3, 2], "got loops of 6 steps in all, expected 8, one for each layer"),
        ("8", "expected a list of whole numbers"),
        (8, "expected a list of whole numbers"),
        ([8, 0], "checkpoints: got 0"),
    ],
)
def test_loops_that_are_not_the_layers_are_refused(checkpoints, message, as_users_run):
    with pytest.raises(ValueError, match=message):
        sweep_storage(8, 4, 2, 1, checkpoints=checkpoints)
