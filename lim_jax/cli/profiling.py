"""Which positions a model of your own uses on data of your own, from a terminal."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from jaxtyping import Float
from tqdm import tqdm

from lim_jax import explanations, models, plots, report
from lim_jax._checks import as_path, counted, require
from lim_jax.cli.data import Asked, Context, read_contexts
from lim_jax.cli.folder import UNFINISHED, Named, run_folder, save_figure, write_json, write_table
from lim_jax.cli.networks import network_within, noted
from lim_jax.cli.pages import first_contexts
from lim_jax.density.statistics import Influence
from lim_jax.grid.carrying import carrying_shares
from lim_jax.grid.cells import token_grid
from lim_jax.grid.partition import boundary_regions
from lim_jax.models import CausalLM
from lim_jax.probes import sample_mean

Energy = Float[np.ndarray, " _"]
CELLS, MOST_TOKENS = 100, 3
TOKEN_COLUMNS = ("context", "place", "token", "position", "weight", "energy", "density")


class Record(NamedTuple):
    """What spans of one name hold of a context's influence, averaged over the contexts with it.

    Attributes
    ----------
    share, error
        Of the context's total Z, and the standard error over contexts.
    tokens
        Of the context's tokens.
    contexts
        How many have such a span.
    most
        Which of its tokens hold most of that, each with its part of it.
    """

    share: float
    error: float
    tokens: float
    contexts: int
    most: str = ""


class Profiled(NamedTuple):
    """All that the command measured: what its tables, files and figures are made of.

    Attributes
    ----------
    contexts, energies
        What was read, and the energies of each context's tokens, on its own grid.
    influence
        Of all contexts, on a common grid.
    without_queries
        That of the tokens before the first that is asked, as contexts of their own; None where the
        first of a context is.
    records
        By name, in the order in which they are met.
    """

    contexts: Sequence[Context]
    energies: Sequence[Energy]
    influence: Influence
    without_queries: Influence | None
    records: dict[str, Record]


def profile(
    model: tyro.conf.Positional[Named],
    data: Named,
    loss: Asked = "next-token",
    delta: float = 0.2,
    max_length: int = 512,
    html: bool = False,
    memory: float | None = None,
    out: Named = Path("profile"),
    overwrite: bool = False,
) -> int:
    """Say which positions of your data a model uses: densities with errors, tokens and records.

    Prints what was found in a sentence, the share of each named record, then the density over the
    left, the middle and the right and its indices. Writes profile.json, profile.csv (position,
    density, error), tokens.csv, records.csv, and figures as PNG and SVG. Interrupted and run again
    it goes on after the last context that was measured.

    Args:
        model: A folder of weights as published, or a GGUF file; with its tokenizer.
        data: A UTF-8 text; or JSON lines (a file named .jsonl), each with "text", or with "prompt"
            and "answer", and maybe "spans": [[start, end, "name"], ...] in characters.
        loss: next-token asks every position for the token after it; answer the answer's tokens
            alone; margin the same by their log odds, whose influence does not fade where the model
            is sure.
        delta: The width of each boundary region.
        max_length: The most tokens of a context: a text is cut, a longer line is refused.
        html: Write profile.html too, a page of the first five contexts with every token shaded,
            which takes a longer look at each: by channel, hops, layer and head.
        memory: How many GiB may be used, by default all that is free. A network that needs more is
            left in its files and read a layer at a time.
        out: The folder to write to.
        overwrite: Write over what is in the folder. Without, it must be empty, or of this run.
    """
    model, data = as_path(model, "model"), as_path(data, "data")
    arguments = {
        "model": model, "data": data, "loss": loss, "delta": delta, "max_length": max_length,
        "html": html,
    }  # fmt: skip
    with run_folder(out, "profile", arguments, overwrite=overwrite) as folder:
        boundary_regions(token_grid(CELLS), delta)
        counted(max_length, "max_length")
        if html:
            report.require_page_packages()
        contexts = read_contexts(data, model, loss, max_length)
        unfinished = folder / UNFINISHED
        longest = max(context.length for context in contexts)
        at_once = max(longest, models.ids.TOKENS_AT_ONCE)
        network = network_within(model, memory, at_once, unfinished)
        require_fitting(network, contexts)
        found = _profiled(network, contexts, loss, delta, unfinished)
        print(f"== {model} on {data}: {_described(contexts)}, loss {loss} ==")
        print(_words(found))
        title = f"{model.name}, {loss}"
        _write(found, f"{title}, {_described(contexts)}", folder)
        if html:
            _write_page(found, network, model, loss, title, folder)
        print(f"Wrote profile.json, tables and figures to {folder}.")
    return 0


def require_fitting(network: CausalLM, contexts: Sequence[Context]) -> None:
    """Refuse contexts that are longer than the network knows, and ids that it does not."""
    longest = max(context.length for context in contexts)
    places = longest if network.positions is None else network.positions.shape[0]
    require(
        longest <= places,
        "data",
        got=f"a context of {longest} tokens",
        expected=f"at most {places}, the places that the network knows",
        cure="Take a smaller --max-length, or shorter lines.",
    )
    largest = max(int(context.window.max()) for context in contexts)
    require(
        largest < network.vocabulary,
        "tokenizer",
        got=f"the id {largest}",
        expected=f"ids below {network.vocabulary}, the network's words",
        cure="Tokenizer and weights must be of one model.",
    )


def _profiled(
    network: CausalLM, contexts: Sequence[Context], asked: Asked, delta: float, unfinished: Path
) -> Profiled:
    energies = models.energies_of_ids(
        network,
        [context.window for context in contexts],
        ask=[context.weights for context in contexts],
        loss=CausalLM.margin_loss if asked == "margin" else CausalLM.loss,
        checkpoint=unfinished / "energies",
        progress=lambda items: noted(
            tqdm(items, desc="profile", unit="context"), network, unfinished
        ),
    )
    return Profiled(
        contexts,
        energies,
        _influence(energies, delta),
        _without_queries(contexts, energies, delta),
        by_record(contexts, energies),
    )


def _influence(energies: Sequence[Energy], delta: float) -> Influence:
    """On the contexts' own grid where they have one length, else on one of at most CELLS cells."""
    lengths = [energy.size for energy in energies]
    cells = min(lengths) if len(set(lengths)) == 1 else min(CELLS, int(np.median(lengths)))
    grid = token_grid(cells, energies[0].dtype)
    shares = {length: carrying_shares(token_grid(length), grid) for length in set(lengths)}
    carried = np.stack([shares[energy.size] @ energy for energy in energies])
    carried = jax.device_put(carried.astype(energies[0].dtype))
    return Influence.from_energies(carried, boundary_regions(grid, delta))


