"""A training loop that can be interrupted: the same numbers, whether it was or not."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from lim_jax._checks import require

State = TypeVar("State")
Progress = Callable[[range], Iterable[int]]


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
    with the same arguments gives the same numbers as one that was not. Steps are ordinary Python:
    jit what is inside.

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
        process that reads it sees a whole checkpoint, never half of one.
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
        Where `steps` is not positive, or the checkpoint is of a longer run.
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
    records = jax.tree.map(lambda leaf: jnp.zeros((steps, *leaf.shape), leaf.dtype), record)
    done = 0
    if checkpoint is not None and checkpoint.exists():
        done, state, records = _load(checkpoint, (state, records), steps)
    for index in progress(range(done, steps)):
        state, record = step(state, index)
        records = jax.tree.map(lambda kept, new: kept.at[index].set(new), records, record)  # noqa: B023
        last = index + 1 == steps
        if checkpoint is not None and (last or (index + 1) % every == 0):
            _store(checkpoint, index + 1, state, records)
    return state, records


def _store(checkpoint: Path, done: int, state: Any, records: PyTree) -> None:
    half_written = checkpoint.with_name(checkpoint.name + ".part")
    # Opened here, for Equinox adds a suffix to names that have none.
    with half_written.open("wb") as file:
        eqx.tree_serialise_leaves(file, (jnp.array(done), state, records))
    half_written.replace(checkpoint)


def _load(checkpoint: Path, like: Any, steps: int) -> tuple[int, Any, PyTree]:
    try:
        with checkpoint.open("rb") as file:
            done, state, records = eqx.tree_deserialise_leaves(file, (jnp.array(0), *like))
    except RuntimeError as error:
        error.add_note(f"{checkpoint} is of another run. Remove it, or name another checkpoint.")
        raise
    require(
        int(done) <= steps,
        "checkpoint",
        got=f"{int(done)} steps in {checkpoint}",
        expected=f"at most the {steps} asked for",
        cure="Ask for more steps, or name another checkpoint.",
    )
    return int(done), state, records
