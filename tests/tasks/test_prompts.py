"""Prompts in ids: which place is of which record, what is asked, and many in few shapes."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from reference.publishers import LETTERS
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Split, Whitespace
from tokenizers.processors import TemplateProcessing

from lim_jax.tasks import encode, encode_text
from lim_jax.tasks.prompts import Example, Prompt, join_pieces, move_record, record_weights

WORDS = ["<s>", "red", "is", "one", "sky", "blue", "a", "</s>"]


def words(template="$A"):
    """Words apart by spaces; marks may stand around the text, as publishers have them."""
    numbers = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="<s>"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    marks = [("<s>", 0), ("</s>", 7)]
    tokenizer.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=template, special_tokens=marks
    )
    return tokenizer


def test_a_place_is_of_the_record_that_its_last_character_is_in():
    # "red is" is one record; the other is "sky" with half of the space before it, "e sky".
    text = "red is one sky a red"
    prompt = Prompt(text, " is blue", ((0, 6), (9, 14)), (1,))
    example = encode(prompt, words("<s> $A </s>"))
    assert example.window.tolist() == [0, 1, 2, 3, 4, 6, 1, 2, 5, 7]
    # "one" ends in the second record, the marks and the asked word are of none.
    assert example.records.tolist() == [-1, 0, 0, 1, 1, -1, -1, -1, -1]
    # The last mark is a target that is not asked.
    np.testing.assert_allclose(example.weights, [0, 0, 0, 0, 0, 0, 0.5, 0.5, 0])
    assert example.gold.tolist() == [1]
    assert [leaf.dtype for leaf in example] == [np.int32, np.float32, np.int32, np.int32]


def test_the_answer_is_read_together_with_the_text():
    # By itself each is two words; between them stands one that is the answer's, as it ends there.
    example = encode(Prompt("a one sk", "y red is", ((0, 1), (2, 5)), (0, 1)), words())
    assert example.window.tolist() == [6, 3, 4, 1, 2]
    np.testing.assert_allclose(example.weights, [0, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)
    assert example.records.tolist() == [0, 1, -1, -1] and example.gold.tolist() == [0, 1]


def test_without_a_tokenizer_ids_are_bytes():
    prompt = Prompt("é=1 €=2 €=", "2é", ((0, 3), (4, 7)), (1,))
    example = encode(prompt)
    assert bytes(example.window.tolist()).decode() == prompt.text + prompt.answer
    by_hand = [0, 0, 0, 0, -1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1]
    assert example.records.tolist() == by_hand
    assert example.weights.nonzero()[0].tolist() == [14, 15, 16]
    tokens = encode_text(prompt.text)
    assert "".join(tokens.tokens) == prompt.text
    ends = np.array(
        [
            len(bytes(tokens.ids[: i + 1].tolist()).decode(errors="ignore"))
            for i in range(len(tokens.ids))
        ]
    )
    # The last byte of each letter is at that letter.
    complete = np.array([token != "" for token in tokens.tokens])
    np.testing.assert_array_equal(tokens.last[complete], ends[complete] - 1)


def test_of_a_character_of_several_tokens_the_last_has_it():
    """As the bytes' own ids do, and `texts_of_ids`; marks of the ends are no part of one."""
    alphabet = {letter: n for n, letter in enumerate(sorted(ByteLevel.alphabet()))}
    of_bytes: Any = Tokenizer(BPE(alphabet | {"<s>": 256}, []))
    of_bytes.pre_tokenizer = ByteLevel(add_prefix_space=False)
    of_bytes.add_special_tokens(["<s>"])
    of_bytes.post_processor = TemplateProcessing(single="<s> $0 <s>", special_tokens=[("<s>", 256)])
    text = "né 世a"
    encoded = encode_text(text, of_bytes)
    expected = ("n", "", "é", " ", "", "", "世", "a")
    assert encoded.tokens == ("<s>", *expected, "<s>")
    assert encode_text(text).tokens == expected


