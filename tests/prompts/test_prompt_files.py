"""Contexts from files: what is asked where, tokens that spell the text, records by character."""

import codecs
import json
import os
import sys
from typing import Any

import docx
import jax
import numpy as np
import pytest
from reference.publishers import CONFIGS, LETTERS, spelt, write_with_letters
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.processors import TemplateProcessing

from lim_jax.attribution.questions import question_line
from lim_jax.checkpoints.text import ChatTemplate, read_tokenizer
from lim_jax.models import LanguageModel, byte_model
from lim_jax.prompts import Document, prompt_files, tokenize_context, tokenize_prompt
from lim_jax.prompts.contexts import Context, PromptOnly
from lim_jax.prompts.documents import RenderedPrompt
from lim_jax.prompts.prompt_files import read_documents, read_prompts


@pytest.fixture
def letters(tmp_path):
    return model_with(read_tokenizer(write_with_letters(tmp_path, CONFIGS["llama"]), {}))


def model_with(tokenizer):
    network: Any = None  # which no reading of texts asks
    return LanguageModel(network, tokenizer)


def read_contexts(*arguments) -> list[Context]:
    """Of lines that all have an answer where one is asked."""
    contexts = read_prompts(*arguments)
    assert all(isinstance(context, Context) for context in contexts)
    return contexts  # pyright: ignore[reportReturnType]


