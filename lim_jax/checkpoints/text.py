"""What a publisher's files say of texts: the tokenizer, the chat template, the ends of answers."""

import codecs
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import lazy_loader
import numpy as np
from jaxtyping import Array, Int

from lim_jax._argument_error import Refusal
from lim_jax._checks import as_int, require, require_extra, require_indices, require_kind
from lim_jax._files import decoded
from lim_jax.checkpoints.checkpoint import absent, json_object
from lim_jax.checkpoints.gguf_header import is_gguf, words_of
from lim_jax.checkpoints.gguf_tokenizer import CURE, NO_TOKEN, special_id, tokenizer_of_header

tokenizers: Any = lazy_loader.load("tokenizers")  # of the extra; the rest does without
FILE = "tokenizer.json"
CONFIGS = "generation_config.json", "config.json"
TEMPLATE = "chat_template.jinja"
OPTIONS = "tokenizer_config.json"
PROCESSORS_TEMPLATE = "chat_template.json"
MARKS_FILE = "special_tokens_map.json"
TEMPLATE_KEY = "chat_template"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LARGEST_ID = 2**32 - 1  # of the package tokenizers
# Marks as templates call them, by their names in GGUF.
MARKS = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
CURE_OF_CHATS = "Take the instructed kind of the model, or ask by a prompt without a chat."
Header = Mapping[str, Any]  # of a GGUF file, as `gguf_header.read_header` returns it; else empty


class ChatTemplate(NamedTuple):
    """How a model's publisher lays chats out."""

    source: str  # in Jinja's language
    marks: Mapping[str, str]  # the tokens that it may spell, by name, such as bos_token


def read_tokenizer(path: Path, header: Header) -> Any:
    """Return the `tokenizers.Tokenizer` of a folder, or of a GGUF file with its header."""
    # A folder's is its ``tokenizer.json``. A GGUF file's is the one beside it, if there is one, or
    # made of the file's own vocabulary.
    require_extra("tokenizers", "models")
    gguf = is_gguf(path)
    file = (path.parent if gguf else path) / FILE
    if gguf and not file.is_file():
        return tokenizer_of_header(path.name, header)
    require(
        file.is_file(),
        "tokenizer",
        got=f"{absent(file)} in {file.parent}",
        expected=f"the publisher's {FILE}",
        cure=CURE,
    )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing narrower
        raise Refusal(
            f"tokenizer: got {file}, which is broken ({error}), expected a {FILE}. {CURE}"
        ) from error
    # A publisher's own length is for its batches: here nothing is truncated or padded unasked.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def texts_of_ids(ids: Int[Array | np.ndarray, " ids"], tokenizer: Any = None) -> list[str]:
    """Return the text of each id, which joined are the text of all.

    If several ids make one letter, the last has it and the others are empty. An id that is no word
    of the tokenizer has no text: vocabularies of networks are often padded.

    Parameters
    ----------
    ids
        The ids, along one axis.
    tokenizer
        The model's own, of the package tokenizers (`LanguageModel.tokenizer`); None if ids are
        bytes of UTF-8.

    Returns
    -------
    list of str
        A text for each id. Bytes that are no UTF-8, such as the first of a letter whose last is
        missing, are shown by its replacement character.

    Raises
    ------
    ModuleNotFoundError
        If there is a tokenizer, and the extra ``models`` is not installed.
    ValueError
        If `ids` is no array of whole numbers, or one is negative or without a tokenizer no byte.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> texts_of_ids(jnp.array(list("né".encode())))
    ['n', '', 'é']
    """
    require_indices(ids, "ids")
    limit = 256 if tokenizer is None else LARGEST_ID + 1
    outside = [number for number in np.unique(ids).tolist() if not 0 <= number < limit]
    expected = "bytes, 0 to 255"
    cure = "Pass the model's own tokenizer: LanguageModel.tokenizer."
    if tokenizer is not None:
        expected = "numbers of words, from zero"
        cure = "Cut off what only fills rows up."
    require(not outside, "ids", got=f"{outside}", expected=expected, cure=cure)
    if tokenizer is None:
        return _texts_of_bytes(ids.tolist())
    require_extra("tokenizers", "models")
    require_kind(tokenizer, tokenizers.Tokenizer, "tokenizer", "Take it from models.LanguageModel.")
    return _texts_of_words(ids.tolist(), tokenizer)


