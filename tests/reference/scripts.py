"""Documents in many scripts, and tokenizers that cut them in all the ways that are in use."""

import json
from functools import cache
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from lim_jax.checkpoints.gguf_tokenizer import tokenizer_of_header
from lim_jax.prompts import Document

# A title, and a text of several sentences; letters of several bytes stand beside every edge.
SCRIPTS = {
    "Arabic": ("السوق", "يفتح السوق يوم الجمعة. يبيع التجار السمك. نعم، خلف المسجد."),
    "Persian": ("بازار", "می‌خواهم بروم. نمی‌شود! چرا؟"),
    "Hebrew": ("הַשּׁוּק", "השוק נפתח ביום שישי. הסוחרים מוכרים דגים! נכון?"),
    "Hindi": ("बाज़ार", "बाज़ार शुक्रवार को खुलता है। मछली मिलती है। क्या? हाँ।"),
    "Thai": ("ตลาด", "ตลาดเปิดวันศุกร์ พ่อค้าขายปลา\nใช่ครับ"),
    "Japanese": ("市場", "市場は金曜日に開く。魚を売る。「はい。」\u3000そうです。"),
    "emoji": ("👨‍👩‍👧 🏳️‍🌈", "👨‍👩‍👧 came. 🏳️‍🌈 flew! 🇯🇵? ❤️‍🔥 👍🏽"),
    "accents": ("Été", "E\u0301te\u0301 à la plage\u202f! «\u00a0Oui.\u00a0» Là. Ça va. É"),
    "white space": ("A  title", "  One.  Two.\n\n\tThree.\u2028Four. \u00ad\u200e\ufeffFive.  "),
    "no title": ("", "ينتهي بلا عنوان. ثم يبدأ"),
}
DOCUMENTS = [Document(title, text) for title, text in SCRIPTS.values()]
TEXTS = [f"{title}\n{text}".removeprefix("\n") for title, text in SCRIPTS.values()]
QUESTION = "متى يفتح السوق؟"
ANSWER = "يوم الجمعة. 市場です。👨‍👩‍👧 हाँ।"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _train(model: Any, trainer: Any, *, texts: Any = None, **parts: Any) -> Any:
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    corpus = [*TEXTS, QUESTION, ANSWER, "Question: \nAnswer: ", ".\n\n", "!\n\n", "؟\n"]
    tokenizer.train_from_iterator(3 * (texts or corpus), trainer)
    return tokenizer


@cache
def _pairs(split: bool) -> Any:
    """Pairs of bytes, as GPT-2 has them; without `split` over every edge, as some have."""
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    return _train(models.BPE(), trainer, pre_tokenizer=as_bytes, decoder=decoders.ByteLevel())


def _gguf_tokenizer(cut: str) -> Any:
    """The tokenizer of a GGUF file whose words are pairs of bytes, cut as one publisher does."""
    state = _pairs(False)
    pairs = [*map(" ".join, _merges(state))]
    words = sorted(state.get_vocab(), key=state.get_vocab().get)
    return tokenizer_of_header(
        "made.gguf",
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": cut,
            "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.token_type": [1] * len(words),
            "tokenizer.ggml.merges": pairs,
        },
    )


def _merges(tokenizer: Any) -> list[list[str]]:
    return json.loads(tokenizer.to_str())["model"]["merges"]


def _sentencepiece() -> Any:
    """A GGUF file's pairs by scores with Arabic alone: other letters are spelt in bytes."""
    letters = sorted({*"▁\n.،؟: ", *"".join(SCRIPTS["Arabic"])} - {" "})
    longer = ["▁ا", "ال", "▁ال", "يوم", "يو", "▁ي", ".\n", "\n\n"]
    words = ["<s>", *BYTES, *letters, *dict.fromkeys(w for w in longer if w not in letters)]
    return tokenizer_of_header(
        "made.gguf",
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.token_type": [3, *[6] * 256, *[1] * (len(words) - 257)],
            "tokenizer.ggml.scores": [float(-number) for number in range(len(words))],
            "tokenizer.ggml.bos_token_id": 0,
        },
    )


def _unigram(**options: Any) -> Any:
    trainer = trainers.UnigramTrainer(
        vocab_size=300, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    spaces = pre_tokenizers.Metaspace(**options)
    normalizer = normalizers.NFKC()  # by which a letter and its accent are one
    return _train(
        models.Unigram(),
        trainer,
        pre_tokenizer=spaces,
        decoder=decoders.Metaspace(),
        normalizer=normalizer,
    )


def _pieces() -> Any:
    """Pieces of words without the white space between, in small letters, as BERT has them."""
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    marks = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return _train(
        models.WordPiece(unk_token="[UNK]"),
        trainer,
        texts=TEXTS[:2],
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
        normalizer=normalizers.BertNormalizer(),
        post_processor=marks,
    )


TOKENIZERS = {
    "bytes": lambda: None,
    "pairs of bytes": lambda: _pairs(True),
    "pairs over every edge": lambda: _pairs(False),
    **{f"GGUF, {cut}": (lambda cut=cut: _gguf_tokenizer(cut))
       for cut in ("gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o", "deepseek-v3")},
    "GGUF, SentencePiece": _sentencepiece,
    "unigrams": _unigram,
    "unigrams over spaces": lambda: _unigram(split=False),
    "pieces of words": _pieces,
}  # fmt: skip
