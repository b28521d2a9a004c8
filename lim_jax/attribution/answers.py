"""The text of an answer."""

from typing import Any

import numpy as np

from lim_jax import models
from lim_jax.prompts.contexts import Context


def answer_text(context: Context, tokenizer: Any) -> str:
    """The text of a context's answer."""
    asked = np.flatnonzero(context.weights) + 1
    ids = context.window[asked] if context.contrast is None else context.contrast.answer
    return "".join(models.texts_of_ids(ids, tokenizer)).strip()
