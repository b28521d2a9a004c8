"""A training loop that can be interrupted: the same numbers, whether it was or not."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from lim_jax._checks import ARRAYS, AnyPath, as_int, require, require_callable, require_known
from lim_jax._digest import digest
from lim_jax._partial_runs import RUN, Run, checkpoint_file, restore, store

State = TypeVar("State")
Progress = Callable[[range], Iterable[int]]


def resumable(
    step: Callable[[State, int], tuple[State, PyTree]],
    state: State,
    steps: int,
    *,
    run: PyTree = None,
    checkpoint: AnyPath | None = None,
    every: int = 1,
    progress: Progress = iter,
) -> tuple[State, PyTree]:
    """Take steps, keep what each records, and go on from a checkpoint where there is one.

    A step sees only its state and its index, so a run that was interrupted and is called again with
    the same arguments, or with more steps, gives the same numbers as one that was not. Steps are
    ordinary Python: jit what is inside. A finished run that is called again takes no step, but asks
    its first one what it records: by tracing it, or by taking it again where it cannot be traced.

    A checkpoint is compared with `state` and with `run`, static fields included. Nothing of `step`
    is compared, which may hold what every process has anew, so a checkpoint needs a `run`.

    Parameters
    ----------
    step
        ``step(state, index) -> (state, record)``, where the index counts from 0 and the record is a
        pytree of arrays, of the same shapes at every step. Randomness belongs to the index, for
        example ``jax.random.fold_in(key, index)``.
    state
        Where to start, any pytree; arrays of typed keys in it cannot be stored.
    steps
        How many steps to take in all, at least 1, those before the interruption included.
    run
        What the steps compute with besides the state, such as a rate and a text: a name of yours
        for what is trained, or all that must be the same by name or value. Give another when a step
        computes otherwise. None by default, which a `checkpoint` refuses.
    checkpoint
        A file to read, if it exists, and to write, always whole, with the state and all records so
        far; none by default.
    every
        How many steps stand between two checkpoints, 1 by default; the last step always writes one.
    progress
        Wraps the range of steps that are left, for example ``tqdm.tqdm``; by default it shows
        nothing.

    Returns
    -------
    state : PyTree
        The last state.
    records : PyTree
        The records of all steps, stacked along a leading axis of steps.

    Raises
    ------
    ValueError
        If `step` cannot be called, `steps` or `every` is no whole number of at least 1, a
        `checkpoint` comes without a `run`, or the checkpoint is of a longer run, of another one, or
        cut short.

    Examples
    --------
    >>> add = lambda state, index: (state + index, state)
    >>> last, records = resumable(add, np.array(0), 4)
    >>> int(last), records.tolist()
    (6, [0, 0, 1, 3])
    """
    require_callable(step, "step", "step(state, index)")
    steps = as_int(steps, "steps", cure="Ask for more.")
    every = as_int(every, "every")
    file = None if checkpoint is None else checkpoint_file(checkpoint)
    about = {} if file is None else _describe_run(state, run)
    first = state
    done = 0
    saved = []
    if file is not None and file.exists():
        done, state, saved = _load(file, about, state, steps)

    def rows_like(record: PyTree) -> PyTree:
        """Make the arrays of all steps' records, with those that were saved in their places."""
        rows = _zeros(jax.eval_shape(lambda: record), steps)
        return rows if file is None or done == 0 else _put_back(saved, rows, file)

    # The file has a record's arrays; how they are named and nested, a step alone says.
    records = rows_like(_recorded_by(step, first)) if done == steps else None
    for index in progress(range(done, steps)):
        state, record = step(state, index)
        if records is None:
            records = rows_like(record)
        records = _with(records, record, index)
        taken = index + 1
        if file is not None and (taken == steps or taken % every == 0):
            so_far = jax.tree.map(lambda leaf, end=taken: np.asarray(leaf)[:end], records)
            store(file, about, {"steps": taken}, (state, so_far))
    return state, records


def _describe_run(state: PyTree, run: PyTree) -> Run:
    """Return what a checkpoint is compared with; raise ValueError without a run, or if traced."""
    require(
        run is not None,
        "run",
        got="none beside a checkpoint",
        expected="a name of your own, or all that the steps compute with",
        cure=(
            "Pass a name, and another one when the step changes: a checkpoint does not "
            "compare the step."
        ),
    )
    require_known((state, run), "checkpoint", "arrays to keep in a file")
    return {"function": "resumable", "start": digest((digest(state, named=True), run))}


@jax.jit
def _with(records: PyTree, record: PyTree, index: Int[Array, ""] | int) -> PyTree:
    """Write one step's record into the arrays of all steps."""
    return jax.tree.map(lambda rows, new: rows.at[index].set(new), records, record)


def _zeros(record: PyTree, steps: int) -> PyTree:
    """Make arrays of zeros for the records of all steps."""
    zeros = jax.tree.map(lambda leaf: np.zeros((steps, *leaf.shape), leaf.dtype), record)
    return jax.device_put(zeros)


def _recorded_by(step: Callable[[State, int], tuple[State, PyTree]], state: State) -> PyTree:
    """Return zeros like what the first step records, or its record where it cannot be traced."""
    try:
        _, record = eqx.filter_eval_shape(step, state, 0)
    except TypeError:  # JAX's, of a step that asks for numbers; another comes again
        return step(state, 0)[1]
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), record)


def _put_back(saved: list[np.ndarray], records: PyTree, checkpoint: Path) -> PyTree:
    """Write a checkpoint's records over the first rows; raise ValueError unless they fit."""
    leaves, tree = jax.tree.flatten(records)
    rows = list(map(np.asarray, leaves))  # on the host: nothing compiles
    _require_like([row[0] for row in saved], [row[0] for row in rows], checkpoint)
    joined = [
        np.concatenate([earlier, row[len(earlier) :]])
        for earlier, row in zip(saved, rows, strict=True)
    ]
    return jax.device_put(jax.tree.unflatten(tree, joined))


def _load(
    checkpoint: Path, run: Run, state: State, steps: int
) -> tuple[int, State, list[np.ndarray]]:
    """Read a checkpoint's steps, state and records; raise ValueError unless they fit the run."""
    about, leaves = restore(checkpoint, run)
    done = about["steps"]
    require(
        done <= steps,
        "checkpoint",
        got=f"{done} steps in {checkpoint}",
        expected=f"at most the {steps} asked for",
        cure="Ask for more steps, or name another checkpoint.",
    )
    like, others = eqx.partition(state, eqx.is_array_like)
    expected, tree = jax.tree.flatten(like)
    stored = leaves[: len(expected)]
    _require_like(stored, expected, checkpoint)
    arrays = jax.tree.unflatten(tree, map(_convert_like, stored, expected))
    return done, eqx.combine(arrays, others), leaves[len(expected) :]


def _require_like(stored: list, expected: list, checkpoint: Path) -> None:
    """Raise ValueError unless a checkpoint's arrays have the shapes and types of the run's own."""
    if list(map(_shape, stored)) != list(map(_shape, expected)):
        raise RUN.refused(checkpoint, "of other arrays than this run's")


def _shape(leaf: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape of an array and the type that JAX gives it."""
    return np.shape(leaf), jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)


def _convert_like(array: np.ndarray, leaf: Any) -> Any:
    """Return a stored array as the run's own leaf is: of JAX, of NumPy or a plain number."""
    if isinstance(leaf, ARRAYS):
        return jax.device_put(array) if isinstance(leaf, jax.Array) else array
    return type(leaf)(array)
