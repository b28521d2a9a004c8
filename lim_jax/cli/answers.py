"""The answers of contexts: given, or the model's own."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lim_jax.attribution.answer_comparison import DOTS, shown_answer
from lim_jax.attribution.questions import answer_text
from lim_jax.cli.networks import placement_bar
from lim_jax.models import LanguageModel
from lim_jax.models.loss_kinds import LossName
from lim_jax.prompts.contexts import Context, PromptOnly
from lim_jax.prompts.own_answers import ANSWERS, generate_answers

SHOWN = 5  # answers of the model's own that are printed


def own_answer_lines(
    prompts: Sequence[Context | PromptOnly], contexts: Sequence[Context], model: LanguageModel
) -> list[str]:
    """Return a line for each of the model's first own answers, and the notes on all answers."""
    model_answered = [
        number for number, context in enumerate(prompts) if isinstance(context, PromptOnly)
    ]
    lines = []
    for number in model_answered[:SHOWN]:
        context = contexts[number]
        answer = shown_answer(answer_text(context, model.tokenizer), context.cut)
        lines.append(f"Of context {number} the model's own answer is asked: “{answer}”")
    if len(model_answered) > SHOWN:
        lines.append(f"So it is of {len(model_answered) - SHOWN} more.")
    return lines + answer_notes(contexts, model)


def answer_notes(contexts: Sequence[Context], model: LanguageModel) -> list[str]:
    """Return a line on answers that were cut, and one on a chat template that was not used."""
    cut = sum(context.cut for context in contexts)
    plain = sum(not context.chat and not (context.weights > 0).all() for context in contexts)
    lines = []
    every = len(contexts)
    if cut:
        lines.append(
            f"Cut after the most tokens that an answer may have ({DOTS}): {cut} of {every}."
        )
    if plain and model.chat_template is not None:
        lines.append(
            f"The model has a chat template, and {plain} of {every} contexts are asked without it: "
            "an instructed model answers best by it."
        )
    return lines


def answer_contexts(
    contexts: Sequence[Context | PromptOnly],
    model: LanguageModel,
    loss: LossName,
    tokens: int,
    unfinished: Path,
) -> list[Context]:
    """Return all contexts with their answers; where a context has none the model gives its own.

    Its answers are kept in the folder `unfinished`, from which an interrupted command goes on.
    """
    answered_contexts = [context for context in contexts if isinstance(context, Context)]
    if len(answered_contexts) == len(contexts):
        return answered_contexts
    bar = partial(placement_bar(model.network, unfinished), desc="answering", unit="context")
    return generate_answers(
        contexts, model, loss, tokens=tokens, checkpoint=unfinished / ANSWERS, progress=bar
    )
