"""The command ask: the model's own answer, and what each document holds of its influence."""

import csv
import json
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from reference.chats import CHATML
from reference.json_entries import require_entries
from reference.pages import Read
from reference.publishers import CONFIGS, LETTERS, logits, write_with_letters
from scipy.special import logsumexp

from lim_jax import models
from lim_jax.attribution import questions
from lim_jax.attribution.answer import AnswerPart, answer_finding
from lim_jax.attribution.method import Cost, Method, Scores
from lim_jax.attribution.methods import mask_path
from lim_jax.attribution.methods.method_table import METHODS
from lim_jax.attribution.questions import ask
from lim_jax.attribution.segments import context_segments, whole_answer
from lim_jax.attribution.without_parts import without_parts
from lim_jax.cli import answers, ask_command, profile_command
from lim_jax.cli.commands import main
from lim_jax.cli.networks import PLACEMENT
from lim_jax.prompts import generate_answers, own_answers, tokenize_context, tokenize_prompt
from lim_jax.prompts.documents import RenderedPrompt
from lim_jax.report import answer_page

DOCUMENTS = {"first.txt": "abcabd", "second.txt": "hgjh", ".hidden": "no"}
PROMPT = "first\nabcabd\n\nsecond\nhgjh\n\nQuestion: bc\nAnswer:"
PARTS = {"first": (0, 12), "second": (14, 25), "question": (37, 39)}
MASKED = {"first": (1, 12), "second": (14, 25)}  # the context's first token keeps its weight


def ids_of(text):
    return [LETTERS.find(letter) if letter in LETTERS else 10 for letter in text]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return write_with_letters(folder, CONFIGS["llama"])


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "documents"
    path.mkdir()
    for name, text in DOCUMENTS.items():
        (path / name).write_text(text, encoding="utf-8")
    (path / "inside").mkdir()
    return path


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())


def own_answer(tokens, prompt=PROMPT):
    """The likeliest id after all before it, by NumPy."""
    row = ids_of(prompt)
    for _ in range(tokens):
        row.append(int(logits(CONFIGS["llama"], row)[-1].argmax()))
    return row[-tokens:]


def shares(energy):
    """What each part holds, and what no part does."""
    held = {name: energy[start:end].sum() / energy.sum() for name, (start, end) in PARTS.items()}
    return held | {"": 1 - sum(held.values())}


@pytest.mark.slow
def test_an_answer_of_the_models_own_and_what_each_document_holds(
    folder, documents, tmp_path, undrawn, capsys
):
    out = tmp_path / "out"
    arguments = ["ask", str(folder), "bc", "--documents", str(documents), "--out", str(out)]
    assert main([*arguments, "--answer-tokens", "3", "--no-html", "--method", "influence"]) == 0
    answer = own_answer(3)
    row = np.array(ids_of(PROMPT) + answer)
    model = models.load(folder, dtype="float64")
    places = np.arange(len(PROMPT) - 1, len(row) - 1)

    @jax.jit
    def margins(x):
        z = model.readout(model.flow(x, jax_grid(x)), jax_grid(x))[places]
        right = z[np.arange(3), row[places + 1]]
        others = jnp.where(np.arange(11)[None, :] == row[places + 1][:, None], -jnp.inf, z)
        return (jax.nn.logsumexp(others, axis=1) - right).mean()

    gradient = jax.jit(jax.grad(margins))(model.embed(jax.device_put(row[:-1])))
    expected = shares(np.asarray((gradient**2).sum(axis=1)))
    document = json.loads((out / "answer.json").read_text(encoding="utf-8"))
    require_entries(document, "answer.json", "answer.json, parts", absent=["together."])
    assert document["question"] == "bc" and document["foil"] == ""
    assert document["answer"] == " ".join(LETTERS[one] for one in answer)
    assert document["cut"] is True  # no id of this model ends an answer
    held = {part["name"]: part["score"] for part in document["parts"]}
    assert held == pytest.approx(expected, rel=1e-3)
    tokens = {name: end - start for name, (start, end) in PARTS.items()}
    tokens[""] = len(row) - 1 - sum(tokens.values())
    assert {part["name"]: part["tokens"] for part in document["parts"]} == tokens
    kinds = [part["kind"] for part in document["parts"]]
    assert kinds == ["document", "document", "question", "rest"]
    printed = capsys.readouterr().out
    assert f" the answer “{document['answer']}...”; “" in printed
    assert f"\nAnswer: {document['answer']}...\nCut after the most tokens that an answer" in printed
    assert "chat template" not in printed
    assert "no error" not in printed and " inf" not in printed.replace(" influence", "")
    top = max(("first", "second"), key=lambda name: expected[name])
    assert f"”; “{top}” scores most: it holds" in printed and document["support"]["document"] == top
    assert document["support"]["verdict"] != "supported"  # by random weights
    start, end = PARTS[top]
    without = " ".join(LETTERS[one] for one in own_answer(3, PROMPT[:start] + PROMPT[end:]))
    assert document["support"]["answer_without"] == f"{without}..."
    assert (out / "scores.csv").exists() and not (out / "answer.html").exists()


