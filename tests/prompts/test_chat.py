"""Chats by templates as publishers write them: the very text, and where everything said stands."""

import json
from typing import Any

import jax
import numpy as np
import pytest
from reference.chats import (
    ASIDE,
    CALL,
    CALLS,
    CHATML,
    COMMAND,
    GEMMA,
    GRANITE,
    LLAMA,
    MARKS,
    SYSTEM,
    TALK,
    TEXTS,
    TOOLS,
    USER,
    WEATHER,
)
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from lim_jax.checkpoints.text import ChatTemplate
from lim_jax.models import LanguageModel, byte_model
from lim_jax.prompts import (
    Document,
    chat_prompt,
    generate_answers,
    own_answers,
    tokenize_context,
    tokenize_prompt,
)
from lim_jax.prompts.chat import turn_ends
from lim_jax.prompts.documents import RenderedPrompt, is_reserved
from lim_jax.prompts.templates import render_chats

DOCUMENTS = [Document("One", 'It says "one".'), Document("", "Another one.")]


def parts(laid):
    return [(name, laid.text[start:end]) for start, end, name in laid.spans]


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_those_of_the_formats_and_every_message_is_found(name):
    source, messages, text = TEXTS[name]
    prompt = chat_prompt(messages, ChatTemplate(source, MARKS))
    assert prompt.text == text and prompt.marked
    said = {f"{one['role']} {number}": one["content"] for number, one in enumerate(messages, 1)}
    names_and_texts = parts(prompt)
    assert sorted(part for part, _ in names_and_texts) == sorted(said)
    for part, shown in names_and_texts:
        assert shown.strip() == said[part].strip()
    if name == "ChatML":  # white space and all, and no word of the template's
        assert names_and_texts == list(said.items())
        assert prompt.spans[0][0] == text.index("user\nuser ") + 5


@pytest.mark.slow
def test_texts_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    words = Tokenizer(WordLevel({"a": 0, "<s>": 1, "</s>": 2}, unk_token="a"))
    peer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **MARKS)
    of_documents = [{"title": "One", "text": DOCUMENTS[0].text}, {"text": DOCUMENTS[1].text}]
    cases = [(source, messages, None) for source, messages, _ in TEXTS.values()]
    cases += [(source, [USER], of_documents) for source in (GRANITE, COMMAND)]
    for source, messages, documents in cases:
        peer.chat_template = source
        expected = peer.apply_chat_template(
            messages, documents=documents, tokenize=False, add_generation_prompt=True
        )
        given_documents = DOCUMENTS if documents else ()
        assert chat_prompt(messages, ChatTemplate(source, MARKS), given_documents).text == expected
    for source in (CHATML, LLAMA, GEMMA):
        peer.chat_template = source
        expected = peer.apply_chat_template(BEGUN, tokenize=False, continue_final_message=True)
        assert chat_prompt(BEGUN, ChatTemplate(source, MARKS)).text == expected
    peer.chat_template = TOOLS
    # Where nothing is said beside a call, transformers may be given no content.
    calls = [{name: one for name, one in message.items() if one} for message in CALLS]
    expected = peer.apply_chat_template(
        calls, tools=[WEATHER], tokenize=False, add_generation_prompt=True
    )
    assert chat_prompt(CALLS, ChatTemplate(TOOLS, MARKS), (), [WEATHER]).text == expected


BEGUN = [USER, {"role": "assistant", "content": "Who? user "}]


@pytest.mark.parametrize(
    "source, end, said",
    [
        (CHATML, "user <|im_end|>\n<|im_start|>assistant\nWho? user ", "Who? user "),
        (LLAMA, "<|start_header_id|>assistant<|end_header_id|>\n\nWho? user", "Who? user"),
    ],
)
def test_what_an_assistant_began_is_gone_on_with(source, end, said):
    """As by transformers' continue_final_message: no turn is ended, none begun."""
    prompt = chat_prompt(BEGUN, ChatTemplate(source, MARKS), DOCUMENTS[:1])
    assert prompt.text.endswith(end)
    assert parts(prompt)[-1] == ("assistant 2", said) and prompt.spans[-1][1] == len(prompt.text)
    context = tokenize_context(prompt, "Mira")
    assert bytes(context.window.tolist()).decode() == prompt.text + "Mira"


def test_tools_and_calls_stand_where_the_template_has_places_for_them():
    prompt = chat_prompt(CALLS, ChatTemplate(TOOLS, MARKS), (), [WEATHER])
    assert prompt.text == (
        f"<|im_start|>system\n# Tools\n{json.dumps(WEATHER)}<|im_end|>\n"
        "<|im_start|>user\nuser <|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Oslo, N."}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n12 °C, sun\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert parts(prompt) == [("user 1", "user "), ("tool 3", "12 °C, sun")]
    written = "".join(prompt.text[start:end] for start, end in prompt.control or ())
    assert written.count("<|im_end|>") == 4 and "weather" not in written.replace("get_weather", "")


