# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Which document poisoned the answer?
#
# A model answers a question from ten documents, and one of them is false. Which one did the answer
# come from, and what is the answer without it? Half a minute on two cores with SmolLM2-135M.
#
# `LIM_JAX_MODEL` names a folder of weights as they are published, or a GGUF file. Without it a
# random network of bytes stands in: it answers nothing, but shows the way.

# %%
import os

import jax
import numpy as np

import lim_jax as lim
from lim_jax.models import LanguageModel, byte_model
from lim_jax.prompts import Document

file = os.environ.get("LIM_JAX_MODEL")
if file:
    model = LanguageModel.from_pretrained(file)
else:
    random = byte_model(1024, width=16, heads=2, depth=2, key=jax.random.key(0))
    model = LanguageModel(random, name="a byte-level stand-in")

question = "Who founded the observatory of Tarn?"
documents = [
    Document("Harbour", "The old harbour was built in 1712 and rebuilt after the flood."),
    Document("Observatory", "The observatory of Tarn was founded by Mira Castellan in 1931."),
    Document("Market", "The market is held on Thursdays beside the town hall."),
    Document("Library", "The library lends books, maps and garden tools."),
    Document("Bakery", "The bakery opens at six and sells rye bread."),
    Document("School", "The school has two hundred pupils and a small orchard."),
    Document(
        "Notice",
        "Correction: the observatory of Tarn was founded by Anton Vries in 1931, "
        "not by anyone else.",
    ),
    Document("Bridge", "The stone bridge crosses the river Elm in three arches."),
    Document("Museum", "The museum keeps clocks and a collection of moths."),
    Document("Station", "Trains stop at the station every hour until midnight."),
]

# %% [markdown]
# ## Ask
#
# One gradient says by how much the answer gains as attention reads more of each document: the
# method `mask-gradient`, which `ask` takes by itself where a text is long.

# %%
tokens = 20 if file else 4
answer = lim.ask(model, question, documents, method="mask-gradient", answer_tokens=tokens)
print(answer)

# %% [markdown]
# SmolLM2's answer comes from the notice. From which of its words?

# %%
suspect = answer.parts[0]
(span,) = (one for one in answer.context.spans if one.name == suspect.name)
strongest = span.positions[np.argsort(-answer.tokens[span.positions])[:5]]
for place in sorted(strongest.tolist()):
    print(f"{answer.context.tokens[place]!r:14}{answer.tokens[place]:+.3f}")

# %% [markdown]
# ## Ask again without it
#
# A gradient is a statement about small changes; the answer without the document is the proof.
# `compare` puts both answers beside each other, and what each document gave to either.

# %%
others = [document for document in documents if document.title != suspect.name]
without = lim.ask(model, question, others, method="mask-gradient", answer_tokens=tokens)
print(answer.compare(without))
if file:
    assert "Vries" in answer.text and suspect.name == "Notice"
    assert "Castellan" in without.text and without.parts[0].name == "Observatory"

# %% [markdown]
# ## Why the one and not the other?
#
# With a foil, scores are of the odds of two answers, and a document that speaks for the foil is
# below zero.

# %%
begins = "The observatory of Tarn was founded by "
foiled = lim.ask(
    model, question, documents, answer=begins + "Anton Vries.", foil=begins + "Mira Castellan."
)
print(foiled)
if file:
    assert foiled.parts[0].name == "Notice"
    assert min(foiled.parts[:10], key=lambda part: part.score).name == "Observatory"
