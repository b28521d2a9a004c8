"""Influence of ids: mixed lengths, each on its own grid, and training that moves the embedding."""

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.compilations import compilations
from reference.networks import random_states
from reference.publishers import CONFIGS, write

import lim_jax as lim
from lim_jax import models
from lim_jax.density import LossOfIds
from lim_jax.loss import teacher_forcing
from lim_jax.models.padding import fitted_padding, padded_length

REGIONS = lim.boundary_regions(lim.graded_grid(10), 0.2)
LENGTHS = (5, 7, 20)
PLACES = 22  # padded to 16, 16, 24 or all places


def window_of(length, seed=0):
    ids = np.random.default_rng((length, seed)).integers(0, 11, length + 1)
    return jax.device_put(ids)


WINDOWS = [window_of(length) for length in LENGTHS]
THREE = [window_of(3), window_of(3, seed=1)]


def rising(length):
    """Query weights that are equal nowhere."""
    return jax.device_put(np.arange(1.0, length + 1) / np.arange(1.0, length + 1).sum())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Of learned places, the harder to pad; places that turn are padded further below."""
    folder = tmp_path_factory.mktemp("weights")
    loaded = models.load(write(folder, CONFIGS["gpt2"]), dtype="float64")
    assert loaded.positions is not None
    places = random_states(1, PLACES, loaded.positions.shape[1])
    return eqx.tree_at(lambda model: model.positions, loaded, places)


def carried_by_loops(mass, edges):
    """Each token's mass shared out over cells, by how much of its own cell they cover."""
    length = len(mass)
    masses = np.zeros(len(edges) - 1)
    for cell in range(len(masses)):
        for place in range(length):
            end = (place + 1) / length
            start = place / length
            shared = min(edges[cell + 1], end) - max(edges[cell], start)
            masses[cell] += length * max(shared, 0) * mass[place]
    return masses


loss_of_ids = LossOfIds(models.CausalLM.embed, models.CausalLM.loss)
LOSSES = ("loss", "margin_loss")
# Asked at the last place, at the first and the last, and at some.
SPARSE = [np.zeros(length) for length in LENGTHS]
for asked, places in zip(SPARSE, ((4,), (0, 6), (3, 18, 19)), strict=True):
    asked[list(places)] = np.arange(1, len(places) + 1) / sum(range(len(places) + 1))


@pytest.fixture(scope="module")
def alone(model):
    """The gradients of each context without padding, by loss: asked everywhere, and sparsely."""

    def gradients(model, windows, weights):
        def of(window, weights):
            grid = lim.token_grid(len(window) - 1)
            state, pull = jax.vjp(lambda x: model.flow(x, grid), model.embed(window[:-1]))

            def gradient(loss, own):
                y = models.Targets(window[1:], own)
                return pull(jax.grad(loss)(state, y))[0]

            return {
                name: jax.vmap(
                    partial(gradient, partial(getattr(models.CausalLM, name).terminal, model))
                )(weights)
                for name in LOSSES
            }

        return [of(*context) for context in zip(windows, weights, strict=True)]

    weights = [jnp.stack([rising(len(sparse)), sparse]) for sparse in SPARSE]
    found = eqx.filter_jit(gradients)(model, WINDOWS, weights)
    return {name: list(zip(*(one[name] for one in found), strict=True)) for name in LOSSES}


@pytest.mark.slow
def test_every_context_lives_on_its_own_grid(model, alone):
    """Against each alone, without padding: one gradient, its energies shared out by loops."""
    influence = models.influence_of_ids(model, WINDOWS, REGIONS, ask=rising, keep_examples=True)
    masses = []
    everywhere, _ = alone["loss"]
    for gradient in everywhere:
        mass = (len(gradient) * gradient**2).sum(axis=1)
        masses.append(carried_by_loops(mass, np.asarray(REGIONS.grid.edges)))
        assert np.isclose(masses[-1].sum(), mass.sum(), rtol=1e-12)
    weights = np.asarray(REGIONS.grid.weights)
    np.testing.assert_allclose(influence.energy * weights, np.mean(masses, axis=0), rtol=1e-10)
    np.testing.assert_allclose(influence.example_energies * weights[None], masses, rtol=1e-10)
    scatter = np.var(masses, axis=0) * len(WINDOWS)
    found_scatter = influence.energy_scatter * (influence.unit * weights) ** 2
    np.testing.assert_allclose(found_scatter, scatter, rtol=1e-9)
    assert int(influence.count) == len(WINDOWS)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [LOSSES[0], pytest.param(LOSSES[1], marks=pytest.mark.slow)])
