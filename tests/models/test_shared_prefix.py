"""What contexts begin with: found by hand, read once, and answered after as after the whole."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.hybrids import hybrid_flow
from reference.networks import WIDTH, byte_network, randomised

from lim_jax import models
from lim_jax._digest import digest
from lim_jax.grid import token_grid
from lim_jax.models import shared_prefix
from lim_jax.models.generation import extend_logits
from lim_jax.models.shared_prefix import (
    Reading,
    common_prefixes,
    prefix_reader,
    read_prefix,
    texts_reader,
)
from lim_jax.network import heun
from lim_jax.network.kv_cache import has_kv_cache
from lim_jax.weights import FetchedLayers, LayerSource

MODEL = byte_network(64, depth=2, seed=3)
SAME = "The tower is old. "  # 18 places


def reading(text, *, more=1, answer=0, part=-1):
    """A context of a text that may be shared and `more` ids, and places for an answer."""
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    rows = np.stack([ids, np.full_like(ids, part)], axis=1)
    return Reading(rows, len(ids) + more, len(ids) + more + answer)


def shared_texts(model, readings):
    prefixes = common_prefixes(model, readings)
    return [
        None if prefix is None else bytes(prefix.rows[:, 0].tolist()).decode()
        for prefix in prefixes
    ]


def states_of(prefix):
    """The states that are kept of a prefix, which was read; None where they are not."""
    assert prefix is not None
    return prefix.states


FIVE = [reading(SAME + end) for end in ("Why?", "Who built it?", "", "Wh", "By whom?")]


def test_five_contexts_beside_one_another_share_what_all_begin_with():
    others = [reading("A tower. " + end) for end in "abcdef"]
    alone = reading(SAME + "and new")
    assert shared_texts(MODEL, [*FIVE, *others, alone]) == [SAME] * 5 + ["A tower. "] * 6 + [None]
    assert shared_texts(MODEL, [*FIVE[:4], *others[:4]]) == [None] * 8, "four pay for no programs"
    # The context between is of neither group, and four are left on its right.
    assert shared_texts(MODEL, [*FIVE, reading("No"), *FIVE[:4]]) == [SAME] * 5 + [None] * 5


@pytest.mark.parametrize(("length", "shared"), [(18, True), (19, False)])
def test_what_is_shared_is_half_of_the_longest_at_least(length, shared):
    longest = reading(SAME + "x" * length)
    assert shared_texts(MODEL, [longest, *FIVE]) == [SAME if shared else None] + [SAME] * 5
    assert shared_texts(MODEL, [*FIVE, longest]) == [SAME] * 5 + [SAME if shared else None]


def test_ids_of_another_part_are_not_shared():
    rows = FIVE[0].rows.copy()
    rows[16:, 1] = 0
    other = FIVE[0]._replace(rows=rows)
    assert shared_texts(MODEL, [other, *FIVE]) == [SAME[:16]] * 6


def test_sizes_serve_every_context_of_all_groups():
    """The longest rest of one is of 21 ids, so that 24 are read, after 18; of the other 16 are,
    after 9, where an answer needs more places."""
    long = reading(SAME + "Why?", more=17)
    others = [reading("A tower. " + end, answer=40) for end in "abcdef"]
    first, *_, last = common_prefixes(MODEL, [long, *FIVE, *others])
    assert first is not None and last is not None
    assert (first.contexts, last.contexts) == (range(6), range(6, 12))
    assert (first.rest, last.rest) == (24, 16)
    assert (len(first.rows), first.size) == (18, 48), "42 places"
    assert (len(last.rows), last.size) == (9, 64), "51 places, where 25 would be 32"


def test_what_follows_prefixes_is_padded_alike_where_it_is_as_long():
    """So that their contexts share a program: after 18 ids at most 21 follow, after 9 only 18."""
    long = reading(SAME + "Why?", more=17)
    others = [reading("A tower. " + end, more=17) for end in "abcdef"]
    first, *_, last = common_prefixes(MODEL, [long, *FIVE, *others])
    assert first is not None and last is not None and len(first.rows) == 2 * len(last.rows)
    assert (first.rest, last.rest) == (24, 24)


@pytest.mark.parametrize("shared", ["prefix", "texts"])
def test_a_reading_is_kept_until_contexts_ask_for_another(shared, monkeypatch):
    """Then those of contexts before are dropped, and read anew where they are asked for again."""
    read = []
    readings = [*FIVE, *(reading("A tower. " + end) for end in "abcde")]
    ask: Any
    orders: list[tuple[int, Any]]
    if shared == "prefix":
        monkeypatch.setattr(shared_prefix, "read_prefix", lambda *of, **_: read.append(of))
        ask = prefix_reader(MODEL, readings)
        orders = [(0, None), (4, None), (0, (0.5,)), (5, None), (9, None), (1, None)]
    else:
        monkeypatch.setattr(shared_prefix, "read_texts", lambda *of: read.append(of))
        ask = texts_reader(MODEL, readings)
        every = np.ones((1, 40), bool)
        orders = [(0, every), (4, every), (0, ~every), (5, every), (9, every), (1, every)]
    counts = [ask(*order) or len(read) for order in orders]
    assert counts == [1, 1, 2, 3, 3, 4]


def layer_of_host(number):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[number], MODEL.flow.layers)


def with_flow(**changes):
    return eqx.tree_at(lambda model: model.flow, MODEL, replace(MODEL.flow, **changes))


def test_none_is_shared_where_positions_depend_on_the_length(monkeypatch):
    monkeypatch.setattr(models.CausalLM, "same_rope", lambda self, one, other: one == other)
    assert shared_texts(MODEL, FIVE) == [None] * 5


def test_none_is_shared_where_nothing_is_kept_or_places_are_few():
    assert shared_texts(with_flow(step=heun), FIVE) == [None] * 5
    assert shared_texts(byte_network(34, depth=2), FIVE) == [SAME] * 5, "18 and 16 places"
    assert shared_texts(byte_network(33, depth=2), FIVE) == [None] * 5
    assert shared_texts(replace(MODEL, trained=33), FIVE) == [None] * 5
    source = LayerSource(layer_of_host, MODEL.flow.depth)
    fetched = with_flow(layers=FetchedLayers(jnp.zeros(1), source))
    assert has_kv_cache(fetched.flow) and shared_texts(fetched, FIVE) == [None] * 5
    assert shared_texts(MODEL, []) == []


@pytest.mark.slow
def test_a_prefix_is_read_when_it_is_asked_for_and_once_for_its_contexts(monkeypatch):
    calls = []

    def read(model, prefix, log_weights, *, keep_states):
        calls.append((prefix.contexts.start, log_weights, keep_states))
        return read_prefix(model, prefix, log_weights, keep_states=keep_states)

    monkeypatch.setattr(shared_prefix, "read_prefix", read)
    others = [reading("A tower. " + end) for end in "abcdef"]
    prefix_of = prefix_reader(MODEL, [*FIVE, *others, reading("No")])
    assert calls == []
    assert prefix_of(0) is prefix_of(4) and prefix_of(5) is prefix_of(10)
    ends = prefix_of(0, (0.0, -1.0))
    assert ends is prefix_of(1, (0.0, -1.0)) and states_of(ends) is None
    assert states_of(prefix_of(0, (0.0, -1.0), keep_states=True)) is not None
    assert prefix_of(11) is None
    assert calls == [(0, None, False), (5, None, False), (0, (0.0, -1.0), False),
                     (0, (0.0, -1.0), True)]  # fmt: skip


def test_states_that_are_too_many_are_not_kept(monkeypatch):
    """Of two weights, two layers, 48 places and a width of 4 in float64."""
    prefix_of = prefix_reader(MODEL, FIVE)
    (size,) = {prefix.size for prefix in common_prefixes(MODEL, FIVE) if prefix is not None}
    states = 2 * 2 * size * 4 * 8
    monkeypatch.setattr(shared_prefix, "STATES_IN_MEMORY", states)
    kept = states_of(prefix_of(0, (0.0, -1.0), keep_states=True))
    assert kept is not None and kept.shape == (2, 2, size, 4) and kept.nbytes == states
    monkeypatch.setattr(shared_prefix, "STATES_IN_MEMORY", states - 1)
    assert prefix_of(0, (0.0, -1.0), keep_states=True) is None
    assert states_of(prefix_of(0, (0.0, -1.0))) is None


def test_a_prefix_says_what_was_read_and_is_known_by_that():
    """Not by its numbers, which another machine may round otherwise."""
    rows = FIVE[0].rows.copy()
    rows[3:9, 1] = 2
    readings = [reading._replace(rows=np.concatenate([rows[:18], reading.rows[18:]]))
                for reading in FIVE]  # fmt: skip
    (common, *_) = common_prefixes(MODEL, readings)
    assert common is not None
    prefix = read_prefix(MODEL, common, (-1.5, 0.0))
    length = len(SAME)
    assert int(prefix.length) == length and prefix.rest == common.rest == 16
    assert bytes(prefix.ids.tolist()) == SAME.encode() + bytes(common.size - length)
    assert prefix.parts.tolist() == rows[:18, 1].tolist() + [-1] * (common.size - length)
    assert prefix.log_weights is not None and prefix.log_weights.tolist() == [-1.5, 0.0]
    other = read_prefix(byte_network(64, depth=2, seed=4), common, (-1.5, 0.0))
    assert digest(other) == digest(prefix)
    for changed in (
        replace(prefix, ids=prefix.ids.at[2].add(1)),
        replace(prefix, parts=prefix.parts.at[2].set(1)),
        replace(prefix, length=prefix.length - 1),
        replace(prefix, log_weights=-prefix.log_weights),
        replace(prefix, rest=32),
    ):
        assert digest(changed) != digest(prefix)


PROMPTS = [np.frombuffer(f"{SAME}{end}".encode(), np.uint8).astype(np.int32)
           for end in ("Why?", "Who built it?", "Hm", "Wh", "By whom?")]  # fmt: skip


# With places for answers of seven ids.
READINGS = [
    Reading(np.stack([ids[:-1], np.full_like(ids[:-1], -1)], axis=1), len(ids), len(ids) + 6)
    for ids in PROMPTS
]


def prefix_of_prompts(model):
    """What the prompts share."""
    return prefix_reader(model, READINGS)(0)


@pytest.fixture(scope="module")
def prefix():
    return prefix_of_prompts(MODEL)


def hybrid_model():
    """Attention beside Mamba-2, then convolutions: what they keep is of the prefix alone."""
    shape = jax.ShapeDtypeStruct((256, WIDTH), float)
    return models.CausalLM(randomised(shape, 1), None, hybrid_flow(), eqx.nn.Identity())


BOTH = pytest.mark.parametrize("model", [MODEL, hybrid_model()], ids=["attention", "hybrid"])


@pytest.mark.slow
@BOTH
def test_answers_after_a_prefix_are_those_after_the_whole(model):
    """Unequal prompts, one of which has two ids more; each answer's ids are the likeliest."""
    prefix = prefix_of_prompts(model)
    logits = eqx.filter_jit(models.CausalLM.logits)
    answers = set()
    for ids in PROMPTS:
        answered = np.asarray(models.answer(model, ids, tokens=7, prefix=prefix))
        row = np.pad(np.concatenate([ids, answered]), (0, 48 - len(ids) - 7))
        expected = np.argmax(logits(model, jax.device_put(row)), axis=1)
        np.testing.assert_array_equal(answered, expected[len(ids) - 1 : len(ids) + 6])
        answers.add(answered.tobytes())
    assert len(answers) > 1, "of one answer a wrong prompt would not be seen"
    whole = np.asarray(models.answer(model, PROMPTS[1], tokens=7))
    end = whole[3].item()
    cut = models.answer(model, PROMPTS[1], tokens=7, end=[end], prefix=prefix)
    assert cut.tolist() == whole[: whole.tolist().index(end) + 1].tolist()