def test_parts_of_text_are_one_text():
    content = [{"type": "text", "text": "us"}, {"type": "text", "text": "er "}]
    prompt = chat_prompt([USER | {"content": content}], ChatTemplate(CHATML, MARKS))
    assert parts(prompt) == [("user 1", "user ")]


@pytest.mark.parametrize("source", [CHATML, GRANITE])
def test_a_message_is_not_called_as_a_document_is(source):
    prompt = chat_prompt(
        [{"role": "ipython", "content": "3"}, USER],
        ChatTemplate(source, MARKS),
        [Document("ipython 1", "a"), Document("user 2", "b")],
    )
    assert is_reserved("message 1"), "no document, whatever its role is"
    names = {"message 1", "ipython 1", "user 2 (document 2)", "question"}
    assert {name for name, _ in parts(prompt)} == names and len(prompt.spans) == 4


@pytest.mark.parametrize(
    "source, messages, message",
    [
        (GEMMA, ASIDE, "chat template refuses .TemplateError: System role not supported"),
        (GEMMA, [USER, USER], "refuses .TemplateError: Conversation roles must alternate"),
        ("{{ messages[0].content | upper }}", [USER], "changes, expected texts that can be found"),
        ("{{ messages[-1].content }}", TALK, "got assistant 2, user 1, which the .* leaves"),
        ("{% for", [USER], "chat template refuses .TemplateSyntaxError"),
        (CHATML, [*CALLS[:1], CALLS[1] | {"content": "a"}, CALLS[2]], "the calls of message 2, wh"),
    ],
)
def test_what_a_template_does_not_lay_out_is_refused(source, messages, message):
    with pytest.raises(ValueError, match=message):
        chat_prompt(messages, ChatTemplate(source, MARKS))


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize(
    "messages, message",
    [
        ([], "messages: got none, expected a list of Mapping"),
        ({"role": "user", "content": "a"}, "messages: got dict"),
        ([USER, {"role": "user"}], "messages, message 2: got {'role': 'user'}"),
        ([{"role": "user", "content": ["a"]}], "messages, message 1: .*pictures and sounds"),
        ([{"role": "user", "content": [{"type": "image", "text": "a"}]}], "message 1: .*pictures"),
        ([{"role": "user", "content": []}], "message 1: got"),
        ([{"role": ["user"], "content": "a"}], "message 1: got"),
        ([USER | {"tool_calls": [CALL]}], "message 1: got"),
        (CALLS[:2], "messages: got a last one that calls tools, expected the tools' answers"),
        ([CALLS[1] | {"tool_calls": [{}]}], "tool_calls, entry 1: got {}, expected {.type"),
        ([CALLS[1] | {"tool_calls": 3}], "message 1, tool_calls: got 3, expected a list"),
        ([CALLS[1] | {"tool_calls": [CALL | {"<s>": 1}]}], "entry 1: got the name .'<s>'"),
        ([CALLS[2] | {"name": float("nan")}], "message 1: got nan, expected a value of JSON"),
        ([{"role": "user", "content": " "}], "message 1: .*not empty"),
        ([USER | {"name": "me"}], "message 1: got "),
    ],
)
def test_what_is_no_message_is_refused(messages, message):
    with pytest.raises(ValueError, match=message):
        chat_prompt(messages, ChatTemplate(CHATML, MARKS))


def test_tools_that_a_template_leaves_out_are_refused():
    with pytest.raises(ValueError, match="got tools, which the model's chat template leaves out"):
        chat_prompt([USER], ChatTemplate(CHATML, MARKS), (), [WEATHER])
    with pytest.raises(ValueError, match="tools, entry 1: got .* Name each function"):
        chat_prompt([USER], ChatTemplate(CHATML, MARKS), (), [{"name": "a"}])


def test_documents_are_the_users():
    with pytest.raises(ValueError, match="messages: got documents and no message of the user"):
        chat_prompt([SYSTEM], ChatTemplate(CHATML, MARKS), DOCUMENTS)


# Not between two steps of Python's, where a handler would be called, but in one of C's.
ENDLESS = (
    "{% set n = namespace(n=7) %}{% for i in range(40) %}{% set n.n = n.n * n.n %}{% endfor %}"
)
MILD = {
    "'a' * 100 * large": "MemoryError",
    "'{:>9999999999}'.format(1)": "MemoryError",
    "'a' * large": "a text of more than",
    "range(large)": "OverflowError",
    "''.__class__.__mro__": "SecurityError",
    "cycler.__init__.__globals__.os.popen('id').read()": "SecurityError",
    "messages.append(1)": "SecurityError",
    "open('/etc/passwd')": "'open' is undefined",
}


def test_a_template_that_does_not_end_is_ended():
    with pytest.raises(ValueError, match="chat template: got one that does not end within its sec"):
        render_chats(ChatTemplate(ENDLESS, {}), [{"messages": [USER]}])


