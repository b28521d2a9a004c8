"""An answer with parts and documents, and made-up scores of them, with texts that are no markup."""

import numpy as np

from lim_jax.attribution.method import scores_by_token
from lim_jax.attribution.methods import mask_gradient
from lim_jax.attribution.segments import answer_segments, context_segments
from lim_jax.prompts.contexts import tokenize_context
from lim_jax.prompts.documents import RenderedPrompt
from lim_jax.report.sources import sources_page

SCRIPT = "<script>document.title='owned'</script>"
DOCUMENTS = (f'{SCRIPT} is bad. It\'s "so". </script>\n\nTwo &amp; <b>three</b>.', *"ABCDE")
QUESTION = "Who said </title><script>document.title='owned'</script>?"
ANSWER = " Wren é. So </script>"


def made_context():
    """Six documents, the first in three sentences, between what no document has."""
    text = "<|user|>"
    spans = []
    for number, document in enumerate(DOCUMENTS):
        spans.append((len(text), len(text) + len(document), f"<i>{number}</i>"))
        text += document + "|"
    spans.append((len(text), len(text) + len(QUESTION), "question"))
    context = tokenize_context(RenderedPrompt(text + QUESTION, tuple(spans)), ANSWER, loss="margin")
    # Whole tokens that are no markup either: one of no document, one of the third.
    tokens = list(context.tokens)
    spans = list(context.spans)
    tokens[0] = tokens[int(spans[2].positions[0])] = SCRIPT
    spans[2] = spans[2]._replace(texts=(SCRIPT,))
    return context._replace(tokens=tuple(tokens), spans=tuple(spans))


CONTEXT = made_context()


def made_scores(parts, seed=0):
    *answer, last = answer_segments(CONTEXT, None, parts)
    answer.append(last._replace(texts=(SCRIPT,)))
    rng = np.random.default_rng(seed)
    numbers = (
        rng.normal(size=(len(answer), CONTEXT.length)) * 10.0 ** -np.arange(len(answer))[:, None]
    )
    return scores_by_token(answer, context_segments(CONTEXT, "sentences"), numbers)


def written(path, parts):
    page = sources_page(
        made_scores(parts),
        CONTEXT,
        question=QUESTION,
        how=mask_gradient.METHOD.how,
        findings=[SCRIPT],
        about={"model": "<b>"},
    )
    path.write_text(page, encoding="utf-8")
    return page