def jax_grid(x):
    return models.causal.token_grid(x.shape[0], x.dtype)


@pytest.mark.slow
def test_why_an_answer_and_not_a_foil(folder, documents, tmp_path, undrawn, capsys):
    out = tmp_path / "out"
    arguments = ["ask", str(folder), "bc", "--documents", str(documents), "--out", str(out)]
    assert main([*arguments, "--answer", "ab", "--foil", "f", "--method", "influence"]) == 0
    model = models.load(folder, dtype="float64")
    prompt = ids_of(PROMPT)
    # A space, of which the tokenizer knows no word, stands before both.
    answer = np.array([10, 0, 1])
    foil = np.array([10, 5])

    @jax.jit
    def odds(x):
        return said(x, answer) - said(x, foil)

    def said(x, ids):
        x = jnp.concatenate([x, model.embed(jax.device_put(ids[:-1]))])
        z = model.readout(model.flow(x, jax_grid(x)), jax_grid(x))[len(prompt) - 1 :]
        return (jax.nn.logsumexp(z, axis=1) - z[np.arange(len(ids)), ids]).sum()

    gradient = jax.jit(jax.grad(odds))(model.embed(jax.device_put(np.array(prompt))))
    expected = shares(np.asarray((gradient**2).sum(axis=1)))
    document = json.loads((out / "answer.json").read_text(encoding="utf-8"))
    assert (document["answer"], document["cut"], document["foil"]) == ("k a b", False, "f")
    held = {part["name"]: part["score"] for part in document["parts"]}
    assert held == pytest.approx(expected, rel=1e-3)
    assert "” decides most between “k a b” and “f”: it holds" in capsys.readouterr().out
    assert "Numbers are shares of" in (out / "answer.html").read_text("utf-8")


