"""What contexts of several questions begin with, such as the same documents, and read once."""

from collections.abc import Sequence

import numpy as np

from lim_jax.adjoint.sites import reads_by_softmax
from lim_jax.attribution.method import no_prefix
from lim_jax.attribution.segments import document_numbers
from lim_jax.models.causal import CausalLM
from lim_jax.models.shared_prefix import PrefixOf, Reading, TextsOf, prefix_reader, texts_reader
from lim_jax.prompts.contexts import Context


def shared_prefixes(model: CausalLM, contexts: Sequence[Context]) -> PrefixOf:
    """Return a function from a context's number to what it shares with those beside it, if it does.

    What it shares are ids and documents, which are read at any weights of all documents.
    """
    if not reads_by_softmax(model.flow):  # weights reach a memory when it is written, not later
        return no_prefix
    return prefix_reader(model, [_reading(context) for context in contexts])


def shared_texts(model: CausalLM, contexts: Sequence[Context]) -> TextsOf:
    """Return a function from a context's number to what texts without parts of it share, if any do.

    Contexts that share documents have the same texts where they leave the same parts out.
    """
    return texts_reader(model, [_reading(context) for context in contexts])


def _reading(context: Context) -> Reading:
    """Return what is read of a context; to share it others need its ids and its documents."""
    rows = np.stack([context.window[:-1], document_numbers(context)], axis=1)
    return Reading(rows[: context.first_query], context.length, context.length)
