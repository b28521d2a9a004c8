"""A hundred questions on documents: SmolLM2's answers and their mask gradients, beside PyTorch.

``taskset -c 1 python benchmarks/questions.py`` (the extra ``parity`` brings torch and transformers)
asks questions on twelve short documents. Each is answered, and its answer scored by one mask
gradient and by what all documents give, as ``lim-jax profile --method mask-gradient`` does it.
Beside us is a loop in PyTorch, that is transformers' Llama with its cache, fused attention where no
mask is differentiated, and no padding; and one that reads the documents once too, and keeps its
cache of them for answers and for what documents give. PyTorch's MKL is allowed the widest vectors,
which it does not use on an AMD processor by itself. ``--different`` lays the documents out in
another order for each question, so that nothing is shared. With another ``--method`` ours is timed
alone.

All take turns with all questions, each with one thread; times are seconds of the processor. Answers
and scores are compared. In our first turn programs are compiled, and counted. Rows go into
``results/questions.json`` or ``results/questions-different.json``, a row for each question; those
of another method into ``--out`` if that is given.
"""

import argparse
import os
import sys

# Before JAX starts: one thread, as for the peer.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.monitoring
import numpy as np
import torch
import transformers
from real_model import fetch_weights
from record import RESULTS, build_allowing_library, keep
from tqdm import tqdm

from lim_jax.attribution.mask_gradients import LEAST
from lim_jax.attribution.mean_scores import score_contexts
from lim_jax.attribution.method import Run, Scores
from lim_jax.attribution.methods.mask_gradient import LENGTH, WEIGHT
from lim_jax.attribution.methods.method_table import GRADIENT, METHODS
from lim_jax.attribution.questions import question_line
from lim_jax.attribution.segments import document_numbers
from lim_jax.models import LanguageModel
from lim_jax.prompts import generate_answers
from lim_jax.prompts.contexts import Context, PromptOnly
from lim_jax.prompts.documents import Document
from lim_jax.prompts.prompt_files import context_of_line

NAMES = "Ada Boris Clara Dmitri Elena Farid Greta Hugo Ines Jonas Karin Luis".split()
TOWNS = "Lisbon Oslo Vienna Prague Dublin Athens Madrid Warsaw Zagreb Turin Bergen Malmo".split()
JOBS = (
    "baker pilot teacher surgeon carpenter librarian sailor plumber dentist painter farmer lawyer"
).split()
ASKED = (
    "Where does {name} work?",
    "Since which year has {name} been working?",
    "What is the profession of {name}?",
    "How many cats does {name} keep?",
    "What do the documents say about {name}?",
    "In which town does the {job} work?",
    "Who works as a {job}?",
    "Who works in {town}?",
    "Which job does the one in {town} have?",
)
TOKENS = 32  # of an answer, at most
CLOSE = 2e-3  # differences of scores, of the largest
COMPILATION = "/jax/core/compile/backend_compile_duration"


def documents() -> list[Document]:
    """Return a document about each person."""
    return [
        Document(
            name, f"{name} has worked as a {job} in {town} since {year}, and keeps {cats} cats."
        )
        for name, job, town, year, cats in zip(
            NAMES, JOBS, TOWNS, range(1950, 1986, 3), range(2, 14), strict=True
        )
    ]


def prompts(model: LanguageModel, questions: int, *, different: bool) -> list[Any]:
    """Return the prompts of so many questions, in each of which documents may stand otherwise."""
    asked = [
        question.format(name=name, job=job, town=town)
        for question in ASKED
        for name, job, town in zip(NAMES, JOBS, TOWNS, strict=True)
    ]
    order = np.random.default_rng(0)
    read = documents()
    lines = []
    for question in asked[:questions]:
        laid_out = [read[number] for number in order.permutation(len(read))] if different else read
        lines.append(question_line(model, question, laid_out))
    return [context_of_line(line, model.tokenizer, "margin", 4096) for line in lines]


