"""A loop that can be interrupted, by a process that dies while it writes; and one of all seeds."""

import json
from io import BytesIO

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.compilations import compilations

from benchmarks.validation.seeds import step_of_seeds
from lim_jax.network import LayerNorm
from lim_jax.training.loop import resumable

REFUSED = "checkpoint: got .*run, which is .*, expected a lim_jax run.*Remove it, or name another"


class Died(Exception):
    """The process, in the middle of a file."""


def add(state, index):
    return state + index, state


def dying_at(count):
    """Write so many checkpoints whole, and half of the next one."""
    write_all = np.savez
    written = []

    def write(file, **entries):
        if len(written) == count:
            file.write(b"half of a checkpoint")
            file.flush()
            raise Died
        written.append(write_all(file, **entries))

    return write


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_a_checkpoint_half_written_is_never_read(whole, tmp_path, monkeypatch):
    start = jnp.array(0)
    checkpoint = tmp_path / "run"
    visited = []
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(np, "savez", dying_at(whole))
        resumable(add, start, 9, run="sums", checkpoint=checkpoint, every=3)
    assert checkpoint.exists() is (whole > 0)

    def seen(steps):
        return (visited.append(index) or index for index in steps)

    state, records = resumable(
        add, start, 9, run="sums", checkpoint=checkpoint, every=3, progress=seen
    )
    assert visited == list(range(3 * whole, 9)) and int(state) == 36
    np.testing.assert_array_equal(records, [0, 0, 1, 3, 6, 10, 15, 21, 28])
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_a_checkpoint_cut_short_is_refused(tmp_path):
    """However much of it is left, or another bit of it: nothing is read as if it were zero."""
    checkpoint = tmp_path / "run"
    start = jnp.arange(3.0)
    resumable(add, start, 4, run="sums", checkpoint=checkpoint)
    content = checkpoint.read_bytes()
    damaged = [content[:kept] for kept in range(0, len(content), 37)]
    for wrong in (*damaged, content[:-1], content.replace(b"NUMPY", b"NUMPi")):
        checkpoint.write_bytes(wrong)
        with pytest.raises(ValueError, match=REFUSED):
            resumable(add, start, 4, run="sums", checkpoint=checkpoint)


