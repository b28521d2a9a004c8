"""A loop that can be interrupted: what it does when the process dies while it writes."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from lim_jax.training.loop import resumable


class Died(Exception):
    """The process, in the middle of a file."""


def add(state, index):
    return state + index, state


def dying_at(count):
    """Write so many checkpoints whole, and half of the next one."""
    serialise, written = eqx.tree_serialise_leaves, []

    def write(file, tree):
        if len(written) == count:
            file.write(b"half of a checkpoint")
            file.flush()
            raise Died
        written.append(serialise(file, tree))

    return write


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_a_checkpoint_half_written_is_never_read(whole, tmp_path, monkeypatch):
    start, checkpoint, visited = jnp.array(0), tmp_path / "run", []
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(eqx, "tree_serialise_leaves", dying_at(whole))
        resumable(add, start, 9, checkpoint=checkpoint, every=3)
    assert checkpoint.exists() is (whole > 0)

    def seen(steps):
        return (visited.append(index) or index for index in steps)

    state, records = resumable(add, start, 9, checkpoint=checkpoint, every=3, progress=seen)
    assert visited == list(range(3 * whole, 9)) and int(state) == 36
    np.testing.assert_array_equal(records, [0, 0, 1, 3, 6, 10, 15, 21, 28])
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_a_checkpoint_cut_short_is_refused(tmp_path):
    """However much of it is left: nothing is read as if it were zero."""
    checkpoint, start = tmp_path / "run", jnp.arange(3.0)
    resumable(add, start, 4, checkpoint=checkpoint)
    content = checkpoint.read_bytes()
    for kept in range(0, len(content), 37):
        checkpoint.write_bytes(content[:kept])
        with pytest.raises((RuntimeError, ValueError, EOFError)):
            resumable(add, start, 4, checkpoint=checkpoint)
