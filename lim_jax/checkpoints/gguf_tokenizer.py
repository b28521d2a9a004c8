"""Tokenizers of GGUF files, of their vocabularies and what llama.cpp knows of each kind.

The expressions by which a text is cut are those of the publishers' own ``tokenizer.json``, which
stand beside llama.cpp's in its ``src/llama-vocab.cpp``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lazy_loader

from lim_jax._argument_error import Refusal
from lim_jax._checks import described, require
from lim_jax.checkpoints.gguf_header import words_of

tokenizers: Any = lazy_loader.load("tokenizers")  # of the extra; the rest does without
CURE = "Put the publisher's tokenizer.json beside the weights."
# GGUF's types of words; no text spells a control token.
NORMAL = 1
CONTROL = 3
DEFINED = 4
NO_TOKEN = None, -1, 2**32 - 1  # llama.cpp's -1, also as a number without a sign
SPACE = "▁"  # as SentencePiece spells it

CONTRACTED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
AT_THE_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (
    rf"{CONTRACTED}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{AT_THE_END}"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN2.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
SEED = QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+")
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
NO_HAN = r"&&[^\p{Han}]]"


def _by_case(upper: str, lower: str, contracted: str) -> str:
    """Return an expression for capitals and then small letters, with a contraction behind."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{contracted}|{before}{upper}+{lower}*{contracted}"


TEKKEN = _by_case(UPPER, LOWER, "") + r"|\p{N}" + OTHERS + AT_THE_END
GPT4O = _by_case(UPPER, LOWER, f"{CONTRACTED}?") + r"|\p{N}{1,3}" + OTHERS + AT_THE_END
KIMI = (
    rf"[\p{{Han}}]+|{_by_case(UPPER[:-1] + NO_HAN, LOWER[:-1] + NO_HAN, CONTRACTED + '?')}"
    rf"|\p{{N}}{{1,3}}{OTHERS.replace('/', '')}{AT_THE_END}"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*{AT_THE_END}",
)
# Letters with a case, as DeepSeek lists them.
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    "Ὀ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴ"
    "ℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
HAN = "[一-龥ࠀ-一가-퟿]+"
DEEPSEEK = (
    r"[\r\n]", rf"\s?[{CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", HAN, r"\p{N}+",
)  # fmt: skip
CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}")


class Cut(NamedTuple):
    """How texts are cut before pairs are merged."""

    expressions: tuple[str, ...]  # whose finds stand by themselves, one after the other
    bytewise: bool = False  # whether words are cut as GPT-2's besides
    composed: bool = False  # whether letters and their marks are composed before
    whole_words: bool = False  # whether words of the vocabulary need no pairs
    begins: bool = False  # whether texts begin with a mark, if a file does not say


GPT2 = Cut((), bytewise=True)
DIGITS = Cut((r"\p{N}",), bytewise=True)
OF_LLAMA3 = Cut((LLAMA3,), whole_words=True, begins=True)
CUTS: Mapping[str, Cut] = {
    "gpt-2": GPT2, "phi-2": GPT2, "exaone4": GPT2, "trillion": GPT2, "granite-docling": GPT2,
    "mpt": GPT2._replace(composed=True), "olmo": GPT2._replace(composed=True),
    "smollm": DIGITS, "starcoder": DIGITS, "refact": DIGITS, "codeshell": DIGITS, "exaone": DIGITS,
    "minerva-7b": DIGITS, "command-r": DIGITS._replace(composed=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"), OF_LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Cut((LLAMA3,))),
    "qwen2": Cut((QWEN2,), composed=True), "qwen35": Cut((QWEN35,), composed=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "hunyuan", "stablelm2"), Cut((QWEN2,))),
    "tekken": Cut((TEKKEN,), whole_words=True, begins=True), "seed-coder": Cut((SEED,)),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), Cut((GPT4O,))), "kimi-k2": Cut((KIMI,)),
    "deepseek-llm": Cut(DEEPSEEK), "deepseek-coder": Cut(CODER), "deepseek-v3": Cut(DEEPSEEK3),
    "hunyuan-dense": Cut(DEEPSEEK3),
}  # fmt: skip


def tokenizer_of_header(name: str, header: Mapping[str, Any]) -> Any:
    """Return the `tokenizers.Tokenizer` of a file's vocabulary; raise ValueError if not known."""
    words = words_of(header)
    stated = header.get("tokenizer.ggml.token_type")
    kinds = stated if isinstance(stated, list) else []
    kind = str(header.get("tokenizer.ggml.model"))
    cut = str(header.get("tokenizer.ggml.pre"))
    is_supported = kind in ("llama", "gemma4") or (kind == "gpt2" and cut in CUTS)
    require(
        is_supported and len(words) == len(kinds) > 0,
        name,
        got=f"a tokenizer of {kind!r} with {cut!r} and {len(words)} words",
        expected=(
            f"llama, gemma4, or gpt2 with one of the {len(CUTS)} in checkpoints.gguf_tokenizer.CUTS"
        ),
        cure=CURE,
    )
    if kind != "gpt2" and header.get("tokenizer.ggml.unknown_token_id") not in NO_TOKEN:
        _require_word(name, header, "unknown")
    try:
        make = _byte_level_tokenizer if kind == "gpt2" else _sentencepiece_tokenizer
        tokenizer = make({word: index for index, word in enumerate(words)}, header)
    except Exception as error:  # the package raises nothing narrower
        raise Refusal(
            f"{name}: got a vocabulary that is broken ({error}), expected words and their pairs. "
            f"{CURE}"
        ) from error
    _add_words(tokenizer, words, kinds)
    _put_marks(tokenizer, name, header, _begins_with_mark(header, kind, cut))
    return tokenizer