def lines(folder, *records):
    """Of JSON, with an empty line in between."""
    path = folder / "data.jsonl"
    path.write_text("\n\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


def test_a_text_is_cut_into_contexts_one_after_another(tmp_path, letters):
    ids = np.random.default_rng(0).integers(11, size=17)
    data = tmp_path / "data.txt"
    data.write_text(spelt(ids), encoding="utf-8")
    contexts = read_contexts(data, letters, "next-token", 5)
    # 16 targets: three times five, and one that is left out.
    windows = [ids[0:6], ids[5:11], ids[10:16]]
    assert [context.window.tolist() for context in contexts] == [row.tolist() for row in windows]
    assert ["".join(context.tokens) for context in contexts] == [spelt(row[:-1]) for row in windows]
    for context in contexts:
        np.testing.assert_allclose(context.weights, 1 / 5)
    (short,) = read_contexts(data, letters, "next-token", 100)
    assert short.window.tolist() == ids.tolist() and short.length == 16


def test_an_answer_is_asked_from_the_token_before_each_of_its_own(tmp_path, letters):
    record = {"prompt": "abcde", "answer": "fga", "id": 3}
    data = lines(tmp_path, record, {"prompt": "cc", "answer": "k"})
    for asked in ("answer", "margin"):
        first, second = read_contexts(data, letters, asked, 7)
        assert first.window.tolist() == [0, 1, 2, 3, 4, 5, 6, 0]
        np.testing.assert_allclose(first.weights, [0, 0, 0, 0, 1 / 3, 1 / 3, 1 / 3])
        assert first.window[1:][first.weights > 0].tolist() == [5, 6, 0]
        assert second.weights.tolist() == [0, 1]
    first, second = read_contexts(data, letters, "next-token", 7)
    np.testing.assert_allclose(first.weights, 1 / 7)
    np.testing.assert_allclose(second.weights, 1 / 2)


def test_spans_are_read_in_characters(tmp_path, letters):
    spans = [[0, 2, "first"], [2, 5, "second"], [5, 7, "first"]]
    data = lines(tmp_path, {"text": "abcdefg", "spans": spans}, {"text": "ab"})
    context, bare = read_contexts(data, letters, "next-token", 10)
    # The last token is a target only.
    assert [(span.name, span.positions.tolist()) for span in context.spans] == [
        ("first", [0, 1]),
        ("second", [2, 3, 4]),
        ("first", [5]),
    ]
    assert bare.spans == ()


def test_a_span_is_not_called_as_what_is_in_no_part(tmp_path, letters):
    spans = [[0, 2, "the rest"], [2, 4, "the rest (span)"], [4, 5, "answer"], [5, 7, "question"]]
    (context,) = read_contexts(
        lines(tmp_path, {"text": "abcdefg", "spans": spans}), letters, "next-token", 10
    )
    names = [span.name for span in context.spans]
    assert names == ["the rest (span) (span)", "the rest (span)", "answer (span)", "question"]


def marked(words):
    """Words apart by spaces, and a mark before each text, as many publishers have it."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<s>"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    mark = [("<s>", 0)]
    tokenizer.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="<s> $A", special_tokens=mark
    )
    return tokenizer


def test_words_of_several_characters_and_a_mark_before_the_text(tmp_path):
    text = {"prompt": "red sky is", "answer": " blue sky", "spans": [[0, 4, "a"], [4, 9, "b"]]}
    data = lines(tmp_path, text)
    (context,) = read_contexts(data, model_with(marked(WORDS)), "answer", 10)
    assert context.window.tolist() == [0, 3, 6, 4, 5, 6]
    assert context.tokens == ("<s>", "red", " sky", " is", " blue")
    assert context.weights.tolist() == [0, 0, 0, 0.5, 0.5]
    # "is" ends at character 9: its last character is not of the span.
    assert [span.positions.tolist() for span in context.spans] == [[1], [2]]


def test_tokens_of_parts_of_a_character_spell_the_text_once(tmp_path):
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = ByteLevel(  # pyright: ignore[reportAttributeAccessIssue]
        add_prefix_space=False
    )
    data = lines(tmp_path, {"text": "é a€b", "spans": [[3, 4, "euro"]]})
    (context,) = read_contexts(data, model_with(tokenizer), "next-token", 10)
    assert len(context.tokens) == 2 + 1 + 1 + 3 and "".join(context.tokens) == "é a€"
    assert context.spans[0].positions.tolist() == [4, 5, 6]


def test_a_line_ends_where_json_lines_do(tmp_path, letters):
    """At a line feed only: strings may hold what Python too takes for the end of a line."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "ab\u2028c\x85d"}\n{"text": "abc"}\r\n', encoding="utf-8")
    assert len(read_contexts(data, letters, "next-token", 10)) == 2


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 2: got '{', expected JSON"),
        ("[1]", "line 2: got .*, expected one of {.text.: "),
        ('{"answer": "a"}', "line 2: .*expected one of {.text.: .*{.prompt.: .*{.documents.: "),
        ('{"text": "abc", "prompt": "a"}', "line 2: .*expected one of {.text.: "),
        ('{"question": "a"}', 'line 2: got .*, without "documents", expected one of'),
        ('{"documents": [{"text": "a"}]}', 'line 2: got .*, without "question", .*Add that entry'),
        (
            '{"documents": [{"text": "a"}, {"titel": "b"}], "question": "a"}',
            'line 2, document 2: got .*, without "text", expected {"title": "...", "text": "..."}',
        ),
        (
            '{"text": "abc", "span": []}',
            'line 2: got the entry "span", expected some of text, spans, id. ',
        ),
        (
            '{"text": "abc", "answer": "b"}',
            'line 2: got the entry "answer", expected some of text, spans',
        ),
        (
            '{"prompt": "a", "answr": "b"}',
            'entry "answr", expected some of prompt, answer, .*what is not read is refused',
        ),
        ('{"text": 3}', "line 2: got text = 3, expected text as a text"),
        ('{"prompt": "a", "answer": null}', "line 2: got answer = None"),
        ('{"documents": [], "question": "a"}', r"line 2: got documents = \[\], expected a list"),
        ('{"documents": {}, "question": "a"}', r"line 2: got documents = {}, expected a list"),
        ('{"documents": [{"text": "a"}, {"text": " "}], "question": "a"}', "line 2, document 2: "),
        ('{"documents": [{"title": "a"}], "question": "a"}', "line 2, document 1: got .*title"),
        ('{"documents": [{"text": "a", "titel": "b"}], "question": "a"}', "1: got .*titel"),
        ('{"documents": [{"text": 3}], "question": "a"}', "document 1: got .*expected {.title"),
        (
            '{"documents": [{"text": "a"}], "question": ""}',
            "line 2: got question = ''",
        ),
        ('{"documents": [{"text": "a"}], "question": "a", "spans": []}', 'got the entry "spans"'),
        ('{"text": "abc", "spans": {}}', "line 2: .*spans. as a list"),
        ('{"text": "abc", "spans": [[0, 4, "a"]]}', r"line 2: got the span \[0, 4, 'a'\], .* 3,"),
        ('{"text": "abc", "spans": [[1, 1, "a"]]}', "line 2: got the span .*start < end"),
        ('{"text": "abc", "spans": [[0, 1]]}', "line 2: got the span"),
        ('{"text": "abc", "spans": [[0, 1, " "]]}', "line 2: got the span .*, with a name"),
        (
            '{"documents": [{"text": "a"}], "question": "b", "answer": " \\n"}',
            "line 2, answer: got ' .n', expected words",
        ),
        (
            '{"messages": [{"role": "user", "content": "b"}], "answer": "c", "foil": " "}',
            "line 2, foil: got ' ', expected words",
        ),
        ('{"text": "abc", "spans": [[true, 2, "a"]]}', "line 2: got the span"),
        (
            '{"text": "abcdef"}',
            "line 2: got 6 tokens, expected from 2 to 5.*Raise `max_len",
        ),
        ('{"text": "a"}', "line 2: got 1 tokens"),
        ('{"text": "abc", "id": null}', "line 2: got id = null, expected a text or a whole num"),
        ('{"text": "abc", "id": true}', "line 2: got id = true, .*leave the entry out"),
        ('{"text": "abc", "id": 1.0}', "line 2: got id = 1.0, "),
        ('{"text": "abc", "id": ["a"]}', "line 2: got id = .*, expected a text or"),
        ('{"text": "abc", "id": {}}', "line 2: got id = {}"),
        ('{"text": "abc", "id": " "}', "line 2: got id = "),
        ('{"text": "abc", "id": NaN}', r"line 2: .*expected JSON \(NaN is no number of JSON\)"),
        ('{"text": "abc", "text": "abd"}', r'expected JSON \(the name "text" stands twice\)'),
        ('{"text": "a\\ud83d"}', "line 2: .*expected JSON .*surrogates not allowed"),
        ('{"text": "abc", "spans": ' + "[" * 9999, "line 2: .*expected JSON "),
        ('{"messages": [], "tools": 3}', "line 2, messages: got none"),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": 3}', "line 2: got tools = 3"),
        (
            '{"text": "abc", "id": "1"}\n{"text": "abd", "id": 1}',
            "3: got the id '1', as line 2 has",
        ),
    ],
)
def test_lines_that_cannot_be_read_are_named(line, message, tmp_path, letters):
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "abc"}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_contexts(data, letters, "next-token", 4)