@pytest.mark.slow
def test_an_answer_by_another_method_and_in_python(folder, documents, tmp_path, capsys):
    """The command writes what `ask` gives; by a mask gradient, against a central difference."""
    out = tmp_path / "out"
    arguments = ["ask", str(folder), "bc", "--documents", str(documents), "--out", str(out)]
    assert main([*arguments, "--answer", "ab", "--method", "mask-gradient"]) == 0
    printed = capsys.readouterr()
    assert (
        "Measuring 49 tokens by mask-gradient, 4 passes and 1 gradient: about"
        in printed.out + printed.err
    )
    model = models.LanguageModel.from_pretrained(folder, "float64")
    answer = ask(model, "bc", documents, answer="ab", method="mask-gradient")
    document = json.loads((out / "answer.json").read_text(encoding="utf-8"))
    assert (document["method"], document["answer"]) == ("mask-gradient", answer.text)
    assert document.keys() == answer.record().keys()
    names = [part["name"] for part in document["parts"]]
    assert names == [part.name for part in answer.parts] and answer.finding[:30] in printed.out
    x = jax.device_put(answer.context.window)
    network = model.network
    weights = jax.device_put(answer.context.weights)
    numbers = np.full(len(weights), -1)
    for number, places in enumerate(MASKED.values()):
        numbers[slice(*places)] = number

    @eqx.filter_jit
    def loss(network, u):
        y = models.Targets(x[1:], weights, log_weights=u, parts=jnp.asarray(numbers))
        return network.margin_loss(network.embed(x[:-1]), y)

    def odds(first):
        """Minus the loss where the first document's log weight is another."""
        u = np.where(numbers >= 0, np.log(0.2), 0)
        u[slice(*MASKED["first"])] += first
        return -float(loss(network, jax.device_put(u)))

    slope = np.log(25) * (odds(1e-4) - odds(-1e-4)) / 2e-4  # from the weight 0.04 to one
    (part,) = (part for part in answer.parts if part.name == "first")
    np.testing.assert_allclose(part.score, slope, rtol=1e-6)
    other = next(one for one in answer.parts if one.name == "second")
    assert part.of_documents == part.score / (abs(part.score) + abs(other.score))
    with (out / "scores.csv").open(newline="", encoding="utf-8") as file:
        scores = [float(row["score"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(scores, np.asarray(answer.tokens), rtol=2e-3, atol=1e-6)
    with (out / "matrix.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["said"] for row in rows} == {"k a b"} and len(rows) == 4
    of_first = [float(row["score"]) for row in rows if row["name"] == "first"]
    np.testing.assert_allclose(sum(of_first), slope, rtol=2e-3)
    page = Read((out / "answer.html").read_text("utf-8"))
    assert page.all("h1")[0]["text"] == "bc" and "first" in page.all("h3")[0]["inner"]
    np.testing.assert_allclose(page.json("data")["parts"][0][:2], of_first, rtol=2e-3)
    documents = answer.scores.documents
    gave = answer.scores.by_part[0, documents].sum()
    np.testing.assert_allclose(gave, part.score + other.score)
    assert f"their scores add up to {gave:+.2f}." in answer.finding
    assert f"{part.score:+.3f}" in str(answer)
    shown = Read(answer._repr_html_())
    heads = [(cell["scope"], cell["text"]) for cell in shown.all("th")]
    columns = ["part", "score", "of documents", "tokens", "most in"]
    assert heads[:5] == [("col", name) for name in columns]
    assert ("row", "“first”") in heads[5:] and len(heads) == 5 + len(answer.parts)


@pytest.mark.slow
def test_what_documents_give_along_a_path_adds_up(folder, documents, monkeypatch):
    """To the odds over a foil with them less the odds with next to nothing of them.

    So do parts of documents, for all parts of the answer together.
    """
    monkeypatch.setattr(mask_path, "NODES", 15)
    model = models.LanguageModel.from_pretrained(folder, "float64")
    answer = ask(model, "bc", documents, method="mask-path", answer="ab", foil="f")
    total = sum(part.score for part in answer.parts if part.kind == "document")
    y: Any = answer.context.ask
    network = model.network
    u = np.zeros(answer.context.length)
    numbers = np.full(answer.context.length, -1)
    for number, places in enumerate(MASKED.values()):
        u[slice(*places)], numbers[slice(*places)] = np.log(1e-3), number
    numbers = jax.device_put(numbers)
    ids = jax.device_put(answer.context.window[:-1])

    @eqx.filter_jit
    def loss(network, u):
        return models.contrast_loss(
            network, network.embed(ids), y._replace(log_weights=u, parts=numbers)
        )

    ends = [float(loss(network, u)) for u in map(jax.device_put, (u, 0 * u))]
    assert abs(ends[0] - ends[1]) > 1e-3
    np.testing.assert_allclose(total, ends[0] - ends[1], rtol=1e-5)
    assert answer.total_effect == pytest.approx(ends[0] - ends[1], rel=1e-9)
    both = f"give {answer.total_effect:+.2f} of log odds; their scores add up to {total:+.2f}."
    assert f"All documents together {both}" in str(answer)
    others = [part.score for part in answer.parts if part.kind != "document"]
    assert len(others) == 2 and np.isnan(others).all()
    assert len(answer.scores.documents) > 2
    np.testing.assert_allclose(answer.scores.by_part.sum(), total, rtol=1e-12)
    assert [part.text.strip() for part in answer.scores.answer] == [answer.text]
    plain = answer._replace(foil="")
    for one, unit in ((answer, "of the answer over the foil"), (plain, "on average")):
        page = answer_page(one).html
        assert "a score is the integral of" in page and f"in log odds, {unit}" in page
    alike = answer.compare(answer)
    assert {part.difference for part in alike.parts} == {0.0} and len(alike.parts) == 2, (
        "documents alone"
    )
    with pytest.raises(ValueError, match="second: got scores by mask-path, against a foil"):
        plain.compare(answer)


@pytest.mark.slow
def test_parts_that_are_left_out_have_a_table_and_a_page(folder, documents):
    """By document as a whole, since each is a text to read; and by sentence where one asks so."""
    model = models.LanguageModel.from_pretrained(folder, "float64")
    answer = ask(model, "bc", documents, method="leave-one-out", answer="ab", parts="token")
    assert [part.text for part in answer.scores.answer] == ["k", " a", " b"]
    assert [part.within for part in answer.scores.parts] == ["first", "second", "question", ""]
    rows = {part.name: part.score for part in answer.parts}
    whole = answer.scores.by_part.sum(axis=0)
    np.testing.assert_allclose([rows["first"], rows["second"]], whole[:2])
    page = answer_page(answer).html
    shown = Read(page).json("data")["parts"]
    np.testing.assert_allclose(shown, answer.scores.by_part[:, :2], rtol=1e-3)
    assert "where the part is taken out of the text" in page
    cut = ask(model, "bc", documents, method="leave-one-out", answer="ab", document_parts="tokens")
    assert len(cut.scores.documents) == sum(end - start for start, end in list(PARTS.values())[:2])


def gradient_without_others(model, context, answer, parts, loss, run):
    """A method of a user's: gradients in the words, on the text without the parts that come later.

    It needs texts without some parts, and the places of what is left in them.
    """
    rows = np.zeros((len(answer), len(parts)))
    for number, part in enumerate(parts):
        kept = np.arange(len(parts)) <= number
        left = without_parts(context, parts, kept)
        (there,) = [segment for segment in context_segments(left) if segment.label == part.label]
        scores = METHODS["gradient-times-input"].scores(
            model, left, [whole_answer(left)], [there], loss, run.within(f"{number}")
        )
        rows[:, number] = scores.by_part[0, 0] / len(answer)
    return Scores(answer, parts, rows)


@pytest.mark.slow
def test_a_method_of_a_users_goes_down_to_the_page(
    folder, documents, tmp_path, monkeypatch, as_users_run
):
    """By `ask` in Python, by the commands `ask` and `profile`: the same numbers, its own words."""
    entry = Method("its own", "a score of mine", gradient_without_others, lambda *_: Cost(4, 4))
    monkeypatch.setitem(METHODS, "mine", entry)
    model = models.LanguageModel.from_pretrained(folder, "float64")
    answered = ask(model, "bc", documents, method="mine", answer="ab", document_parts="documents")
    expected = {part.name: part.score for part in answered.parts}
    assert len(set(expected.values())) == 4 and min(map(abs, expected.values())) > 1e-9
    out = tmp_path / "asked"
    commands: Any = ask_command, profile_command
    options = {"method": "mine", "answer": "ab", "document_parts": "documents"}
    assert commands[0].ask(folder, "bc", documents, **options, out=out) == 0
    parts = json.loads((out / "answer.json").read_text(encoding="utf-8"))["parts"]
    by_name = {part["name"]: part["score"] for part in parts}
    assert by_name == pytest.approx(expected, rel=1e-3)
    written = (out / "answer.html").read_text("utf-8")
    assert "a score is a score of mine" in written
    page = Read(written)
    np.testing.assert_allclose(page.json("data")["parts"][0][0], expected["first"], rtol=2e-3)
    texts = {"first": "abcabd", "second": "hgjh"}
    read = [{"title": title, "text": text} for title, text in texts.items()]
    data = tmp_path / "data.jsonl"
    data.write_text(
        json.dumps({"documents": read, "question": "bc", "answer": "ab"}), encoding="utf-8"
    )
    profiled = tmp_path / "profiled"
    assert commands[1].profile(folder, data, loss="margin", method="mine", out=profiled) == 0
    with (profiled / "records.csv").open(newline="", encoding="utf-8") as file:
        scores = {row["name"]: float(row["score"]) for row in csv.DictReader(file)}
    assert scores == pytest.approx(expected, rel=1e-3)


def test_a_question_that_cannot_be_asked_is_refused(folder, documents, tmp_path, monkeypatch):
    monkeypatch.setattr(models.LanguageModel, "loaded", None)
    start = ["ask", str(folder)]
    out = ["--out", str(tmp_path / "out"), "--no-html"]
    cases = {
        "ask: QUESTION ' ' is empty": [" ", "--documents", str(documents)],
        "documents: got .*nowhere, which is no": ["bc", "--documents", str(tmp_path / "nowhere")],
        "prompt: got 48 tokens, of which 2 documents have 23 and “first” has the most, 12, .* "
        "Raise `max_length` to at least 47, or give fewer or shorter documents": [
            "bc", "--documents", str(documents), "--max-length", "46",
        ],
        "parts: got 'token' with the method 'influence'": [
            "bc", "--documents", str(documents), "--parts", "token", "--method", "influence",
        ],
        "parts: got 'sentence' with a foil, expected the whole answer, since a foil is": [
            "bc", "--documents", str(documents), "--parts", "sentence", "--foil", "f",
        ],
    }  # fmt: skip
    for message, arguments in cases.items():
        with pytest.raises(ValueError, match=message):
            main([*start, *arguments, *out])
    assert not (tmp_path / "out").exists()


def test_a_page_needs_one_package_which_is_asked_for_before_any_work(
    folder, documents, tmp_path, monkeypatch
):
    """Of the extra `report`, whose other packages draw charts that this page has not."""
    for package in ("altair", "vl_convert"):
        monkeypatch.setitem(sys.modules, package, None)
    out = tmp_path / "out"
    arguments = ["ask", str(folder), "bc", "--documents", str(documents), "--out", str(out)]
    main([*arguments, "--answer", "de", "--method", "mask-gradient"])
    assert (out / "answer.html").exists()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.setattr(models.LanguageModel, "loaded", None)
    with pytest.raises(ModuleNotFoundError, match=r"jinja2: got no .*lim_jax\[report\]"):
        main([*arguments[:-1], str(tmp_path / "other")])
    assert not (tmp_path / "other").exists()


@pytest.fixture
def chatting(folder, tmp_path):
    """The same weights, with a template of chats."""
    chatting = tmp_path / "chatting"
    chatting.mkdir()
    for file in folder.iterdir():
        (chatting / file.name).symlink_to(file)
    (chatting / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    return chatting


def test_a_model_that_has_a_chat_template_is_asked_by_it(
    chatting, documents, tmp_path, monkeypatch
):
    lines = []

    def stopping(line, *rest):
        lines.append(line)
        raise KeyboardInterrupt

    monkeypatch.setattr(questions, "context_of_line", stopping)
    arguments = ["ask", str(chatting), "bc", "--documents", str(documents), "--no-html"]
    arguments += ["--out", str(tmp_path / "out"), "--answer", "ab", "--foil", "f"]
    assert main(arguments) == main([*arguments, "--no-chat"]) == 130
    line, plain = lines
    assert plain.prompt.text == PROMPT and (plain.answer, plain.foil) == (" ab", " f")
    asked = PROMPT.split("Question")[0] + "bc"
    assert line.prompt.text.endswith(f"user\n{asked}<|im_end|>\n<|im_start|>assistant\n")
    assert (line.answer, line.foil) == ("ab", "f")
    names = [name for _, _, name in line.prompt.spans]
    assert names == ["first", "second", "question"]


def test_the_answers_of_the_models_own_are_shown(folder):
    prompts = [tokenize_prompt(RenderedPrompt("abc")) for _ in range(6)]
    contexts = [prompt.with_answer(np.array([1, 2])) for prompt in prompts]
    read = [*prompts[:2], contexts[2], *prompts[3:]]
    model = models.LanguageModel.open(folder)
    shown = answers.own_answer_lines(read, contexts, model)
    assert shown == [
        f"Of context {number} the model's own answer is asked: “b c”" for number in (0, 1, 3, 4, 5)
    ]
    more = answers.own_answer_lines([*prompts, *prompts], [*contexts, *contexts], model)
    assert more[-1] == "So it is of 7 more." and len(more) == 6
    assert answers.own_answer_lines(contexts, contexts, model) == []


def test_an_answer_is_cut_where_no_id_ends_it(folder, monkeypatch):
    monkeypatch.setattr(
        own_answers,
        "answer",
        lambda model, ids, most, end, padding, prefix: np.array([1, 2, 9][:most]),
    )
    model = models.LanguageModel(models.load(folder), end_ids=(9,))
    for most, cut in ((3, False), (2, True)):
        (context,) = generate_answers([tokenize_prompt(RenderedPrompt("abc"))], model, tokens=most)
        assert context.window.tolist() == [*b"abc", 1, 2] and context.cut is cut


def test_a_prompt_of_several_that_has_no_answer_is_named(folder, monkeypatch):
    monkeypatch.setattr(own_answers, "answer", lambda *_, **__: np.array([9]))
    model = models.LanguageModel(models.load(folder), end_ids=(9,))
    prompts = [tokenize_prompt(RenderedPrompt(text)) for text in ("abc", "abd")]
    context = prompts[0].with_answer(np.array([1]))
    with pytest.raises(ValueError, match="context 1: answer: got no ids after 'abd'"):
        generate_answers([context, prompts[1]], model, tokens=2)
    with pytest.raises(ValueError, match="context one: answer: got no ids"):
        generate_answers([prompts[0]._replace(id="one")], model, tokens=2)


def test_answering_records_where_the_weights_are(folder, tmp_path, monkeypatch):
    """So that a run that is interrupted then goes on with weights in the same place."""
    monkeypatch.setattr(own_answers, "answer", lambda *_, **__: np.array([1, 2]))
    model = models.LanguageModel(models.load(folder))
    prompts = [tokenize_prompt(RenderedPrompt("abc"))]
    answers.answer_contexts(prompts, model, "answer", 2, tmp_path)
    assert (tmp_path / PLACEMENT).read_bytes() == b"in memory"


def test_what_to_know_of_answers_is_said(chatting):
    """Of those that were cut, and of a chat template that was not used; not of texts."""
    prompts = (
        tokenize_prompt(RenderedPrompt("abc")),
        tokenize_prompt(RenderedPrompt("abc", marked=True)),
    )
    plain, chat = (prompt.with_answer(np.array([1, 2])) for prompt in prompts)
    text = tokenize_context(RenderedPrompt("abc"), loss="next-token")
    model = models.LanguageModel.open(chatting)
    silent = model._replace(chat_template=None)
    assert answers.answer_notes([plain, chat, text], silent) == []
    shown = answers.own_answer_lines(prompts, [plain._replace(cut=True), chat], silent)
    assert shown[0].endswith("“b c...”") and shown[1].endswith("“b c”")
    stopped = prompts[0].with_answer(np.array([*b" So."]), None)._replace(cut=True)
    said, _ = answers.own_answer_lines(prompts[:1], [stopped], silent._replace(tokenizer=None))
    assert said.endswith("“So...”"), "three dots"
    assert shown[2:] == ["Cut after the most tokens that an answer may have (...): 1 of 2."]
    (without,) = answers.answer_notes([plain, chat, text], model)
    assert without.startswith(
        "The model has a chat template, and 1 of 3 contexts are asked without"
    )
    assert answers.answer_notes([chat, text], model) == []


def test_the_finding_of_one_document_and_of_none_that_matters():
    rest = AnswerPart("", "rest", 0.75, None, 2, 0.5, "")
    alone = [AnswerPart("a", "document", 0.25, 1.0, 4, 0.5, ""), rest]
    said = answer_finding(alone, "50% of it")
    assert said.endswith("most of all: it holds 25 % of the whole influence, with 4 tokens.")
    one_token = [alone[0]._replace(tokens=1), rest]
    assert answer_finding(one_token, "a").endswith("with 1 token.")
    assert "The answer “50% of it” comes" in said, "as it was given"
    nothing = [AnswerPart(name, "document", 0.0, 0.0, 4, 0.5, "") for name in "ab"]
    assert "0 % of what the 2 documents hold" in answer_finding(nothing, "b")
    against = [one._replace(score=-0.5 - at) for at, one in enumerate(nothing)]
    said = answer_finding(against, "b", signed=True)
    assert said == (
        "No document speaks for the answer “b”; the least against it, “a”: -0.50, with 4 of 8 "
        "tokens of documents."
    )


def test_numbers_of_numpy_are_those_of_the_test():
    """Greedy words are of a real choice: the likeliest is not the last, and there is no tie."""
    row = logits(CONFIGS["llama"], ids_of(PROMPT))[-1]
    best = np.sort(np.exp(row - logsumexp(row)))
    assert best[-1] - best[-2] > 1e-3


def test_what_python_asks_is_refused_in_pythons_words(folder):
    """Of arguments as they are passed; the command line has its own words (`as_flags`)."""
    model = models.LanguageModel.open(folder)
    many = ["abcd"] * 7 + ["abcdefgh"] + ["abcd"] * 22
    message = (
        r"prompt: got \d+ tokens, of which 30 documents have \d+ and “document 8” has the most, "
        r"\d+, expected from 2 to 51: a context of `max_length`, .* Raise `max_length` to at least "
        r"\d+, or give fewer or shorter documents\.$"
    )
    for answer in (None, "a"):
        with pytest.raises(ValueError, match=message):
            ask(model, "bc", many, answer=answer, max_length=50)
    wrong = {"4 at index 1": ["a", 4], "4": 4, "None": None, "none": [], "dict": {}}
    for got, given in wrong.items():
        expected = "expected a folder, a file, or a list of texts or of Document, at least one"
        with pytest.raises(ValueError, match=f"documents: got {got}, {expected}"):
            questions.require_documents(given)


@pytest.mark.parametrize(("given", "answer"), [([], None), (["--answer", "None"], "None")])
def test_an_answer_that_is_the_word_none_is_an_answer(given, answer, monkeypatch):
    """As to the question which document names the thief; left out, the model answers itself."""

    class Stop(Exception):
        """With the arguments that were read."""

    def read(*_, **options):
        raise Stop(options["answer"])

    monkeypatch.setattr(ask_command, "Question", read)
    with pytest.raises(Stop) as asked:
        main(["ask", "model", "who?", "--documents", "folder", *given])
    assert asked.value.args == (answer,)