@pytest.mark.parametrize(
    ("ids", "tokens", "message"),
    [
        (PROMPTS[0] + (np.arange(22) == 17), 7, "prefix: got ids that begin otherwise, expected"),
        (PROMPTS[0][:18], 7, "got 0 ids after it and an answer of 7, expected its 18"),
        (np.resize(PROMPTS[0], 35), 7, "got 17 ids after it .* 1 to 16 more, and 48 places"),
        (np.resize(PROMPTS[0], 34), 16, "got 16 ids after it and an answer of 16"),
    ],
)
def test_ids_that_do_not_fit_a_prefix_are_refused(prefix, ids, tokens, message):
    ids = np.concatenate([PROMPTS[0][:18], ids[18:]]) if len(ids) > 22 else ids
    with pytest.raises(ValueError, match=message):
        models.answer(MODEL, ids, tokens=tokens, prefix=prefix)


def kept_places(*left_out):
    """Which of 18 places and some more each of several texts keeps."""
    return np.stack([~np.isin(np.arange(22), places) for places in left_out])


# Two texts leave other places out, also of what is not shared; of one nothing shared is left.
KEPT = kept_places([2, 3, 4, 9, 20], [0, 17], range(18))


@pytest.mark.slow
@BOTH
def test_logits_after_texts_are_those_after_the_whole_texts(model):
    """What is left closes up; texts are of unequal lengths."""
    texts = texts_reader(model, READINGS)(1, KEPT)
    assert texts is not None and texts.rest == 16 and texts.size == 32
    assert texts.length.tolist() == [14, 16, 0] and (np.asarray(texts.parts) == -1).all()
    assert texts.log_weights is None and texts.states is None
    logits = eqx.filter_jit(models.CausalLM.logits)
    extended = eqx.filter_jit(extend_logits)
    shared, own = PROMPTS[1][:18], PROMPTS[1][18:]
    for number, keeps in enumerate(KEPT[:, :18]):
        left = shared[keeps]
        assert texts.ids[number].tolist() == left.tolist() + [0] * (32 - len(left))
        prefix = jax.tree.map(lambda leaf, number=number: leaf[number], texts)
        rest, count = jax.device_put((np.pad(own, (0, 16 - len(own))), np.array(len(own))))
        grid = token_grid(32, float)
        found, _ = extended(model, rest, count, prefix.length, prefix.caches, grid)
        expected = logits(model, jax.device_put(np.concatenate([left, own])))[-1]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_texts_are_read_once_for_contexts_that_keep_the_same():
    """Of places that are not shared each may keep others."""
    alone = reading("No")
    texts_of = texts_reader(MODEL, [*READINGS, alone])
    texts = texts_of(0, KEPT)
    assert texts is not None and texts is texts_of(4, KEPT[:, :20])
    assert texts is not texts_of(0, KEPT[:2]) and texts is not texts_of(0, KEPT[::-1])
    assert texts_of(5, KEPT[:, :2]) is None, "it shares nothing"


