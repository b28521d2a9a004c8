"""How near one mask gradient and seven come to their integral, of fifteen answers on documents.

``taskset -c 1 python benchmarks/mask_path.py MODEL`` lets a network answer fifteen questions on
four or five short documents: prose, notices, code, German and French, documents that contradict one
another. Each answer is scored as a whole by one mask gradient, as ``--method mask-gradient`` does
it, by seven, and by as many as ``--method mask-path`` takes; and by so many that with half of them
scores are nearly the same, which is called the integral. Rows go into ``results/mask_path.json``,
one for each answer. There ``miss`` is the sum of what documents' scores miss the integral's by,
over the sum of the sizes of the integral's; ``sum misses`` is what their sum misses all that the
documents give by, over that.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from record import RESULTS, keep
from tqdm import tqdm

from lim_jax.attribution.mask_gradients import mask_gradients
from lim_jax.attribution.method import Run, sum_by_part
from lim_jax.attribution.methods.mask_path import MOST_NODES, NODES, is_unresolved, nested_rule
from lim_jax.attribution.methods.method_table import GRADIENT, METHODS
from lim_jax.attribution.questions import answer_text, question_line
from lim_jax.attribution.segments import context_segments, document_segments, whole_answer
from lim_jax.models import LanguageModel
from lim_jax.models.loss_kinds import loss_kind
from lim_jax.prompts import generate_answers
from lim_jax.prompts.contexts import Context
from lim_jax.prompts.prompt_files import context_of_line

TOKENS = 12  # of an answer, at most
# The integral has twice as many gradients until scores change by less than this share of their
# sizes, and at most so many.
SETTLED = 0.01
FINEST = 127
PROSE = (
    "Ida Holm built the lighthouse, and later drowned near it.",
    "In a storm the inn takes in guests of the ferry.",
    "The museum is closed, since rain came through its roof.",
    "Old Tomas keeps bees and sells honey.",
)
NOTICES = (
    "Library: Mon-Thu 9-18, Fri 9-13.",
    "To buy: milk, 12 eggs, salt.",
    "Bus 4: station. Bus 9: airport.",
    "Lost: a green umbrella. Call Nora.",
)
CODE = (
    "def area(a, b):\n    return a * b",
    "TIMEOUT = 30  # seconds",
    "for n in range(3):\n    beep()",
    "SELECT name FROM users;",
)
LANGUAGES = (
    "Der Zug nach Basel fährt von Gleis 9.",
    "Das Museum ist zu.",
    "Le chat de Camille s'appelle Biscuit.",
    "La boulangerie ouvre à six heures.",
)
CONTRARY = (
    "The meeting is on Tuesday.",
    "No, the meeting is on Thursday.",
    "Lunch is in room 2.",
    "Everybody brings lunch.",
    "The report is due on Monday.",
)
QUESTIONS = (
    ("Who built the lighthouse?", PROSE),
    ("Why is the museum closed?", PROSE),
    ("Where do guests of the ferry stay in a storm?", PROSE),
    ("When does the library close on Fridays?", NOTICES),
    ("Which bus goes to the airport?", NOTICES),
    ("What was lost?", NOTICES),
    ("What does the function area return?", CODE),
    ("How long is the timeout?", CODE),
    ("How often does it beep?", CODE),
    ("Von welchem Gleis fährt der Zug?", LANGUAGES),
    ("Comment s'appelle le chat ?", LANGUAGES),
    ("At what time does the bakery open?", LANGUAGES),
    ("On which day is the meeting?", CONTRARY),
    ("In which room is lunch?", CONTRARY),
    ("Who wrote the report?", CONTRARY),  # which no document says
)
ByDocument = Float[np.ndarray, " documents"]
LOSS = loss_kind("margin").loss


def answer_all(model: LanguageModel) -> list[Context]:
    """Let the model answer all questions, and return the contexts with the answers."""
    lines = [question_line(model, question, documents) for question, documents in QUESTIONS]
    prompts = [context_of_line(line, model.tokenizer, "margin", 4096) for line in lines]
    return generate_answers(prompts, model, "margin", tokens=TOKENS)


def path_scores(gradients: Float[np.ndarray, "nodes documents"], nodes: int) -> ByDocument:
    """Score documents by the path's rule, of the gradients of this rule or of a finer one."""
    step = (len(gradients) + 1) // (nodes + 1)
    return nested_rule(nodes).shares @ gradients[step - 1 :: step]


def relative_miss(scores: ByDocument, integral: ByDocument) -> float:
    """Return by how much scores miss the integral's, over the sum of the sizes of these."""
    return float(np.abs(scores - integral).sum() / np.abs(integral).sum())


