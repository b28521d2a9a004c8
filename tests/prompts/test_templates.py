"""Where a publisher keeps the template of chats: in a folder, in a GGUF file, in both."""

import json

import gguf
import pytest
from reference.chats import CHATML, USER, WEATHER

from lim_jax.checkpoints.gguf_header import read_header
from lim_jax.checkpoints.text import ChatTemplate, find_chat_template
from lim_jax.prompts.prompt_files import read_lines


def options(folder, **entries):
    (folder / "tokenizer_config.json").write_text(json.dumps(entries), encoding="utf-8")


def template_of(path, header=None):
    template = find_chat_template(path, header or {})
    assert template is not None
    return template


def test_a_folders_template_and_its_marks(tmp_path):
    other = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    marks = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
        "model_max_length": 3,
    }
    options(tmp_path, chat_template="own", **marks)
    template = template_of(tmp_path)
    assert template.source == "own" and template.marks == {"bos_token": "<s>", "eos_token": "</s>"}
    options(tmp_path, chat_template=other, **marks)
    assert template_of(tmp_path).source == "yes"
    (tmp_path / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    template = template_of(tmp_path)
    assert template.source == CHATML and template.marks["bos_token"] == "<s>"


def test_a_processors_own_file_has_the_template_that_the_options_do_not_state(tmp_path):
    """Older files of models that see images have it in ``chat_template.json`` alone."""
    (tmp_path / "chat_template.json").write_text(
        json.dumps({"chat_template": "a processor's"}), encoding="utf-8"
    )
    assert template_of(tmp_path).source == "a processor's"
    options(tmp_path, bos_token="<s>")
    template = template_of(tmp_path)
    assert template.source == "a processor's" and template.marks == {"bos_token": "<s>"}
    options(tmp_path, chat_template="own")
    assert template_of(tmp_path).source == "own"


def test_marks_that_the_options_do_not_state_are_those_of_the_map(tmp_path):
    """As in folders of before the options had them: ``special_tokens_map.json``."""
    options(tmp_path, chat_template="own", eos_token="</s>", pad_token=None)
    words = {"bos_token": {"content": "<s>"}, "eos_token": "<other>", "pad_token": "<pad>"}
    more = {"additional_special_tokens": ["<a>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(words | more), encoding="utf-8")
    assert template_of(tmp_path).marks == {"bos_token": "<s>", "eos_token": "</s>"}


def write(file, template=None):
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<end>", "<start>", "a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


def with_header(file):
    return file, read_header(file)[1]


def test_a_gguf_files_own_template_goes_first(tmp_path):
    template = template_of(*with_header(write(tmp_path / "own.gguf", "own")))
    assert template.source == "own"
    assert template.marks == {"bos_token": "<start>", "eos_token": "<end>"}
    file = write(tmp_path / "none.gguf")
    assert find_chat_template(*with_header(file)) is None
    options(tmp_path, chat_template="the folder's")
    assert template_of(*with_header(file)).source == "the folder's"


def test_marks_of_a_gguf_file_are_called_as_templates_call_them(tmp_path):
    """GGUF calls two of them otherwise (gguf's `Keys.Tokenizer`)."""
    file, header = with_header(write(tmp_path / "own.gguf", "own"))
    keys = gguf.Keys.Tokenizer
    template = template_of(file, header | {keys.UNK_ID: 1, keys.PAD_ID: 0})
    words = header[keys.LIST]
    assert template.marks["unk_token"] == words[1] and template.marks["pad_token"] == words[0]


@pytest.mark.parametrize("number", [3, -1, 2**32 - 1, "1"])
def test_a_mark_that_is_no_word_of_the_file_is_left_out(tmp_path, number):
    file, header = with_header(write(tmp_path / "own.gguf", "own"))
    template = template_of(file, header | {"tokenizer.ggml.bos_token_id": number})
    assert template.marks == {"eos_token": "<end>"}
    assert template_of(file, header | {"tokenizer.ggml.tokens": 5}).marks == {}


def test_a_template_that_is_broken_is_told_of(tmp_path):
    for entries in ({}, {"chat_template": [{"name": "tool_use", "template": "no"}]}):
        options(tmp_path, **entries)
        assert find_chat_template(tmp_path, {}) is None
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer_config.json: got no JSON"):
        find_chat_template(tmp_path, {})
    options(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"a\xff")
    with pytest.raises(
        ValueError, match="chat template: got .*jinja, whose byte 2 is not of UTF-8"
    ):
        find_chat_template(tmp_path, {})


def test_lines_of_messages(tmp_path):
    data = tmp_path / "chats.jsonl"
    data.write_text(
        json.dumps({"messages": [USER], "documents": [{"text": "One."}]}), encoding="utf-8"
    )
    with pytest.raises(ValueError, match="line 1: got messages of a chat, and a model without a"):
        read_lines(data)
    template = ChatTemplate(CHATML, {})
    (line,) = read_lines(data, template)
    assert "<|im_start|>user\nOne.\n\nuser <|im_end|>" in line.prompt.text
    data.write_text(json.dumps({"messages": [USER], "tools": [WEATHER]}), encoding="utf-8")
    assert read_lines(data, template)[0].tools == (WEATHER,)
    data.write_text('{"text": "a"}\n{"messages": [{"role": "user"}]}', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2, messages, message 1: got {'role': 'user'}, exp"):
        read_lines(data, template)