def bytes_of(prefix):
    """How many bytes layers keep."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(prefix.caches))


def test_what_layers_keep_is_limited(monkeypatch):
    """Of a prefix at several weights, and of all texts together."""
    ends = prefix_reader(MODEL, READINGS)(0, (0.0, -1.0))
    texts = texts_reader(MODEL, READINGS)(0, KEPT)
    assert ends is not None and texts is not None
    # Keys and values of two layers and two heads of two features, in float64.
    assert bytes_of(ends) == 2 * ends.size * 2 * 2 * 2 * 2 * 8
    assert bytes_of(texts) == 3 * texts.size * 2 * 2 * 2 * 2 * 8
    for limit, read in (
        (bytes_of(ends), lambda: prefix_reader(MODEL, READINGS)(0, (0.0, -1.0))),
        (bytes_of(ends) // 2, lambda: prefix_reader(MODEL, READINGS)(0)),
        (bytes_of(texts), lambda: texts_reader(MODEL, READINGS)(0, KEPT)),
    ):
        monkeypatch.setattr(shared_prefix, "KEPT_IN_MEMORY", limit)
        assert read() is not None
        monkeypatch.setattr(shared_prefix, "KEPT_IN_MEMORY", limit - 1)
        assert read() is None


def test_no_texts_are_shared_where_positions_depend_on_their_lengths(monkeypatch):
    """Of the longest text they are those of the whole, of the shortest they are not."""
    texts_of = texts_reader(MODEL, READINGS)
    monkeypatch.setattr(models.CausalLM, "same_rope", lambda self, one, other: one > 0)
    assert texts_of(0, KEPT[:2]) is not None and texts_of(0, KEPT) is None