def _without_queries(
    contexts: Sequence[Context], energies: Sequence[Energy], delta: float
) -> Influence | None:
    first = [int(np.flatnonzero(context.weights)[0]) for context in contexts]
    if min(first) == 0:
        return None
    # Densities on the grid of what is left, whose cells are wider: masses stay.
    pairs = zip(energies, first, strict=True)
    return _influence([energy[:end] * end / energy.size for energy, end in pairs], delta)


def by_record(contexts: Sequence[Context], energies: Sequence[Energy]) -> dict[str, Record]:
    """What the spans of each name hold, by name, in the order in which they are met.

    Parameters
    ----------
    contexts, energies
        As in `Profiled`; energies of no contexts are nobody's.
    """
    shares: dict[str, list[tuple[float, float]]] = {}
    tokens: dict[str, dict[str, float]] = {}
    for context, energy in zip(contexts, energies, strict=bool(contexts)):
        parts = energy / (energy.sum() or 1)
        for name in dict.fromkeys(span.name for span in context.spans):
            places = [span.places for span in context.spans if span.name == name]
            chosen = np.unique(np.concatenate(places))
            shares.setdefault(name, []).append(
                (float(parts[chosen].sum()), chosen.size / energy.size)
            )
            for place in chosen.tolist():
                held, token = tokens.setdefault(name, {}), context.tokens[place]
                held[token] = held.get(token, 0.0) + float(parts[place])
    found = {name: np.array(pairs).T for name, pairs in shares.items()}
    means = {name: sample_mean(jax.device_put(share)) for name, (share, _) in found.items()}
    return {
        name: Record(
            float(means[name].value), float(means[name].error), float(of_tokens.mean()),
            of_tokens.size, _most(tokens[name]),
        )
        for name, (_, of_tokens) in found.items()
    }  # fmt: skip


