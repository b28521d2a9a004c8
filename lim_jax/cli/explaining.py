"""Which positions a language model uses, and why, from a terminal."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from tqdm import tqdm

from lim_jax import models
from lim_jax._checks import as_int, as_path, require
from lim_jax.attribution.explaining import (
    ReadContexts,
    cases_of,
    explained_cases,
    recorded_contexts,
    stacked_rows,
)
from lim_jax.attribution.heads import heads_of_cases
from lim_jax.attribution.measuring import require_fitting
from lim_jax.attribution.time_budget import (
    FIRST,
    Case,
    TimeBudget,
    choose_contexts,
    described_contexts,
    duration,
)
from lim_jax.cli.answers import answered, own_answers
from lim_jax.cli.arguments import Asked, Compute, Download, Memory, Out, Overwrite, Unnamed
from lim_jax.cli.explain_output import report_explanations, write_pages
from lim_jax.cli.networks import network_within, open_model
from lim_jax.explanations.certificates import Judged
from lim_jax.grid.cells import token_grid
from lim_jax.grid.partition import boundary_regions
from lim_jax.models import CausalLM, LanguageModel
from lim_jax.models.losses import LossName, loss_kind
from lim_jax.prompts.reading import read_prompts
from lim_jax.report.page import require_page_packages
from lim_jax.results.measured import common_regions
from lim_jax.results.run_folder import UNFINISHED, finished_before, run_folder

MOST = 1024  # contexts that are read at most
BYTES, STEPS = 64, 300  # of the demo: bytes of a context, and steps of Adam
ANSWER = 32  # the most tokens of an answer that the model gives itself


def explain(
    model: tyro.conf.Positional[Unnamed] = None,
    data: Unnamed = None,
    loss: Asked = "next-token",
    max_length: int = 512,
    contexts: int | None = None,
    delta: float = 0.2,
    depth: int = 0,
    certificates: Judged = "deciding",
    seed: int = 0,
    html: bool = False,
    download: Download = False,
    memory: Memory = None,
    compute: Compute = None,
    out: Out = Path("explanation"),
    overwrite: Overwrite = False,
) -> int:
    """Say which positions a language model uses, and why: density, channels, hops, certificates.

    A model of your own on data of your own; with neither, a demo on a byte-level network before and
    after it is trained on the spot. Says first what it will take. Prints what was found, and writes
    explanation.json, a CSV for each explanation, and figures as PNG and SVG. A contrast takes two
    passes and is not explained. Interrupted and run again it goes on from what is finished.

    Args:
        model: A folder of weights as published, a GGUF file, or a public name such as
            HuggingFaceTB/SmolLM2-135M-Instruct; with its tokenizer.
        data: A text, PDF or .docx, cut into contexts; or JSON lines (a file named .jsonl), each
            with "text", or with "prompt" and "answer", each a context, whole. Of a line without
            an answer the model's own is explained.
        max_length: The most tokens of a context: a text is cut, a longer line is refused.
        contexts: How many contexts to average over. By default as many as make two standard errors
            of LIM less than 10 %, or as are explained in a minute or so; at least two, if there
            are.
        delta: The width of each boundary region.
        depth: The depth of the states that are judged: 0 is the input, k that after k layers.
        certificates: deciding stops where a criterion of the paper is seen to be vacuous; all
            computes its numbers all the same, and cone masses, which takes many times as long.
        seed: For the choice of contexts.
        html: Write a page for each network and loss too, such as given_network_answer.html: the
            first five contexts with every token shaded, which takes a longer look at each.
    """
    model, data = _both_or_neither(model, data)
    arguments = {
        "model": model, "data": data, "loss": loss, "max_length": max_length,
        "contexts": contexts, "delta": delta, "depth": depth, "certificates": certificates,
        "seed": seed, "html": html, "compute": compute,
    }  # fmt: skip
    if finished_before(out, "explain", arguments, overwrite=overwrite):
        return 0
    keys = jax.random.split(jax.random.key(seed), 4)
    with run_folder(out, "explain", arguments, overwrite=overwrite) as folder, jax.enable_x64(True):
        _require_options(arguments)
        most = MOST if contexts is None else as_int(contexts, "contexts")
        unfinished = folder / UNFINISHED
        if model is None:
            asked, read = _byte_level(loss, most, keys)
        else:
            opened = open_model(model, download, compute)
            held = partial(network_within, memory=memory, unfinished=unfinished)
            asked, read = _model_and_contexts(opened, data, loss, max_length, most, keys[2], held)
        start = asked.network
        _require_within(start, read, contexts, depth)
        regions = common_regions(read.lengths, delta, start.embedding.dtype)
        demo = _trained(start, keys[1], unfinished) if model is None else None
        networks, losses = demo or ({"given": start}, None)
        cases = cases_of(networks, read, loss)
        # The clock may choose another number when the run is taken up: the first one holds.
        known = contexts or recorded_contexts(unfinished)
        budget = choose_contexts(cases, read.windows, regions, known, read.named)
        count = budget.contexts
        cases = {name: case._replace(weights=case.weights[:count]) for name, case in cases.items()}
        read = ReadContexts(read.windows[:count], read.contexts[:count])
        print(announced(cases, read.lengths, budget, certificates), flush=True)
        results, masses = explained_cases(
            cases, read.windows, regions, keys[3], depth, certificates, unfinished, tqdm
        )
        heads = heads_of_cases(cases, read, tqdm)
        report_explanations(results, masses, losses, regions, read.contexts, heads, folder)
        if html:
            write_pages(results, cases, read.windows, read.contexts, asked, folder)
    return 0


def _require_options(arguments: dict[str, Any]) -> None:
    boundary_regions(token_grid(arguments["max_length"]), arguments["delta"])
    if arguments["html"]:
        require_page_packages()
    compute, demo = arguments["compute"], arguments["model"] is None
    require(compute is None or not demo, "compute", got=f"{compute} without a model",
            expected="a model", cure="The byte-level network is in double precision.")  # fmt: skip
    loss, cure = arguments["loss"], "An explanation takes one pass apart, and this loss has others."
    require(loss_kind(loss).one_pass, "loss", got=loss, expected="a loss of one pass", cure=cure)


def _require_within(
    network: CausalLM, read: ReadContexts, contexts: int | None, depth: int
) -> None:
    require(contexts is None or contexts <= len(read.windows), "contexts", got=f"{contexts}",
            expected=f"at most {len(read.windows)}, those of the data",
            cure="Give more data, or leave --contexts out.")  # fmt: skip
    as_int(depth, "depth", least=0, most=network.flow.depth - 1, expected="a layer's depth")


def _model_and_contexts(
    model: LanguageModel,
    data: Path | None,
    loss: LossName,
    length: int,
    most: int,
    key: jax.Array,
    held: Callable[..., LanguageModel],
) -> tuple[LanguageModel, ReadContexts]:
    """The model, and its data in an order that the key makes."""
    assert data is not None
    lines = read_prompts(data, model, loss, length)
    model = held(model, tokens=min(FIRST, len(lines)) * max(line.length for line in lines))
    read = answered(lines, model, loss, ANSWER)
    print("".join(f"{line}\n" for line in own_answers(lines, read, model)), end="")
    require_fitting(model.network, read)
    order = np.asarray(jax.random.permutation(key, len(read)))[:most].tolist()
    contexts = [read[at] for at in order]
    return model, ReadContexts(stacked_rows([context.window for context in contexts]), contexts)


def _byte_level(loss: LossName, most: int, keys: jax.Array) -> tuple[LanguageModel, ReadContexts]:
    cure = "The byte-level network is asked everywhere, and by its last token."
    everywhere = loss == "next-token"
    require(everywhere, "loss", got=f"{loss} without data", expected="next-token", cure=cure)
    text = models.standard_library_text()
    windows = models.sample_windows(text, BYTES, most, key=keys[2])
    return LanguageModel(models.byte_model(BYTES, key=keys[0])), ReadContexts(windows, [])


def _both_or_neither(model: Any, data: Any) -> tuple[Path | None, Path | None]:
    require(
        (model is None) == (data is None),
        "model and data",
        got=f"{model} and {data}",
        expected="both or neither",
        cure="A model reads data of your own; without them a byte-level network is trained.",
    )
    return (None, None) if model is None else (as_path(model, "model"), as_path(data, "data"))


def _trained(
    start: CausalLM, key: jax.Array, unfinished: Path
) -> tuple[dict[str, CausalLM], jax.Array]:
    """The byte-level network before and after it has read the standard library, and its losses."""
    text, progress = models.standard_library_text(), partial(tqdm, desc="training")
    trained, losses = models.train(
        start, text, BYTES, STEPS, key=key, progress=progress, checkpoint=unfinished / "training"
    )
    return {"seeded": start, "trained": trained}, losses


def announced(
    cases: Mapping[str, Case], lengths: Sequence[int], budget: TimeBudget, certificates: Judged
) -> str:
    """What will be done on contexts of these lengths, and how long it is likely to take."""
    everything = certificates == "all"
    what = "all certificates and cone masses" if everything else "certificates that can decide"
    seconds = budget.seconds + (budget.more if everything else 0)
    lines = [
        f"Explaining {' and '.join(cases)} on {described_contexts(lengths)}: "
        f"density, channels, hops, heads, {what}: about {duration(seconds)}."
    ]
    if len(set(lengths)) > 1:
        lines.append("Certificates that compare two positions need contexts of one length.")
    if not everything:
        lines.append(f"--certificates all would take about {duration(budget.more)} more.")
    return " ".join(lines)
