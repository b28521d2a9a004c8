"""Small networks that learn to answer questions about documents, from lessons drawn by number."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from tqdm import tqdm

from benchmarks.validation.retrievers import ANSWER_LOSS
from lim_jax._jit import filter_jit
from lim_jax.models import LanguageModel
from lim_jax.models.causal import CausalLM, Targets
from lim_jax.models.small_models import gaussian_model
from lim_jax.network.frequencies import rotary_frequencies
from lim_jax.network.norms import LayerNorm
from lim_jax.network.positions import Rotary
from lim_jax.tasks.accuracy import decodes_greedily
from lim_jax.training.loop import resumable

END = "<end>"  # the token of id 0
LONGEST = 10  # tokens of a lesson's answers and their ends
WIDTH = 64
HEADS = 4
DEPTH = 3
ROTARY = 8  # features of a head's 16, of which the others know no positions
BASE = 100.0
BATCH = 16
PADDED = 32  # of whose multiples a batch's length is one
RATE = 3e-3  # of Adam, which rises over the first steps and then falls
WARM = 100
STEPS = 1000
LEXICON = 2000  # lessons of whose words tokens are made


class Lesson(NamedTuple):
    """Documents and questions about them, one after another, with the answers that are taught.

    Attributes
    ----------
    prompts
        What stands before each answer: the first has the documents.
    answers
        Each with the space that follows its prompt.
    """

    prompts: Sequence[str]
    answers: Sequence[str]


def tokenizer_of(texts: Sequence[str]) -> Tokenizer:
    """Make a tokenizer whose tokens are the words of texts.

    >>> tokenizer_of(["Ann plays the harp."] * 2).encode("Ann plays the harp.").tokens
    ['Ann', 'Ġplays', 'Ġthe', 'Ġharp', '.']
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=4096,  # more than the words
        special_tokens=[END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def batch_of(
    lessons: Sequence[Lesson], tokenizer: Tokenizer
) -> tuple[Int[Array, "lessons length"], Targets]:
    """Encode lessons, padded on the right; asked are the tokens of each answer, and its end."""
    rows = []
    asked = []
    for lesson in lessons:
        row: list[int] = []
        before: list[int] = []  # the positions before each token that is asked
        for prompt, answer in zip(*lesson, strict=True):
            row += tokenizer.encode(prompt).ids
            answer_ids = tokenizer.encode(answer + END).ids
            before += range(len(row) - 1, len(row) - 1 + len(answer_ids))
            row += answer_ids
        rows.append(row)
        asked.append(before)
    ids = _pad(rows, -(-max(map(len, rows)) // PADDED) * PADDED)
    positions = _pad(asked, LONGEST)
    counts = np.array([[len(row)] for row in asked])
    weights = (np.arange(LONGEST) < counts) / counts
    targets = np.take_along_axis(ids, positions + 1, axis=1)
    return jnp.asarray(ids), Targets(*map(jnp.asarray, (targets, weights, positions)))


def _pad(rows: Sequence[list[int]], size: int) -> Int[np.ndarray, "rows size"]:
    """Fill rows up with zeros."""
    return np.array([row + [0] * (size - len(row)) for row in rows], np.int32)


def train(
    name: str, draw: Callable[[int], Lesson], steps: int, folder: Path, key: Key[Array, ""]
) -> LanguageModel:
    """Train a network on lessons, each of which it sees once; one that is in the folder is read.

    All lessons of a batch should be about as many documents, so that little is padding.
    """
    lessons = [draw(number) for number in range(LEXICON)]
    tokenizer = tokenizer_of([text for lesson in lessons for texts in lesson for text in texts])
    model = _untaught(tokenizer.get_vocab_size(), key)
    rate = optax.schedules.warmup_cosine_decay_schedule(
        0, RATE, WARM, max(steps, WARM + 1), RATE / 20
    )
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b2=0.98))

    @eqx.filter_jit
    def update(state: PyTree, ids: Array, y: Targets) -> tuple[PyTree, Array]:
        """Take a step of Adam on one batch."""
        model, moments = state
        risk, slope = eqx.filter_value_and_grad(answers_risk)(model, ids, y)
        change, moments = optimiser.update(slope, moments)
        return (eqx.apply_updates(model, change), moments), risk

    def step(state: PyTree, index: int) -> tuple[PyTree, Array]:
        """Draw a batch that no other step has, and learn it."""
        numbers = range(index * BATCH, (index + 1) * BATCH)
        return update(state, *batch_of([draw(n) for n in numbers], tokenizer))

    (model, _), _ = resumable(
        step,
        (model, optimiser.init(eqx.filter(model, eqx.is_array))),
        steps,
        run=(name, steps, lessons),
        checkpoint=folder / f"{name}.eqx",
        every=200,
        progress=partial(tqdm, desc=name, unit="step"),
    )
    return LanguageModel(model, tokenizer, end_ids=(0,), name=name)


def _untaught(words: int, key: Key[Array, ""]) -> CausalLM:
    """Make a network that reads and writes words by one matrix, so that it soon learns to copy."""
    rotary = Rotary(rotary_frequencies(ROTARY, BASE))
    model = gaussian_model(words, width=WIDTH, heads=HEADS, depth=DEPTH, rotary=rotary, key=key)
    scale = WIDTH**0.5
    return replace(
        model,
        embedding=model.embedding / scale,
        embedding_scale=scale,
        norm=LayerNorm.init(WIDTH),
        head=None,
    )


def answers_risk(
    model: CausalLM, ids: Int[Array, "lessons length"], y: Targets
) -> Float[Array, ""]:
    """Compute the mean cross-entropy of the answers' tokens."""
    return jax.vmap(ANSWER_LOSS, in_axes=(None, 0, 0))(model, ids, y).mean()


def share_right(model: LanguageModel, lessons: Sequence[Lesson]) -> float:
    """Return the share of lessons whose whole answer a network gives, greedily."""
    return float(_are_right(model.network, *batch_of(lessons, model.tokenizer)).mean())


@filter_jit
def _are_right(
    model: CausalLM, ids: Int[Array, "lessons length"], y: Targets
) -> Bool[Array, " lessons"]:
    """Tell whether greedy decoding gives each lesson's answers."""

    def is_right(ids: Int[Array, " length"], y: Targets) -> Bool[Array, ""]:
        """Tell it of one lesson."""
        return decodes_greedily(model.logits(ids)[y.positions], y.targets, y.weights)

    return jax.vmap(is_right)(ids, y)
