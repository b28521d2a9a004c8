"""Tokenizers of folders and of GGUF files, against the publisher's own format.

``pieces.json`` holds how llama.cpp's and transformers' own expressions cut a text, by the package
regex.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from lim_jax.checkpoints.gguf_header import read_header
from lim_jax.checkpoints.text import read_tokenizer, texts_of_ids

MERGES = ["t h", "th e", "Ġ the", "a n", "Ġ a", "1 9"]
WORDS = ["<|end|>", *sorted(ByteLevel.alphabet()), "th", "the", "Ġthe", "an", "Ġa", "19"]
CONTROL = gguf.TokenType.CONTROL
TEXTS = ["the an", "  then 1999", "a café <|end|>\n\tthe", "", "日本 the"]


def write(file, cut="smollm", kind="gpt2", words=WORDS, merges=MERGES, defined=(), **options):
    writer = gguf.GGUFWriter(file, options.pop("architecture", "llama"))
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(words)
    types = {True: gguf.TokenType.USER_DEFINED, False: gguf.TokenType.NORMAL}
    writer.add_token_types([CONTROL, *(types[word in defined] for word in words[1:])])
    if merges is not None:
        writer.add_token_merges(merges)
    for name, value in options.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


def published(folder, cut):
    """The same as a publisher's tokenizer.json, spelt by hand."""
    bytewise = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    cuts = {"gpt-2": [], "smollm": [{"type": "Digits", "individual_digits": True}]}
    end = {"id": 0, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}  # fmt: skip
    model = {
        "type": "BPE",
        "vocab": {word: i for i, word in enumerate(WORDS)},
        "merges": [merge.split() for merge in MERGES],
    }
    whole = {
        "version": "1.0", "added_tokens": [end], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts[cut], bytewise]},
        "decoder": bytewise, "model": model,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    return folder


def of_gguf(file):
    return read_tokenizer(file, read_header(file)[1])


@pytest.mark.parametrize("cut", ["gpt-2", "smollm"])
def test_a_files_own_vocabulary_reads_as_the_publishers(tmp_path, cut):
    made = of_gguf(write(tmp_path / "model.gguf", cut))
    expected = read_tokenizer(published(tmp_path / "folder", cut), {})
    for text in TEXTS:
        ours = made.encode(text)
        theirs = expected.encode(text)
        assert ours.tokens == theirs.tokens and ours.offsets == theirs.offsets
        assert made.decode(ours.ids, skip_special_tokens=False) == text
        assert ours.ids == theirs.ids
    assert ("19" in made.encode("1999").tokens) == (cut == "gpt-2")


