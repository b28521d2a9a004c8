"""Runs that were interrupted go on to the same numbers, whenever their process ended."""

import os
import signal
import subprocess
import sys
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.as_users import ROOT

import lim_jax as lim
from lim_jax._partial_runs import each_once
from lim_jax.training.loop import resumable

GRID = lim.graded_grid(7)
REGIONS = lim.boundary_regions(GRID, 0.3).without([3])
# A stream of many small batches, whose process says how many it has drawn. Before the last it waits
# for what comes in at its standard input, where nothing does: it cannot end before it is killed.
PROGRAM = """
import sys
from functools import partial
from pathlib import Path
import equinox as eqx
import jax
import numpy as np
import optax
import lim_jax as lim

jax.config.update("jax_enable_x64", True)
SCALE = 1.3
WORDS = frozenset({"left", "middle", "right"})  # in another order in every process


@jax.jit
def squares(x):
    return SCALE * x**2


def made(power, kinds):
    @eqx.filter_jit
    def loss(params, x, y):
        return params[0] * (squares(x) * y).sum() ** power * len(kinds)

    return partial(loss)


def batches(before_the_last):
    normal = np.random.default_rng(3).standard_normal
    for number in range(30):
        if number == 29:
            before_the_last()
        shape = (5 if number < 29 else 2, 7, 3)
        yield jax.device_put(normal(shape)), jax.device_put(normal(shape))
        print(number, flush=True)


def streamed(checkpoint, before_the_last=lambda: None):
    regions = lim.boundary_regions(lim.graded_grid(7), 0.3).without([3])
    grid = lim.graded_grid(7)
    loss, params = made(1, WORDS), (1.3, jax.nn.gelu, optax.adam(0.1), batches)
    return lim.influence_stream(
        loss, params, batches(before_the_last), grid, regions, run="squares", checkpoint=checkpoint
    )


if __name__ == "__main__":
    streamed(Path(sys.argv[1]), before_the_last=sys.stdin.read)
"""


class Embedding(eqx.Module):
    """Rows of a table that the loss itself holds."""

    table: jax.Array
    scale: float = eqx.field(static=True)

    def __call__(self, params, ids, y):
        return self.scale * self.table[ids]


def squares(params, x, y):
    return params * jnp.sum(x**2 * y)


def batches(count, seed=0):
    """The last one is ragged."""
    normal = np.random.default_rng(seed).standard_normal
    shapes = [(4 if number < count - 1 else 3, 7, 2) for number in range(count)]
    return [(jax.device_put(normal(shape)), jax.device_put(normal(shape))) for shape in shapes]


def streamed(pieces, checkpoint=None, regions=REGIONS, params=1.5, run="squares", **options):
    return lim.influence_stream(
        squares, params, pieces, GRID, regions, run=run, checkpoint=checkpoint, **options
    )


def equal(ours, theirs):
    leaves = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return ours.regions == theirs.regions and all(
        one.dtype == other.dtype and np.array_equal(one, other) for one, other in leaves
    )


def test_a_stream_stopped_by_the_keyboard_after_any_batch_gives_the_same_numbers(
    tmp_path, monkeypatch
):
    pieces = batches(5)
    measure = lim.density.measurement._influence
    whole = streamed(pieces)
    measured = []

    def counting(loss, params, batch, *others):
        measured.append(np.asarray(batch[0])[0, 0, 0])
        return measure(loss, params, batch, *others)

    monkeypatch.setattr(lim.density.measurement, "_influence", counting)

    def interrupted(pieces):
        yield from pieces
        raise KeyboardInterrupt

    for stop in range(5):
        checkpoint = tmp_path / f"new {stop}" / "stream"
        with pytest.raises(KeyboardInterrupt):
            streamed(pieces[:stop], checkpoint, progress=interrupted)
        assert checkpoint.exists() is (stop > 0)
        measured.clear()
        assert equal(streamed(pieces, checkpoint), whole)
        np.testing.assert_array_equal(measured, [x[0, 0, 0] for x, _ in pieces[stop:]])


