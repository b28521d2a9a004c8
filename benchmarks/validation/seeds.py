"""Many seeds by one program: a step for `training.resumable`."""

from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

State = TypeVar("State")


def step_of_seeds(
    update: Callable[[State, Key[Array, ""], Int[Array, ""]], tuple[State, PyTree]],
    keys: Key[Array, " seeds"],
) -> Callable[[State, int], tuple[State, PyTree]]:
    """Make of one seed's update a step for `resumable` that moves all seeds.

    By one program, compiled once for all steps; where `update` is an ``eqx.Module``, once for all
    that are equal to it. Seeds follow one another in it: on a processor what one seed works on
    stays in its caches, which the activations of all at once would leave. So a ``jax.lax.cond``
    stays a branch: a penalty on every n-th step costs nothing on the others.

    Each key is that seed's, folded with the index, so that each step draws anew. To begin with take
    for example ``jax.vmap(init)(keys)``.
    """
    # A function's program goes with the function, and with the arrays that it closes over.
    moved = _shared_move if isinstance(update, eqx.Module) else eqx.filter_jit(_moved)

    def step(states: State, index: int) -> tuple[State, PyTree]:
        return moved(update, states, keys, jnp.asarray(index))

    return step


def _moved(
    update: PyTree, states: PyTree, keys: Key[Array, " seeds"], index: Int[Array, ""]
) -> tuple[PyTree, PyTree]:
    arrays, rest = eqx.partition(states, eqx.is_array)

    def of_seed(seed: tuple[PyTree, Key[Array, ""]]) -> tuple[PyTree, PyTree]:
        state, key = seed
        moved, record = update(eqx.combine(state, rest), jax.random.fold_in(key, index), index)
        return eqx.filter(moved, eqx.is_array), record

    moved, records = jax.lax.map(of_seed, (arrays, keys))
    return eqx.combine(moved, rest), records


_shared_move = eqx.filter_jit(_moved)