@pytest.mark.parametrize(
    "record",
    [
        {"text": "abc"},
        {"prompt": "", "answer": "ab"},
        {"prompt": "ab", "answer": ""},
    ],
)
def test_a_line_without_a_prompt_or_an_answer_asks_no_answer(record, tmp_path, letters):
    data = lines(tmp_path, record)
    with pytest.raises(ValueError, match="line 1: .*expected a prompt and an answer"):
        read_contexts(data, letters, "answer", 4)


def test_files_without_what_is_asked_are_refused(tmp_path, letters):
    text = tmp_path / "text"
    text.write_text(LETTERS, encoding="utf-8")
    with pytest.raises(
        ValueError, match="loss: got margin with .*, a text without answers, .*JSON lines"
    ):
        read_contexts(text, letters, "margin", 4)
    with pytest.raises(ValueError, match="data: got .*nothing, which is no file"):
        read_contexts(tmp_path / "nothing", letters, "next-token", 4)
    text.write_text("a", encoding="utf-8")
    with pytest.raises(ValueError, match="data: got 1 tokens in .*at least two"):
        read_contexts(text, letters, "next-token", 4)
    (tmp_path / "latin").write_bytes("abcé".encode("latin-1"))
    with pytest.raises(ValueError, match="data: got .*latin, whose byte 4 is not of UTF-8, exp"):
        read_contexts(tmp_path / "latin", letters, "next-token", 4)
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="data: got .*in which nothing stands"):
        read_contexts(tmp_path / "empty.jsonl", letters, "next-token", 4)
    (tmp_path / "one.json").write_text('{"text": "abc"}', encoding="utf-8")
    with pytest.raises(ValueError, match="one.json: got {.*expected a list.*named .jsonl"):
        read_contexts(tmp_path / "one.json", letters, "next-token", 4)


