# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Which positions does SmolLM2 use?
#
# A published model is asked for the value of one key among ten, which stand one after another.
# Which of them does it find, and which does its loss depend on? A minute on two cores with
# SmolLM2-135M.
#
# `LIM_JAX_MODEL` names a folder of weights as they are published, or a GGUF file, of any
# family that `lim.models.load` reads. Without it a random network of bytes stands in: it finds
# nothing, but shows the way.

# %%
import os

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np

import lim_jax as lim
from lim_jax.models import LanguageModel, byte_model
from lim_jax.models.causal import CausalLM
from lim_jax.plots import draw_densities, legend_below
from lim_jax.tasks import Prompt, decodes_greedily, encode, record_weights

RECORDS, ROUNDS = 10, 1
DIGITS = list("0123456789abcdef")
file = os.environ.get("LIM_JAX_MODEL")
if file:
    model = LanguageModel.from_pretrained(file)
else:
    random = byte_model(256, width=16, heads=2, depth=2, key=jax.random.key(0))
    model = LanguageModel(random, name="a byte-level stand-in")
network, tokenizer, name = model.network, model.tokenizer, model.name

# %% [markdown]
# ## Ask
#
# A prompt knows where its records are, `encode` which record each token belongs to and which tokens
# are the answer's. Every place has the asked key once in each round.


# %%
def key_value_prompt(seed, place):
    """A JSON object of keys and values of three random digits; the key at a place is asked for."""
    rng = np.random.default_rng(seed)
    keys = {}  # in the order drawn, none twice
    while len(keys) < RECORDS:
        keys["".join(rng.choice(DIGITS, 3))] = None
    pairs = [(key, "".join(rng.choice(DIGITS, 3))) for key in keys]
    asked = pairs.pop(rng.integers(RECORDS))
    pairs.insert(place, asked)
    text, spans = "A JSON object of keys and values:\n\n{", []
    for key, value in pairs:
        record = f'"{key}": "{value}"'
        spans.append((len(text), len(text) + len(record)))
        text += record + ",\n "
    text = text.removesuffix(",\n ") + f'}}\n\nThe value of the key "{asked[0]}" is "'
    return Prompt(text, asked[1], tuple(spans), (place,))


prompts = [key_value_prompt(seed, place) for seed in range(ROUNDS) for place in range(RECORDS)]
print(prompts[4].text + prompts[4].answer)
examples = [encode(prompt, tokenizer) for prompt in prompts]
longest = max(len(example.window) for example in examples)


@eqx.filter_jit
def decodes_answer(network, window, weights):
    return decodes_greedily(network.logits(window[:-1]), window[1:], weights)


def pad(example):
    """On the right, where causal attention does not look: one shape, one compilation."""
    missing = longest - len(example.window)
    return np.pad(example.window, (0, missing)), np.pad(example.weights, (0, missing))


right = np.array([bool(decodes_answer(network, *pad(example))) for example in examples])
right = right.reshape(ROUNDS, RECORDS)
print("right by place of the asked record:", right.mean(axis=0))

# %% [markdown]
# ## Measure
#
# The loss is the margin of the answer's words, whose influence does not fade where the model is
# sure of them; of the cross-entropy it would. Contexts may have any lengths.

# %%
windows, weights = zip(*(example[:2] for example in examples), strict=True)
energies = lim.models.energies_of_ids(network, windows, ask=weights, loss=CausalLM.margin_loss)
parts = np.array([
    record_weights(example.records, lim.token_grid(len(energy)).weights, RECORDS) @ energy
    for example, energy in zip(examples, energies, strict=True)
])  # fmt: skip
shares = parts / parts.sum(axis=1, keepdims=True)

figure, (upper, lower) = plt.subplots(2, sharex=True, layout="constrained")
places = np.arange(1, RECORDS + 1)
upper.bar(places, right.mean(axis=0), color="#0072b2")
upper.set(ylabel="share of right answers", ylim=(0, 1))
lower.bar(places, shares.mean(axis=0), color="#e69f00")
lower.set(xlabel="place of the record", ylabel="share of the influence")
upper.set_title(f"{name}, {RECORDS * ROUNDS} prompts", fontsize=10)
plt.show()

# %% [markdown]
# Influence says what the loss would notice, whatever record is asked; the task's accuracy says
# which are found. `python -m benchmarks.validation --model FILE` asks hundreds of prompts and gives
# rank correlations of both with intervals.

# %% [markdown]
# ## By position
#
# Carried to shares of each context's own length, contexts average to one density.

# %%
regions = lim.boundary_regions(lim.token_grid(50), 0.2)
result = lim.models.influence_of_ids(
    network, windows, regions, ask=weights, loss=CausalLM.margin_loss
)
figure, axes = plt.subplots(layout="constrained")
draw_densities(axes, {name: result})
axes.set(xlabel="position $p$ (part of the context)", ylabel="influence density m(p)")
legend_below(figure)
left, middle, right_end = map(float, result.regional_averages)
lim_index = float(result.indices().lim)
print(f"left {left:.2f}, middle {middle:.2f}, right {right_end:.2f}: LIM {lim_index:+.2f}")

# %% [markdown]
# ## Why? One context, token by token
#
# The page that `lim-jax profile --html` writes has a text shaded by influence, with its heads,
# depths and hops: the same account of one context.

# %%
account = lim.explanations.account_of_context(
    network, windows[4], weights[4], loss=CausalLM.margin_loss
)
texts = lim.checkpoints.texts_of_ids(windows[4], tokenizer)
strongest = np.argsort(-np.asarray(account.energy))[:8]
for token in sorted(strongest):
    share = float(account.energy[token] / account.energy.sum())
    print(f"{token:4d}  {texts[token]!r:12}  {share:.1%} of this context's influence")
page = lim.report.influence_page(result, [account], [texts], title=f"{name}, margin")
page.save("real_model.html")

# %% [markdown]
# ## Which document did the answer come from?
#
# Documents are laid out one after another, each a part under its title, and the model answers by
# itself. What is measured is that answer. `lim-jax ask MODEL "question" --documents FOLDER`
# does the same in one line.

# %%
documents = [
    lim.prompts.Document("Harbour", "The old harbour was built in 1712."),
    lim.prompts.Document("Observatory", "It was founded by Mira Castellan in 1931."),
    lim.prompts.Document("Market", "The market is held on Thursdays."),
]
question = "Who founded the observatory?"
layout = lim.prompts.document_prompt(documents, question)
if model.chat_template is not None:  # as the model's publisher lays out a chat
    chat = [{"role": "user", "content": question}]
    layout = lim.prompts.chat_prompt(chat, model.chat_template, documents)
prompt = lim.prompts.tokenize_prompt(layout, tokenizer)
(context,) = lim.prompts.generate_answers([prompt], model, "margin", tokens=12)
said = lim.checkpoints.texts_of_ids(context.window, tokenizer)[prompt.length :]
print("answer:", "".join(said).strip())
(energy,) = lim.models.energies_of_ids(
    network, [context.window], ask=[context.weights], loss=CausalLM.margin_loss
)
for span in context.spans:
    print(f"{span.name:12} {energy[span.positions].sum() / energy.sum():5.1%} of the influence")

# %% [markdown]
# In a notebook `lim.report.show`, as the last line of a cell, shows the page of it: every token
# shaded, and documents as blocks with their shares. Here it is saved.

# %%
page = lim.report.show(
    network, [context.window], tokenizer, query_weights=[context.weights], spans=[context.spans],
    title=f"{name}, of documents", loss=CausalLM.margin_loss,
)  # fmt: skip
print("written to", page.save("documents.html"))
