"""The answers of contexts: given, or the model's own."""

from collections.abc import Sequence
from functools import partial

from tqdm import tqdm

from lim_jax import models
from lim_jax._checks import AnyPath
from lim_jax.asking import Context, Unanswered, self_answered
from lim_jax.asking.contexts import Asked
from lim_jax.models import CausalLM


def answered(
    contexts: Sequence[Context | Unanswered],
    network: CausalLM,
    model: AnyPath,
    loss: Asked,
    tokens: int,
) -> list[Context]:
    """All contexts with their answers; where one has none the model gives its own."""
    given = [one for one in contexts if isinstance(one, Context)]
    if len(given) == len(contexts):
        return given
    return self_answered(
        contexts,
        network,
        models.read_tokenizer(model),
        loss,
        tokens=tokens,
        end=models.end_ids(model),
        progress=partial(tqdm, desc="answering", unit="context"),
    )
