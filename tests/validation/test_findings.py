"""The page of a study says what its results are."""

import numpy as np
from reference.made_study import made_faithfulness, made_predictions, made_results

from benchmarks.validation.faithfulness_page import faithfulness_page
from benchmarks.validation.findings_page import findings_page, headline
from benchmarks.validation.gains import Gain, compare_arms
from benchmarks.validation.intervals import Interval

UP, NOT = (Interval(*map(np.array, ends)) for ends in ((0.2, 0.1, 0.3), (0.2, -0.1, 0.5)))


def one_gain(steps, operations, time):
    return Gain(UP, steps, operations, time, UP, UP, 2.0, 3.0)


def rows(page, first):
    """The cells of the row that begins with a name, in every table that has one."""
    lines = [line for line in page.splitlines() if line.startswith(f"| {first} |")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_first_line_counts_what_is_above_zero_with_its_interval():
    gains = {"a": one_gain(UP, UP, NOT), "b": one_gain(NOT, None, None), "c": one_gain(UP, NOT, UP)}
    told = {"answers of the probes": gains["c"], "selective, true answers": gains["c"]}
    assert headline(gains | told) == (
        "**Of 3 remedies 2 raise accuracy in the middle of the context at equal steps (a +0.20; "
        "c +0.20), "
        "1 at equal operations (a +0.20), 1 at equal time (c +0.20).**"
    )
    assert headline({"b": gains["b"]}) == (
        "**Of 1 remedy none raise accuracy in the middle of the context at equal steps, none at "
        "equal operations, none at equal time.**"
    )


def test_arms_stand_with_their_gains_costs_and_channels():
    results = made_results()
    page = findings_page(results, ["some.png"])
    gain = compare_arms(results)["Algorithm 1"]
    table, measured, channels, certificates = rows(page, "Algorithm 1")
    arm = results["arms"]["Algorithm 1"]
    accuracy = np.array(arm["accuracy"])[-1]
    assert table[1:3] == [f"{accuracy.mean():.3f}", f"{accuracy[:, 2:6].mean():.3f}"]
    low = gain.middle.low
    high = gain.middle.high
    assert table[3] == f"+0.250 ({low:+.3f} to {high:+.3f})"
    at_operations = gain.middle_at_equal_operations
    assert at_operations is not None
    assert table[4].startswith(f"{at_operations.value:+.3f} ({at_operations.low:+.3f} to")
    assert table[6] == "3.0"
    assert measured[1] == f"{np.mean(arm['risk'][-1]):.3g}"
    assert measured[2] == f"{np.mean(arm['answer_lim']):.3g}"
    sizes = np.mean(arm["answer_total"]), np.mean(arm["discrepancy"][-1])
    assert measured[3:5] == [f"{value:.3g}" for value in sizes]
    assert measured[5:] == ["4.0", "3"]
    energies = np.array(arm["channels"])
    shares = (energies / energies.sum(axis=2, keepdims=True))[:, 1].mean(axis=0)
    assert channels[1:4] == [f"{share:.2f}" for share in shares]
    weaker = np.minimum(energies[:, 0], energies[:, 2])[:, 1:]
    assert channels[4:6] == [f"{ratio:.3g}" for ratio in (energies[:, 1, 1:] / weaker).mean(axis=0)]
    hops = np.array(arm["hops"]).mean(axis=0)
    assert channels[6:] == [f"{value:.3g}" for value in (np.mean(arm["evidence"]), *hops[1:])]
    assert certificates[1:] == ["2 of 3, 2.5", "0 of 3, -2, 3 vacuous"]
    assert "Over 12 trained networks" in page and "one of them in 8 (0); another in 0 (12)." in page
    before, _ = rows(page, "before")
    assert before[1] == f"{np.mean(arm['accuracy'][0]):.3f}"
    assert "From a clone: `python -m benchmarks.validation`." in page
    assert page.endswith("\n\n![some.png](some.png)\n")


def test_times_are_as_certain_as_the_plain_arms_two_runs():
    results = made_results()
    results["arms"]["plain"]["seconds_per_step"] = 0.0125
    page = findings_page(results)
    assert "the plain arm's two runs differ by 25% in the time of a step" in page


def test_variants_and_predictions_have_their_rows():
    page = findings_page(made_results())
    varied = rows(page, "Algorithm 1, probes")
    (deeper,) = (row for row in varied if row[1] == "deeper")
    assert deeper[4].startswith("-0.100") and deeper[5:] == ["", "", "1.0", "3.0"]
    assert "deeper, plain" not in page
    profile, at_gold = rows(page, "influence, margin")
    assert profile[1] == at_gold[1] == "+0.10 (-0.20 to +0.30), 1 constant"


def test_the_verdict_names_the_best_remedy_and_how_well_influence_predicts():
    results = made_results()
    verdict = findings_page(results).split("\n\n")[1]
    gain = compare_arms(results)["Algorithm 1"].middle_at_equal_time
    assert gain is not None
    said = f"“Algorithm 1”: at equal time it gains {gain.value:+.3f} ({gain.low:+.3f} to "
    assert said in verdict
    # The third row, of one network; as made a tenth more in each row.
    assert "at its place is +0.20 to +0.20." in verdict
    twice = made_results()
    twice["predictions"]["16 records"] = made_predictions(0.5)
    page = findings_page(twice)
    assert "at its place is +0.20 to +0.70." in page.split("\n\n")[1]
    assert "highest of 2 networks" in page
    assert "influence, margin +0.10 to +0.60 (+0.10 to +0.60);" in page


def test_variants_are_counted_and_it_is_said_what_moved():
    results = made_results()
    page = findings_page(results)
    varied = (
        "Of 2 variants of Algorithm 1, probes 1 raises accuracy in the middle of the context at "
    )
    assert varied in page
    assert "Of 1 variant of selective, own answers none raise accuracy in the middle" in page
    section = page.partition("## Which channel")[2].partition("\n## ")[0]
    cone = {}
    for name in ("Algorithm 1", "plain"):
        energies = np.array(results["arms"][name]["channels"])[:, :, 1]
        ratio = (energies[:, 1] / np.minimum(energies[:, 0], energies[:, 2])).mean()
        cone[name] = f"{ratio:.3g}"
    moved = f"{cone['Algorithm 1']} in the cone channel ({cone['plain']} with plain training)"
    said = "With Algorithm 1 the middle's energy over the weaker boundary's is"
    assert f"{said} {moved}" in section
    shares = {name: results["arms"][name]["evidence"] for name in ("Algorithm 1", "plain")}
    ours, plain = (f"{np.mean(share):.3g}" for share in shares.values())
    assert f"has {ours} of the records' influence ({plain})" in section
    hops = [np.mean(results["arms"][name]["hops"], axis=0)[1] for name in shares]
    assert f"{hops[0]:.3g} of that comes by one attention hop ({hops[1]:.3g})" in section


def test_what_rises_from_the_first_step_stands_by_its_steps():
    results = made_results()
    page = findings_page(results)
    section = page.partition("## From the first step")[2].partition("\n## ")[0]
    (head,), (ours,) = (
        rows(section, name) for name in ("after so many steps", "from the first step, plain")
    )
    assert head[1:] == ["0", "25", "50", "75"]
    ends = [
        np.array(results["variants"][name]["accuracy"])[-1, :, 2:6].mean()
        for name in ("from the first step", "from the first step, plain")
    ]
    assert "ends at {:.2f}, where plain training ends at {:.2f}.".format(*ends) in section
    course = np.array(results["variants"]["from the first step, plain"]["accuracy"])
    assert ours[1:] == [f"{one.mean():.2f} ({one[:, 2:6].mean():.2f})" for one in course]
    assert len(rows(section, "from the first step")) == 1


def test_a_shift_stands_with_its_gains_and_correlations():
    results = made_results()
    page = findings_page(results)
    section = page.partition("## Position shift")[2].partition("\n## ")[0]
    (ours_row,) = rows(section, "Algorithm 1, probes")
    middles = {
        name: np.array(shift["16 records"]["accuracy"])[:, 4:12].mean(axis=1)
        for name, shift in results["shifts"].items()
    }
    ours = middles["Algorithm 1, probes"]
    assert ours_row[6] == f"{ours.mean():.3f}"
    assert ours_row[7].startswith(f"{(ours - middles['plain']).mean():+.3f} (")
    assert ours_row[8] == "+0.20 (-0.10 to +0.40), 1 constant"
    (plain,) = rows(section, "plain")
    assert plain[7] == ""
    assert f"{ours_row[7]} with Algorithm 1, probes on 16 records;" in section
    assert "## Position shift" not in findings_page(results | {"shifts": {}})


def test_recall_stands_by_its_steps_with_what_evidence_gains():
    results = made_results()
    page = findings_page(results)
    section = page.partition("## Many questions in a context")[2].partition("\n## ")[0]
    assert "8 pairs in 48 places, 16 probes beside 32 contexts" in section
    assert "a step takes 1.5 times as long" in section
    ends = [
        np.mean(recall["accuracy"][-1]) for recall in reversed(list(results["recalls"].values()))
    ]
    said = "after 50 steps at an accuracy of {:.2f}, and plain training at {:.2f}."
    assert said.format(*ends) in section
    plain, ours = (np.array(recall["accuracy"]) for recall in results["recalls"].values())
    (head,), (first,), (second,) = (
        rows(section, name) for name in ("after so many steps", "plain", "selective, own answers")
    )
    assert head[1:] == ["0", "25", "50"]
    assert first[1:] == [f"{one.mean():.2f}" for one in plain]
    assert second[1:] == [f"{one.mean():.2f}" for one in ours]
    (by_steps,), (by_time,) = (rows(section, f"gain, equal {name}") for name in ("steps", "time"))
    assert by_steps[1] == by_time[1] == by_time[3] == ""
    assert by_steps[2].startswith(f"{(ours - plain)[1].mean():+.3f} (")
    halfway = (plain[1] + plain[2]).mean() / 2
    assert by_time[2].startswith(f"{ours[1].mean() - halfway:+.3f} (")
    without = results | {"recalls": {}, "preset": results["preset"] | {"recall": None}}
    assert "## Many questions" not in findings_page(without)


def test_what_was_not_explained_has_no_table():
    results = made_results()
    for arm in results["arms"].values():
        del arm["channels"], arm["certificates"]
    page = findings_page(results | {"variants": {}})
    for title in ("## Which channel", "## Certificates", "## Ablations"):
        assert title not in page


def test_a_page_of_faithfulness_says_what_was_chosen_and_what_was_aimed_at():
    page = faithfulness_page(made_faithfulness(), "small", ["some.png"])
    title, verdict, table, how, *parts = page.split("\n\n")
    assert "From a clone: `python -m benchmarks.validation --model MODEL --faithfulness`." in parts
    assert title == "# Which part did the answer of small come from?"
    assert verdict.startswith(
        "**The mask-gradient predicts what the answer loses when parts of the text are taken out "
        "with a datamodeling score of 0.38 for 3 passes; influence 0.50 for 3 passes, and "
        "leave-one-out 0.46 for a pass for each part.**"
    )
    # Scores fall by row, so that influence's is the highest.
    best = "0.50 by influence (3 passes) on"
    assert verdict.endswith(f"are {best} keys and values, 10 records; {best} sentences.")
    shown = {name: rows(table, name)[0] for name in ("mask-gradient", "mask-path on 4", "AT2")}
    assert shown["mask-gradient"][1:] == ["3", *2 * ["0.38 (0.34 to 0.46)"]]
    assert all(cell.startswith("**0.") for cell in shown["mask-path on 4"][2:])
    learnt = next(part for part in parts if part.startswith("AT2 ("))
    methods = next(part for part in parts if part.startswith("The mask gradient is"))
    assert "over random ablations" in how and "take 8 steps" in methods
    drops = "loses 4.60 without the three parts that mask-gradient ranks highest, "
    assert f"On keys and values, 10 records the answer {drops}" in page
    assert "“holds” of 1; “holds, not surely” of 1; “fails” of 1." in page
    choice = parts[parts.index("## The choice of a variant") + 1]
    assert "mask-gradient: mask-gradient at 0.2; mask-path on 4: mask-path on 4, own." in choice
    assert choice.endswith("path on 4, own.")
    made = made_faithfulness()
    for number, kind in enumerate(made["kinds"].values()):
        kind["variants"]["mask-gradient at 0.2, margin, own"] = [0.2 + 0.4 * number, 0.8]
    assert (
        "`lim-jax ask` takes mask-gradient at 0.2, margin, own: on average over the kinds a score "
        "of 0.40 and 0.80 on the even half and on the other, where mask-gradient at 0.2 has 0.51 "
        "and 0.61." in faithfulness_page(made, "small", ["some.png"])
    )
    # What is chosen, and what differs from it in one way: not in two.
    assert [row[:2] for row in rows(page, "**mask-gradient at 0.2**")] == [
        ["**mask-gradient at 0.2**", "0.51, 0.61"]
    ]
    shown = ("mask-gradient at 1", "mask-gradient at 0.2, own", "**mask-path on 4, own**")
    assert [len(rows(page, name)) for name in shown] == [1, 1, 1]
    assert [row[1] for row in rows(page, "AT2")] == ["1", "1", "1", "0.56, 0.66"]
    assert not rows(page, "mask-gradient at 1, own") and not rows(page, "mask-path on 4, own")
    aimed = [rows(page, name)[0] for name in ("one", "two", "three")]
    assert [row[-1] for row in aimed] == ["holds", "holds, not surely", "**fails**"]
    aim = "mask-gradient at least ContextCite on 64"
    assert aimed[0][1:3] == [f"{aim} less 0.03", "-0.020 (-0.025 to +0.000)"]
    assert aimed[2][1] == aim
    first, second = (part for part in parts if "of the answers hold" in part)
    assert first.startswith("40 prompts of 10 parts and 130 tokens on average, a JSON object")
    assert second.startswith("41 prompts of 60 to 90, on average 72, parts and 130 tokens")
    assert "of Python 3.12's help" in second and "75% of the answers hold" in second
    assert "Of 21 prompts, with 8 ablations held out" in second and "NVIDIA H100" in second
    for words in ("270 weights", "from 84 prompts", "1,968 ablations", "strength, 3.2,"):
        assert words in learnt
    assert parts[-1] == "![some.png](some.png)\n"


def test_tables_of_faithfulness_have_every_method_and_mark_what_is_sure():
    page = faithfulness_page(made_faithfulness(), "small")
    ours, path, alone = (
        rows(page, name)[1] for name in ("mask-gradient", "mask-path on 4", "leave-one-out")
    )
    assert ours == [
        "mask-gradient",
        "1",
        "1",
        "3",
        "0.5",
        "2.60 (2.56 to 2.68)",
        "4.60 (4.56 to 4.68)",
        "6.60 (6.56 to 6.68)",
        "0.38 (0.34 to 0.46)",
        "",
    ]
    assert path[:5] == ["mask-path on 4", "4", "4", "12", "2"]
    assert path[-1] == "**-0.16 (-0.19 to -0.10)**" and alone[-1] == "-0.01 (-0.04 to +0.05)"
    assert alone[4] == ""  # no seconds of what was compiled with every call
    assert [len(rows(page, name)) for name in ("influence", "random")] == [3, 3]
