"""A training loop that can be interrupted: the same numbers, whether it was or not."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lim_jax._checks import require
from lim_jax._resuming import store, stored

State = TypeVar("State")
Progress = Callable[[range], Iterable[int]]
RUN = {"function": "resumable"}


def resumable(
    step: Callable[[State, int], tuple[State, PyTree]],
    state: State,
    steps: int,
    *,
    checkpoint: Path | None = None,
    every: int = 1,
    progress: Progress = iter,
) -> tuple[State, PyTree]:
    """Take steps, keep what each records, and go on from a checkpoint where there is one.

    A step sees only its state and its index, so a run that was interrupted and is called again
    with the same arguments gives the same numbers as one that was not; called with more steps, it
    is that of more steps. Steps are ordinary Python: jit what is inside.

    Parameters
    ----------
    step
        ``step(state, index) -> (state, record)``. Randomness belongs to the index, for example
        ``jax.random.fold_in(key, index)``; arrays of typed keys cannot be stored in the state.
    state
        Where to start; a pytree.
    steps
        How many steps in all, those before the interruption included.
    checkpoint
        A file to read, if it exists, and to write: the state and all records so far. Another
        process that reads it sees a whole checkpoint, never half of one. Its folder is made where
        it is missing.
    every
        Steps between checkpoints; the last step is always stored.
    progress
        Wraps the range of steps that are left, for example ``tqdm.tqdm``.

    Returns
    -------
    tuple
        The last state, and the records stacked along a leading axis of steps.

    Raises
    ------
    ValueError
        Where `steps` is not positive, or the checkpoint is of a longer run or another function's.
    RuntimeError
        Where the checkpoint's arrays do not fit the state (Equinox says which).

    Examples
    --------
    >>> last, records = resumable(lambda state, index: (state + index, state), jnp.array(0), 4)
    >>> int(last), records.tolist()
    (6, [0, 0, 1, 3])
    """
    require(steps > 0, "steps", got=f"{steps}", expected="at least one", cure="Ask for more.")
    _, record = eqx.filter_eval_shape(step, state, 0)
    records, done = _zeros(record, steps), 0
    if checkpoint is not None and checkpoint.exists():
        done, state, kept = _load(checkpoint, state, record, steps)
        records = jax.tree.map(lambda empty, first: empty.at[:done].set(first), records, kept)
    for index in progress(range(done, steps)):
        state, record = step(state, index)
        records = jax.tree.map(lambda kept, new: kept.at[index].set(new), records, record)  # noqa: B023
        last = index + 1 == steps
        if checkpoint is not None and (last or (index + 1) % every == 0):
            done = index + 1
            store(checkpoint, RUN, {"steps": done}, (state, _first(records, done)))
    return state, records


def _zeros(record: PyTree, steps: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros((steps, *leaf.shape), leaf.dtype), record)


def _first(records: PyTree, done: int) -> PyTree:
    """The records of the steps that are done, cut on the host: nothing compiles."""
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[:done]), records)


def _load(checkpoint: Path, state: State, record: PyTree, steps: int) -> tuple[int, State, PyTree]:
    def like(about: dict) -> tuple[State, PyTree]:
        require(
            about["steps"] <= steps,
            "checkpoint",
            got=f"{about['steps']} steps in {checkpoint}",
            expected=f"at most the {steps} asked for",
            cure="Ask for more steps, or name another checkpoint.",
        )
        return state, _zeros(record, about["steps"])

    about, (state, records) = stored(checkpoint, RUN, like)
    return about["steps"], state, records