PIECES = json.loads((Path(__file__).parent / "pieces.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("cut", PIECES["pieces"])
def test_texts_are_cut_as_a_file_names_it(tmp_path, cut):
    """Numbers, contractions, scripts, emoji, lines; what is cut comes back."""
    text = PIECES["text"]
    made = of_gguf(write(tmp_path / "model.gguf", cut))
    pieces = [text[slice(*at)] for _, at in made.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == PIECES["pieces"][cut].split("│")
    assert made.decode(made.encode(text, add_special_tokens=False).ids) == text


def test_words_that_need_no_pairs_marks_and_words_of_their_own(tmp_path):
    """A word of the vocabulary stays whole in Llama 3's; what is defined is found in any text."""
    words = [*WORDS, "xyz", "é", "a  b"]
    more = {"bos_token_id": 0, "eos_token_id": 0}

    def tokens(text, cut, **options):
        options = {"words": words, **more, **options}
        file = write(tmp_path / "model.gguf", cut, **options)
        return of_gguf(file).encode(text).tokens

    assert tokens("xyz", "llama-bpe") == ["<|end|>", "xyz"]
    assert tokens("xyz", "llama-bpe", add_bos_token=False) == ["xyz"]
    assert tokens("xyz", "qwen2") == ["x", "y", "z"]
    assert tokens("an", "qwen2", add_bos_token=True, add_eos_token=True) == [
        "<|end|>",
        "an",
        "<|end|>",
    ]
    assert tokens("the a  ban", "qwen2", defined=["a  b"]) == ["the", "Ġ", "a  b", "an"]
    assert tokens("e\u0301", "qwen2") == list("Ã©") and tokens("e\u0301", "dbrx") == list("eÌģ")


def pieces_by_score(text, words, scores, ordered):
    """Llama.cpp's way: the neighbours of the best score are joined first, the left ones of two."""
    symbols = list(text)
    rank = {word: -index if ordered else scores[index] for index, word in enumerate(words)}
    while True:
        pairs = [
            (-rank[left + right], at)
            for at, (left, right) in enumerate(zip(symbols, symbols[1:], strict=False))
            if left + right in rank
        ]
        if not pairs:
            return symbols
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_sentencepieces_pairs_are_joined_by_their_scores(tmp_path, architecture):
    """Gemma's by their order; a prefix of Llama's texts; bytes of what is unknown."""
    generator = np.random.default_rng(0)
    ordered = architecture == "gemma3"
    letters = ["▁", *"abc"]
    longer = {"".join(generator.choice(letters, size)) for size in range(2, 6) for _ in range(25)}
    words = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *sorted(longer), "  "]
    scores = generator.permutation(len(words)).astype(float).tolist()
    file = write(
        tmp_path / "model.gguf",
        kind="llama",
        words=words,
        merges=None,
        defined=["  "],
        architecture=architecture,
        token_scores=scores,
        bos_token_id=0,
        add_space_prefix=not ordered,
    )
    made = of_gguf(file)
    normal = [word if word != "  " and "<" not in word else "" for word in words]
    for size in (1, 2, 5, 20, 60):
        text = "".join(generator.choice([" ", *"abc"], size)).replace("  ", " a")
        spelt = ("" if ordered else "▁") + text.replace(" ", "▁")
        encoded = made.encode(text)
        assert encoded.tokens == ["<s>", *pieces_by_score(spelt, normal, scores, ordered)]
        assert made.decode(encoded.ids) == text
    assert made.encode("é").tokens[-2:] == ["<0xC3>", "<0xA9>"]
    assert made.decode(made.encode("é").ids) == "é" and "  " in made.encode("a  a").tokens


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_begin_or_an_end_that_is_no_word_of_the_file_is_refused(tmp_path, kind):
    """A file may say, by llama.cpp's -1, that it has none; -1 is not the last word."""
    file = write(tmp_path / "model.gguf", kind=kind, bos_token_id=0, add_bos_token=True)
    header = read_header(file)[1]

    def tokens(**ids):
        stated = {f"tokenizer.ggml.{name}": number for name, number in ids.items()}
        return read_tokenizer(file, header | stated).encode("the").tokens

    assert tokens()[0] == "<|end|>"
    for none in (-1, 2**32 - 1):
        assert "<|end|>" not in tokens(bos_token_id=none)
    for number, told in ((9999, "9999"), (-2, "-2"), ("1", "'1'")):
        expected = f"bos_token_id = {told}, expected the number of one of the {len(WORDS)} words"
        with pytest.raises(ValueError, match=f"model.gguf: got {expected}. Put the publisher's"):
            tokens(bos_token_id=number)
        with pytest.raises(ValueError, match=f"got eos_token_id = {told}, expected the number"):
            tokens(add_eos_token=True, eos_token_id=number)


def test_an_unknown_word_that_is_no_word_of_the_file_is_refused(tmp_path):
    file = write(tmp_path / "model.gguf", kind="llama")
    header = read_header(file)[1] | {"tokenizer.ggml.unknown_token_id": 9999}
    with pytest.raises(ValueError, match="model.gguf: got unknown_token_id = 9999, expected the n"):
        read_tokenizer(file, header)


def test_gemma_4s_pairs_stand_in_its_file(tmp_path):
    words = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "\n", "ab", "▁ab"]
    file = write(
        tmp_path / "model.gguf",
        kind="gemma4",
        words=words,
        merges=["a b", "▁ ab"],
        bos_token_id=0,
        add_bos_token=True,
    )
    made = of_gguf(file)
    assert made.encode("ab ab\nc").tokens == ["ab", "▁ab", "\n", "<0x63>"]


CUT = "\N{REPLACEMENT CHARACTER}"


def test_texts_of_bytes_joined_are_the_text_of_all_also_where_a_letter_is_cut():
    letters = np.array([*"né日本😀".encode()])
    for end in range(1, len(letters) + 1):
        texts = texts_of_ids(letters[:end])
        assert "".join(texts) == bytes(letters[:end].tolist()).decode(errors="replace")
    assert texts_of_ids(np.array([65, 0xE6, 0xBC])) == ["A", "", CUT]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_texts_of_words_joined_are_the_text_of_all_also_where_a_letter_is_cut(tmp_path, kind):
    """As Python decodes the bytes; SentencePiece shows each byte of a cut letter by itself."""
    spelt = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
    options: dict[str, Any] = {}
    if kind == "llama":
        options = {"words": spelt, "merges": None, "token_scores": [0.0] * 259}
        options["add_space_prefix"] = False
    tokenizer = of_gguf(write(tmp_path / "model.gguf", kind=kind, **options))
    text = "a 日本😀"
    ids = np.array(tokenizer.encode(text).ids)
    assert len(ids) == len(text.encode())  # a word for each byte
    for end in range(1, len(ids) + 1):
        texts = texts_of_ids(ids[:end], tokenizer)
        expected = text.encode()[:end].decode(errors="replace")
        joined = "".join(texts)
        assert len(texts) == end and joined.rstrip(CUT) == expected.rstrip(CUT)
        assert joined.endswith(CUT) == expected.endswith(CUT)


def test_an_id_that_is_no_word_has_no_text_and_one_below_zero_is_refused(tmp_path):
    """The vocabularies of networks are often padded beyond their tokenizers'."""
    tokenizer = of_gguf(write(tmp_path / "model.gguf"))
    the = WORDS.index("the")
    assert texts_of_ids(np.array([the, 5000, the]), tokenizer) == ["the", "", "the"]
    for number in (-1, 2**32):
        with pytest.raises(ValueError, match=rf"ids: got \[{number}\], expected numbers of words"):
            texts_of_ids(np.array([the, number]), tokenizer)


def test_a_tokenizer_beside_a_file_goes_first(tmp_path):
    published(tmp_path, "gpt-2")
    made = of_gguf(write(tmp_path / "model.gguf", "smollm"))
    assert made.encode("1999").tokens == ["19", "9", "9"]


def test_a_publishers_own_length_neither_cuts_nor_fills_up(tmp_path):
    file = published(tmp_path, "gpt-2") / "tokenizer.json"
    kept = json.loads(file.read_text(encoding="utf-8")) | {
        "truncation": {
            "direction": "Right",
            "max_length": 3,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<|end|>",
        },
    }
    file.write_text(json.dumps(kept), encoding="utf-8")
    tokenizer = read_tokenizer(tmp_path, {})
    assert tokenizer.encode("the an the an").tokens == ["the", "Ġ", "an", "Ġthe", "Ġ", "an"]
    assert tokenizer.encode("the").tokens == ["the"]


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'gpt2' with 'superbpe' and 263 words, expected llama"):
        of_gguf(write(tmp_path / "model.gguf", "superbpe"))
    with pytest.raises(ValueError, match="a tokenizer of 't5' with 'smollm'"):
        of_gguf(write(tmp_path / "model.gguf", kind="t5"))
    header = read_header(write(tmp_path / "model.gguf"))[1]
    for part, count in (("tokens", 0), ("token_type", 263)):
        with pytest.raises(ValueError, match=f"a tokenizer of 'gpt2' with 'smollm' and {count} w"):
            read_tokenizer(tmp_path / "model.gguf", header | {f"tokenizer.ggml.{part}": 5})
    with pytest.raises(ValueError, match="a vocabulary that is broken"):
        of_gguf(write(tmp_path / "model.gguf", merges=["x unknown"]))
    with pytest.raises(ValueError, match="tokenizer: got no file .*tokenizer.json"):
        read_tokenizer(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="json, which is broken .*expected a tokenizer.json"):
        read_tokenizer(tmp_path, {})