def _most(tokens: Mapping[str, float]) -> str:
    """The tokens that hold most of a part, as JSON spells them, with their shares of it."""
    whole = sum(tokens.values()) or 1
    order = sorted(tokens.items(), key=lambda pair: -pair[1])[:MOST_TOKENS]
    return ", ".join(
        f"{json.dumps(token, ensure_ascii=False)} {report.percent(energy / whole)}"
        for token, energy in order
    )


def record_lines(records: Mapping[str, Record]) -> list[str]:
    """A line for each record under a line of names: the largest share first."""
    if not records:
        return []
    names = " ".join(f"{name:>10s}" for name in ("share", "error", "of tokens", "contexts"))
    lines = [f"{'record':26s} {names}  most in"]
    for name, one in sorted(records.items(), key=lambda pair: -pair[1].share):
        error = f"{one.error:10.4f}" if np.isfinite(one.error) else f"{'-':>10s}"
        shares = f"{one.share:10.4f} {error} {one.tokens:10.4f} {one.contexts:10d}"
        lines.append(f"{name:26s} {shares}  {one.most}")
    return lines


def _described(contexts: Sequence[Context]) -> str:
    lengths = [context.length for context in contexts]
    spread = f"{min(lengths)} to {max(lengths)}" if min(lengths) < max(lengths) else lengths[0]
    return f"{len(contexts)} context{'s' * (len(lengths) > 1)} of {spread} tokens"


def _words(found: Profiled) -> str:
    """The finding, the records, then positions."""
    rest = found.without_queries
    lines = [
        report.records_finding(found.records),
        report.finding(found.influence, rest),
        *record_lines(found.records),
        explanations.influence_table(found.influence, rest),
    ]
    return "\n".join(line for line in lines if line)


def _write(found: Profiled, title: str, folder: Path) -> None:
    parts = {"influence": found.influence, "influence_without_queries": found.without_queries}
    measured = {name: part for name, part in parts.items() if part is not None}
    records = {name: record._asdict() for name, record in found.records.items()}
    document = {name: part.record() for name, part in measured.items()}
    write_json(folder / "profile.json", {**document, "records": records})
    whole = found.influence
    columns = whole.grid.nodes, whole.density, whole.density_error
    rows = zip(*(column.tolist() for column in columns), strict=True)
    write_table(folder / "profile.csv", ("position", "density", "error"), rows)
    write_table(folder / "tokens.csv", TOKEN_COLUMNS, _by_token(found))
    named = [(name, *record) for name, record in found.records.items()]
    write_table(folder / "records.csv", ("record", *Record._fields), named)
    for name, part in measured.items():
        save_figure(plots.influence_profile(part, title), folder, name)


def _write_page(
    found: Profiled, network: CausalLM, model: Path, loss: Asked, title: str, folder: Path
) -> None:
    accounts, texts = first_contexts(
        network,
        [context.window for context in found.contexts],
        [context.weights for context in found.contexts],
        models.read_tokenizer(model),
        terminal_loss=CausalLM.terminal_margin_loss if loss == "margin" else CausalLM.terminal_loss,
    )
    report.write_page(
        folder / "profile.html",
        found.influence,
        accounts,
        texts,
        title=title,
        without_queries=found.without_queries,
        spans=[context.spans for context in found.contexts[: len(accounts)]],
        records=found.records,
    )


def _by_token(found: Profiled) -> Iterator[tuple[Any, ...]]:
    """A row for each token of each context; its density is that within the context."""
    for number, (context, energy) in enumerate(zip(found.contexts, found.energies, strict=True)):
        density, length = (energy / (energy.mean() or 1)).tolist(), context.length
        of_tokens = zip(context.tokens, context.weights.tolist(), energy.tolist(), density,
                        strict=True)  # fmt: skip
        for place, (token, weight, one, share) in enumerate(of_tokens):
            yield number, place, token, (place + 1) / length, weight, one, share