def test_a_list_of_objects_is_read_as_lines_are(tmp_path, letters):
    records = [{"text": "abc", "spans": [[0, 2, "first"]]}, {"prompt": "ab", "answer": "cd"}]
    (tmp_path / "data.json").write_text(json.dumps(records, indent=2), encoding="utf-8")
    for asked in ("next-token",):
        one = read_contexts(tmp_path / "data.json", letters, asked, 9)
        other = read_contexts(lines(tmp_path, *records), letters, asked, 9)
        assert [repr(context) for context in one] == [repr(context) for context in other]
    (tmp_path / "data.json").write_text('[{"text": "abc"}, {"txt": "abc"}]', encoding="utf-8")
    with pytest.raises(ValueError, match="data.json, entry 2: got .*txt"):
        read_contexts(tmp_path / "data.json", letters, "next-token", 4)


WORDS = ["<s>", "A", "B", "red", "is", "blue", "sky", "Question", ":", "Answer", "what"]


def test_documents_are_parts_of_the_context_and_the_answer_follows(tmp_path):
    documents = [{"title": "A", "text": "red is"}, {"text": "blue sky"}]
    record = {"documents": documents, "question": "what is", "answer": "blue sky", "id": "first"}
    data = lines(tmp_path, record, {"documents": documents, "question": "sky"})
    model = model_with(marked(WORDS))
    first, second = read_prompts(data, model, "answer", 20)
    assert isinstance(first, Context)
    shown = [WORDS[number] for number in first.window]
    assert " ".join(shown) == "<s> A red is blue sky Question : what is Answer : blue sky"
    np.testing.assert_allclose(first.weights, [*[0] * 11, 0.5, 0.5])
    spans = {span.name: [shown[place] for place in span.positions] for span in first.spans}
    assert spans == {
        "A": ["A", "red", "is"],
        "document 2": ["blue", "sky"],
        "question": ["what", "is"],
    }
    # Without an answer the prompt alone comes back, to be answered.
    assert isinstance(second, PromptOnly) and second.length == 11
    context = second.with_answer(np.array([3, 5]), model.tokenizer, "margin")
    assert [WORDS[number] for number in context.window[-3:]] == [":", "red", "blue"]
    np.testing.assert_allclose(context.weights, [*[0] * 10, 0.5, 0.5])
    assert context.tokens[-2:] == (":", "red") and context.length == 12
    assert [span.positions.tolist() for span in context.spans] == [[1, 2, 3], [4, 5], [8]]
    plain = read_contexts(data, model, "next-token", 20)[1]
    assert plain.window.tolist() == second.encoded.ids.tolist()
    data = lines(tmp_path, {"documents": documents, "question": "sky"})
    with pytest.raises(ValueError, match="line 1: got 12 tokens, .*expected from 2 to 11"):
        read_contexts(data, model, "answer", 10)


def test_an_answer_of_no_ids_is_none():
    with pytest.raises(
        ValueError, match="answer: got no ids after 'abc', expected at least one.*ended"
    ):
        tokenize_prompt(RenderedPrompt("abc")).with_answer(np.zeros(0, int))


def test_marks_of_an_end_do_not_stand_before_an_answer(tmp_path):
    made = marked(WORDS)
    made.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="<s> $A <s>", special_tokens=[("<s>", 0)]
    )
    assert tokenize_prompt(RenderedPrompt("red sky"), made).encoded.ids.tolist() == [0, 3, 6]
    assert tokenize_prompt(RenderedPrompt("red sky", marked=True), made).encoded.ids.tolist() == [
        3,
        6,
    ]
    context = tokenize_context(RenderedPrompt("red sky", marked=True), " is", made)
    assert context.window.tolist() == [3, 6, 4] and context.tokens == ("red", " sky")