def _texts_of_bytes(ids: list[int]) -> list[str]:
    """Return the text that each byte ends; the last one shows a letter that is cut off."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(bytes([byte])) for byte in ids]
    texts[-1] += decoder.decode(b"", final=True)
    return texts


def _texts_of_words(ids: list[int], tokenizer: Any) -> list[str]:
    """Return the text that each word of a tokenizer ends; the last one shows a letter cut off."""
    stream = tokenizers.decoders.DecodeStream(skip_special_tokens=False)
    texts = [stream.step(tokenizer, number) or "" for number in ids]
    # The stream keeps the bytes of a letter whose last is missing, and gives no text for them.
    num_silent = len(list(takewhile(lambda text: not text, reversed(texts))))
    kept = tokenizer.decode(ids[len(ids) - num_silent :], skip_special_tokens=False)
    if kept.endswith(REPLACEMENT):
        texts[-1] += kept
    return texts


def end_ids(path: Path, header: Header) -> tuple[int, ...]:
    """Return the ids that end an answer, by the publisher's files; none if these name none."""
    if is_gguf(path):  # which has ends of a text, of a turn and of a message
        named = [header.get(f"tokenizer.ggml.{part}_token_id") for part in ("eos", "eot", "eom")]
        ids = [number for number in named if number not in NO_TOKEN]
    else:
        ids = _stated_end_ids(path)
    numbers = [
        as_int(number, "eos_token_id", least=0, cure="Download the publisher's files again.")
        for number in ids
        if number is not None
    ]
    return tuple(dict.fromkeys(numbers))


def _stated_end_ids(folder: Path) -> Sequence[Any]:
    """Return ``eos_token_id`` of a folder's generation_config.json, or else of its config.json."""
    files = [folder / name for name in CONFIGS if (folder / name).is_file()]
    if not files:
        files = [folder / CONFIGS[1]]  # which is refused, as it is missing
    configs = [json_object(file) for file in files]
    texts = [config.get("text_config") for config in configs]
    for config in (*configs, *texts):
        ids = config.get("eos_token_id") if isinstance(config, dict) else None
        if ids is not None:
            return ids if isinstance(ids, list | tuple) else [ids]
    return ()


def find_chat_template(path: Path, header: Header) -> ChatTemplate | None:
    """Return the chat template of a folder or of a GGUF file with its header, or None."""
    template = header.get(f"tokenizer.{TEMPLATE_KEY}")
    if not isinstance(template, str):
        return _template_of_folder(path.parent if is_gguf(path) else path)
    words = words_of(header)
    ids = {f"{mark}_token": special_id(header, name) for name, mark in MARKS.items()}
    marks = {name: words[index] for name, index in ids.items() if index is not None}
    return ChatTemplate(template, marks)


def _template_of_folder(folder: Path) -> ChatTemplate | None:
    """Return the chat template of a folder, or None."""
    # It is the ``chat_template.jinja``, else the ``chat_template`` of ``tokenizer_config.json``, of
    # several the one named ``default``, else that of the ``chat_template.json`` of a processor.
    options = _json_object_or_empty(folder / OPTIONS)
    source = _stated_template(options)
    if source is None:  # as in older files of processors
        source = _stated_template(_json_object_or_empty(folder / PROCESSORS_TEMPLATE))
    if (folder / TEMPLATE).is_file():
        source = decoded((folder / TEMPLATE).read_bytes(), folder / TEMPLATE, "chat template")
    if not isinstance(source, str):
        return None
    # The options go first; older ones leave marks to the map. A mark's own word may stand in an
    # object with how it is read.
    stated = _json_object_or_empty(folder / MARKS_FILE) | options
    tokens = {name: token for name, token in stated.items() if name.endswith("_token")}
    words = {
        name: token.get("content") if isinstance(token, dict) else token
        for name, token in tokens.items()
    }
    return ChatTemplate(source, {n: word for n, word in words.items() if isinstance(word, str)})


def _json_object_or_empty(file: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds, which is empty if there is no file."""
    return json_object(file) if file.is_file() else {}


def _stated_template(options: Mapping[str, Any]) -> Any:
    """Return the template that a file's options state, of several the default; None without."""
    stated = options.get(TEMPLATE_KEY)
    if not isinstance(stated, list):
        return stated
    named = [one for one in stated if isinstance(one, dict) and one.get("name") == "default"]
    return named[0].get("template") if named else None
