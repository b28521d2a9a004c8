"""The tokenizer that a publisher left beside the weights or among them, and what its ids say."""

import codecs
from pathlib import Path
from typing import Any

import lazy_loader
import numpy as np
from jaxtyping import Array, Int

from lim_jax._checks import (
    AnyPath,
    as_int,
    require,
    require_extra,
    require_indices,
    require_kind,
)
from lim_jax._refusal import Refusal
from lim_jax.models.checkpoint import json_object
from lim_jax.models.gguf_file import opened_gguf
from lim_jax.models.hub import EXPECTED, model_path

tokenizers: Any = lazy_loader.load("tokenizers")  # of the extra; the rest does without
FILE = "tokenizer.json"
CONFIGS = "generation_config.json", "config.json"
CONTROL = 3  # GGUF's type of a control token, which no text spells
CURE = f"Put the publisher's {FILE} beside the weights."


def read_tokenizer(path: AnyPath) -> Any:
    """The `tokenizers.Tokenizer` of a model: of a folder, a GGUF file, or a file by itself.

    A folder's is its ``tokenizer.json``. A GGUF file's is the one beside it, if there is one, else
    it is made of the file's own vocabulary and merges, if these are of bytes as GPT-2's or
    SmolLM's. Public names are looked up as by `models.load`.

    Raises
    ------
    ModuleNotFoundError
        Without the package tokenizers, of the extra ``models``.
    ValueError
        If there is no tokenizer, or one of another kind.
    """
    require_extra("tokenizers", "models")
    path = model_path(path)
    there = path.exists() or path.suffix == ".json"
    cure = "Look at the path, or pass a public name with --download."
    require(there, "model", got=f"{path}, which is not there", expected=EXPECTED, cure=cure)
    file = path / FILE if path.is_dir() else path
    if file.suffix == ".gguf":
        if not (file.parent / FILE).is_file():
            return _of_gguf(file)
        file = file.parent / FILE
    expected = f"the publisher's {FILE}"
    require(file.is_file(), "tokenizer", got=f"no file {file}", expected=expected, cure=CURE)
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
    """The text of each id, which joined are the text of all.

    If several ids make one letter, the last has it and the others are empty.

    Parameters
    ----------
    ids
        Of a text, or of a part of one.
    tokenizer
        The model's own, of the package tokenizers; None if ids are bytes of UTF-8.

    Raises
    ------
    ValueError
        If `ids` is no array of whole numbers, or without a tokenizer one is no byte.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> texts_of_ids(jnp.array(list("né".encode())))
    ['n', '', 'é']
    """
    require_indices(ids, "ids")
    if tokenizer is None:
        outside = [number for number in np.unique(ids).tolist() if not 0 <= number < 256]
        cure = "Pass the model's own tokenizer, read_tokenizer(path)."
        require(not outside, "ids", got=f"{outside}", expected="bytes, 0 to 255", cure=cure)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return [decoder.decode(bytes([byte])) for byte in ids.tolist()]
    require_extra("tokenizers", "models")
    require_kind(tokenizer, tokenizers.Tokenizer, "tokenizer", "Take it from read_tokenizer.")
    stream = tokenizers.decoders.DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, number) or "" for number in ids.tolist()]


def end_ids(path: AnyPath) -> tuple[int, ...]:
    """The ids that end what a model says, by its publisher's files; none if these name none.

    In a folder ``eos_token_id`` of ``generation_config.json``, or else of ``config.json``; in a
    GGUF file the ends of a text, of a turn and of a message.

    Raises
    ------
    ModuleNotFoundError
        Of a GGUF file, without the package gguf, of the extra ``models``.
    ValueError
        If a file is broken or missing, or an id in it is no whole number.
    """
    path = model_path(path)
    if path.suffix == ".gguf":
        _, options = opened_gguf(path)
        ids = [options.get(f"tokenizer.ggml.{part}_token_id") for part in ("eos", "eot", "eom")]
    else:
        files = [file for name in CONFIGS if (file := path / name).is_file()] or [path / CONFIGS[1]]
        configs = [json_object(file) for file in files]
        configs += [config["text_config"] for config in configs if "text_config" in config]
        stated = (config.get("eos_token_id") for config in configs)
        ids = next((value for value in stated if value is not None), ())
        ids = ids if isinstance(ids, list | tuple) else [ids]
    cure = "Download the publisher's files again."
    distinct = dict.fromkeys(number for number in ids if number is not None)
    return tuple(as_int(number, "eos_token_id", least=0, cure=cure) for number in distinct)


def _of_gguf(file: Path) -> Any:
    """Byte-level pair encoding by the vocabulary and the merges in a file of llama.cpp."""
    _, options = opened_gguf(file)
    words, kinds, merges = (
        options.get(f"tokenizer.ggml.{part}", []) for part in ("tokens", "token_type", "merges")
    )
    kind, cut = (str(options.get(f"tokenizer.ggml.{part}")) for part in ("model", "pre"))
    bytewise = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    cuts = {"gpt-2": [bytewise], "smollm": [digits, bytewise]}
    known, expected = kind == "gpt2" and cut in cuts, f"gpt2 with {' or '.join(cuts)}"
    got = f"a tokenizer of {kind!r} with {cut!r}"
    require(known and len(words) > 0, file.name, got=got, expected=expected, cure=CURE)
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(cuts[cut])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL]
    )
    return tokenizer