def test_a_template_reaches_nothing_but_what_it_is_given():
    branches = [
        f"{{% if kind == {kind} %}}{{{{ {one} }}}}{{% endif %}}" for kind, one in enumerate(MILD)
    ]
    source = "".join(branches) + "{% if kind is undefined %}{% include 'sandbox.py' %}{% endif %}"
    chats = [{"messages": [USER], "large": 10**7, "kind": kind} for kind in range(len(MILD))]
    outcomes = render_chats(ChatTemplate(source, {}), [*chats, {}])
    for said, error in zip(outcomes, [*MILD.values(), "no loader"], strict=True):
        assert error in said["error"], error


def test_numbers_of_json_are_without_escapes_of_html():
    source = "{{ messages | tojson }}{{ strftime_now('%%') }}{{ nothing_such }}"
    (outcome,) = render_chats(ChatTemplate(source, {}), [{"messages": [{"a": "<é'&>"}]}])
    assert outcome == {"text": json.dumps([{"a": "<é'&>"}], ensure_ascii=False) + "%"}


def test_a_templates_today_is_one_day_for_all_runs():
    (outcome,) = render_chats(ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}), [{}])
    assert outcome == {"text": "01 Jan 2025"}


def words_of_control(*words):
    """A tokenizer of letters that has these words besides."""
    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in words])
    return tokenizer


@pytest.mark.parametrize(
    "source, end",
    [
        (CHATML, "<|im_end|>"),
        (LLAMA, "<|eot_id|>"),
        (GEMMA, "<end_of_turn>"),
        (GRANITE, "<|end|>"),
        (COMMAND, "<user>"),
        (TEXTS["Mistral"][0], "</s>"),
        ("{% for m in messages %}{{ m.content }} </s><s>{% endfor %}", "</s>"),
    ],
)
def test_the_token_that_ends_a_turn_is_that_behind_what_the_assistant_says(source, end):
    """The longest that stands there; that of another turn, or of the text's end, is none."""
    tokenizer = words_of_control("<|endoftext|>", "<s>", end[:-1], end, "<|im_start|>")
    template = ChatTemplate(source, MARKS)
    assert turn_ends(template, tokenizer) == (tokenizer.token_to_id(end),)
    assert turn_ends(template, words_of_control("<|endoftext|>", "<|im_start|>")) == ()
    assert turn_ends(template, None) == ()


def test_a_template_that_ends_no_turn_or_knows_no_assistant_names_no_end():
    tokenizer = words_of_control("<|im_end|>")
    for source in (
        "{% for m in messages %}{{ m.content }}\n{% endfor %}<|im_end|>",
        "{{ raise_exception('No assistant.') }}",
        "<|im_end|>{{ messages[0].content }}",
    ):
        assert turn_ends(ChatTemplate(source, {}), tokenizer) == ()


def test_an_answer_in_a_chat_ends_at_the_turns_end_too(monkeypatch):
    """Which ``generation_config.json`` may not name; elsewhere it ends as this says."""
    calls = []
    tokenizer = words_of_control("<|endoftext|>", "<|im_end|>")

    def answer(network, ids, tokens, end, padding, prefix):
        calls.append(end)
        return np.array([0, 0, tokenizer.token_to_id("<|im_end|>")])

    monkeypatch.setattr(own_answers, "answer", answer)
    network = byte_model(64, width=4, depth=1, key=jax.random.key(0))
    ends: Any = map(tokenizer.token_to_id, ("<|endoftext|>", "<|im_end|>"))
    endoftext, im_end = ends
    template = ChatTemplate(CHATML, {})
    model = LanguageModel(network, tokenizer, template, (endoftext,))
    chat = chat_prompt([USER], template)
    prompts = [tokenize_prompt(prompt, tokenizer) for prompt in (chat, RenderedPrompt("a"))]
    in_chat, plain = generate_answers(prompts, model)
    assert calls == [(endoftext, im_end), (endoftext,)]
    assert (in_chat.cut, plain.cut) == (False, True)
    assert im_end not in in_chat.window[-2:] and plain.window[-1] == im_end


def test_no_calls_in_a_list_are_none():
    """As exported logs have them, of messages that say something."""
    template = ChatTemplate(CHATML, MARKS)
    empty = {"tool_calls": []}
    said = {"role": "assistant", "content": "Yes."}
    for chat in ([USER, said, USER], [USER, said]):
        listed = [one | empty if one is said else one for one in chat]
        assert chat_prompt(listed, template) == chat_prompt(chat, template)
    with pytest.raises(ValueError, match="message 2: got"):
        chat_prompt([USER, {"role": "assistant", "content": "", **empty}, USER], template)


def test_no_letter_of_a_text_is_taken_for_a_mark():
    """As of fonts with letters of their own; the marks are then others."""
    template = ChatTemplate(CHATML, MARKS)
    own = "\ue000" + "0" + "\ue001"
    plain = chat_prompt([{"role": "user", "content": "abc"}], template)
    ours = chat_prompt([{"role": "user", "content": own}], template)
    assert ours.text == plain.text.replace("abc", own) and ours.spans == plain.spans
    with_document = chat_prompt([USER], template, [Document(own, own)])
    assert with_document.text.count(own) == 2