class Clock:
    """A bar that counts what each step took, of the processor's seconds and of programs."""

    def __init__(self, compiled: list[float]):
        self.compiled = compiled
        self.steps: list[tuple[float, int]] = []

    def __call__(self, items: Iterable, **_: Any) -> Iterator:
        """Yield the items."""
        for item in items:
            begun = time.process_time()
            programs = len(self.compiled)
            yield item
            self.steps.append((time.process_time() - begun, len(self.compiled) - programs))


class ScoredAnswers(NamedTuple):
    """Contexts with their answers, their scores, and what each took."""

    contexts: list[Context]
    scores: Sequence[Scores]
    steps: list[tuple[float, int]]


def answer_and_score(
    model: LanguageModel, prompts: list[Any], method: str, compiled: list[float]
) -> ScoredAnswers:
    """Let the model answer the prompts, and score each by a method."""
    answering = Clock(compiled)
    scoring = Clock(compiled)
    contexts = generate_answers(prompts, model, "margin", tokens=TOKENS, progress=answering)
    run = Run(bar=scoring)
    scored = score_contexts(model.network, contexts, "margin", method, run).scores
    steps = [
        (one[0] + other[0], one[1] + other[1])
        for one, other in zip(answering.steps, scoring.steps, strict=True)
    ]
    return ScoredAnswers(contexts, scored, steps)


class Peer:
    """The same by transformers and torch."""

    def __init__(self, network: Any, end_ids: tuple[int, ...]):
        self.network = network
        self.end_ids = list(end_ids)

    def begin(self, contexts: list[Context]) -> None:
        """Begin with contexts: nothing is kept of them."""

    def answer(self, prompt: PromptOnly) -> np.ndarray:
        """Return the ids of the answer."""
        return self.generate(prompt)

    def generate(self, prompt: PromptOnly, **kept: Any) -> np.ndarray:
        """Return the ids of the answer, maybe after what is kept."""
        ids = torch.from_numpy(prompt.encoded.ids.astype(np.int64))[None]
        with torch.no_grad():
            answered = self.network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=TOKENS,
                do_sample=False,
                eos_token_id=self.end_ids,
                pad_token_id=self.end_ids[0],
                **kept,
            )
        answer = answered[0, ids.shape[1] :].numpy()
        return answer[~np.isin(answer, self.end_ids)]

    def score(self, context: Context) -> tuple[np.ndarray, float]:
        """Return the scores of a context's tokens, and what all documents give its answer."""
        with torch.no_grad():
            without, whole = (self.loss_at(context, weight) for weight in (LEAST, 1))
        log_weights = log_weights_of(context, WEIGHT).requires_grad_()
        (slopes,) = torch.autograd.grad(self.loss(context, log_weights), log_weights)
        return -LENGTH * slopes.numpy(), without - whole

    def loss_at(self, context: Context, weight: float) -> float:
        """Return the loss with a weight of all documents."""
        return float(self.loss(context, log_weights_of(context, weight)))

    def loss(self, context: Context, log_weights: torch.Tensor) -> torch.Tensor:
        """Return minus the log odds of the answer's tokens, where documents have these weights."""
        asked = np.flatnonzero(context.weights)
        logits = self.network(
            ids_of(context)[None, :-1],
            attention_mask=mask_of(context, log_weights)[None, None],
            use_cache=False,
            logits_to_keep=torch.from_numpy(asked),
        ).logits[0]
        return margin(context, logits)