def test_documents_of_a_folder_of_a_file_and_of_lines(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("b.md", "a.txt", ".c"):
        (folder / name).write_text(f"Text of {name}.", encoding="utf-8")
    (folder / "inside" / ".git").mkdir(parents=True)
    for name in ("a.txt", "a.rst"):
        (folder / "inside" / name).write_text(f"Inside {name}.", encoding="utf-8")
    (folder / "inside" / ".git" / "config").write_text("hidden", encoding="utf-8")
    (folder / "inside" / "~$c.docx").write_text("hidden", encoding="utf-8")
    (folder / "answer").mkdir()  # what a command of ours wrote is no document
    record = json.dumps({"command": "ask", "arguments": {}, "versions": {}})
    for name in ("run.json", "answer.json"):
        (folder / "answer" / name).write_text(record, encoding="utf-8")
    (folder / "run").mkdir()  # of another program, whose files are documents
    (folder / "run" / "run.json").write_text('{"command": "train"}', encoding="utf-8")
    (folder / "c.txt").write_text(" \n", encoding="utf-8")
    with pytest.warns(UserWarning, match="^documents: .*folder has empty files, left out: c.txt.$"):
        documents = read_documents(folder)
    assert documents == (
        Document("a", "Text of a.txt.", "a"),
        Document("b", "Text of b.md.", "b"),
        Document("inside/a", "Inside a.rst.", "inside/a (document 3)"),
        Document("inside/a", "Inside a.txt.", "inside/a (document 4)"),
        Document("run/run", '{"command": "train"}', "run/run"),
    )
    assert read_documents(folder / "b.md") == (Document("b", "Text of b.md.", "b"),)
    listed = tmp_path / "listed.jsonl"
    listed.write_text('{"title": "A", "text": "One."}\n\n{"text": "Two."}', encoding="utf-8")
    named = (Document("A", "One.", "A"), Document("", "Two.", "document 2"))
    assert read_documents(listed) == named
    (tmp_path / "listed.json").write_text(
        '[{"title": "A", "text": "One."}, {"text": "Two."}]', encoding="utf-8"
    )
    assert read_documents(tmp_path / "listed.json") == named


def test_white_space_is_an_answer_after_a_prompt_that_is_laid_out_by_hand(tmp_path):
    """As the end of a line may be what a model is to say; it is warned of."""
    data = lines(tmp_path, {"prompt": "a=1", "answer": "\n", "foil": " "})
    with pytest.warns(UserWarning, match="ends in white space"):
        (line,) = prompt_files.read_lines(data)
    assert (line.answer, line.foil) == ("\n", " ")


def test_endings_of_names_are_read_in_capitals_too(tmp_path):
    """As JSON, not as a text of braces."""
    (tmp_path / "DATA.JSONL").write_text('{"title": "A", "text": "One."}', encoding="utf-8")
    (tmp_path / "DATA.JSON").write_text('[{"title": "A", "text": "One."}]', encoding="utf-8")
    for name in ("DATA.JSONL", "DATA.JSON"):
        assert read_documents(tmp_path / name) == (Document("A", "One.", "A"),)
    network = byte_model(4, width=4, depth=1, key=jax.random.key(0))
    data = tmp_path / "LINES.JSONL"
    data.write_text('{"text": "ab"}\n{"text": "cd"}', encoding="utf-8")
    read = read_prompts(data, LanguageModel(network), "next-token", 10)
    assert [context.length for context in read] == [1, 1]


def test_documents_that_are_none_are_refused(tmp_path):
    nothing = "documents: got .* without a file that has a text, expected at least one"
    with pytest.raises(ValueError, match=nothing):
        read_documents(tmp_path)
    (tmp_path / "a.txt").write_text(" ", encoding="utf-8")
    with pytest.raises(ValueError, match=nothing):
        read_documents(tmp_path)
    with pytest.raises(ValueError, match="documents: got .*a.txt, in which nothing stands"):
        read_documents(tmp_path / "a.txt")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"txt": "a"}', encoding="utf-8")
    with pytest.raises(
        ValueError, match='a.jsonl, line 3: got .*txt.*, without "text", expected {'
    ):
        read_documents(tmp_path / "a.jsonl")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_a_text_is_that_without_marks_of_encodings_and_of_lines(encoding, tmp_path, letters):
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    texts = {"a.txt": "é\r\nb\r\n", "b.jsonl": '{"text": "é\\nb\\n"}\r\n'}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(mark + text.encode(encoding))
        assert read_documents(tmp_path / name)[0].text == "é\nb\n"
    (tmp_path / "c.jsonl").write_bytes(mark + '{"text": "ab"}\r\n{"text": "cd"}'.encode(encoding))
    one, two = read_contexts(tmp_path / "c.jsonl", letters, "next-token", 9)
    assert (one.window.tolist(), two.window.tolist()) == ([0, 1], [2, 3])
    (tmp_path / "d.txt").write_bytes(mark + "abc".encode(encoding))
    assert read_contexts(tmp_path / "d.txt", letters, "next-token", 9)[0].window.tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are of characters")
def test_a_name_of_bytes_is_a_title_of_letters(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_text("Coffee.", encoding="utf-8")
    for place in (path, tmp_path):
        assert read_documents(place) == (Document("caf?", "Coffee.", "caf?"),)


PDF = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 99 99] /Contents 4 0 R "
    "/Resources << /Font << /F 5 0 R >> >> >>",
    "<< /Length {size} >>\nstream\n{page}\nendstream",
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
]


