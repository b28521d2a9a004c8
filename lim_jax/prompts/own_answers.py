"""What a model answers where no answer is given: then it is its own that is explained."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from lim_jax._argument_error import Refusal
from lim_jax._checks import AnyPath, as_int, described, require, require_kind
from lim_jax._digest import digest
from lim_jax._partial_runs import Run, each_once
from lim_jax.models import CausalLM, LanguageModel, answer
from lim_jax.models.loss_kinds import LossName, loss_kind
from lim_jax.models.padding import Padding, fitted_padding
from lim_jax.models.shared_prefix import PrefixOf, Reading, prefix_reader
from lim_jax.prompts.chat import turn_ends
from lim_jax.prompts.contexts import Context, PromptOnly

ANSWERS = "answers.jsonl"  # in the folder of what an interrupted run goes on from


def generate_answers(
    prompts: Sequence[Context | PromptOnly],
    model: LanguageModel,
    loss: LossName = "answer",
    *,
    tokens: int = 32,
    checkpoint: AnyPath | None = None,
    progress: Callable[[list], Iterable] = iter,
) -> list[Context]:
    """Let a model answer the prompts that have no answer, and return the contexts of all.

    An answer ends before one of the model's ``end_ids``, or in a chat before the token with which
    the model's template ends a turn. One that did not end is marked as `Context.cut`. What prompts
    beside one another have in common, such as their documents, is read once. With a checkpoint a
    run that was interrupted goes on after the last answer.

    Parameters
    ----------
    prompts
        Prompts such as `tokenize_prompt` makes; contexts, which have an answer, come back as they
        are.
    model
        The model that answers, with its tokenizer.
    loss
        The name of the loss that asks, of `models.loss_kinds.LOSSES`: "answer", the default, for
        the cross-entropy of the answer's tokens; "margin", "contrast" and others.
    tokens
        The most tokens of an answer.
    checkpoint
        A file for the ids of the answers, there or to be made; None for none.
    progress
        A wrapper of a list of these prompts, for example ``tqdm.tqdm``.

    Returns
    -------
    list of Context
        A context for each prompt, in their order.

    Raises
    ------
    ValueError
        If the model ends at once, an entry is no prompt, no loss has this name, or `tokens` is no
        positive whole number; if the checkpoint is of another model, prompts or `tokens`, or
        damaged.

    Examples
    --------
    >>> from lim_jax.prompts.contexts import tokenize_prompt
    >>> from lim_jax.prompts.documents import RenderedPrompt
    >>> from lim_jax.models import byte_model
    >>> model = LanguageModel(byte_model(16, width=4, depth=1, key=jax.random.key(0)))
    >>> (context,) = generate_answers([tokenize_prompt(RenderedPrompt("2+2="))], model, tokens=3)
    >>> context.length, context.weights.nonzero()[0].tolist()
    (6, [3, 4, 5])
    """
    require_kind(model, LanguageModel, "model", "Take it from models.LanguageModel.open.")
    tokens = as_int(tokens, "tokens")
    prompts = list(prompts)
    for prompt in prompts:
        require(
            isinstance(prompt, Context | PromptOnly),
            "prompts",
            got=described(prompt),
            expected="contexts, or prompts without an answer",
            cure="Make them by tokenize_prompt.",
        )
    in_chats = any(isinstance(prompt, PromptOnly) and prompt.prompt.marked for prompt in prompts)
    answering = _Answering(model, loss, tokens, answer_ends(model, in_chats))
    loss_kind(loss)  # an unknown name is refused before the first answer
    unanswered = {
        f"{number}": prompt
        for number, prompt in enumerate(prompts)
        if isinstance(prompt, PromptOnly)
    }
    answers = each_once(
        answering.answers_by_name(unanswered),
        checkpoint,
        {} if checkpoint is None else answering.run(unanswered.values()),
        progress,
    )
    return [
        answering.context(prompt, answers[f"{number}"])
        if isinstance(prompt, PromptOnly)
        else prompt
        for number, prompt in enumerate(prompts)
    ]


class _Answering(NamedTuple):
    """How prompts are answered: by which model, for which loss, in at most so many tokens.

    `ends_in_chat` are the ids that end an answer to a chat.
    """

    model: LanguageModel
    loss: LossName
    tokens: int
    ends_in_chat: tuple[int, ...]

    def ends_of(self, prompt: PromptOnly) -> tuple[int, ...]:
        """Return the ids that end the answer to a prompt."""
        return self.ends_in_chat if prompt.prompt.marked else self.model.end_ids

    def context(self, prompt: PromptOnly, answer_ids: list[int]) -> Context:
        """Return the context of a prompt and its answer."""
        ids, cut = without_ends(answer_ids, self.ends_of(prompt))
        return prompt.with_answer(ids, self.model.tokenizer, self.loss)._replace(cut=cut)

    def answer_ids(
        self, prompt: PromptOnly, name: str, padding: Padding, read_prefix: PrefixOf
    ) -> list[int]:
        """Let the model answer a prompt: the ids of the answer, with the one that ends it."""
        answer_ids = answer(
            self.model.network,
            jax.device_put(prompt.encoded.ids),
            self.tokens,
            self.ends_of(prompt),
            padding=padding,
            prefix=read_prefix(),
        )
        ids = np.asarray(answer_ids).tolist()
        try:
            self.context(prompt, ids)  # an empty answer is refused before the next prompt
        except Refusal as error:
            raise Refusal(f"context {prompt.id or name}: {error}") from error
        return ids

    def answers_by_name(
        self, unanswered: Mapping[str, PromptOnly]
    ) -> dict[str, Callable[[], list[int]]]:
        """Return functions that let the model answer each prompt, under the prompts' names."""
        prompts = unanswered.values()
        padding = fitted_padding(prompt.length + self.tokens - 1 for prompt in prompts)
        prefix_of = prefix_reader(
            self.model.network, [_reading(prompt, self.tokens) for prompt in prompts]
        )
        return {
            name: partial(self.answer_ids, prompt, name, padding, partial(prefix_of, place))
            for place, (name, prompt) in enumerate(unanswered.items())
        }

    def run(self, unanswered: Iterable[PromptOnly]) -> Run:
        """Return what tells these answers from those of another run."""
        asked = [(prompt.encoded.ids, self.ends_of(prompt)) for prompt in unanswered]
        return {
            "function": "generate_answers",
            "prompts": digest((self.model.network, asked, self.tokens)),
        }