class SharingPeer(Peer):
    """The same, with a cache of the documents for answers and for what documents give."""

    caches: Mapping[float, transformers.DynamicCache]
    length: int

    def begin(self, contexts: list[Context]) -> None:
        """Read what all contexts begin with, with the documents at both weights."""
        rows = [context.window[: context.first_query] for context in contexts]
        shortest = min(map(len, rows))
        alike = np.ptp(np.stack([row[:shortest] for row in rows]), axis=0) == 0
        self.length = shortest if alike.all() else int(alike.argmin())
        self.caches = {weight: transformers.DynamicCache() for weight in (LEAST, 1)}
        length = self.length
        with torch.no_grad():
            for weight, cache in self.caches.items():
                mask = mask_of(contexts[0], log_weights_of(contexts[0], weight))
                self.network(
                    ids_of(contexts[0])[None, :length],
                    attention_mask=mask[None, None, :length, :length],
                    cache=cache,
                    logits_to_keep=1,
                )

    def answer(self, prompt: PromptOnly) -> np.ndarray:
        """Return the ids of the answer, after the documents."""
        answer = self.generate(prompt, cache=self.caches[1])
        cut(self.caches[1], self.length)
        return answer

    def loss_at(self, context: Context, weight: float) -> float:
        """Return the loss with a weight of all documents, after the documents."""
        cache = self.caches[weight]
        asked = np.flatnonzero(context.weights)
        logits = self.network(
            ids_of(context)[None, self.length : -1],
            attention_mask=mask_of(context, log_weights_of(context, weight))[
                None, None, self.length :
            ],
            cache=cache,
            logits_to_keep=torch.from_numpy(asked - self.length),
        ).logits[0]
        cut(cache, self.length)
        return float(margin(context, logits))


def cut(cache: transformers.DynamicCache, length: int) -> None:
    """Cut a cache to its first tokens."""
    cache.crop(length - cache.get_seq_length())


def ids_of(context: Context) -> torch.Tensor:
    """Return the ids of a context, with the one after it."""
    return torch.from_numpy(context.window.astype(np.int64))


def log_weights_of(context: Context, weight: float) -> torch.Tensor:
    """Return the log weight of each token of documents, and zero for others."""
    inside = torch.from_numpy(document_numbers(context)) >= 0
    return torch.where(inside, math.log(weight), 0.0)


def mask_of(context: Context, log_weights: torch.Tensor) -> torch.Tensor:
    """Return what is added to the scores of attention: each document reads itself as before."""
    parts = torch.from_numpy(document_numbers(context))
    elsewhere = (parts[:, None] != parts[None]) | (parts[None] < 0)
    causal = torch.ones(len(parts), len(parts), dtype=torch.bool).tril()
    bias = torch.where(elsewhere, log_weights[None], 0.0)
    return torch.where(causal, bias, torch.finfo(torch.float32).min)


def margin(context: Context, logits: torch.Tensor) -> torch.Tensor:
    """Return minus the log odds of the answer's tokens."""
    asked = np.flatnonzero(context.weights)
    right = ids_of(context)[1:][asked][:, None]
    others = logits.scatter(1, right, -math.inf).logsumexp(dim=1)
    weights = torch.from_numpy(context.weights[asked]).float()
    return (weights * (others - logits.gather(1, right)[:, 0])).sum()


def answer_and_score_by_peer(
    peer: Peer, prompts: list[Any], contexts: list[Context]
) -> tuple[list[np.ndarray], list[tuple[np.ndarray, float]], list[float]]:
    """Return a peer's answers and scores, and what each question took it."""
    answers = []
    scores = []
    seconds = []
    begun = time.process_time()
    peer.begin(contexts)
    for prompt, context in zip(prompts, contexts, strict=True):
        answers.append(peer.answer(prompt))
        scores.append(peer.score(context))
        seconds.append(time.process_time() - begun)
        begun = time.process_time()
    return answers, scores, seconds


def require_alike(
    row: dict[str, Any],
    prompt: PromptOnly,
    context: Context,
    our_scores: Scores,
    answer: np.ndarray,
    peer_scores: tuple[np.ndarray, float],
) -> None:
    """Assert that a peer's scores are ours, and put into the row whether its answer is ours too."""
    assert our_scores.tokens is not None and our_scores.total_effect is not None
    scores, effect = peer_scores
    difference = np.abs(scores - our_scores.tokens).max() / np.abs(our_scores.tokens).max()
    assert difference < CLOSE, difference
    assert abs(effect - our_scores.total_effect.sum()) < CLOSE
    same = bool(np.array_equal(answer, context.window[prompt.length :]))
    row["same answer"] = same and row.get("same answer", True)


def read_models(file: Path | None) -> tuple[LanguageModel, Any]:
    """Read the model by the library and by transformers; fetch its file where none is named."""
    with tempfile.TemporaryDirectory() as folder:
        file = file or fetch_weights(Path(folder))
        model = LanguageModel.from_pretrained(file)
        network = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="sdpa"
        )
    return model, network.eval().requires_grad_(False)


