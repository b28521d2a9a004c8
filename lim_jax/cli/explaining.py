"""Which positions a language model uses, and why, from a terminal."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
import tyro
from tqdm import tqdm

from lim_jax import explanations, models, plots, report
from lim_jax._checks import as_path, counted, require
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.asking import read_contexts
from lim_jax.cli.folder import (
    UNFINISHED,
    Named,
    Unnamed,
    run_folder,
    save_figure,
    write_json,
    write_table,
)
from lim_jax.cli.networks import network_within
from lim_jax.cli.pages import first_contexts
from lim_jax.cli.profiling import require_fitting
from lim_jax.density.measurement import influence
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import HOPS
from lim_jax.grid.cells import token_grid
from lim_jax.grid.partition import Regions, boundary_regions
from lim_jax.loss.queries import last_token, teacher_forcing
from lim_jax.probes import Estimate
from lim_jax.results import load, save

Case = tuple[models.CausalLM, jax.Array]  # a network, and where the loss asks
FIRST, MOST = 16, 1024
SECONDS, GRADIENTS = 30.0, 100  # a context's explanation: 60 gradients at L = 64, 100 at 256


def explain(
    model: tyro.conf.Positional[Unnamed] = None,
    data: Unnamed = None,
    max_length: int = 64,
    contexts: int | None = None,
    delta: float = 0.2,
    depth: int = 0,
    steps: int = 300,
    seed: int = 0,
    html: bool = False,
    memory: float | None = None,
    out: Named = Path("explanation"),
    overwrite: bool = False,
) -> int:
    """Say which positions a language model uses, and why: density, channels, cone, certificates.

    A model of your own on data of your own; or, with neither, a seeded byte-level network, and the
    same trained on the standard library's sources. Each under uniform teacher forcing and under a
    last-token loss, that with and without its query. Prints tables, and writes explanation.json,
    a CSV for each explanation, and figures as PNG and SVG. Interrupted and run again it goes on
    from what is finished.

    Args:
        model: A folder of weights as published, or a GGUF file; with its tokenizer.
        data: A UTF-8 text, cut into contexts; or JSON lines (a file named .jsonl), each with
            "text", or with "prompt" and "answer", all cut on the left to the shortest.
        max_length: The most tokens of a context, or bytes of the byte-level network; the length of
            each context of a text.
        contexts: How many contexts to average over. By default as many as make two standard errors
            of LIM less than 10 %, or as can be explained in half a minute a network and loss.
        delta: The width of each boundary region.
        depth: The depth of the states that are judged: 0 is the input, k that after k layers.
        steps: How many steps of Adam to train the byte-level network for.
        seed: For the network, the training and the choice of contexts.
        html: Write a page for each network and loss too, such as given_network_last_token.html: the
            first five contexts with every token shaded, which takes a longer look at each.
        memory: How many GiB may be used, by default all that is free. A network that needs more is
            left in its files and read a layer at a time.
        out: The folder to write to.
        overwrite: Write over what is in the folder. Without, it must be empty, or of this run.
    """
    model = None if model is None else as_path(model, "model")
    data = None if data is None else as_path(data, "data")
    arguments = {
        "model": model, "data": data, "max_length": max_length, "contexts": contexts,
        "delta": delta, "depth": depth, "steps": steps, "seed": seed, "html": html,
    }  # fmt: skip
    keys = jax.random.split(jax.random.key(seed), 4)
    with run_folder(out, "explain", arguments, overwrite=overwrite) as folder, jax.enable_x64(True):
        # All arguments are looked at before the first long computation.
        boundary_regions(token_grid(max_length), delta)
        counted(steps, "steps")
        if html:
            report.require_page_packages()
        most = MOST if contexts is None else counted(contexts, "contexts")
        unfinished = folder / UNFINISHED

        def held(path: Path) -> models.CausalLM:
            return network_within(path, memory, FIRST * max_length, unfinished)

        start, windows = _network_and_windows(
            model, data, max_length, most, (keys[0], keys[2]), held
        )
        _require_enough(windows, contexts)
        counted(depth, "depth", least=0, most=start.flow.depth - 1, expected="a layer's depth")
        grid = token_grid(windows.shape[1] - 1, start.embedding.dtype)
        regions = boundary_regions(grid, delta)
        networks, losses = {"given": start}, None
        if model is None:
            text, progress = models.standard_library_text(), partial(tqdm, desc="training")
            trained, losses = models.train(
                start, text, max_length, steps, key=keys[1], progress=progress,
                checkpoint=unfinished / "training",
            )  # fmt: skip
            networks = {"seeded": start, "trained": trained}
        # The clock may choose another number when the run is taken up: the first one holds.
        chosen = contexts or _kept_contexts(unfinished)
        chosen = chosen or _enough_contexts(networks, windows, regions)
        windows = windows[:chosen]
        found, masses = _explained(networks, windows, regions, keys[3], depth, unfinished)
        _report_explanations(found, masses, losses, regions, folder)
        if html:
            _write_pages(found, _cases(networks, regions), windows, model, folder)
    return 0


def _kept_contexts(unfinished: Path) -> int | None:
    """How many contexts a run explained that was interrupted."""
    kept = sorted(unfinished.glob("*.npz"))
    return load(kept[0])["contexts"] if kept else None


def _network_and_windows(
    model: Path | None,
    data: Path | None,
    length: int,
    most: int,
    keys: tuple[jax.Array, jax.Array],
    held: Callable[[Path], models.CausalLM],
) -> tuple[models.CausalLM, jax.Array]:
    """The model and what it reads, both given; or a byte-level one, and the standard library."""
    if model is None and data is None:
        text = models.standard_library_text()
        windows = models.sample_windows(text, length, most, key=keys[1])
        return models.byte_model(length, key=keys[0]), windows
    require(
        model is not None and data is not None,
        "model and data",
        got=f"{model} and {data}",
        expected="both or neither",
        cure="A model reads data of your own; without them a byte-level network is trained.",
    )
    assert model is not None and data is not None
    read = read_contexts(data, model, "next-token", length)
    network = held(model)
    require_fitting(network, read)
    shortest = min(context.length for context in read)
    rows = np.stack([context.window[-shortest - 1 :] for context in read])
    order = jax.random.permutation(keys[1], len(rows))[:most]
    return network, jax.device_put(rows)[order]


def _require_enough(windows: jax.Array, contexts: int | None) -> None:
    require(
        contexts is None or contexts <= len(windows),
        "contexts",
        got=f"{contexts}",
        expected=f"at most {len(windows)}, those of the data",
        cure="Give more data, or leave --contexts out.",
    )


def _cases(networks: Mapping[str, models.CausalLM], regions: Regions) -> dict[str, Case]:
    """Each network under each loss, by name."""
    length = regions.grid.size
    losses = {"teacher forcing": teacher_forcing(length), "last token": last_token(length)}
    return {
        f"{name} network, {loss}": (network, weights.astype(network.embedding.dtype))
        for name, network in networks.items()
        for loss, weights in losses.items()
    }


def _enough_contexts(
    networks: Mapping[str, models.CausalLM], windows: jax.Array, regions: Regions
) -> int:
    """As many contexts as make every LIM narrow, or as can be explained in `SECONDS` each.

    By gradients alone, of which an explanation of one context takes the time of `GRADIENTS`. Of a
    last-token loss the query is left out: no other position matters to its LIM.
    """
    cases = list(_cases(networks, regions).values())

    def measured(start: int) -> list[Influence]:
        batch = windows[start : start + FIRST]
        found = [_influence(*case, batch, regions) for case in cases]
        return jax.block_until_ready(found)

    measured(0)  # compiles
    begun = perf_counter()
    pooled, count = measured(0), min(FIRST, len(windows))
    each = (perf_counter() - begun) / (count * len(cases))
    most = min(len(windows), int(SECONDS / (GRADIENTS * each)))
    while count + FIRST <= most and any(_too_wide(one) for one in pooled):
        pooled = [one.merge(other) for one, other in zip(pooled, measured(count), strict=True)]
        count += FIRST
    return count


def _influence(
    network: models.CausalLM, weights: jax.Array, windows: jax.Array, regions: Regions
) -> Influence:
    """Without the queries, unless they are all of a region."""
    x, y = jax.vmap(network.example, in_axes=(0, None))(windows, weights)
    kept = explanations.regions_without_queries(weights, regions) or regions
    return influence(models.CausalLM.loss, network, (x, y), regions.grid, kept)


def _too_wide(found: Influence) -> bool:
    needed = explanations.contexts_needed(found)
    return needed is None or needed > int(found.count)


def _explained(
    networks: Mapping[str, models.CausalLM],
    windows: jax.Array,
    regions: Regions,
    key: jax.Array,
    depth: int,
    unfinished: Path,
) -> tuple[dict[str, explanations.Explanation], dict[str, Estimate]]:
    """Explanations by network and loss, and cone masses by network, each kept as soon as found."""
    cases = _cases(networks, regions)

    def once(name: str, find: Callable[[], Any]) -> Any:
        return _once(unfinished / f"{_stem(name)}.npz", len(windows), find)

    found = {}
    for name, (network, weights) in tqdm(cases.items(), desc="explaining", unit="case"):
        case = network, windows, weights, regions
        found[name] = once(name, partial(explanations.explain, *case, key=key, depth=depth))
    masses = {}
    for name, network in tqdm(networks.items(), desc="cone mass", unit="network"):
        # Exact norms of every block: a few contexts settle the average.
        mass = partial(explanations.average_cone_mass, network, windows[:4], regions)
        masses[f"{name} network"] = once(f"cone mass, {name}", mass)
    return found, masses


def _once(path: Path, contexts: int, find: Callable[[], Any]) -> Any:
    """What is found now and kept in a file, with of how many contexts it is, or was before."""
    if not path.exists():
        found = {"contexts": contexts, "found": find()}
        path.parent.mkdir(exist_ok=True)
        save(found, path)
    return load(path)["found"]


def _stem(name: str) -> str:
    return name.replace(", ", "_").replace(" ", "_")


def _report_explanations(
    found: Mapping[str, explanations.Explanation],
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
        print(explanations.explanation_table(result))
    document = {
        "training_losses": [] if losses is None else losses.tolist(),
        "cone_mass": {
            name: {part: values.tolist() for part, values in mass._asdict().items()}
            for name, mass in masses.items()
        },
        "explanations": {name: result.record() for name, result in found.items()},
    }
    write_json(out / "explanation.json", document)
    save_figure(plots.cone_masses(masses, regions), out, "cone_mass")
    if losses is not None:
        print(f"\nTraining took the loss from {losses[0]:.3f} to {losses[-1]:.3f} nats a byte.")
    print(f"Wrote explanation.json, tables and {figures} figures to {out}.")


def _save_explanation(result: explanations.Explanation, name: str, out: Path) -> int:
    """Write one explanation's table, draw it, and say in how many figures."""
    stem, found = _stem(name), result.influence
    columns = (
        found.grid.nodes, found.density, found.density_error,
        *result.channel_energies, *result.hop_energies,
    )  # fmt: skip
    names = (f"{part} energy" for part in (*CHANNELS, *HOPS))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write_table(out / f"{stem}.csv", ("position", "density", "error", *names), rows)
    figures = {
        "influence": plots.influence_profile(result.influence, name),
        "channels": plots.channel_energies(result, name),
        "hops": plots.hop_energies(result, name),
        "certificates": plots.certificate_margins(result.certificates, name),
    }
    if result.without_queries is not None:
        figures["influence_without_queries"] = plots.influence_profile(result.without_queries, name)
    for kind, figure in figures.items():
        save_figure(figure, out, f"{stem}_{kind}")
    return len(figures)


def _write_pages(
    found: Mapping[str, explanations.Explanation],
    cases: Mapping[str, Case],
    windows: jax.Array,
    model: Path | None,
    out: Path,
) -> None:
    """A page for each network and loss; ids of the byte-level network are bytes."""
    tokenizer = None if model is None else models.read_tokenizer(model)
    whose = "" if model is None else f"{model.name}, "
    for name, (network, weights) in cases.items():
        result, rows = found[name], list(np.asarray(windows))
        accounts, texts = first_contexts(
            network, rows, [weights] * len(rows), tokenizer, depth=result.depth
        )
        report.write_page(
            out / f"{_stem(name)}.html",
            result.influence,
            accounts,
            texts,
            title=whose + name,
            certificates=result.certificates,
            without_queries=result.without_queries,
        )
    print(f"Wrote a page for each network and loss to {out}.")
