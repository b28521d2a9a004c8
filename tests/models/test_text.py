"""Tokenizers of folders and of GGUF files, against the publisher's own format."""

import json

import gguf
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from lim_jax.models.gguf_header import read_header
from lim_jax.models.text import read_tokenizer

MERGES = ["t h", "th e", "Ġ the", "a n", "Ġ a", "1 9"]
WORDS = ["<|end|>", *sorted(ByteLevel.alphabet()), "th", "the", "Ġthe", "an", "Ġa", "19"]
CONTROL = gguf.TokenType.CONTROL
TEXTS = ["the an", "  then 1999", "a café <|end|>\n\tthe", "", "日本 the"]


def write(file, cut="smollm", kind="gpt2", words=WORDS):
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(words)
    writer.add_token_types([CONTROL, *[gguf.TokenType.NORMAL] * (len(words) - 1)])
    writer.add_token_merges(MERGES)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


def published(folder, cut):
    """The same as a publisher's tokenizer.json, spelt by hand."""
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                "use_regex": True}  # fmt: skip
    cuts = {"gpt-2": [], "smollm": [{"type": "Digits", "individual_digits": True}]}
    end = {"id": 0, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}  # fmt: skip
    model = {"type": "BPE", "vocab": {word: i for i, word in enumerate(WORDS)},
             "merges": [merge.split() for merge in MERGES]}  # fmt: skip
    whole = {
        "version": "1.0", "added_tokens": [end], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts[cut], bytewise]},
        "decoder": bytewise, "model": model,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    return folder


def of_gguf(file):
    return read_tokenizer(file, read_header(file)[1])


@pytest.mark.parametrize("cut", ["gpt-2", "smollm"])
def test_a_files_own_vocabulary_reads_as_the_publishers(tmp_path, cut):
    made = of_gguf(write(tmp_path / "model.gguf", cut))
    expected = read_tokenizer(published(tmp_path / "folder", cut), {})
    for text in TEXTS:
        ours, theirs = made.encode(text), expected.encode(text)
        assert ours.tokens == theirs.tokens and ours.offsets == theirs.offsets
        assert made.decode(ours.ids, skip_special_tokens=False) == text
        assert ours.ids == theirs.ids
    assert ("19" in made.encode("1999").tokens) == (cut == "gpt-2")


def test_a_tokenizer_beside_a_file_goes_first(tmp_path):
    published(tmp_path, "gpt-2")
    made = of_gguf(write(tmp_path / "model.gguf", "smollm"))
    assert made.encode("1999").tokens == ["19", "9", "9"]


def test_a_publishers_own_length_neither_cuts_nor_fills_up(tmp_path):
    file = published(tmp_path, "gpt-2") / "tokenizer.json"
    kept = json.loads(file.read_text()) | {
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst",
                       "stride": 0},
        "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "<|end|>"},
    }  # fmt: skip
    file.write_text(json.dumps(kept))
    found = read_tokenizer(tmp_path, {})
    assert found.encode("the an the an").tokens == ["the", "Ġ", "an", "Ġthe", "Ġ", "an"]
    assert found.encode("the").tokens == ["the"]


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a tokenizer of 'gpt2' with 'tekken', expected gpt2 with"):
        of_gguf(write(tmp_path / "model.gguf", "tekken"))
    with pytest.raises(ValueError, match="a tokenizer of 'llama' with 'smollm'"):
        of_gguf(write(tmp_path / "model.gguf", kind="llama"))
    with pytest.raises(ValueError, match="tokenizer: got no file .*tokenizer.json"):
        read_tokenizer(tmp_path, {})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="json, which is broken .*expected a tokenizer.json"):
        read_tokenizer(tmp_path, {})
