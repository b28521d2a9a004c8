"""Which positions a language model uses, and why, from a terminal."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax
from tqdm import tqdm

from lim_jax import models, plots, studies
from lim_jax._checks import counted, require
from lim_jax.grid import Regions, boundary_regions, token_grid
from lim_jax.loss import last_token, teacher_forcing
from lim_jax.probes import Estimate


def explain(
    out: Path = Path("explanation"),
    model: Path | None = None,
    text: Path | None = None,
    length: int = 64,
    steps: int = 300,
    contexts: int = 16,
    delta: float = 0.2,
    seed: int = 0,
    depth: int = 0,
) -> int:
    """Say which positions a language model uses, and why: density, channels, cone, certificates.

    A model from a folder of weights, on a text; or a seeded byte-level network, and the same
    trained on the standard library's sources. Each under uniform teacher forcing and under a
    last-token loss. Prints tables, and writes explanation.json and figures.

    Args:
        out: The folder to write to; it is made where it is missing.
        model: A folder of weights as published, or a GGUF file; with its tokenizer.
        text: What the model reads: a file of UTF-8 text.
        length: The context length L, in ids: bytes, or the model's tokens.
        steps: How many steps of Adam to train the byte-level network for.
        contexts: How many contexts to average over.
        delta: The width of each boundary region.
        seed: For the network, the training and the contexts.
        depth: The depth of the states that are judged: 0 is the input, k that after k layers.
    """
    keys = jax.random.split(jax.random.key(seed), 4)
    with jax.enable_x64(True):
        # All arguments are looked at before the first long computation.
        boundary_regions(token_grid(length), delta)
        counted(steps, "steps")
        counted(contexts, "contexts")
        start, ids = _network_and_text(model, text, length, keys[0])
        counted(depth, "depth", least=0, most=start.flow.depth - 1, expected="a layer's depth")
        windows = models.sample_windows(ids, length, contexts, key=keys[2])
        regions = boundary_regions(token_grid(length, start.embedding.dtype), delta)
        out.mkdir(parents=True, exist_ok=True)
        networks, losses = {"given": start}, None
        if model is None:
            progress = partial(tqdm, desc="training", unit="step")
            trained, losses = models.train(
                start, ids, length, steps, key=keys[1], progress=progress
            )
            networks = {"seeded": start, "trained": trained}
        found, masses = _explained(networks, windows, regions, keys[3], depth)
        _report_explanations(found, masses, losses, regions, out)
    return 0


def _network_and_text(
    model: Path | None, text: Path | None, length: int, key: jax.Array
) -> tuple[models.CausalLM, jax.Array]:
    """The model and what it reads, both given; or a byte-level one, and the standard library."""
    if model is None and text is None:
        return models.byte_model(length, key=key), models.standard_library_text()
    require(
        model is not None and text is not None,
        "model and text",
        got=f"{model} and {text}",
        expected="both or neither",
        cure="A model reads a text of your own; without them a byte-level network is trained.",
    )
    assert model is not None and text is not None
    ids = models.ids_of_text(text.read_text(encoding="utf-8"), model)
    return models.load(model), ids


def _explained(
    networks: Mapping[str, models.CausalLM],
    windows: jax.Array,
    regions: Regions,
    key: jax.Array,
    depth: int,
) -> tuple[dict[str, studies.Explanation], dict[str, Estimate]]:
    """Explanations by network and loss, and cone masses by network."""
    length = regions.grid.size
    weights = {"teacher forcing": teacher_forcing(length), "last token": last_token(length)}
    cases = [(network, loss) for network in networks for loss in weights]
    found = {
        f"{network} network, {loss}": studies.explain(
            networks[network], windows, weights[loss], regions, key=key, depth=depth
        )
        for network, loss in tqdm(cases, desc="explaining", unit="case")
    }
    # Exact norms of every block: a few contexts settle the average.
    masses = {
        f"{name} network": studies.average_cone_mass(network, windows[:4], regions)
        for name, network in tqdm(networks.items(), desc="cone mass", unit="network")
    }
    return found, masses


def _report_explanations(
    found: Mapping[str, studies.Explanation],
    masses: Mapping[str, Estimate],
    losses: jax.Array | None,
    regions: Regions,
    out: Path,
) -> None:
    """Print every explanation, write all numbers and draw."""
    figures = 1
    for name, result in found.items():
        figures += _save_explanation(result, name, out)
        grid, count = result.influence.grid, int(result.influence.count)
        print(f"\n== {name} (L = {grid.size}, {count} contexts) ==")
        print(studies.explanation_table(result))
    document = {
        "training_losses": [] if losses is None else losses.tolist(),
        "cone_mass": {
            name: {part: values.tolist() for part, values in mass._asdict().items()}
            for name, mass in masses.items()
        },
        "explanations": {name: result.record() for name, result in found.items()},
    }
    (out / "explanation.json").write_text(json.dumps(document, indent=2) + "\n")
    plots.cone_masses(masses, regions).savefig(out / "cone_mass.png")
    if losses is not None:
        print(f"\nTraining took the loss from {losses[0]:.3f} to {losses[-1]:.3f} nats a byte.")
    print(f"Wrote explanation.json and {figures} figures to {out}.")


def _save_explanation(result: studies.Explanation, name: str, out: Path) -> int:
    """Draw one explanation, and say in how many figures."""
    stem = name.replace(", ", "_").replace(" ", "_")
    figures = {
        "influence": plots.influence_profile(result.influence),
        "channels": plots.channel_energies(result, name),
        "hops": plots.hop_energies(result, name),
        "certificates": plots.certificate_margins(result.certificates, name),
    }
    if result.without_queries is not None:
        figures["influence_without_queries"] = plots.influence_profile(result.without_queries)
    for kind, figure in figures.items():
        figure.savefig(out / f"{stem}_{kind}.png")
    return len(figures)