def test_a_checkpoint_is_named_by_a_string_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pieces = batches(2)
    whole = streamed(pieces, "stream")
    assert (tmp_path / "stream").exists() and equal(streamed(pieces, tmp_path / "stream"), whole)

    def stepped():
        return resumable(
            lambda state, index: (state, state), jnp.array(1), 2, run="same", checkpoint="run"
        )

    _, records = stepped()
    _, again = stepped()
    assert (tmp_path / "run").exists() and np.array_equal(records, again)
    assert each_once({"one": lambda: 1}, "groups", {}) == {"one": 1}
    assert each_once({"one": lambda: 2}, "groups", {}) == {"one": 1}


@pytest.mark.slow
def test_a_stream_that_is_killed_gives_the_same_numbers(tmp_path):
    """By a signal that no process survives, at a moment that nobody chose."""
    program = tmp_path / "program.py"
    checkpoint = tmp_path / "stream"
    program.write_text(PROGRAM, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, program, checkpoint],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 7:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL and checkpoint.exists()
    ours: dict = {"__name__": "ours"}
    exec(PROGRAM, ours)
    kept = checkpoint.read_bytes()
    assert equal(ours["streamed"](checkpoint), ours["streamed"](None))
    assert kept != checkpoint.read_bytes()


def test_a_finished_stream_is_read_back_and_a_longer_one_goes_on(tmp_path, monkeypatch):
    checkpoint = tmp_path / "stream"
    pieces = batches(4)
    first = streamed(pieces[:2], checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(lim.density.measurement, "_influence", None)
        assert equal(streamed(pieces[:2], checkpoint), first)
    assert equal(streamed(pieces, checkpoint), streamed(pieces))
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_a_checkpoint_of_another_stream_is_refused(tmp_path):
    checkpoint = tmp_path / "stream"
    pieces = batches(3)
    streamed(pieces, checkpoint)
    kept = checkpoint.read_bytes()
    others = {
        "checkpoint: got .*regions Regions.*expected one of regions .*delta=Fraction\\(1, 4": (
            pieces, {"regions": lim.boundary_regions(GRID, 0.25)},
        ),
        "checkpoint: got .*of regions .*left_out": (
            pieces, {"regions": lim.boundary_regions(GRID, 0.3)},
        ),
        "checkpoint: got .*of parameters .*remove it": (pieces, {"params": 1.25}),
        "checkpoint: got .*of run squares, expected one of run cubes": (pieces, {"run": "cubes"}),
        "batches: got 2, expected first the 3 that": (pieces[:2], {}),
        "batches: got others, expected first the 3": ([pieces[1], *pieces[1:]], {}),
        "batches: got others.*one seed": (batches(3, seed=1), {}),
    }  # fmt: skip
    for message, (given, options) in others.items():
        with pytest.raises(ValueError, match=f"(?s){message}"):
            streamed(given, checkpoint, **options)
    with pytest.raises(ValueError, match="influence_stream, expected one of function resumable"):
        resumable(
            lambda state, index: (state, state), jnp.array(1), 2, run="ours", checkpoint=checkpoint
        )
    assert checkpoint.read_bytes() == kept


def test_a_stream_of_a_loss_of_ones_own_needs_a_name(tmp_path):
    """Else another loss would go on from its file; without a file nothing is asked."""
    for checkpoint in (tmp_path / "stream", "stream"):
        with pytest.raises(ValueError, match="run: got no name for the function .*squares, exp"):
            streamed(batches(2), checkpoint, run="")
    assert not list(tmp_path.iterdir()) and streamed(batches(2), run="").count == 7


def test_a_loop_with_a_checkpoint_needs_a_name(tmp_path):
    """It does not compare its step; and in what it compares no function of one's own may stand."""
    start = jnp.array(1)
    for run, message in (
        (None, "run: got none beside a checkpoint, expected a name of your own"),
        ((0.1, squares), "run: got no name for the function .*squares"),
    ):
        with pytest.raises(ValueError, match=message):
            resumable(
                lambda state, index: (state, state), start, 2, run=run, checkpoint=tmp_path / "run"
            )
    assert not list(tmp_path.iterdir())


def test_arrays_of_the_loss_and_of_the_labels_tell_streams_apart(tmp_path):
    """Random keys too, and static fields; and the name, where the loss computes otherwise."""
    checkpoint = tmp_path / "stream"
    x = np.ones((2, 7, 3))
    keys = jax.random.split(jax.random.key(0), 4)
    given = [(x, {"key": keys[:2]})]

    def stream(table, pieces, scale=1.0, power=2):
        embed = Embedding(table, scale)
        loss = lim.density.LossOfIds(embed, lambda params, x, y: jnp.sum(x**power))
        ids = jax.device_put(np.arange(14).reshape(2, 7) % 3)
        pieces = [(ids, y) for _, y in pieces]
        run = f"the power {power}"
        return lim.influence_stream(loss, None, pieces, GRID, run=run, checkpoint=checkpoint)

    table = jax.device_put(np.arange(6.0).reshape(3, 2))
    found = stream(table, given)
    assert equal(stream(table, given), found)
    for other, of in (
        (lambda: stream(table + 1, given), "parameters"),
        (lambda: stream(table, given, scale=2.0), "parameters"),
        (lambda: stream(table, given, power=3), "run the power 2"),
    ):
        with pytest.raises(
            ValueError, match=f"of {of}.*Pass what that run was given, .*remove it, or"
        ):
            other()
    with pytest.raises(ValueError, match="batches: got others"):
        stream(table, [(x, {"key": keys[2:]})])


def test_each_group_is_run_once_and_gives_the_same_whether_read_or_not(tmp_path):
    checkpoint = tmp_path / "new" / "groups.json"
    called = []

    def group(name):
        called.append(name)
        if name == "third" and called.count(name) == 1:
            raise KeyboardInterrupt
        return {"numbers": (0.1 + len(name), float("nan"), 2), "none": None}

    groups = {name: partial(group, name) for name in ("first", "second", "third")}
    run = {"seed": 3, "sizes": (1, 2)}
    with pytest.raises(KeyboardInterrupt):
        each_once(groups, checkpoint, run)
    results = each_once(groups, checkpoint, run)
    assert called == ["first", "second", "third", "third"]
    assert repr(results) == repr(each_once(groups, None, run))
    assert results["third"]["numbers"][::2] == [5.1, 2] and list(results) == list(groups)
    assert list(each_once({"second": groups["second"]}, checkpoint, run)) == ["second"]
    assert len(called) == 4 + 3 and checkpoint.read_bytes().count(b"\n") == 4
    for other in ({"seed": 3, "sizes": [1, 3]}, {"seed": 3, "sizes": [1, 2], "only": "first"}):
        with pytest.raises(ValueError, match="groups.json, of (sizes|only) .*expected one of"):
            each_once(groups, checkpoint, other)
    kept = checkpoint.read_bytes()
    broken = kept.replace(b'"name"', b'"nam', 1)  # a line that is whole, and no document
    none = "of no run"
    for content, message in ((b"not ours", none), (b"", none), (broken, "cut short or damaged")):
        checkpoint.write_bytes(content)
        with pytest.raises(ValueError, match=f"checkpoint: got .*json, which is {message}"):
            each_once(groups, checkpoint, run)
    with pytest.raises(ValueError, match="checkpoint: got .*new, which is a folder"):
        each_once(groups, checkpoint.parent, run)


def test_of_a_run_that_died_while_it_wrote_all_groups_but_that_one_are_kept(tmp_path):
    """Wherever the file ends: what is there again afterwards is the file as it was."""
    checkpoint = tmp_path / "groups"
    called = []
    groups = {name: lambda name=name: called.append(name) or name.upper() for name in "abc"}
    results = each_once(groups, checkpoint, {"seed": 3})
    content = checkpoint.read_bytes()
    head = content.index(b"\n") + 1
    for kept in range(head, len(content) + 1):
        called.clear()
        checkpoint.write_bytes(content[:kept])
        assert each_once(groups, checkpoint, {"seed": 3}) == results
        assert called == list("abc")[content[head:kept].count(b"\n") :]
        assert checkpoint.read_bytes() == content
    checkpoint.write_bytes(content[: head - 1])
    with pytest.raises(ValueError, match="groups, which is of no run, expected"):
        each_once(groups, checkpoint, {"seed": 3})
    assert list(tmp_path.iterdir()) == [checkpoint]
