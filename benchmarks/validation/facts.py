"""Short questions over documents of one fact each, drawn by a seed."""

import numpy as np

from benchmarks.validation.document_study import Question

NAMES = (
    "Alice", "Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Helen", "Henry", "Hugo",
    "Ivan", "Jack", "Karl", "Laura", "Leo", "Maria", "Mark", "Maya", "Nina", "Omar", "Oscar",
    "Paul", "Peter", "Rosa", "Sam", "Simon", "Tom", "Vera", "Walter",
)  # fmt: skip
# What is said of somebody, what is asked, and what may stand there.
FACTS = (
    ("lives in {}.", "In which city does {} live?",
     "Athens Berlin Boston Cairo Delhi Dublin Lima London Madrid Moscow Oslo Paris Rome Tokyo"),
    ("keeps a {}.", "Which animal does {} keep?",
     "cat cow dog duck goat horse mouse parrot pig rabbit sheep snake turtle"),
    ("plays the {}.", "Which instrument does {} play?",
     "drum flute guitar harp horn organ piano trumpet violin"),
    ("brought the {}.", "Which food did {} bring?",
     "apples beans bread butter cheese eggs honey pears rice soup"),
    ("wears a {}.", "What does {} wear?", "cap coat hat ring scarf shirt suit tie watch"),
    ("grew the {}.", "Which flower did {} grow?", "daisy iris lily lotus rose violet"),
    ("speaks {}.", "Which language does {} speak?",
     "Arabic Dutch English French German Greek Italian Polish Russian Spanish Turkish"),
    ("met a {}.", "Whom did {} meet?",
     "baker doctor farmer judge lawyer nurse painter pilot sailor teacher"),
    ("drove the {}.", "What did {} drive?", "bus car taxi tractor train truck van"),
    ("bought the {}.", "Which metal did {} buy?", "copper gold iron lead silver tin zinc"),
)  # fmt: skip


def draw_facts(count: int, seed: int) -> Question:
    """Draw a question about one of some people, of each of whom a document says one thing.

    The documents' titles are names, each once, and each document says a thing of another kind, so
    that the question is about one alone. The words are our own.

    Parameters
    ----------
    count
        The number of documents, at most ten.
    seed
        For `numpy.random.default_rng`.

    Examples
    --------
    >>> found = draw_facts(3, seed=0)
    >>> for title, text in found.documents:
    ...     print(f"{title}: {text}")
    Ben: bought the silver.
    Ivan: drove the train.
    Simon: wears a ring.
    >>> found.question, found.answers, found.gold
    ('What does Simon wear?', ('ring',), 2)
    """
    kinds = len(FACTS)
    rng = np.random.default_rng(seed)
    names = [NAMES[number] for number in rng.permutation(len(NAMES))[:count]]
    facts = [FACTS[number] for number in rng.permutation(kinds)[:count]]
    chosen_things = [str(rng.choice(things.split())) for _, _, things in facts]
    gold = int(rng.integers(count))
    documents = tuple(
        (name, says.format(thing))
        for name, (says, _, _), thing in zip(names, facts, chosen_things, strict=True)
    )
    return Question(facts[gold][1].format(names[gold]), (chosen_things[gold],), documents, gold)