def _add_words(tokenizer: Any, words: Sequence[str], kinds: Sequence[int]) -> None:
    """Add the words that no pairs make: control tokens, and those that publishers defined."""
    pairs = list(zip(words, kinds, strict=True))
    tokenizer.add_special_tokens([word for word, kind in pairs if kind == CONTROL])
    defined = [word for word, kind in pairs if kind == DEFINED]
    tokenizer.add_tokens([tokenizers.AddedToken(word, normalized=False) for word in defined])


def _begins_with_mark(header: Mapping[str, Any], kind: str, cut: str) -> bool:
    """Tell whether texts begin with a mark: as the file says, or else as is usual of its kind."""
    if kind == "gemma4":  # whose publisher leaves the mark to the template of chats
        return False
    usual = kind == "llama" or CUTS[cut].begins
    return bool(header.get("tokenizer.ggml.add_bos_token", usual))


def _put_marks(tokenizer: Any, name: str, header: Mapping[str, Any], begins: bool) -> None:
    """Let the tokenizer put the marks of the beginning and of the end around texts."""
    words = words_of(header)
    ends = header.get("tokenizer.ggml.add_eos_token", False)
    marks = {}
    for part, is_added in (("bos", begins), ("eos", ends)):
        index = header.get(f"tokenizer.ggml.{part}_token_id")
        if is_added and index not in NO_TOKEN:
            _require_word(name, header, part)
            marks[part] = words[index]
    if marks:
        pattern = f"{marks.get('bos', '')} $A {marks.get('eos', '')}".strip()
        numbered = [(word, words.index(word)) for word in dict.fromkeys(marks.values())]
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=pattern, special_tokens=numbered
        )


def special_id(header: Mapping[str, Any], part: str) -> int | None:
    """Return the id of a special token, such as ``bos``; None unless it is a word's of the file."""
    index = header.get(f"tokenizer.ggml.{part}_token_id")
    return index if isinstance(index, int) and 0 <= index < len(words_of(header)) else None


def _require_word(name: str, header: Mapping[str, Any], part: str) -> None:
    """Raise ValueError if a special token that the tokenizer needs is no word of the file."""
    index = header[f"tokenizer.ggml.{part}_token_id"]
    require(
        special_id(header, part) is not None,
        name,
        got=f"{part}_token_id = {described(index)}",
        expected=f"the number of one of the {len(words_of(header))} words",
        cure=CURE,
    )


def _byte_level_tokenizer(words: dict[str, int], header: Mapping[str, Any]) -> Any:
    """Return a byte-level BPE tokenizer, whose words spell bytes as GPT-2's do."""
    cut = CUTS[header["tokenizer.ggml.pre"]]
    cutters = tokenizers.pre_tokenizers
    pairs = [tuple(merge.split(" ", 1)) for merge in header.get("tokenizer.ggml.merges", [])]
    model = tokenizers.models.BPE(words, pairs, ignore_merges=cut.whole_words)
    tokenizer = tokenizers.Tokenizer(model)
    if cut.composed:
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    splits = [cutters.Split(tokenizers.Regex(each), "isolated") for each in cut.expressions]
    as_bytes = cutters.ByteLevel(add_prefix_space=False, use_regex=cut.bytewise)
    tokenizer.pre_tokenizer = cutters.Sequence([*splits, as_bytes])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def _sentencepiece_tokenizer(words: dict[str, int], header: Mapping[str, Any]) -> Any:
    """Return a SentencePiece BPE tokenizer, which spells unknown letters in bytes."""
    unknown = special_id(header, "unknown")
    prefixed = header.get("tokenizer.ggml.add_space_prefix", True)
    prefixed = prefixed and header["tokenizer.ggml.model"] == "llama"
    model = tokenizers.models.BPE(
        words,
        _pairs(words, header),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else [*words][unknown],
    )
    tokenizer = tokenizers.Tokenizer(model)
    decoders = tokenizers.decoders
    normalizers = tokenizers.normalizers
    before = [normalizers.Prepend(SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    after = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return tokenizer


def _pairs(words: dict[str, int], header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs to merge in order: a file's merges, or all cuts of words by score."""
    merges = header.get("tokenizer.ggml.merges")
    if merges is None:
        return _pairs_by_score(words, header)
    return [tuple(merge.split(" ", 1)) for merge in merges]


def _pairs_by_score(words: dict[str, int], header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return all cuts of words into two words, those of the highest scores first."""
    # As in the publishers' conversion of SentencePiece's models to tokenizer.json: Gemma's words
    # stand in their order, those of others are scored.
    ordered = str(header.get("general.architecture")).startswith("gemma")
    scores = [-index for index in words.values()] if ordered else header["tokenizer.ggml.scores"]
    scored_pairs = []
    for word, score, kind in zip(words, scores, header["tokenizer.ggml.token_type"], strict=True):
        if kind != NORMAL:
            continue
        cuts = [(word[:at], word[at:]) for at in range(1, len(word))]
        pairs = [(first, second) for first, second in cuts if first in words and second in words]
        pairs.sort(key=lambda pair: (words[pair[0]], words[pair[1]]))
        scored_pairs += [(score, pair) for pair in pairs]
    # Of one score longer words go first; a stable sort keeps what is equal in order.
    scored_pairs.sort(key=lambda scored: (scored[0], *map(len, scored[1])), reverse=True)
    return [pair for _, pair in scored_pairs]
