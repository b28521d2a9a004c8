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
    update_all = _shared_move if isinstance(update, eqx.Module) else eqx.filter_jit(_update_seeds)

    def step(states: State, index: int) -> tuple[State, PyTree]:
        """Take the step of an index, of all seeds at once."""
        return update_all(update, states, keys, jnp.asarray(index))

    return step


def _update_seeds(
    update: PyTree, states: PyTree, keys: Key[Array, " seeds"], index: Int[Array, ""]
) -> tuple[PyTree, PyTree]:
    arrays, static = eqx.partition(states, eqx.is_array)

    def update_seed(seed: tuple[PyTree, Key[Array, ""]]) -> tuple[PyTree, PyTree]:
        """Take one seed's step."""
        state, key = seed
        states_after, record = update(
            eqx.combine(state, static), jax.random.fold_in(key, index), index
        )
        return eqx.filter(states_after, eqx.is_array), record

    states_after, records = jax.lax.map(update_seed, (arrays, keys))
    return eqx.combine(states_after, static), records


_shared_move = eqx.filter_jit(_update_seeds)
