"""From text to ids, by the tokenizer that a publisher left beside the weights or among them."""

import codecs
from pathlib import Path
from typing import Any

import jax
import lazy_loader
import numpy as np
from jaxtyping import Array, Int

from lim_jax._checks import (
    AnyPath,
    counted,
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
SAID = "generation_config.json", "config.json"
CONTROL = 3  # GGUF's kind of a token that no text spells
CURE = f"Put the publisher's {FILE} beside the weights."


def read_tokenizer(path: AnyPath) -> Any:
    """The `tokenizers.Tokenizer` of a model: of a folder, a GGUF file, or a file by itself.

    A folder's is its ``tokenizer.json``. A GGUF file's is the one beside it, if there is one, else
    made of its own vocabulary and merges, where these are bytes' as GPT-2's or SmolLM's. Names are
    looked for as `models.load` does.

    Raises
    ------
    ModuleNotFoundError
        Without the package tokenizers, of the extra ``models``.
    ValueError
        Where there is none, or none that is known.
    """
    require_extra("tokenizers", "models")
    path = model_path(path)
    require(
        path.exists() or path.suffix == ".json",
        "model",
        got=f"{path}, which is not there",
        expected=EXPECTED,
        cure="Look at the path, or pass a public name with --download.",
    )
    file = path / FILE if path.is_dir() else path
    if file.suffix == ".gguf":
        if not (file.parent / FILE).is_file():
            return _of_gguf(file)
        file = file.parent / FILE
    require(
        file.is_file(),
        "tokenizer",
        got=f"no file {file}",
        expected=f"the publisher's {FILE}",
        cure="It belongs beside the weights.",
    )
    try:
        found = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing narrower
        raise Refusal(
            f"tokenizer: got {file}, which is broken ({error}), expected a {FILE}. {CURE}"
        ) from error
    # A publisher's own length is for its batches: here nothing is cut or filled up unasked.
    found.no_truncation()
    found.no_padding()
    return found


def ids_of_text(text: str, path: AnyPath) -> Int[Array, " ids"]:
    """The ids of a text by the tokenizer of a model, as `read_tokenizer` finds it.

    Raises
    ------
    ValueError
        Where there is no such tokenizer.
    """
    return jax.device_put(np.asarray(read_tokenizer(path).encode(text).ids, np.int32))


def texts_of_ids(ids: Int[Array | np.ndarray, " ids"], tokenizer: Any = None) -> list[str]:
    """The text of each id: joined they are that of all.

    Where several ids make one letter, the last has it and the others have none.

    Parameters
    ----------
    ids
        Of a text, or of a part of one.
    tokenizer
        The model's own, of the package tokenizers; None where ids are bytes of UTF-8.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> texts_of_ids(jnp.array(list("né".encode())))
    ['n', '', 'é']
    """
    require_indices(ids, "ids")
    if tokenizer is None:
        outside = [one for one in np.unique(ids).tolist() if not 0 <= one < 256]
        cure = "Pass the model's own tokenizer, read_tokenizer(path)."
        require(not outside, "ids", got=f"{outside}", expected="bytes, 0 to 255", cure=cure)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return [decoder.decode(bytes([one])) for one in ids.tolist()]
    require_extra("tokenizers", "models")
    require_kind(tokenizer, tokenizers.Tokenizer, "tokenizer", "Take it from read_tokenizer.")
    stream = tokenizers.decoders.DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, one) or "" for one in ids.tolist()]


def end_ids(path: AnyPath) -> tuple[int, ...]:
    """The ids that end what a model says, as its publisher has it; none where nothing is said.

    Of a folder ``eos_token_id`` in ``generation_config.json``, or else in ``config.json``; of a
    GGUF file the ends of a text, of a turn and of a message.

    Raises
    ------
    ModuleNotFoundError
        Of a GGUF file, without the package gguf, of the extra ``models``.
    ValueError
        Where a file is broken or missing, or says something else than whole numbers.
    """
    path = model_path(path)
    if path.suffix == ".gguf":
        _, options = opened_gguf(path)
        said = [options.get(f"tokenizer.ggml.{part}_token_id") for part in ("eos", "eot", "eom")]
    else:
        files = [file for name in SAID if (file := path / name).is_file()] or [path / SAID[1]]
        options = [json_object(file) for file in files]
        options += [one["text_config"] for one in options if "text_config" in one]
        said = next((ids for one in options if (ids := one.get("eos_token_id")) is not None), ())
        said = said if isinstance(said, list | tuple) else [said]
    cure = "Download the publisher's files again."
    known = dict.fromkeys(one for one in said if one is not None)
    return tuple(counted(one, "eos_token_id", least=0, cure=cure) for one in known)


def _of_gguf(file: Path) -> Any:
    """Byte-level pairs, by the vocabulary and the merges that llama.cpp keeps."""
    _, options = opened_gguf(file)
    words, kinds, merges = (
        options.get(f"tokenizer.ggml.{part}", []) for part in ("tokens", "token_type", "merges")
    )
    kind, cut = (str(options.get(f"tokenizer.ggml.{part}")) for part in ("model", "pre"))
    bytewise = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    cuts = {"gpt-2": [bytewise], "smollm": [digits, bytewise]}
    require(
        kind == "gpt2" and cut in cuts and len(words) > 0,
        file.name,
        got=f"a tokenizer of {kind!r} with {cut!r}",
        expected=f"gpt2 with {' or '.join(cuts)}",
        cure=CURE,
    )
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {word: index for index, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(cuts[cut])
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(
        [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL]
    )
    return made
