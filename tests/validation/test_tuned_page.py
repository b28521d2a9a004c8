"""The page of a published model that was trained further says what its results are."""

import numpy as np
from reference.made_tuning import made_tuning

from benchmarks.validation.intervals import Interval, interval_words
from benchmarks.validation.tuned import ALONE, AT_EQUAL_TIME, BEFORE, SELECTIVE, tuning_gains
from benchmarks.validation.tuning_page import tuning_page


def rows(page, *first):
    lines = [line for line in page.splitlines() if line.startswith(f"| {' | '.join(first)} |")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def said(interval):
    value, low, high = map(float, interval)
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def test_every_stage_of_every_arm_has_its_row():
    results = made_tuning()
    page = tuning_page(results, "a model", ["some.png"])
    first, second = rows(page, SELECTIVE, "4")
    for row, length, sides in ((first, "short", slice(2, 6)), (second, "longer", slice(2, 7))):
        scores = results["arms"][SELECTIVE][length]
        accuracy, entropy = (np.array(scores[name])[1] for name in ("accuracy", "cross_entropy"))
        middle = accuracy[:, sides].mean()
        assert row[2:6] == [
            "12",
            f"{accuracy.mean():.3f}",
            f"{middle:.3f}",
            f"{entropy.mean():.3g}",
        ]
        begun = tuning_gains(results, SELECTIVE, BEFORE, length=length)[4]
        steps = tuning_gains(results, SELECTIVE, length=length)[4]
        time = tuning_gains(results, SELECTIVE, AT_EQUAL_TIME, length=length)[4]
        assert row[6:] == [said(one.accuracy) for one in (begun, steps, time)]
    assert rows(page, SELECTIVE, "8")[0][8] == "", "so long the plain arm was not trained"
    assert rows(page, "plain", "8")[0][7:] == ["", ""]
    before = rows(page, "before", "0")
    assert len(before) == 2 and before[0][2] == "0" and before[0][6:] == ["", "", ""]
    by_place = rows(page, "by place")
    assert by_place[0][-1] == "8" and by_place[1][-1] == "9"
    last = np.mean(results["arms"][ALONE]["short"]["accuracy"][-1], axis=0)
    assert rows(page, ALONE)[2][1:] == [f"{value:.2f}" for value in last]
    command = page.split("\n\n")[2]
    figure = page.splitlines()[-1]
    assert figure == "![some.png](some.png)" and "validation --model MODEL --train`" in command


def test_the_first_sentence_is_what_was_found():
    """On one length all is told apart, on the other nothing is."""
    results = made_tuning()
    accuracy = np.array(results["arms"][SELECTIVE]["longer"]["accuracy"])
    plain = np.array(results["arms"]["plain"]["longer"]["accuracy"])
    accuracy[1:] = plain[1:]
    accuracy[1:, 0] += 0.3
    accuracy[1:, 1] -= 0.3
    results["arms"][SELECTIVE]["longer"]["accuracy"] = accuracy.tolist()
    page = tuning_page(results, "a model")
    sentence = page.split("\n\n")[1]
    first, second = sentence.split("** ")
    ends = {name: np.mean(arm["short"]["accuracy"][-1]) for name, arm in results["arms"].items()}
    begun = np.mean(results["arms"]["plain"]["short"]["accuracy"][0])
    assert first == (
        f"**On 8 records answers at the edges alone take accuracy from {begun:.2f} to "
        f"{ends['plain']:.2f} in 8 steps, evidence alone, which tells no answer, to "
        f"{ends[ALONE]:.2f}, and both to {ends[SELECTIVE]:.2f}. Compared with the start, "
        "evidence alone is higher after 4 and 8 steps; compared with answers alone, both are "
        "higher after 4 and 8 steps at equal steps, and higher after 4 steps at equal time."
    )
    assert second.endswith("both are not told apart at equal steps and at equal time.")
    accuracy[1:] = plain[1:] - 0.2
    results["arms"][SELECTIVE]["longer"]["accuracy"] = accuracy.tolist()
    assert "lower after 4 and 8 steps at equal steps" in tuning_page(results, "a model")


def test_what_was_run_is_said():
    results = made_tuning()
    page = tuning_page(results, "a model")
    assert page.startswith("# Does a model learn more")
    for words in (
        "12,345 numbers train",
        "of all layers",
        "a rate of 0.0001",
        "sees 4 prompts of 8 records",
        "sees 1 whose gold record",
        "strength 1,",
        "clipped at 1.",
        "3 seeds have",
        "16 of 8 records, and 9 of 9",
    ):
        assert words in page, words
    results["tuning"]["last"] = 5
    assert "of the last 5 layers" in tuning_page(results, "a model")


def test_an_interval_in_words_has_signs_and_may_be_none():
    assert interval_words(Interval(*map(np.array, (0.25, -0.5, 1.0)))) == (
        "+0.250 (-0.500 to +1.000)"
    )
    assert interval_words(None) == ""