def test_a_token_of_a_stop_and_the_blank_line_after_it_is_of_what_it_ends():
    """As Llama 3 and Qwen have them; white space alone belongs where it ends."""
    words = ["One", "Two", " is", ".\n\n", "\n\n", "."]
    made: Any = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="."))
    made.pre_tokenizer = Split(Regex(r"[^\s\w]+\n*|\n+| ?\w+"), "isolated")
    text = "One is.\n\nTwo\n\nTwo."
    encoded = encode_text(text, made)
    assert encoded.tokens == ("One", " is", ".\n\n", "Two", "\n\n", "Two", ".")
    assert encoded.last.tolist() == [2, 5, 6, 11, 13, 16, 17]
    inside = [encoded.within(*part).nonzero()[0].tolist() for part in ((0, 7), (9, 12), (14, 18))]
    assert inside == [[0, 1, 2], [3], [5, 6]]
    records = encode(Prompt(text, " is", ((0, 7), (9, 12), (14, 18)), (0,)), made).records
    assert records.tolist() == [0, 0, 0, 1, -1, 2, 2]


@pytest.mark.parametrize(
    "prompt, message",
    [
        (Prompt("red is", "", ((0, 3),), (0,)), "prompt: got the answer '' after .*tokens each"),
        (Prompt("", "red is", (), ()), "prompt: got the answer 'red is' after the text ''"),
        (Prompt("re", "d is", ((0, 1),), (0,)), "prompt: got the answer 'd is' after the text"),
        (Prompt("red is", " a", ((0, 7),), (0,)), r"spans: got \(0, 7\), expected .* from 0 to 6"),
        (Prompt("red is", " a", ((3, 3),), (0,)), r"spans: got \(3, 3\)"),
        (Prompt("red is", " a", ((-1, 3),), (0,)), r"spans: got \(-1, 3\)"),
        (Prompt("red is", " a", ((0, 3), (2, 4)), (0,)), r"spans: got \(2, 4\), .* from 3 to 6"),
        (Prompt("red is", " a", ((0, 3),), (1,)), "gold: got 1, .* one of the 1 records"),
        (Prompt("red is", " a", ((0, 3),), (-1,)), "gold: got -1"),
        (Prompt("red is", " a", (), (0,)), "gold: got 0, .* the 0 records"),
    ],
)
def test_a_prompt_that_asks_nothing_of_its_records_is_refused(prompt, message):
    with pytest.raises(ValueError, match=message):
        encode(prompt, words())


def test_an_empty_text_has_no_tokens():
    """With a tokenizer that adds no marks, and without one, where ids are bytes."""
    for tokenizer in (words(), None):
        encoded = encode_text("", tokenizer)
        assert encoded.ids.tolist() == encoded.last.tolist() == []
        assert encoded.tokens == () and encoded.ids.dtype == np.int32
        with pytest.raises(ValueError, match="prompt: got the answer '' after the text ''"):
            encode(Prompt("", "", (), ()), tokenizer)


def made(length, golds=1, first=0):
    """An example whose every entry is told from the others and from what pads."""
    return Example(
        np.arange(1, length + 2, dtype=np.int32) + first,
        np.linspace(0.1, 1, length, dtype=np.float32),
        np.arange(length, dtype=np.int32) % 3,
        np.arange(golds, dtype=np.int32),
    )


def test_records_are_where_they_are_laid_out():
    prompt = join_pieces([("a", True), ("--", False), ("bc", True), ("d", True)], "e", (2, 0))
    assert [prompt.text[start:end] for start, end in prompt.spans] == ["a", "bc", "d"]
    assert prompt.text == "a--bcd" and prompt.answer == "e" and prompt.gold == (2, 0)


def test_moving_a_record_leaves_the_others_in_their_order():
    for number in range(5):
        others = [letter for letter in LETTERS[:5] if letter != LETTERS[number]]
        for place in range(5):
            order = list(move_record(LETTERS[:5], number, place))
            assert order[place] == LETTERS[number]
            assert order[:place] + order[place + 1 :] == others


def test_records_of_few_bits_are_told_from_no_record():
    """The 256th record's number is -1 in eight bits, which stands for no record."""
    weights = record_weights(jnp.array([0, -1], jnp.int8), jnp.ones(2), 256)
    assert np.asarray(weights).nonzero() == ([0], [0])
