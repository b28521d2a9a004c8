"""Ask a small network that needs both halves of a fact which documents it needs together.

``python -m benchmarks.validation.trained_together [--draws N] [--steps N] [--out FOLDER]`` trains a
network to answer questions about documents of a sentence each. In which room somebody sleeps is
stated nowhere: one document says on which floor, another behind which door, and with either alone
the room is unknown. It asks the network what `benchmarks.validation.together` asks a published
model, and writes ``trained_together.csv``, a row for each answer and method, and
``trained_together.md``. The network and the answers stay in the folder, and another run goes on
from there. Needs the extra ``prices``.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.report import data_file
from benchmarks.validation.facts import FACTS, NAMES
from benchmarks.validation.lessons import BATCH, DEPTH, STEPS, WIDTH, Lesson, share_right, train
from benchmarks.validation.together import read_all, rows_of
from benchmarks.validation.together_page import page_of
from benchmarks.validation.together_questions import KINDS, OTHERS, Drawn, copy_of, with_evidence
from lim_jax.prompts import Document
from lim_jax.prompts.documents import document_prompt

FLOORS = "one two three four five".split()
DOORS = "first second third fourth fifth".split()
ROOM = "In which room does {} sleep?"
UNKNOWN = "unknown"
# Documents of facts in the lessons of each batch: few are learnt from sooner.
COUNTS = (1, 2, 1, 3, 2, 4, 3, 5)
QUESTIONS = 3  # about facts, of a lesson, at most
# Which halves of a room a lesson's documents state, and in which share of the lessons.
STATED = ((0, 1), (0,), (1,), ())
SHARES = (0.55, 0.18, 0.18, 0.09)
COPIED = 0.25  # of lessons: the share in which a document says what another does
UNSEEN = 1000  # the seed of the first question that judges the network
TESTS = 256
TABLE = "trained_together.csv"
TITLE = "Which documents are needed together by a network that does need two?"
ABOUT = """\
`python -m benchmarks.validation.trained_together` trains a network of {depth} layers of width
{width}, on one core of a processor in some minutes, to answer questions about documents of one
sentence. On which floor somebody sleeps is said by one document, and behind which door by another:
the third door on floor two is that of room 203. With either alone the network learns to say that
the room is unknown. It names the room of {right:.0%} of {tests} other prompts that have both
halves. It is asked {questions} questions about five or six documents, as
[SmolLM2-135M is](together.md), which hardly needs a half of what it is asked. Of a kind two
documents state the evidence, one in other words. Of the next each holds one half of it. Of the last
one document states it. Explained is the right answer. Brackets have 95 % over questions drawn
anew."""


def halves_of(person: str, floor: int, door: int) -> list[str]:
    """Say where somebody sleeps, in two sentences.

    >>> halves_of("Ann", 1, 2)
    ['Ann sleeps on floor two.', 'Ann sleeps behind the third door.']
    """
    return [
        f"{person} sleeps on floor {FLOORS[floor]}.",
        f"{person} sleeps behind the {DOORS[door]} door.",
    ]


def room_of(floor: int, door: int) -> str:
    """Return the number of a room.

    >>> room_of(1, 2)
    '203'
    """
    return str(100 * (floor + 1) + door + 1)


def drawn_lesson(number: int) -> Lesson:
    """Draw a lesson: questions about facts of persons, each of a kind, and about one's room.

    >>> lesson = drawn_lesson(3)
    >>> print("".join(prompt + answer for prompt, answer in zip(*lesson)))
    Note 1
    Omar plays the guitar.
    <BLANKLINE>
    Note 2
    Simon sleeps on floor two.
    <BLANKLINE>
    Question: Which instrument does Omar play?
    Answer: guitar
    <BLANKLINE>
    Question: What does Peter wear?
    Answer: unknown
    <BLANKLINE>
    Question: In which room does Simon sleep?
    Answer: unknown
    """
    rng = np.random.default_rng(number)
    count = COUNTS[number // BATCH % len(COUNTS)]
    sleeper, *persons = rng.permutation(NAMES)[: count + 2].tolist()  # of the last nothing is said
    facts = [FACTS[kind] for kind in rng.permutation(len(FACTS))[: count + 1]]
    things = [str(rng.choice(of_fact.split())) for _, _, of_fact in facts]
    floor, door = rng.integers(len(FLOORS), size=2).tolist()
    halves = halves_of(sleeper, floor, door)
    stated = STATED[rng.choice(len(STATED), p=SHARES)]
    texts = [f"{persons[n]} {facts[n][0].format(things[n])}" for n in range(count)]
    texts += [halves[half] for half in stated]
    if rng.random() < COPIED:
        texts.append(copy_of(texts[rng.integers(len(texts))]))
    documents = [
        Document(f"Note {n}", text) for n, text in enumerate(rng.permutation(texts).tolist(), 1)
    ]
    asked = rng.permutation(count + 1)[:QUESTIONS].tolist()
    questions = [
        (facts[n][1].format(persons[n]), things[n] if n < count else UNKNOWN) for n in asked
    ]
    room = room_of(floor, door) if len(stated) == len(halves) else UNKNOWN
    questions.insert(int(rng.integers(len(questions) + 1)), (ROOM.format(sleeper), room))
    first, *others = (question for question, _ in questions)
    prompts = [
        document_prompt(documents, first).text,
        *(f"\n\nQuestion: {question}\nAnswer:" for question in others),
    ]
    return Lesson(prompts, [f" {answer}" for _, answer in questions])


def drawn_question(kind: str, seed: int) -> Drawn:
    """Draw a question: of a copied fact, of a room in two halves, or of a fact in one document.

    The other documents state facts of other kinds, of others.

    >>> drawn = drawn_question("halves", 1)
    >>> [document.text for document in drawn.documents if document.title in drawn.evidence]
    ['Omar sleeps behind the fourth door.', 'Omar sleeps on floor three.']
    >>> drawn.question, drawn.answer
    ('In which room does Omar sleep?', '304')
    """
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    person, *others = rng.permutation(NAMES)[: OTHERS + 1].tolist()
    (says, asks, things), *facts = (FACTS[n] for n in rng.permutation(len(FACTS))[: OTHERS + 1])
    texts = [
        f"{other} {fact.format(rng.choice(of_fact.split()))}"
        for other, (fact, _, of_fact) in zip(others, facts, strict=True)
    ]
    if kind == "halves":
        floor, door = rng.integers(len(FLOORS), size=2).tolist()
        evidence = halves_of(person, floor, door)
        return with_evidence(ROOM.format(person), room_of(floor, door), evidence, texts, rng)
    answer = str(rng.choice(things.split()))
    fact = f"{person} {says.format(answer)}"
    evidence = [fact, copy_of(fact)] if kind == "copy" else [fact]
    return with_evidence(asks.format(person), answer, evidence, texts, rng)


def about_of(right: float, questions: int) -> str:
    """Say who was asked how many questions."""
    return ABOUT.format(depth=DEPTH, width=WIDTH, right=right, tests=TESTS, questions=questions)


def unseen_lessons() -> list[Lesson]:
    """Draw questions about rooms of which both halves are stated, which are not asked."""
    drawn = [drawn_question("halves", UNSEEN + number) for number in range(TESTS)]
    return [
        Lesson([document_prompt(one.documents, one.question).text], [f" {one.answer}"])
        for one in drawn
    ]


def main() -> None:
    """Train, ask, and write the table and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=24, help="of each kind of documents")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    parser.add_argument("--out", type=Path, default=Path("together"), help="the folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = train("rooms", drawn_lesson, options.steps, options.out, jax.random.key(0))
    readings = read_all(model, drawn_question, options.draws, options.out)
    rows = [row for reading in tqdm(readings, desc="judging") for row in rows_of(reading)]
    (options.out / TABLE).write_text(data_file(rows), encoding="utf-8")
    about = about_of(share_right(model, unseen_lessons()), len(readings))
    page = page_of(rows, TITLE, about, TABLE)
    (options.out / "trained_together.md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