def write_pdf(path, page):
    """Of one page, in its own language."""
    text = "%PDF-1.4\n"
    starts = []
    for number, body in enumerate(PDF, 1):
        starts.append(len(text))
        body = body.format(size=len(page), page=page) if "stream" in body else body
        text += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{start:010d} 00000 n \n" for start in starts)
    end = f"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n{len(text)}\n%%EOF\n"
    path.write_text(f"{text}xref\n0 6\n0000000000 65535 f \n{table}{end}", "latin-1")


def test_a_pdf_and_a_word_document_are_read(tmp_path, monkeypatch):
    write_pdf(tmp_path / "a.pdf", "BT /F 9 Tf 9 9 Td (Wrens sing.) Tj ET")
    made = docx.Document()
    made.add_paragraph("Rowans grow.")
    table = made.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "tree", "red"
    made.add_paragraph("They do.")
    made.save(str(tmp_path / "b.docx"))
    one, two = read_documents(tmp_path)
    assert (one.name, one.text) == ("a", "Wrens sing.")
    assert (two.name, two.text) == ("b", "Rowans grow.\ntree\tred\nThey do.")
    write_pdf(tmp_path / "a.pdf", "")
    with pytest.raises(ValueError, match="got .*a.pdf, in which there is no text.*recognises text"):
        read_documents(tmp_path)
    (tmp_path / "b.docx").write_text("no archive", encoding="utf-8")
    with pytest.raises(
        ValueError, match="documents: got .*b.docx, which docx cannot read.*Save it anew"
    ):
        read_documents(tmp_path / "b.docx")
    monkeypatch.setitem(sys.modules, "pypdf", None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=r"pypdf: .*lim_jax\[documents\]"):
        read_documents(tmp_path / "a.pdf")


@pytest.mark.parametrize(("ending", "kind"), [(".html", "HTML"), (".HTM", "HTML"), (".rtf", "RTF")])
def test_a_text_with_tags_is_refused(ending, kind, tmp_path):
    """As a saved page of the web: its tags would be scored as its words are."""
    (tmp_path / "a.txt").write_text("<p>Wrens sing.</p>", encoding="utf-8")
    assert read_documents(tmp_path)[0].text == "<p>Wrens sing.</p>", "as it is called a text"
    (tmp_path / f"b{ending}").write_text("<p>Wrens sing.</p>", encoding="utf-8")
    with pytest.raises(
        ValueError, match=f"b{ending}, which is {kind}, .*Save its text without tags"
    ):
        read_documents(tmp_path)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"caf\xe9", "whose byte 4 is not of UTF-8, expected a text in UTF-8, or in UTF-16"),
        (codecs.BOM_UTF8 + b"a\xff", "whose byte 5 is not of UTF-8"),
        (codecs.BOM_UTF16_LE + b"a\x00\x00\xd8", "whose byte 5 is not of UTF-16"),
        ("ab".encode("utf-16-le"), "whose character 2 is zero"),
        (b"\x89PNG\r\n\x1a\n\x00", "whose byte 1 is not of UTF-8.*as UTF-8, .* take it away"),
    ],
)
def test_what_is_no_text_is_named_with_its_place(content, message, tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "photo").write_bytes(content)
    with pytest.raises(ValueError, match=f"documents: got .*inside/photo, {message}"):
        read_documents(tmp_path)


def test_a_foil_leaves_the_prompt_alone_to_be_measured(tmp_path, letters):
    records = {"prompt": "abc", "answer": "de", "foil": "k"}, {"prompt": "ab", "answer": "f"}
    data = lines(tmp_path, *records)
    first, second = read_prompts(data, letters, "contrast", 9, "gg")
    assert isinstance(first, Context) and first.contrast is not None
    assert isinstance(second, Context) and second.contrast is not None
    assert first.window.tolist() == [0, 1, 2, 3] and first.tokens == ("a", "b", "c")
    assert first.weights.tolist() == [0, 0, 1] and first.ask is first.contrast
    *parts, log_weights, labels = first.contrast
    assert [part.tolist() for part in parts] == [[3, 4], [10], [1, 1], [1], 3]
    assert log_weights is None and labels is None
    assert second.contrast.foil.tolist() == [6, 6]
    with pytest.raises(
        ValueError, match="line 3: got no foil, expected the foil, a text that might have followed"
    ):
        read_contexts(data, letters, "contrast", 9)


