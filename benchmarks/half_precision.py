"""How wrong products in bfloat16 are: a table of errors by network and quantity.

``python benchmarks/half_precision.py FILE.gguf`` compares float32 with ``compute="bfloat16"`` on
real prompts of a published network, and on two networks that it trains on Python's own sources.
Errors are relative to the largest entry; the density's is its distance in L1, shares are of ten
equal pieces of the context, and LIM is an index.
"""

import dataclasses
import sys
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from byte_training import train

import lim_jax as lim
from lim_jax import models
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import channels
from lim_jax.models.small_models import byte_model, standard_library_text
from lim_jax.training.density_objectives import balanced_objective

LENGTH = 64  # of the contexts of networks that are trained here
PROMPTS = (
    "Paris is the capital of France. Rome is the capital of Italy. Oslo is the capital of Norway. "
    "Which city is the capital of Italy? Answer:",
    "The red key is in the kitchen, the blue key in the hall, and the green key under the mat. "
    "Anna took the blue key to the garden. Where is the green key? It is",
)


@eqx.filter_jit
def quantities(model: models.CausalLM, ids: jax.Array) -> dict[str, jax.Array]:
    """Return what is compared, of the last token's loss."""
    length = ids.shape[0]
    grid = lim.token_grid(length)
    x = model.embed(ids)
    y = models.Targets(ids[:1], jnp.ones(1), jnp.array([length - 1]))
    energy = jnp.sum(jax.grad(model.loss)(x, y) ** 2, axis=1)
    density = length * energy / energy.sum()
    pieces = jnp.arange(length) * 10 // length
    shares = jax.ops.segment_sum(density / length, pieces, 10)
    batch = jax.tree.map(lambda leaf: leaf[None], (x, y))
    objective = partial(balanced_objective, models.CausalLM.loss, grid=grid, strength=1.0)
    slopes = eqx.filter_grad(lambda model: objective(model, batch))(model)
    ledger = channels(model.flow, model.terminal_loss, (x, y), grid).vectors
    return {
        "logits": model.logits(ids),
        "density": density,
        "shares": shares,
        "LIM": jnp.log((shares[0] + shares[-1]) / 2 / shares[4:6].mean()),
        "channels": jnp.stack([jnp.sum(jnp.square(v)) for v in jax.tree.leaves(ledger)]),
        "hops": jnp.sum(
            attention_hops(model.flow, model.terminal_loss, (x, y), grid, 2)[0] ** 2, axis=(1, 2)
        ),
        "Algorithm 1": jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(slopes)]),
    }


def errors(model: models.CausalLM, ids: np.ndarray) -> dict[str, float]:
    """Return the errors of products in bfloat16 beside float32."""
    half = dataclasses.replace(model, flow=dataclasses.replace(model.flow, compute="bfloat16"))
    exact, half_result = (
        jax.tree.map(np.asarray, quantities(each, jnp.asarray(ids))) for each in (model, half)
    )
    differences = {name: np.abs(half_result[name] - exact[name]) for name in exact}
    absolute = {
        "density": differences["density"].mean(),
        "LIM": differences["LIM"],
        "shares": differences["shares"],
    }
    relative = {name: differences[name].max() / np.abs(exact[name]).max() for name in exact}
    return {name: float(np.max(absolute.get(name, relative[name]))) for name in exact}


def main() -> None:
    """Print a row for each network and prompt."""
    cases = []
    if len(sys.argv) > 1:
        published = models.LanguageModel.from_pretrained(sys.argv[1])
        cases += [
            (published.name, published.network, published.tokenizer.encode(text).ids)
            for text in PROMPTS
        ]
    text = standard_library_text(100_000)
    for seed in (0, 1):
        start = byte_model(LENGTH, width=32, depth=4, key=jax.random.key(seed))
        network = train(start, text, LENGTH, jax.random.key(seed + 2))
        cases.append((f"trained here, {seed}", network, text[5000 : 5000 + LENGTH]))
    for number, (name, network, ids) in enumerate(cases):
        row = errors(network, np.asarray(ids, np.int32))
        if number == 0:
            print("| network | tokens |", " | ".join(row), "|")
            print("|---|---|" + "---|" * len(row))
        print(f"| {name} | {len(ids)} |", " | ".join(f"{x:.1e}" for x in row.values()), "|")


if __name__ == "__main__":
    main()
