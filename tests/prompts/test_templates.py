"""Where a publisher keeps the template of chats: in a folder, in a GGUF file, in both."""

import json

import gguf
import pytest
from reference.chats import CHATML, USER, WEATHER

from lim_jax.prompts import read_chat_template
from lim_jax.prompts.reading import read_lines


def options(folder, **entries):
    (folder / "tokenizer_config.json").write_text(json.dumps(entries))


def test_a_folders_template_and_its_marks(tmp_path):
    other = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    marks = {
        "bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None,
        "model_max_length": 3,
    }  # fmt: skip
    options(tmp_path, chat_template="own", **marks)
    found = read_chat_template(tmp_path)
    assert found.source == "own" and found.marks == {"bos_token": "<s>", "eos_token": "</s>"}
    options(tmp_path, chat_template=other, **marks)
    assert read_chat_template(tmp_path).source == "yes"
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    found = read_chat_template(tmp_path)
    assert found.source == CHATML and found.marks["bos_token"] == "<s>"


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


def test_a_gguf_files_own_template_goes_first(tmp_path):
    found = read_chat_template(write(tmp_path / "own.gguf", "own"))
    assert found.source == "own"
    assert found.marks == {"bos_token": "<start>", "eos_token": "<end>"}
    file = write(tmp_path / "none.gguf")
    with pytest.raises(ValueError, match="chat template: got none of .*none.gguf, expected chat"):
        read_chat_template(file)
    options(tmp_path, chat_template="the folder's")
    assert read_chat_template(file).source == "the folder's"


def test_a_model_without_a_template_is_told_of(tmp_path):
    for entries in ({}, {"chat_template": [{"name": "tool_use", "template": "no"}]}):
        options(tmp_path, **entries)
        with pytest.raises(ValueError, match="chat template: got none of .*Take the instructed"):
            read_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="chat template: got .*config.json, which is broken"):
        read_chat_template(tmp_path)
    options(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"a\xff")
    with pytest.raises(
        ValueError, match="chat template: got .*jinja, whose byte 1 is not of UTF-8"
    ):
        read_chat_template(tmp_path)


def test_lines_of_messages(tmp_path):
    data = tmp_path / "chats.jsonl"
    data.write_text(json.dumps({"messages": [USER], "documents": [{"text": "One."}]}))
    with pytest.raises(ValueError, match="line 1: got messages, expected a model too"):
        read_lines(data)
    with pytest.raises(ValueError, match="chat template: got none of"):
        read_lines(data, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    (line,) = read_lines(data, tmp_path)
    assert "<|im_start|>user\nOne.\n\nuser <|im_end|>" in line.laid.text
    data.write_text(json.dumps({"messages": [USER], "tools": [WEATHER]}))
    assert read_lines(data, tmp_path)[0].tools == (WEATHER,)
    data.write_text('{"text": "a"}\n{"messages": [{"role": "user"}]}')
    with pytest.raises(ValueError, match="line 2, messages, message 1: got {'role': 'user'}, exp"):
        read_lines(data, tmp_path)
