"""Many questions on the same documents: SmolLM2's answers and their mask gradients, beside PyTorch.

``taskset -c 1 python benchmarks/questions.py`` (the extra ``parity`` brings torch and transformers)
asks questions on twelve short documents. Each is answered, and its answer scored by one mask
gradient and by what all documents give, as ``lim-jax profile --method mask-gradient`` does it;
beside us by a loop in PyTorch, that is transformers' Llama with its cache, fused attention where no
mask is differentiated, and no padding. The two take turns with all questions, each with one thread;
times are seconds of the processor. Answers and scores are compared. In our first turn programs are
compiled, and counted. Rows go into ``results/questions.json``, a row for each question.
"""

import argparse
import os

# Before JAX starts: one thread, as for the peer.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import math
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.monitoring
import numpy as np
import torch
import transformers
from real_model import fetched
from record import RESULTS, keep
from tqdm import tqdm

from lim_jax.attribution.mask_gradients import LEAST
from lim_jax.attribution.mean_scores import score_contexts
from lim_jax.attribution.method import Run
from lim_jax.attribution.methods.mask_gradient import LENGTH, WEIGHT
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


def prompts(model: LanguageModel, questions: int) -> list[Any]:
    """Return the prompts of so many questions."""
    asked = [question.format(name=name) for question in ASKED for name in NAMES]
    lines = [question_line(model, question, documents()) for question in asked[:questions]]
    return [context_of_line(line, model.tokenizer, "margin", 4096) for line in lines]


class Clock:
    """A bar that counts what each step took, of the processor's seconds and of programs."""

    def __init__(self, compiled: list[float]):
        self.compiled = compiled
        self.steps: list[tuple[float, int]] = []

    def __call__(self, items: Iterable, **_: Any) -> Iterator:
        """Yield the items."""
        for item in items:
            begun, programs = time.process_time(), len(self.compiled)
            yield item
            self.steps.append((time.process_time() - begun, len(self.compiled) - programs))


class Asked(NamedTuple):
    """Contexts with their answers, scores of their tokens, what all documents give, and clocks."""

    contexts: list[Context]
    scores: list[np.ndarray]
    effects: list[float]
    steps: list[tuple[float, int]]


def ours(model: LanguageModel, prompts: list[Any], compiled: list[float]) -> Asked:
    """Let the model answer the prompts, and score each by one mask gradient."""
    answering, scoring = Clock(compiled), Clock(compiled)
    contexts = generate_answers(prompts, model, "margin", tokens=TOKENS, progress=answering)
    run = Run(bar=scoring)
    scored = score_contexts(model.network, contexts, "margin", "mask-gradient", run).scores
    steps = [
        (one[0] + other[0], one[1] + other[1])
        for one, other in zip(answering.steps, scoring.steps, strict=True)
    ]
    effects = [float(np.sum(scores.total_effect)) for scores in scored]
    return Asked(contexts, [np.asarray(scores.tokens) for scores in scored], effects, steps)