def test_a_foil_that_no_loss_reads_is_refused(tmp_path, letters):
    message = "got the foil 'k', expected none, since this loss reads no foil. Leave the foil out"
    answered = lines(tmp_path, {"prompt": "abc", "answer": "de", "foil": "k"})
    with pytest.raises(ValueError, match=f"line 1: {message}"):
        read_prompts(answered, letters, "answer", 9)
    data = lines(tmp_path, {"prompt": "ab", "foil": "k"})
    with pytest.raises(ValueError, match=f"line 1, foil: {message}"):
        read_prompts(data, letters, "answer", 9)
    with pytest.raises(ValueError, match="foil: got the foil '5', expected none"):
        tokenize_prompt(RenderedPrompt("2+2="), foil="5").with_answer(np.array([52]))


def test_a_foil_that_cuts_the_prompt_elsewhere_is_refused():
    made = marked(["<s>", "a", "ab", "abc", "d"])
    prompt = RenderedPrompt("d ab", ((0, 1, "first"),))
    context = tokenize_context(prompt, " a", made, loss="contrast", foil=" d")
    assert context.window.tolist() == [0, 4, 2, 1] and context.spans[0].positions.tolist() == [1]
    with pytest.raises(ValueError, match="a prompt whose last token differs before the answer"):
        tokenize_context(prompt, "c", made, loss="contrast", foil=" d")
    with pytest.raises(ValueError, match="foil: got the answer itself"):
        tokenize_context(prompt, " d", made, loss="contrast", foil=" d")


def test_a_models_own_answer_beside_a_foil():
    context = tokenize_prompt(RenderedPrompt("2+2="), foil="5").with_answer(
        np.array([52]), loss="contrast"
    )
    assert bytes(context.window.tolist()) == b"2+2=4" and context.weights.tolist() == [0, 0, 0, 1]
    assert context.contrast is not None
    assert bytes(context.contrast.answer.tolist() + context.contrast.foil.tolist()) == b"45"


def test_a_text_that_no_model_reads_is_refused_at_once(tmp_path, monkeypatch, letters):
    """By its file's size before it is read, else by its letters before it is laid out."""
    monkeypatch.setattr(prompt_files, "MOST_LETTERS", 10)
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "short.txt").write_text("abc", encoding="utf-8")
    (folder / "long.txt").write_text("a" * 11, encoding="utf-8")
    refused = r"long.txt of 11 bytes, expected a text of at most 10 letters\. Cut the file down"
    for path in (folder, folder / "long.txt"):
        with pytest.raises(ValueError, match=f"documents: got {path.parent.parent}.*{refused}"):
            read_documents(path)
    (folder / "long.txt").write_text("é" * 10, encoding="utf-8")
    assert len(read_documents(folder)) == 2
    (folder / "long.txt").write_bytes(b"\xff" * 41)  # no text, which it would say once it is read
    with pytest.raises(ValueError, match="long.txt of 41 bytes"):
        read_documents(folder)
    records = {
        "11 letters, 6 of them in “b”": {
            "documents": [{"title": "a", "text": "abcde"}, {"title": "b", "text": "abcdef"}],
            "question": "abc",
        },
        "14 letters, 14 of them in “user 1”": {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 14}]}]
        },
        "12 letters, 12 of them in “the text”": {"text": "a" * 12},
    }
    template = ChatTemplate("{{ no_template_is_run() }}", {})
    for message, record in records.items():
        with pytest.raises(ValueError, match=f"line 1: got {message}, expected at most 10. Cut"):
            chatting = letters._replace(chat_template=template)
            read_prompts(lines(tmp_path, record), chatting, "next-token", 100)


def test_a_context_that_is_too_long_is_told_by_its_documents(tmp_path, letters):
    documents = [{"title": "x", "text": "abcde"}, {"title": "y", "text": "abcdefgh"}]
    cases: Any = (("answer", {}), ("answer", {"answer": "a"}), ("next-token", {}))
    for asked, answer in cases:
        record = {"documents": documents, "question": "abc", **answer}
        with pytest.raises(
            ValueError,
            match=(
                r"line 1: got \d+ tokens, of which 2 documents have 17 and “y” has the most, 10, "
                r"expected from 2 to 6: .*Raise `max_length` to at least \d+, or give fewer or "
                r"shorter documents"
            ),
        ):
            read_prompts(lines(tmp_path, record), letters, asked, 5)
    record = {"documents": documents[:1], "question": "abc"}
    with pytest.raises(ValueError, match="tokens, of which the document has 7, expected"):
        read_prompts(lines(tmp_path, record), letters, "answer", 5)