@pytest.mark.parametrize("every", [1, 3])
def test_a_finished_run_is_extended(every, tmp_path):
    """The first five steps are not taken again, and what they recorded is kept."""
    start = {"sum": jnp.array(0.0)}
    checkpoint = tmp_path / "new" / "run"
    taken = []

    def step(state, index):
        total = state["sum"] + 0.1 * (index + 1)
        return {"sum": total}, (total, {"index": jnp.array([index, -index])})

    def seen(steps):
        return (taken.append(index) or index for index in steps)

    resumable(step, start, 5, run="sums", checkpoint=checkpoint, every=every)
    longer = resumable(
        step, start, 8, run="sums", checkpoint=checkpoint, every=every, progress=seen
    )
    assert taken == [5, 6, 7]
    whole = resumable(step, start, 8)
    for ours, theirs in zip(jax.tree.leaves(longer), jax.tree.leaves(whole), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    again = resumable(step, start, 8, run="sums", checkpoint=checkpoint, progress=seen)
    np.testing.assert_array_equal(again[1][0], whole[1][0])
    assert taken == [5, 6, 7]
    with pytest.raises(ValueError, match="checkpoint: got 8 steps .*expected at most the 5"):
        resumable(step, start, 5, run="sums", checkpoint=checkpoint)


@pytest.mark.parametrize("stop", [2, 4])
def test_a_step_of_ordinary_python_goes_on(stop, tmp_path):
    """Also one that JAX cannot trace; a finished one gives its records again."""

    def step(total, index):
        grown = total * (1 + float(total))
        return grown, {"before": total, "is_large": np.array(float(grown) > 10)}

    start = jnp.array(1.0)
    resumable(step, start, stop, run="growth", checkpoint=tmp_path / "run")
    last, records = resumable(step, start, 4, run="growth", checkpoint=tmp_path / "run")
    assert float(last) == 42 * 43
    np.testing.assert_array_equal(records["before"], [1, 2, 6, 42])
    np.testing.assert_array_equal(records["is_large"], [False, False, True, True])


def archive(**changes):
    """A file with our header, as the documentation of the format says, and with changes in it."""
    header = {"format": "lim_jax run", "version": 1, "lim_jax": "9.9"} | changes
    np.savez(file := BytesIO(), header=np.array(json.dumps(header)))
    return file.getvalue()


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    """Files that are none of ours, folders, and other runs: of another start, or other data."""
    checkpoint = tmp_path / "run"
    start = jnp.array(0)
    random = np.random.default_rng(0).bytes(2000)
    refused = {
        b"": "of another format", b"not ours": "of another format", random: "of another format",
        archive(format="theirs"): "without our header", archive(): "which is of no run",
        archive(version=2): "of version 2 of the format, by lim_jax 9.9",
        archive(run={"function": "another"}): "another, expected one of function resumable",
    }  # fmt: skip
    for content, message in refused.items():
        checkpoint.write_bytes(content)
        with pytest.raises(ValueError, match=f"(?s){message}.*[Rr]emove it, or name another"):
            resumable(add, start, 4, run="sums", checkpoint=checkpoint)
    places = {tmp_path: "which is a folder", checkpoint / "inside": "inside of the file .*run, exp"}
    for place, message in places.items():
        with pytest.raises(ValueError, match=f"checkpoint: got .*{message}.*Name another"):
            resumable(add, start, 4, run="sums", checkpoint=place)
    checkpoint.unlink()
    resumable(add, start, 4, run={"rate": 0.1}, checkpoint=checkpoint)
    for state, run in ((start, {"rate": 0.2}), (start + 1, {"rate": 0.1}), (start, "sums")):
        with pytest.raises(
            ValueError, match="run, of start .*Pass what that run was given, to go on"
        ):
            resumable(add, state, 4, run=run, checkpoint=checkpoint)
    with pytest.raises(ValueError, match=REFUSED):  # a step that records something else
        resumable(
            lambda state, index: (state, jnp.ones(2)),
            start,
            4,
            run={"rate": 0.1},
            checkpoint=checkpoint,
        )


def test_a_state_of_numpys_arrays_and_of_plain_numbers_goes_on_as_such(tmp_path):
    """In the precision that it had, which JAX need not be set to; and functions are the state's."""

    def step(state, index):
        return (state[0] + 0.1, state[1] + 1, state[2]), jnp.array(index)

    start = (np.zeros(2, np.float64), 0, np.sum)
    with jax.enable_x64(False):
        resumable(step, start, 2, run="sums", checkpoint=tmp_path / "run")
        (numbers, count, _), records = resumable(
            step, start, 4, run="sums", checkpoint=tmp_path / "run"
        )
    assert numbers.tolist() == resumable(step, start, 4)[0][0].tolist()
    assert type(numbers) is np.ndarray and numbers.dtype == np.float64
    assert type(count) is int and count == 4 and records.tolist() == [0, 1, 2, 3]


def test_static_fields_of_the_state_tell_runs_apart(tmp_path):
    norms = [LayerNorm.init(2, norm_eps=eta) for eta in (1e-5, 1e-6)]

    def run(state):
        return resumable(
            lambda state, index: (state, jnp.array(index)),
            state,
            2,
            run="counts",
            checkpoint=tmp_path / "run",
        )

    for _ in range(2):
        run(norms[0])
    with pytest.raises(ValueError, match="of start"):
        run(norms[1])


SEEDS = 3
WIDTH = 4
EVERY = 3


def penalised_update(weight, key, index):
    """A noisy step down a quartic, whose dear part is taken at every third step only."""
    drawn = jax.random.normal(key, (WIDTH,))

    def penalty(weight):
        return weight - 0.1 * jnp.linalg.inv(jnp.eye(WIDTH) + jnp.outer(weight, weight)) @ weight

    weight = jax.lax.cond(index % EVERY == 0, penalty, lambda weight: weight, weight)
    moved = weight - 0.05 * (weight**3 + drawn)
    return moved, {"drawn": drawn, "size": jnp.vdot(moved, moved), "index": index}


@pytest.mark.slow
def test_all_seeds_are_each_seed_alone():
    """Against a loop over seeds and steps, each seed with the key that is its own."""
    keys = jax.random.split(jax.random.key(5), SEEDS)
    start = jax.device_put(np.random.default_rng(0).standard_normal((SEEDS, WIDTH)))
    states, records = resumable(step_of_seeds(penalised_update, keys), start, 7)
    alone = jax.jit(penalised_update)
    for seed in range(SEEDS):
        state = start[seed]
        for index in range(7):
            key = jax.random.fold_in(keys[seed], index)
            state, record = alone(state, key, jnp.asarray(index))
            for name, value in record.items():
                row = records[name][index, seed]
                np.testing.assert_allclose(row, value, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(states[seed], state, rtol=1e-12)
    drawn = np.asarray(records["drawn"]).reshape(-1, WIDTH)
    assert len(np.unique(drawn, axis=0)) == 7 * SEEDS, "no draw is another's"


def test_all_steps_of_all_seeds_are_one_program():
    """Traced once, with the shapes that `resumable` asks for; and compiled once."""
    keys = jax.random.split(jax.random.key(5), SEEDS)
    traced = []

    def update(*of_seed):
        traced.append(of_seed)
        return penalised_update(*of_seed)

    step = step_of_seeds(update, keys)
    states = jax.device_put(np.ones((SEEDS, WIDTH)))
    eqx.filter_eval_shape(step, states, 0)
    step_of_seeds(penalised_update, keys)(states, 0)  # what any step asks for besides
    with compilations() as compiled:
        for index in range(5):
            states, _ = step(states, index)
    assert len(compiled) == len(traced) == 1


def test_a_branch_stays_a_branch_under_seeds():
    """Of a predicate that the seeds share, and of one of each seed's own."""

    def own(weight, key, index):
        return penalised_update(weight, key, (index + weight[0]).astype(int))

    keys = jax.random.split(jax.random.key(5), SEEDS)
    states = jax.device_put(np.ones((SEEDS, WIDTH)))
    for update in (penalised_update, own):
        program = eqx.filter_make_jaxpr(step_of_seeds(update, keys))(states, 0)[0]
        assert " cond[" in str(program)