class Peer:
    """The same by transformers and torch."""

    def __init__(self, file: Path, end_ids: tuple[int, ...]):
        self.network = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="sdpa"
        )
        self.network.eval().requires_grad_(False)
        self.end_ids = list(end_ids)

    def answer(self, prompt: PromptOnly) -> np.ndarray:
        """Return the ids of the answer."""
        ids = torch.from_numpy(prompt.encoded.ids.astype(np.int64))[None]
        with torch.no_grad():
            answered = self.network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=TOKENS,
                do_sample=False,
                eos_token_id=self.end_ids,
                pad_token_id=self.end_ids[0],
            )
        answer = answered[0, ids.shape[1] :].numpy()
        return answer[~np.isin(answer, self.end_ids)]

    def score(self, context: Context) -> tuple[np.ndarray, float]:
        """Return the scores of a context's tokens, and what all documents give its answer."""
        with torch.no_grad():
            without, whole = (
                float(self.loss(context, self.log_weights(context, math.log(weight))))
                for weight in (LEAST, 1)
            )
        log_weights = self.log_weights(context, math.log(WEIGHT)).requires_grad_()
        (slopes,) = torch.autograd.grad(self.loss(context, log_weights), log_weights)
        return -LENGTH * slopes.numpy(), without - whole

    def log_weights(self, context: Context, value: float) -> torch.Tensor:
        """Return a log weight for each token of documents, and zero for others."""
        inside = torch.from_numpy(document_numbers(context)) >= 0
        return torch.where(inside, value, 0.0)

    def loss(self, context: Context, log_weights: torch.Tensor) -> torch.Tensor:
        """Return minus the log odds of the answer's tokens, where documents have these weights."""
        parts = torch.from_numpy(document_numbers(context))
        elsewhere = (parts[:, None] != parts[None]) | (parts[None] < 0)
        causal = torch.ones(len(parts), len(parts), dtype=torch.bool).tril()
        bias = torch.where(elsewhere, log_weights[None], 0.0)
        mask = torch.where(causal, bias, torch.finfo(torch.float32).min)[None, None]
        window = torch.from_numpy(context.window.astype(np.int64))
        asked = np.flatnonzero(context.weights)
        logits = self.network(
            window[None, :-1],
            attention_mask=mask,
            use_cache=False,
            logits_to_keep=torch.from_numpy(asked),
        ).logits[0]
        right = window[1:][asked][:, None]
        others = logits.scatter(1, right, -math.inf).logsumexp(dim=1)
        weights = torch.from_numpy(context.weights[asked]).float()
        return (weights * (others - logits.gather(1, right)[:, 0])).sum()


def main() -> None:
    """Ask the questions of both in turns, and print and keep what they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a GGUF file; by default it is fetched")
    parser.add_argument("--questions", type=int, default=24, choices=range(1, 49), metavar="N")
    parser.add_argument("--repeats", type=int, default=3, help="turns; the first one compiles")
    parser.add_argument("--out", type=Path, default=RESULTS / "questions.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    compiled: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(seconds) if event == COMPILATION else None
    )
    with tempfile.TemporaryDirectory() as folder:
        file = options.file or fetched(Path(folder))
        model = LanguageModel.from_pretrained(file)
        peer = Peer(file, model.end_ids)
    asked = prompts(model, options.questions)
    rows: list[dict[str, Any]] = [{"question": number} for number in range(len(asked))]
    seconds: dict[str, list[list[float]]] = {"lim_jax": [], "torch": []}
    for turn in tqdm(range(options.repeats), unit="turn"):
        result = ours(model, asked, compiled)
        seconds["lim_jax"].append([of_question for of_question, _ in result.steps])
        seconds["torch"].append([])
        for row, prompt, context, scores, effect, (_, programs) in zip(
            rows, asked, *result, strict=True
        ):
            begun = time.process_time()
            answer = peer.answer(prompt)
            their_scores, their_effect = peer.score(context)
            seconds["torch"][-1].append(time.process_time() - begun)
            difference = np.abs(scores - their_scores).max() / np.abs(scores).max()
            assert difference < CLOSE and abs(effect - their_effect) < CLOSE, difference
            if turn == 0:
                row["tokens"] = context.length
                row["answer"] = int((context.weights > 0).sum())
                row["same answer"] = bool(np.array_equal(answer, context.window[prompt.length :]))
                row["programs"] = programs
    row_seconds = {side: np.median(turns[1:], axis=0) for side, turns in seconds.items()}
    for number, row in enumerate(rows):
        row["seconds"] = {side: float(of_side[number]) for side, of_side in row_seconds.items()}
    keep(options.out, rows, ("question",), torch=torch.__version__)
    print(f"programs, question by question: {[row['programs'] for row in rows]}")
    print(f"answers alike: {sum(row['same answer'] for row in rows)} of {len(rows)}")
    for side, of_side in row_seconds.items():
        print(f"{side}: {60 / of_side.mean():.1f} questions a minute of one core, compiled before")
    ratios = row_seconds["torch"] / row_seconds["lim_jax"]
    print(
        f"torch's time over ours: {np.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
    )


if __name__ == "__main__":
    main()