def test_white_space_at_the_end_of_an_answer_is_taken_off_or_said(tmp_path, letters):
    """As `ask` does; behind a prompt it may be meant."""
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    entry = {"documents": [{"text": "abc"}], "question": "de"}
    chat = {"messages": [{"role": "user", "content": "abc"}]}
    ends = {"answer": " fg \n", "foil": "h\t"}
    data = lines(tmp_path, {**entry, **ends}, {**chat, **ends})
    first, second = prompt_files.read_lines(data, template)
    assert (first.answer, first.foil) == (" fg", " h")
    assert (second.answer, second.foil) == ("fg", "h")
    prompts = {"prompt": "abc", "answer": "d "}, {"prompt": "abc", "answer": "d", "foil": "e\n"}
    data = lines(tmp_path, {"prompt": "abc", "answer": " d"}, *prompts)
    said = r"data.jsonl, line 3: the answer or foil ends in white space, .* as in 1 more\. Take it"
    with pytest.warns(UserWarning, match=said):
        _, line, other = prompt_files.read_lines(data)
    assert line.answer == "d " and other.foil == "e\n", "they are read as they are given"


def test_an_answer_to_a_question_is_stripped_however_it_is_asked():
    model = LanguageModel(byte_model(64, width=4, depth=1, key=jax.random.key(0)))
    chatting = model._replace(chat_template=ChatTemplate("", {}))
    for asked, before in ((model, " "), (chatting, "")):
        line = question_line(asked, "Who?", ["a"], answer="\nx \n", foil=" y ")
        assert (line.answer, line.foil) == (f"{before}x", f"{before}y")


def test_an_empty_text_is_told_by_its_number_of_tokens(tmp_path, letters):
    """Of a line, of a file, and of a prompt whose answer and foil are compared."""
    data = lines(tmp_path, {"text": ""})
    empty = tmp_path / "empty.txt"
    empty.write_text("", encoding="utf-8")
    both = "got 0 tokens.*, expected at least two"
    contrast = tmp_path / "contrast.jsonl"
    contrast.write_text(json.dumps({"prompt": "", "answer": "", "foil": "a"}), encoding="utf-8")
    for tokenizer in (letters.tokenizer, None):
        model = model_with(tokenizer)
        for file in (data, empty):
            with pytest.raises(ValueError, match=both):
                read_prompts(file, model, "next-token", 5)
        with pytest.raises(ValueError, match="line 1: got no tokens of prompt, answer or foil"):
            read_prompts(contrast, model, "contrast", 5)


def test_a_text_is_told_every_loss_that_it_can_be_asked_by(tmp_path, letters):
    data = tmp_path / "data.txt"
    data.write_text("abc", encoding="utf-8")
    named = "expected next-token or last-token or own-margin"
    with pytest.raises(ValueError, match=f"loss: got contrast with .*{named}"):
        read_prompts(data, letters, "contrast", 5)
    for loss in ("next-token", "last-token", "own-margin"):
        assert read_prompts(data, letters, loss, 5)


def test_a_table_of_word_is_read_once_whatever_is_merged_or_nested(tmp_path):
    """Below a cell that is merged downwards the column stays, empty."""
    document = docx.Document()
    table = document.add_table(2, 4)
    for cell, text in zip(
        [cell for row in table.rows for cell in row.cells], "abcxdef", strict=False
    ):
        cell.text = text
    table.cell(0, 3).merge(table.cell(1, 3))
    table.cell(0, 0).merge(table.cell(0, 1))
    inner = table.cell(1, 2).add_table(1, 2)
    inner.cell(0, 0).text = "inner"
    inner.cell(0, 1).text = "most"
    document.save(str(tmp_path / "table.docx"))
    (read,) = read_documents(tmp_path / "table.docx")
    assert [line for line in read.text.split("\n") if line] == [
        "a",
        "b\tc\tx",
        "d\te\tf",
        "inner\tmost",
        "\t",
    ]