def peers_of(
    model: LanguageModel, network: Any, method: str, *, different: bool
) -> dict[str, Peer]:
    """Return the sides beside ours by name; a method of ours alone has none."""
    if method != GRADIENT:
        return {}
    peers = {"torch": Peer(network, model.end_ids)}
    if not different:
        peers["torch, shared"] = SharingPeer(network, model.end_ids)
    return peers


def count_programs() -> list[float]:
    """Return a list that from now on grows by the seconds of each program that is compiled."""
    compiled: list[float] = []

    def add_program(event: str, duration_secs: float, **_: Any) -> None:
        """Add the program that an event of JAX tells of, if it does."""
        if event == COMPILATION:
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(add_program)
    return compiled


def time_turns(
    model: LanguageModel, asked: list[Any], method: str, peers: dict[str, Peer], repeats: int
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Let all sides take turns with all questions, and compare what they say.

    Return a row for each question, and the median seconds of each question by side, without the
    first turn, in which programs are compiled.
    """
    compiled = count_programs()
    rows: list[dict[str, Any]] = [{"question": number} for number in range(len(asked))]
    seconds: dict[str, list[list[float]]] = {side: [] for side in ("lim_jax", *peers)}
    for turn in tqdm(range(repeats), unit="turn"):
        result = answer_and_score(model, asked, method, compiled)
        seconds["lim_jax"].append([of_question for of_question, _ in result.steps])
        if turn == 0:
            for row, context, (_, programs) in zip(
                rows, result.contexts, result.steps, strict=True
            ):
                row["tokens"] = context.length
                row["answer"] = int((context.weights > 0).sum())
                row["programs"] = programs
        for side, peer in peers.items():
            answers, scored, of_side = answer_and_score_by_peer(peer, asked, result.contexts)
            seconds[side].append(of_side)
            for answered in zip(
                rows, asked, result.contexts, result.scores, answers, scored, strict=True
            ):
                require_alike(*answered)
    row_seconds = {side: np.median(turns[1:], axis=0) for side, turns in seconds.items()}
    for number, row in enumerate(rows):
        row["seconds"] = {side: float(of_side[number]) for side, of_side in row_seconds.items()}
    return rows, row_seconds


def print_summary(rows: list[dict[str, Any]], row_seconds: dict[str, np.ndarray]) -> None:
    """Print the programs, how many answers are alike, and questions a minute of each side."""
    print(f"programs, question by question: {[row['programs'] for row in rows]}")
    if len(row_seconds) > 1:
        print(f"answers alike: {sum(row['same answer'] for row in rows)} of {len(rows)}")
    for side, of_side in row_seconds.items():
        print(f"{side}: {60 / of_side.mean():.1f} questions a minute of one core, compiled before")
        ratios = of_side / row_seconds["lim_jax"]
        print(
            f"its time over ours: {np.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        )


def main() -> None:
    """Ask the questions of all in turns, and print and keep what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a GGUF file; by default it is fetched")
    parser.add_argument("--questions", type=int, default=100, choices=range(1, 109), metavar="N")
    parser.add_argument("--repeats", type=int, default=2, help="turns; the first one compiles")
    parser.add_argument("--different", action="store_true", help="documents in other orders")
    parser.add_argument("--method", choices=METHODS, default=GRADIENT)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:  # it is read as a process starts
        allowed = os.environ | {"LD_PRELOAD": str(build_allowing_library())}
        os.execve(sys.executable, [sys.executable, *sys.argv], allowed)
    torch.set_num_threads(1)
    model, network = read_models(options.file)
    peers = peers_of(model, network, options.method, different=options.different)
    asked = prompts(model, options.questions, different=options.different)
    rows, row_seconds = time_turns(model, asked, options.method, peers, options.repeats)
    if peers or options.out:
        name = "questions-different.json" if options.different else "questions.json"
        keep(options.out or RESULTS / name, rows, ("question",), torch=torch.__version__)
    print_summary(rows, row_seconds)


if __name__ == "__main__":
    main()
