"""The template by which a model's publisher lays chats out, and texts made by it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lim_jax._checks import AnyPath, require, require_extra
from lim_jax._files import decoded
from lim_jax._refusal import Refusal
from lim_jax.models.gguf_file import opened_gguf
from lim_jax.models.hub import model_path

PROGRAM = Path(__file__).with_name("sandbox.py")
FILE, OPTIONS, KEY = "chat_template.jinja", "tokenizer_config.json", "chat_template"
MARKS = ("bos", "eos", "unk", "pad")
SECONDS = 30.0  # until a process is ended whose own clock did not end it
CURE = "Take the instructed kind of the model, or ask by a prompt without a chat."


class ChatTemplate(NamedTuple):
    """How a model's publisher lays chats out."""

    source: str  # in Jinja's language
    marks: Mapping[str, str]  # the tokens that it may spell, by name, such as bos_token


def read_chat_template(model: AnyPath) -> ChatTemplate:
    """The template of a folder of weights, or of a GGUF file.

    A folder's is its ``chat_template.jinja``, else the ``chat_template`` of its
    ``tokenizer_config.json``, of several the one named ``default``. A GGUF file's is its own
    ``tokenizer.chat_template``, else that of its folder.

    Parameters
    ----------
    model
        As in `models.load`.

    Raises
    ------
    ValueError
        Where the model has no template, or the file that should hold it is broken.
    """
    template = find_chat_template(model)
    if template is None:
        raise Refusal(
            f"chat template: got none of {model_path(model)}, expected {FILE}, or a {KEY} in "
            f"{OPTIONS}. {CURE}"
        )
    return template


def find_chat_template(model: AnyPath) -> ChatTemplate | None:
    """The template as `read_chat_template` finds it, or None where a model has none."""
    path = model_path(model)
    if path.suffix == ".gguf" and (template := _of_gguf(path)) is not None:
        return template
    folder = path if path.is_dir() else path.parent
    options = _options(folder / OPTIONS)
    source = options.get(KEY)
    if isinstance(source, list):
        named = [one for one in source if isinstance(one, dict) and one.get("name") == "default"]
        source = named[0].get("template") if named else None
    if (folder / FILE).is_file():
        source = decoded((folder / FILE).read_bytes(), folder / FILE, "chat template")
    if not isinstance(source, str):
        return None
    words = {name: _word(token) for name, token in options.items() if name.endswith("_token")}
    return ChatTemplate(source, {name: word for name, word in words.items() if word is not None})


def _of_gguf(file: Path) -> ChatTemplate | None:
    _, options = opened_gguf(file)
    source = options.get(f"tokenizer.{KEY}")
    if not isinstance(source, str):
        return None
    words = options.get("tokenizer.ggml.tokens", [])
    ids = {f"{name}_token": options.get(f"tokenizer.ggml.{name}_token_id") for name in MARKS}
    known = {name: n for name, n in ids.items() if n is not None and n < len(words)}
    return ChatTemplate(source, {name: words[n] for name, n in known.items()})


def _options(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise Refusal(
            f"chat template: got {file}, which is broken ({error}), expected a JSON object. {CURE}"
        ) from error


def _word(token: Any) -> str | None:
    """A mark's own word, which may stand in an object with how it is read."""
    word = token.get("content") if isinstance(token, dict) else token
    return word if isinstance(word, str) else None


def rendered(template: ChatTemplate, chats: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Run a template on the variables of each chat: ``{"text": ...}`` or ``{"error": ...}`` each.

    A template runs in a process of its own, which may take a second of processor time for each
    chat and half a GiB of memory, and in Jinja's sandbox, where it reaches nothing but what it is
    given.

    Examples
    --------
    >>> template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}:", {"bos_token": "<s>"})
    >>> rendered(template, [{"messages": [{"role": "user", "content": "hi"}]}])
    [{'text': '<s>hi:'}]
    """
    require_extra("jinja2", "models")
    given = {"tools": None, "documents": None, "add_generation_prompt": True, **template.marks}
    asked = {"template": template.source, "chats": [{**given, **chat} for chat in chats]}
    # The process finds Jinja where this one does.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", str(PROGRAM)]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), env=environment, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        status = done.returncode
    except subprocess.TimeoutExpired:
        done, status = None, -1
    require(
        status == 0, "chat template", expected="one that lays a chat out",
        got="one that does not end within its second" if status < 0 else "one that breaks Jinja",
        cure="Do not trust it: take the publisher's own.",
    )  # fmt: skip
    assert done is not None
    return json.loads(done.stdout)