def test_energies_of_tokens_are_of_what_each_context_is_asked(model, alone, loss):
    """Weights of each context its own, zero at most places; a gradient of each without padding."""
    of_states = getattr(models.CausalLM, loss)
    energies = models.energies_of_ids(model, WINDOWS, ask=SPARSE, loss=of_states, progress=reversed)
    _, sparsely = alone[loss]
    for gradient, energy in zip(sparsely, energies[::-1], strict=True):
        expected = len(gradient) ** 2 * (gradient**2).sum(axis=1)
        np.testing.assert_allclose(energy, expected, rtol=1e-9, atol=1e-12 * expected.max())
    carried = models.influence_of_ids(model, WINDOWS, REGIONS, ask=SPARSE, loss=of_states)
    total = np.mean([energy.mean() for energy in energies])
    np.testing.assert_allclose(carried.total, total, rtol=1e-12)
    with pytest.raises(ValueError, match="ask: got weights of 2 contexts, expected those of 3"):
        models.energies_of_ids(model, WINDOWS, ask=SPARSE[:2])


@pytest.mark.slow
def test_energies_that_are_interrupted_go_on_to_the_same_bits(model, tmp_path, monkeypatch):
    """Anywhere in a context; with other arguments what is kept is refused."""
    checkpoint = tmp_path / "new" / "energies"
    measure = models.ids._energy
    measured = []
    windows = [*WINDOWS, window_of(9)]
    whole = models.energies_of_ids(model, windows, ask=rising)
    go_on = partial(models.energies_of_ids, ask=rising, checkpoint=checkpoint)

    def stopping(*arguments):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(int(np.asarray(arguments[3].positions).max()))
        return measure(*arguments)

    monkeypatch.setattr(models.ids, "_energy", stopping)
    for first in (0, 2):
        measured.clear()
        with pytest.raises(KeyboardInterrupt):
            go_on(model, [*windows, window_of(2)])
        assert measured == [len(window) - 2 for window in windows[first : first + 2]]
    energies = go_on(model, windows)  # any measurement would be an interruption
    for ours, theirs in zip(energies, whole, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    moved = eqx.tree_at(lambda model: model.embedding, model, model.embedding + 1e-9)
    refused = {
        "0, of context": lambda: go_on(model, THREE),
        "0, of context .*or remove it": lambda: go_on(model, windows, ask=teacher_forcing),
        "0, of loss .*margin_loss": lambda: go_on(model, windows, loss=models.CausalLM.margin_loss),
        "0, of parameters": lambda: go_on(moved, WINDOWS),
        "0, of parameters .*remove": lambda: go_on(replace(model, logit_scale=0.25), WINDOWS),
    }
    for message, again in refused.items():
        with pytest.raises(ValueError, match=f"checkpoint: got .*{message}"):
            again()
    with pytest.raises(ValueError, match="checkpoint: got .*0, which is a file, expected a folder"):
        models.energies_of_ids(model, windows, checkpoint=checkpoint / "0")
    content = (checkpoint / "0").read_bytes()
    for wrong, message in ((content[:-8], "a damaged"), (b"\x93NUMPY", "a file of")):
        (checkpoint / "0").write_bytes(wrong)
        with pytest.raises(ValueError, match=f"checkpoint: got .*0, which is {message}"):
            go_on(model, windows)


def test_files_know_scores_of_ones_own_by_a_name(model, tmp_path):
    def squares(loss, model, ids, y, parts):
        return (ids**2).astype(float)

    scored = partial(models.ids.scores_of_ids, squares, model, WINDOWS, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="run: got no name for the function .*squares"):
        scored()
    for window, score in zip(WINDOWS, scored(scores_name="squares"), strict=True):
        np.testing.assert_array_equal(score, np.asarray(window)[:-1] ** 2)
    with pytest.raises(ValueError, match="of function squares, expected one of function cubes"):
        scored(scores_name="cubes")


@pytest.mark.parametrize("count", [1, 2])
def test_scores_of_a_context_alone_are_of_no_batch(model, count, monkeypatch):
    monkeypatch.setattr(models.ids, "TOKENS_AT_ONCE", 2 * PLACES)
    batches = []

    @jax.custom_batching.custom_vmap
    def summed(numbers):
        return jnp.cumsum(numbers)

    @summed.def_vmap
    def summed_in_batch(size, is_batched, numbers):
        batches.append(size)
        return jnp.cumsum(numbers, axis=1), True

    def scores(loss, model, ids, y, parts):
        return summed((ids**2 + 200 * parts).astype(float)) * y.weights[2]

    windows = [window_of(20, seed) for seed in range(count)]
    parts = [np.arange(20) % 7 - seed for seed in range(count)]
    ask = [(2 + seed) * rising(20) for seed in range(count)]
    rows = models.ids.scores_of_ids(scores, model, windows, ask=ask, parts=parts)
    assert batches == ([] if count == 1 else [2])
    for row, window, part, weights in zip(rows, windows, parts, ask, strict=True):
        numbers = np.asarray(window)[:-1] ** 2 + 200 * part
        np.testing.assert_allclose(row, np.cumsum(numbers) * float(weights[2]), rtol=1e-12)


# By window, asked everywhere or sparsely: five that are padded to 16, of 20 two and one.
MIXED = ((0, 0), (2, 0), (1, 1), (2, 1), (0, 1), (1, 0), (2, 0), (0, 0))


@pytest.fixture
def mixed():
    weights = [(rising(len(sparse)), sparse) for sparse in SPARSE]
    windows, asked = zip(*((WINDOWS[i], weights[i][kind]) for i, kind in MIXED), strict=True)
    return {"windows": list(windows), "ask": list(asked)}


@pytest.fixture
def calls(monkeypatch):
    """The ids of every call, of 48 at once: three contexts of 16, or two of 24."""
    measure = models.ids._energy
    found = []

    def seen(*arguments):
        found.append(np.asarray(arguments[2]))
        return measure(*arguments)

    monkeypatch.setattr(models.ids, "_energy", seen)
    monkeypatch.setattr(models.ids, "TOKENS_AT_ONCE", 48)
    monkeypatch.setattr(
        models.padding, "QUERIES", 16
    )  # of more places that are asked another shape
    return found


@pytest.mark.slow
def test_contexts_in_batches_have_the_energies_of_each_alone(model, alone, mixed, calls):
    """Against gradients without padding; what is asked of as many places goes together."""
    seen = []

    def progress(numbers):
        for number in numbers:
            seen.append((number, len(calls)))
            yield number

    energies = models.energies_of_ids(model, **mixed, progress=progress)
    for (window, kind), energy in zip(MIXED, energies, strict=True):
        gradient = alone["loss"][kind][window]
        expected = len(gradient) ** 2 * (gradient**2).sum(axis=1)
        np.testing.assert_allclose(energy, expected, rtol=1e-9, atol=1e-12 * expected.max())
    assert [ids.shape for ids in calls] == [(3, 16), (2, PLACES), (1, PLACES), (3, 16)]
    np.testing.assert_array_equal(calls[3][1], calls[3][2])  # filled up
    # Each context counts, measured with others before it or not.
    assert seen == list(enumerate([0, 1, 2, 2, 3, 3, 4, 4]))
    carried = models.influence_of_ids(model, regions=REGIONS, **mixed)
    total = np.mean([energy.mean() for energy in energies])
    np.testing.assert_allclose(carried.total, total, rtol=1e-12)


@pytest.mark.slow
def test_a_batch_that_is_interrupted_goes_on_to_the_same_bits(
    model, mixed, calls, tmp_path, monkeypatch
):
    """In its midst: of a batch the contexts that are kept are not written again."""
    whole = models.energies_of_ids(model, **mixed)
    store = models.ids.once
    written = []

    def stopping(path, run, measure):
        if len(written) == 2 and not path.exists():
            raise KeyboardInterrupt
        written.extend([] if path.exists() else [path.name])
        return store(path, run, measure)

    monkeypatch.setattr(models.ids, "once", stopping)
    measured = [ids.tolist() for ids in calls]
    for names, batches in ((["0", "2"], [0]), (["4", "1"], [0, 1]), (["6", "3"], [1, 2])):
        calls.clear()
        written.clear()
        with pytest.raises(KeyboardInterrupt):
            models.energies_of_ids(model, **mixed, checkpoint=tmp_path)
        assert written == names and {path.name for path in tmp_path.iterdir()} >= set(names)
        # The one that follows was measured and not yet written.
        assert [ids.tolist() for ids in calls][: len(batches)] == [measured[i] for i in batches]
    for expected in ([measured[3]], []):
        calls.clear()
        written.clear()
        energies = models.energies_of_ids(model, **mixed, checkpoint=tmp_path)
        assert [ids.tolist() for ids in calls] == expected
        for ours, theirs in zip(energies, whole, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_queries_are_filled_up_but_where_each_context_has_one(model, monkeypatch):
    """So that a head that is read for one query is multiplied by a vector."""
    queries = []

    def energy(loss, model, ids, y, scale):
        queries.append((y.targets.shape, y.weights.tolist(), y.positions.tolist()))
        return np.zeros(ids.shape)

    monkeypatch.setattr(models.ids, "_energy", energy)
    monkeypatch.setattr(models.ids, "TOKENS_AT_ONCE", 48)
    at_the_end = (np.arange(5) == 4) / 1.0
    everywhere = np.full(5, 0.2)
    for last in (at_the_end, everywhere):
        asked = [at_the_end, at_the_end, last]
        models.energies_of_ids(model, 3 * [np.arange(6)], ask=asked)
    single, (shape, weights, places) = queries
    assert single == ((3, 1), 3 * [[1.0]], 3 * [[4]])
    assert shape == (3, 16) and weights[2][:6] == [*everywhere, 0] and places[0][:2] == [4, 0]


def test_a_context_alone_is_measured_alone(model, calls):
    """Few of each length take the program that one takes; none is filled up for nothing."""
    few = [window_of(length) for length in (20, 5)]
    expected = [models.energies_of_ids(model, [window])[0] for window in few]
    calls.clear()
    with compilations() as programs:
        together = models.energies_of_ids(model, few)
    assert not programs and [len(ids) for ids in calls] == [1] * len(few)
    for ours, theirs in zip(together, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_batches_are_one_program_for_each_padded_length(model, calls, monkeypatch):
    """Full ones and the one that is filled up; other contexts of these lengths compile nothing."""
    monkeypatch.setattr(models.ids, "TOKENS_AT_ONCE", 64)  # four of 16, as in no other test
    for lengths, programs in ((range(5, 16), 1), (range(16, 2, -1), 0)):
        windows = [window_of(length) for length in lengths]
        with compilations() as compiled:
            models.energies_of_ids(model, windows)
        assert len(compiled) == programs
    assert [ids.shape for ids in calls] == 7 * [(4, 16)]


@pytest.mark.parametrize("call", [models.ids.CALL_IN_MEMORY, models.ids.CALL_WITH_READING])
def test_batches_hold_all_contexts_and_cost_no_more_than_each_alone(call):
    for length in (16, 24, 96, 128, 384, 512, 4096):
        together = set()
        for number in range(1, 70):
            numbers = list(range(3, 3 + number))
            batches = models.ids._cut(numbers, length, call)
            (size,) = {len(batch) for batch in batches}
            together.add(size)
            filled = [number for batch in batches for number in batch]
            assert filled == numbers + (len(filled) - number) * numbers[-1:]
            assert len(filled) - number < size <= max(1, 512 // length)
            assert len(batches) * (call + size * length) <= number * (call + length)
        # Of one size or each alone: two programs at most.
        assert together == {1, max(1, 512 // length)}
    assert len(models.ids._cut(list(range(200)), 128, call)) == 50


@pytest.mark.slow
def test_some_ten_programs_serve_all_lengths(model):
    """Other lengths that are padded alike, in other numbers of each, compile nothing."""
    models.influence_of_ids(model, WINDOWS, REGIONS)
    others = [window_of(length) for length in (22, 11, 17)]
    with compilations() as programs:
        jax.block_until_ready(models.influence_of_ids(model, others, REGIONS).energy)
    assert not programs
    lengths = range(1, 4097)
    padded = [padded_length(length) for length in lengths]
    for length, size in zip(lengths, padded, strict=True):
        assert length <= size <= max(16, (3 / 2 if length <= 1024 else 9 / 8) * length)
    assert [padded_length(size) for size in sorted(set(padded))] == sorted(set(padded))
    assert len(set(padded[:1024])) == 13 and len(set(padded[1024:])) == 16


def test_contexts_of_a_known_list_are_padded_to_the_longest_of_their_program():
    """In multiples of 16, in no more programs than without, and never less than a context has."""
    lengths = [3, 9, 16, 17, 24, 260, 300, 311, 390, 411, 700, 1030, 1100]
    padding = fitted_padding(iter(lengths))
    fitted = [padding(length) for length in lengths]
    assert fitted == [16, 16, 16, 24, 24, 320, 320, 320, 416, 416, 768, 1104, 1104]
    assert len(set(fitted)) == len({padded_length(length) for length in lengths})
    # Lengths that are not of the list have a program of their own, which they share with others.
    assert [padding(length) for length in (312, 412, 1, 769)] == [384, 512, 16, 1024]
    assert [fitted_padding([390])(390), fitted_padding([])(390)] == [512, 512]


def test_answers_of_up_to_32_tokens_are_of_one_shape():
    sizes = [models.padding.padded_queries(count) for count in (0, 1, 17, 32, 33, 65)]
    assert sizes == [32, 32, 32, 32, 48, 96]


@pytest.mark.slow
def test_another_padding_gives_the_same_energies(model, calls):
    windows = [window_of(length) for length in (17, 22, 9)]
    expected = models.energies_of_ids(model, windows)

    def three_more(length):
        return length + 3  # as far as the network knows places

    for padding, sizes in ((three_more, {12, 20, PLACES}), (fitted_padding([]), {16, PLACES})):
        calls.clear()
        energies = models.energies_of_ids(model, windows, padding=padding)
        assert {ids.shape[1] for ids in calls} == sizes
        for ours, theirs in zip(energies, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6 * theirs.max())
    short = models.energies_of_ids(model, windows, padding=lambda length: 1)  # is not shortened
    assert [len(energy) for energy in short] == [17, 22, 9]


@pytest.mark.usefixtures("as_users_run")
def test_a_padding_that_is_none_is_refused(model):
    hostile: list[tuple[Any, str]] = [
        (16, "padding: got 16, expected a function from a length to the padded one"),
        (lambda length: length / 2, "padding: got 4.5"),
        (lambda length: None, "padding: got None"),
    ]
    for padding, message in hostile:
        with pytest.raises(ValueError, match=message):
            models.energies_of_ids(model, [window_of(9)], padding=padding)


@pytest.mark.slow
def test_padding_turns_no_place_otherwise(tmp_path, calls, monkeypatch):
    """Where rotary frequencies depend on the length, a context of 7 is not one of 12 or of 16."""
    monkeypatch.setattr(models.ids, "TOKENS_AT_ONCE", 14)
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    config = CONFIGS["llama"] | {"max_position_embeddings": 6, "rope_scaling": scaling}
    model = models.load(write(tmp_path, config), dtype="float64")
    assert model.trained == 12 and not model.same_rope(7, 12) and model.same_rope(4, 6)
    (window,) = (window_of(7),)
    weights = rising(7)

    def gradient(model, window):
        x, y = model.example(window, weights)
        return jax.grad(model.loss)(x, y)

    others = [window_of(7, seed=1), window_of(8)]
    energy, *_ = models.energies_of_ids(model, [window, *others], ask=rising)
    slope = eqx.filter_jit(gradient)(model, window)
    np.testing.assert_allclose(energy, 49 * (slope**2).sum(axis=1), rtol=1e-9)
    assert [ids.shape for ids in calls] == [(2, 7), (1, 8)]
    packed = models.Targets(window[1:], weights, starts=jax.device_put(np.array([0] * 4 + [4] * 3)))
    with pytest.raises(
        ValueError, match="grid: got several contexts.* in 7 positions, expected one"
    ):
        model.logits(window[:-1], packed)


@pytest.mark.slow
def test_contexts_longer_than_those_of_training_are_warned_of(tmp_path):
    """By their own length: one of 9, which is padded to 16, is not, and has its own gradient."""
    config = CONFIGS["llama"] | {"max_position_embeddings": 10}
    model = models.load(write(tmp_path, config), dtype="float64")
    assert model.trained == 10
    window = window_of(9)
    (inside,) = models.energies_of_ids(model, [window])

    def gradient(model):
        return jax.grad(model.loss)(*model.example(window, teacher_forcing(9)))

    expected = 81 * (eqx.filter_jit(gradient)(model) ** 2).sum(axis=1)
    np.testing.assert_allclose(inside, expected, rtol=1e-9)
    with pytest.warns(UserWarning, match="a context of 11, expected at most 10, for which"):
        (beyond,) = models.energies_of_ids(model, [window_of(11)])
    assert (len(inside), len(beyond)) == (9, 11)
    starts = jax.device_put(np.array([0] * 6 + [6] * 5))
    packed = models.Targets(window_of(11)[1:], rising(11), starts=starts)
    embedded = eqx.filter_eval_shape(models.CausalLM.embed, model, window_of(10), packed)
    assert embedded.shape[0] == 11  # of which none is too long
    assert models.load(write(tmp_path, CONFIGS["gpt2"])).trained is None  # it has places


@pytest.mark.parametrize("kind", [np.int32, bool])
def test_padding_is_cut_off_left_and_right(kind):
    windows = [*WINDOWS, window_of(33)]
    rows = {side: np.full((4, 40), 3) for side in ("left", "right")}
    masks = {side: np.zeros((4, 40), kind) for side in rows}
    for i, window in enumerate(windows):
        size = len(window)
        for side, place in (("left", slice(40 - size, 40)), ("right", slice(size))):
            rows[side][i, place], masks[side][i, place] = window, 1
    for side in rows:
        batch = models.contexts(jax.device_put(rows[side]), mask=masks[side])
        assert [row.tolist() for row in batch] == [window.tolist() for window in windows]


def test_packed_rows_are_cut_into_their_contexts():
    """Three in one row with padding between and after them, one in the other."""
    rows = np.zeros((2, 40), int)
    segments = np.zeros((2, 40), np.uint8)
    places = ((0, 0, 4), (0, 8, 2), (0, 16, 7), (1, 3, 1))
    windows = [*WINDOWS, window_of(33)]
    for (row, start, number), window in zip(places, windows, strict=True):
        rows[row, start : start + len(window)] = window
        segments[row, start : start + len(window)] = number
    batch = models.contexts(rows, mask=segments > 0, segments=segments)
    assert [row.tolist() for row in batch] == [window.tolist() for window in windows]
    by_zeros = models.contexts(rows, segments=segments)
    assert [row.tolist() for row in by_zeros] == [window.tolist() for window in windows]
    whole = models.contexts(rows[:, :6], segments=np.array([[1] * 6, [1] * 2 + [2] * 4]))
    assert [len(row) for row in whole] == [6, 2, 4]
    # A mask leaves out what segments count: the first id of one context, the last of another.
    ids = np.arange(12).reshape(2, 6)
    numbers = np.array([[1] * 6, [1] * 2 + [2] * 4])
    mask = np.array([[0] + [1] * 5, [1] * 5 + [0]])
    masked = models.contexts(ids, mask=mask, segments=numbers)
    assert [row.tolist() for row in masked] == [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]


def test_padded_and_packed_contexts_have_the_influence_of_each_alone(model):
    """End to end, with padding of another id on either side."""
    alone = [models.influence_of_ids(model, [window], REGIONS) for window in WINDOWS[:2]]
    ids = np.full((2, 9), 10)
    mask = np.zeros((2, 9), int)
    ids[0, 3:], mask[0, 3:] = WINDOWS[0], 1
    ids[1, :8], mask[1, :8] = WINDOWS[1], 1
    padded = models.influence_of_ids(model, models.contexts(ids, mask=mask), REGIONS)
    np.testing.assert_allclose(padded.energy, alone[0].merge(alone[1]).energy, rtol=1e-13)


def test_windows_of_one_length_are_an_ordinary_batch(model):
    regions = lim.boundary_regions(lim.token_grid(3), "1/3")
    by_windows = models.influence_of_ids(model, THREE, regions)

    def influence(model, windows):
        batch = jax.vmap(model.example, (0, None))(windows, teacher_forcing(3))
        of = lim.influence(models.CausalLM.loss, model, batch, regions.grid, regions)
        return of.density, of.density_error

    density, error = eqx.filter_jit(influence)(model, jnp.stack(THREE))
    np.testing.assert_allclose(by_windows.density, density, rtol=1e-12)
    np.testing.assert_allclose(by_windows.density_error, error, rtol=1e-10)


def test_training_on_ids_moves_the_embedding(model):
    window = WINDOWS[0]
    descent = optax.sgd(0.1)

    @jax.jit
    def step(embedding):
        def loss(embedding):
            moved = eqx.tree_at(lambda m: m.embedding, model, embedding)
            return loss_of_ids(moved, window[:-1], models.Targets(window[1:], teacher_forcing(5)))

        value, gradient = jax.value_and_grad(loss)(embedding)
        change, _ = descent.update(gradient, descent.init(embedding))
        return value, gradient, optax.apply_updates(embedding, change)

    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        value, gradient, moved = step(model.embedding)
        after, _, _ = step(moved)
    read = np.abs(np.asarray(gradient)).max(axis=1) > 1e-8
    assert read[np.asarray(window[:-1])].all() and after < value


@pytest.mark.parametrize(
    "windows, message",
    [
        ([], "at least one"),
        ("3 1 4", "a list of arrays"),
        ([np.array([1])], "one id"),
        ([np.array([1.0, 2.0])], "whole number"),
        (np.ones((2, 4), int), r"shape \(2, 4\).*contexts\(ids, mask=mask\)"),
    ],
)
def test_what_is_no_window_is_refused(model, windows, message, as_users_run):
    with pytest.raises(ValueError, match=message):
        models.influence_of_ids(model, windows, REGIONS)


IDS = np.ones((2, 4), int)


@pytest.mark.parametrize(
    "mask, segments, message",
    [
        (None, None, "mask: got neither"),
        ([[1, 1], [0, 1]], None, "mask: got list"),
        (np.ones((2, 3), int), None, r"mask: .*\(2, 3\).*of shape \(2, 4\)"),
        (np.ones(4, int), None, "mask: .*that of ids"),
        (np.ones((2, 4)), None, "mask: got an array of float64"),
        (2 * IDS, None, "mask: .*ones and zeros"),
        (np.array([[1, 1, 0, 1], [1] * 4]), None, "rows: .*one piece.*not inside"),
        (np.array([[1] * 4, [0] * 4]), None, "rows: .*at least one.*Leave rows of padding out"),
        (None, np.array([[1, 1, 2, 1], [1] * 4]), r"rows: got contexts \[1, 2, 1\]"),
        (None, np.array([[1, 1, -1, 0], [1] * 4]), "segments: .*positive.*zero is padding"),
        (np.ones((2, 4), int), np.array([[1, 1, 0, 0], [1] * 4]), "segments: .*positive"),
        (IDS, -IDS, "segments: .*positive"),
        (None, IDS[:1], "segments: .*that of ids"),
    ],
)
def test_rows_that_cannot_be_cut_are_refused(mask, segments, message, as_users_run):
    with pytest.raises(ValueError, match=message):
        models.contexts(IDS, mask, segments)


@pytest.mark.parametrize("ids", [IDS[0], IDS.astype(float), [[1, 2], [3, 4]], IDS[:, :0]])
def test_what_is_no_table_of_ids_is_refused(ids, as_users_run):
    with pytest.raises(ValueError, match="ids: got .*a row for each example"):
        models.contexts(ids, mask=IDS)