def answer_ends(model: LanguageModel, in_chat: bool) -> tuple[int, ...]:
    """Return the ids that end a model's answer; in a chat also that with which a turn ends."""
    template = model.chat_template if in_chat else None
    ends_of_turn = () if template is None else turn_ends(template, model.tokenizer)
    return *model.end_ids, *ends_of_turn


def without_ends(
    answer: Sequence[int], ends: Sequence[int]
) -> tuple[Int[np.ndarray, " answer"], bool]:
    """Return the ids of an answer but for those that end it, and whether none does."""
    ids = np.array(answer, np.int32)
    is_end = np.isin(ids, ends)
    return ids[~is_end], not is_end.any()


def ask_for_own_word(
    network: CausalLM, context: Context, padding: Padding | None = None
) -> Context:
    """Return a context whose last id is the network's own word, the likeliest after all before it.

    So the same word is asked for where parts weigh less or are left out, and another is likeliest.
    """
    ids = context.window[:-1]
    word = answer(network, jax.device_put(ids), tokens=1, padding=padding)
    return context._replace(window=np.append(ids, np.asarray(word)))


def _reading(prompt: PromptOnly, tokens: int) -> Reading:
    """Return what is to be read of a prompt: all but its last token others may begin with too."""
    ids = prompt.encoded.ids[:-1]
    rows = np.stack([ids, np.full_like(ids, -1)], axis=1)
    return Reading(rows, prompt.length, prompt.length + tokens - 1)
