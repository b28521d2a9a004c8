"""Texts cut into sentences and paragraphs: what each rule says, and every character once."""

import random

import pytest

from lim_jax.prompts.sentence_spans import paragraphs, sentences


def pieces(text, cut=sentences):
    return [text[start:end] for start, end in cut(text)]


def test_a_row_of_marks_is_looked_through_once():
    """In a table of contents it may be long: at each of its marks anew it took a minute."""
    row = 100_000 * "."
    assert pieces(f"One {row}2") == [f"One {row}2"]
    assert pieces(f"One{row} Two.") == [f"One{row} ", "Two."]


# A bar stands where a sentence ends; what it must not end at stands beside it.
SENTENCES = {
    "plain": "It rains. ¦It pours! ¦Does it? ¦Yes",
    "titles": "Dr. Smith met Mrs. Jones at St. Ives. ¦Prof. Lee did not.",
    "small letters follow": "Take fruit, e.g. Apples, i.e. Pomes, etc. and nuts vs. Seeds. ¦Done.",
    "no sentence ends": "Cf. Smith on it, or Viz. Jones. ¦E.g. The cat sat, i.e. It lay. ¦Then.",
    "letters with stops": "The U.S. Army left the U.S. ¦The rest of J. R. R. Tolkien stayed.",
    "numbers": "Pi is 3.14. ¦See No. 5, Fig. 2 and pp. 7 in Vol. 3. ¦No. ¦He paid $1.50.",
    "years": "It was founded in 1931. ¦The town grew. ¦On Jan. 5 it burnt.",
    "reported": "Hao et al. (2021) say so. ¦Others do not.",
    "titles in quotes": "He saw “Dr. No” (cf. Fleming, [Fig. 2]). ¦Then he left.",
    "quotes": "“Why?” she asked. ¦“Because.” ¦He said 'Go.' ¦(It is so.) ¦Then [he left].",
    "footnotes": "It was built.[1][23] ¦It fell.",
    "ellipses": "Well... perhaps. ¦Then … silence. ¦And so... ¦The end.",
    "several marks": "What?! ¦No!!! ¦Is he a Dr.? ¦Smith is. ¦So.",
    "addresses": "See https://a.org/b.html?c=d.e or mail a.b@c.de. ¦Run main.py. ¦Then x.",
    "entries": "To do:\n¦1. Buy milk. ¦Twice.\n¦2. Sleep\n¦- A bullet\n¦* Another\n¦b) Last. ¦End",
    "a heading": "# The title\n¦A short text.\n¦Heading\n\n¦And a text.",
    "rows": "alpha: 12\n¦beta: 13\n¦| a | b |\n¦| 1 | 2 |",
    "code": "Run:\n¦```\n¦x = a. B\n\n¦    y = 1. C\n¦```\n¦Then. ¦Stop.",
    "indented": "def f(x):\n¦    return x\n\n¦    end",
    "Chinese": "今天下雨。¦真的吗？¦他说：“走！”¦好",
    "Chinese before small letters": "行。¦iPhone 好！¦ok",
    "Japanese": "「行く。」¦彼は言った。¦はい",
    "Hindi": "यह सच है। ¦क्या?  ¦हाँ।",
    "Arabic": "هل هذا صحيح؟ ¦نعم.  ¦شكرا",
    "Urdu": "یہ سچ ہے۔ ¦ہاں",
    "Hebrew": "השוק נפתח ביום שישי. ¦הסוחרים מוכרים דגים! ¦נכון?",
    "Korean": "시장은 금요일에 엽니다. ¦생선을 팝니다. ¦네.",
    "German ordinals": "Das Fest ist am 5. Mai. ¦Im 19. Jahrhundert wuchs die Stadt. ¦Der 2. "
    "Weltkrieg endete am 8. Mai 1945. ¦Vom 1.–5. Mai ist zu, im II. Quartal nicht.",
    "German numbers that end": "Er kam am 5. ¦Die Stadt schlief. ¦Sie wurde 1931 gegründet, 2001. "
    "¦Karl blieb. ¦Johannes Paul II. ¦Er war Papst. ¦Im Jahr 800. ¦Karl kam.",
    "English numbers that end": "I am 5. ¦My sister is 7. ¦I am 9. ¦Ana is 8. ¦He lives at 12. "
    "¦Ana left. ¦World War II. ¦Peace came. ¦It was in 1931. ¦Rowans grew.",
    "German abbreviations": "Es gibt z. B. Äpfel und d. h. Obst, z.B. Birnen. ¦Um 44 v. Chr. war "
    "Krieg. ¦Hr. Maier kam am 3. Okt. 2020.",
    "German quotes": "„Ja.“ ¦Er ging. ¦»Nein.« ¦Sie blieb. ¦Er rief: »Komm!« ¦Dann schwieg er.",
    "French": "« Oui. » ¦Il partit. ¦M. Dupont et Mme. Leroy sont venus le 5. ¦Le maire parla.",
    "Spanish": "El Sr. García llegó a las 5. ¦La Sra. Ruiz no. ¦¿Quién? ¦¡Él!",
    "a senior": "He was John Smith Sr. ¦The firm grew.",
    "Czech and Danish": "5. května přišel Karel. ¦Han kom den 5. maj. ¦Så gik han.",
    "Russian": "Он родился 5. мая. ¦Потом уехал.",
    "letters of mathematics": "Let f be a map of x. ¦Suppose not. ¦Then take y. ¦Every z. ¦A set.",
    "white space": "  \n One. \n\n\n¦ Two.  \n",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_end_where_a_bar_stands(name):
    expected = SENTENCES[name].split("¦")
    assert pieces("".join(expected)) == expected


def test_lines_of_a_wrapped_paragraph_go_on_and_others_do_not():
    wrapped = (
        "The harbour of the town was built by the council after the flood of\n"
        "1931 and Mira Castellan, an astronomer, gave it the name that it has\n"
        "today. "
    )
    assert pieces(wrapped + "It is deep.") == [wrapped, "It is deep."]
    long = "A line of more than sixty letters that has no stop at its end, and\n"
    short = "short\n"
    word = "w" * (len(long) - len(short) - 1)  # which just fits after the short one
    for alone in ("- an entry of a list", word):
        assert pieces(long + short + alone) == [long + short, alone]
    assert len(pieces(long + short + word + "w")) == 1
    indented = "    return a_value_of_a_function_with_a_very_long_name_and_more(x)\n"
    for line in (indented, "a value of a function with a very long name, and then a stop;\n"):
        assert pieces(line + "short") == [line, "short"]


TALKS = {
    "a chat": ("[09:06] raj: ", "[09:07] ana: "),
    "with seconds": ("[27.11.26, 09:06:12] Raj Patel: ", "[27.11.26, 09:07:00] Ana: "),
    "with dates": ("27/11/2026, 09:06 - Raj: ", "27/11/2026, 09:07 - Ana: "),
    "of a program": ("2026-11-27T20:26:15Z INFO ", "2026-11-27T20:26:16Z WARN "),
    "names in brackets": ("<raj> ", "<ana> "),
    "speakers": ("raj: ", "Ana María: "),
    "Japanese speakers": ("田中：", "佐藤："),
}


@pytest.mark.parametrize("name", TALKS)
def test_a_line_of_a_log_or_of_a_talk_is_a_sentence_however_long_it_is(name):
    one, other = TALKS[name]
    lines = [
        f"{one}the market opens on Friday and I shall be there with some of the fish\n",
        f"{other}good, then we meet behind the mosque at ten, unless there is some rain\n",
        f"{one}see you there\n",
    ]
    assert pieces("".join(lines)) == lines


def test_what_only_one_line_of_a_paragraph_begins_with_is_no_speaker():
    wrapped = (
        "The rule of the market has been the same for all of its two hundred years\n"
        "Raj: no fish is sold after noon, and none before the bell of the mosque, and\n"
        "nobody asks why."
    )
    assert pieces(wrapped) == [wrapped]


@pytest.mark.parametrize("alone", ["- an entry", "2. an entry", "> said", "| a |", "  code", "# A"])
def test_a_line_that_begins_by_itself_does_not_go_on_with_a_full_one(alone):
    full = "A line of more than sixty letters that has no stop at its end, and\n"
    assert pieces(full + alone) == [full, alone]
    assert pieces(full + "goes on") == [full + "goes on"]


def test_paragraphs_are_cut_at_blank_lines():
    text = "\n\nOne\nline.\n \t\n\nTwo.\r\n\r\nThree.\n\n"
    assert pieces(text, paragraphs) == ["\n\nOne\nline.\n \t\n\n", "Two.\r\n\r\n", "Three.\n\n"]


@pytest.mark.parametrize("cut", [sentences, paragraphs])
def test_every_character_is_in_exactly_one(cut):
    assert cut("") == []
    assert cut(" \n ") == [(0, 3)]
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(rng.choices("aB1. \n!?。\"'`-#…)\t", k=rng.randrange(1, 60)))
        spans = cut(text)
        assert [0, *(end for _, end in spans)] == [*(start for start, _ in spans), len(text)]
        assert all(text[start:end].strip() for start, end in spans) or not text.strip()


@pytest.mark.parametrize("cut", [sentences, paragraphs])
def test_blank_lines_before_a_letter_are_no_parts_of_their_own(cut):
    text = " \n" * 1000 + "a"
    assert cut(text) == [(0, len(text))]