def gradients_of_integral(
    model: LanguageModel, context: Context, run: Run
) -> Float[np.ndarray, "nodes documents"]:
    """Take the gradients of each document along the path, until doubling them changes nothing."""
    answer = [whole_answer(context)]
    documents = document_segments(context, "documents")

    def gradients_at(log_weights: Float[np.ndarray, " nodes"]) -> np.ndarray:
        """Take them at some log weights of all documents."""
        by_token = mask_gradients(model.network, context, answer, LOSS, log_weights, run)
        return sum_by_part(by_token[:, 0], documents)

    nodes = 2 * NODES + 1
    gradients = gradients_at(nested_rule(nodes).log_weights)
    while nodes < FINEST:
        coarser = path_scores(gradients, nodes // 2)
        if relative_miss(coarser, path_scores(gradients, nodes)) < SETTLED:
            break
        nodes = 2 * nodes + 1
        finer = np.empty((nodes, len(documents)))
        finer[::2] = gradients_at(nested_rule(nodes).log_weights[::2])
        finer[1::2] = gradients
        gradients = finer
    return gradients


def nodes_of_path(gradients: Float[np.ndarray, "nodes documents"], effect: float) -> int:
    """Return how many gradients the mask path takes of an answer to which documents give so much.

    Those of the integral are enough.
    """
    nodes = NODES
    while nodes < min(MOST_NODES, len(gradients)):
        total = path_scores(gradients, nodes).sum(keepdims=True)
        if not is_unresolved(total, np.array([effect])).any():
            break
        nodes = 2 * nodes + 1
    return nodes


def measure_answer(model: LanguageModel, context: Context, run: Run) -> dict[str, Any]:
    """Score an answer by one gradient, seven, as many as the path takes, and the integral's."""
    answer = [whole_answer(context)]
    parts = context_segments(context)
    slope = METHODS[GRADIENT].scores(model.network, context, answer, parts, LOSS, run)
    assert slope.total_effect is not None
    effect = float(slope.total_effect.sum())
    gradients = gradients_of_integral(model, context, run)
    integral = path_scores(gradients, len(gradients))

    def compared(scores: ByDocument) -> dict[str, Any]:
        """Compare scores of documents with the integral's, and their sum with the effect."""
        return {
            "miss": relative_miss(scores, integral),
            "sum misses": float(abs(scores.sum() - effect) / abs(effect)),
            "same first": bool(scores.argmax() == integral.argmax()),
        }

    nodes = nodes_of_path(gradients, effect)
    path = path_scores(gradients, nodes)
    errors = np.abs(path - path_scores(gradients, nodes // 2))
    within = np.abs(path - integral) <= 2 * errors
    return {
        "tokens": context.length,
        "answer": answer_text(context, model.tokenizer),
        "documents": len(integral),
        "given": effect,
        "1 gradient": compared(slope.by_part[0, slope.documents]),
        f"{NODES} gradients": compared(path_scores(gradients, NODES)),
        "mask-path": {
            "gradients": nodes,
            **compared(path),
            "within two errors": int(within.sum()),
        },
        "integral": {"gradients": len(gradients), **compared(integral)},
    }


def print_summary(rows: Sequence[dict[str, Any]]) -> None:
    """Print the median and the most of each miss, and how many gradients the path took."""
    for rule in ("1 gradient", f"{NODES} gradients", "mask-path", "integral"):
        misses = [row[rule]["miss"] for row in rows]
        sums = [row[rule]["sum misses"] for row in rows]
        first = sum(row[rule]["same first"] for row in rows)
        print(
            f"{rule}: scores miss the integral by {np.median(misses):.1%}, at most "
            f"{max(misses):.1%}; their sum misses what is given by {np.median(sums):.1%}, at most "
            f"{max(sums):.1%}; the first document is the integral's in {first} of {len(rows)}"
        )
    for rule in ("mask-path", "integral"):
        print(f"gradients, {rule}: {Counter(row[rule]['gradients'] for row in rows)}")
    within = sum(row["mask-path"]["within two errors"] for row in rows)
    documents = sum(row["documents"] for row in rows)
    print(f"documents whose scores are within two errors: {within} of {documents}")


def main() -> None:
    """Let a network answer all questions, and print and keep how near scores come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder, a GGUF file, or a name in the Hugging Face cache")
    options = parser.parse_args()
    model = LanguageModel.from_pretrained(options.model)
    contexts = answer_all(model)
    longest = max(context.length for context in contexts)
    run = Run(padding=lambda _: longest)  # one program serves all
    rows = []
    for (question, _), context in zip(QUESTIONS, tqdm(contexts, unit="answer"), strict=True):
        about = {"model": Path(options.model).name, "question": question}
        rows.append(about | measure_answer(model, context, run))
        keep(RESULTS / "mask_path.json", rows[-1:], ("model", "question"))
    print_summary(rows)


if __name__ == "__main__":
    main()
