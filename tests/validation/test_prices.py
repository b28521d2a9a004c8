"""The study of prices: made rows, whose means are known, and a reader that counts its tokens."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
from reference.as_users import ROOT
from reference.networks import byte_network

from benchmarks.validation import faithfulness, prices
from benchmarks.validation.documents_first import documents_first
from benchmarks.validation.faithfulness import FACTS, PAIRS, SENTENCES, FaithfulnessSetting
from lim_jax.attribution.shrunk_regression import shrunk_regression
from lim_jax.models import LanguageModel

GOOD = {prices.INFORMED: 0.8, prices.DESIGNED: 0.9, prices.CONTEXT_CITE: 0.7}


def made_rows(scores=GOOD, cheap=0.75, kinds=tuple(prices.KINDS)):
    """Two prompts of each kind; each text costs a half, and the mask gradient three for all."""
    return [
        {"kind": kind, "prompt": prompt, "tokens": 9, "method": method, "level": level}
        | {"price": price + prompt / 4, "score": score + (prompt - 0.5) / 10}
        for kind in kinds
        for prompt in range(2)
        for method, level, price, score in (
            (prices.MASK, 1, 3.0, cheap),
            *(
                (method, level, level / 2 + 3 * (method == prices.INFORMED), score)
                for method, score in scores.items()
                for level in prices.KINDS[kind].texts
            ),
        )
    ]


def test_points_are_means_over_prompts_in_the_order_of_prices():
    by_method = prices.points(made_rows()[::-1], "10 keys")
    assert [point.level for point in by_method[prices.CONTEXT_CITE]] == [8, 16, 32, 64, 128]
    first, *_ = by_method[prices.INFORMED]
    assert first.price == 7.125 and sorted(first.by_prompt) == ["0", "1"]
    np.testing.assert_allclose(first.score.value, 0.8)
    np.testing.assert_allclose([first.score.low, first.score.high], [0.75, 0.85])


def test_the_finding_names_what_is_above_at_no_greater_price():
    assert prices.finding_of(made_rows()) == (
        "**Of 20 prices informed ablations are at 20 as faithful as any other method that costs no "
        "more, within 0.01.**"
    )
    above = prices.finding_of(made_rows(cheap=0.82))
    assert above.startswith("**Of 20 prices informed ablations are at 0 as")
    assert "10 keys, 8 texts: 0.80 beside 0.82 of mask gradient, -0.02 to -0.02" in above
    dearer = GOOD | {prices.INFORMED: 0.69}
    below = prices.finding_of(made_rows(dearer))
    assert "10 documents, 8 texts: 0.69 beside 0.75 of mask gradient, -0.06 to -0.06; " in below
    assert below.endswith(
        "sentences, 256 texts: 0.69 beside 0.75 of mask gradient, -0.06 to -0.06."
    )
    two = made_rows(kinds=("40 keys", "sentences"))
    assert prices.finding_of(two).startswith("**Of 10 prices informed ablations are at 10 as")


def test_a_difference_is_between_prompts_that_both_methods_scored():
    """In the one the other is 0.3 above, in the other 0.1; a third prompt it did not score."""
    dearer = GOOD | {prices.INFORMED: 0.5}
    rows = made_rows(dearer, kinds=("40 keys",))
    rows = [
        row | {"score": row["score"] + (0.1 if row["prompt"] else -0.1)}
        if row["method"] == prices.MASK
        else row
        for row in rows
    ]
    extra = [row | {"prompt": 7, "score": 0.5} for row in rows if row["method"] == prices.INFORMED]
    found = prices.finding_of([*rows, *extra[::2]])
    assert "40 keys, 16 texts: 0.50 beside 0.75 of mask gradient, -0.35 to -0.15" in found


def test_the_page_and_the_figure_show_each_method_and_price(tmp_path):
    rows = made_rows()
    page = prices.page_of(rows, "a model")
    assert "| ContextCite | 8.1 | 0.70 (0.65 to 0.75) |" in page
    assert "2 of 10 documents, 2 of 40 keys, 2 of sentences" in page
    figure = prices.figure_of(rows, "a model")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"{kind}, 2 prompts" for kind in prices.KINDS]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [prices.INFORMED, prices.DESIGNED, prices.MASK, prices.CONTEXT_CITE]
    figure.savefig(tmp_path / "prices.png")


def test_the_page_says_where_texts_make_the_mask_gradient_worse():
    assert prices.below_the_gradient(made_rows()) == ""
    assert prices.below_the_gradient(made_rows(cheap=0.809)) == ""  # as near as counts as alike
    words = prices.below_the_gradient(made_rows(cheap=0.82, kinds=("40 keys",)))
    assert words.startswith(
        " Texts are then trusted too much, below the mask gradient itself: 40 k"
    )
    assert words.endswith("; 40 keys, 256 texts: 0.80 beside 0.82.")
    assert words in prices.page_of(made_rows(cheap=0.82, kinds=("40 keys",)), "a model")


def test_the_page_says_how_documents_first_do_beside_informed_on_as_many_texts():
    assert prices.documents_first_words(made_rows()) == ""
    scores = {prices.INFORMED: (0.5, 0.7), prices.HIERARCHY: (0.4, 0.5)}
    rows = [
        {"kind": "sentences", "prompt": prompt, "method": method, "level": level}
        | {"price": level / 2, "score": score + level / 400}
        for method, of_prompts in scores.items()
        for prompt, score in enumerate(of_prompts)
        for level in (16, 32)
    ]
    words = " ".join(prices.documents_first_words(rows).split())
    assert "chosen among ten rules on other prompts; on these its score is" in words
    assert "0.49 beside 0.64 of informed on 16 texts, 0.53 beside 0.68 of informed" in words
    assert words.endswith("on 32 texts. It is not in the package.")


def test_a_page_and_a_figure_of_three_kinds_leave_the_fourth_out():
    rows = made_rows(kinds=("10 keys", "40 keys", "sentences"))
    assert "documents: method" not in prices.page_of(rows, "a model")
    axes = prices.figure_of(rows, "a model").axes
    titles = [one.get_title() for one in axes]
    assert titles == ["10 keys, 2 prompts", "40 keys, 2 prompts", "sentences, 2 prompts"]
    assert [bool(one.get_ylabel()) for one in axes] == [True, False, True]
    assert all(one.get_xlabel() for one in axes)


def test_rows_of_other_kinds_stay_as_the_table_has_them(tmp_path):
    file = tmp_path / "prices.csv"
    rows = made_rows(kinds=("40 keys",))
    assert prices.with_earlier(rows, ["40 keys"], file) == rows
    file.write_text(prices.data_file(made_rows(kinds=("10 keys", "40 keys"))), encoding="utf-8")
    both = prices.with_earlier(rows, ["40 keys"], file)
    assert both[-len(rows) :] == rows
    earlier = made_rows(kinds=("10 keys",))
    assert [row["kind"] for row in both] == ["10 keys"] * len(earlier) + ["40 keys"] * len(rows)
    assert [float(row["score"]) for row in both[: len(earlier)]] == pytest.approx(
        [row["score"] for row in earlier], abs=1e-6
    )


def test_the_page_of_prices_is_that_of_its_table():
    folder = ROOT / "docs" / "study"
    with (folder / "prices.csv").open(newline="", encoding="utf-8") as file:
        page = prices.page_of(list(csv.DictReader(file)), "SmolLM2-135M-Instruct.Q4_1")
    assert (folder / "prices.md").read_text(encoding="utf-8") == page


def reader_of(kind, records):
    """A reader of one prompt by a random network of bytes, and an answer of two."""
    setting = FaithfulnessSetting((kind,), 1, 1, records)
    job = faithfulness.job_of(byte_network(640, depth=1, seed=2), None, setting, ())
    return prices.Reader(job, faithfulness.drawn_prompt(setting, 0), np.array([49, 50], np.int32))


@pytest.fixture(scope="module")
def reader():
    return reader_of(PAIRS, 10)


def test_a_price_counts_the_tokens_that_are_read(reader):
    """Of bytes: the text without some of its parts, over the whole text."""
    prompt = reader._prompt
    kept = np.ones((2, 10), bool)
    kept[1, 3:7] = False
    left_out = prompt.spans[6][1] - prompt.spans[2][1]  # with what stands before each
    assert reader.price(kept[:1]) == 1
    assert reader.price(kept) == pytest.approx(2 - left_out / len(prompt.text))


@pytest.mark.slow
def test_methods_are_scored_at_each_of_their_prices(reader):
    """Leave-one-out is what each part takes away; each regression has its own texts."""
    kind = prices.KINDS["10 keys"]._replace(texts=(8,), of_shapiq=())
    gradient = prices.Priced(prices.MASK, 1, 3.0, np.linspace(-1, 1, 10))
    drawn = prices.random_ablations(10, 8, 0)
    scored = list(prices.priced_scores(reader, kind, [gradient], drawn))
    assert [(one.method, one.level) for one in scored] == [
        (prices.MASK, 1),
        (prices.LEAVE_ONE_OUT, 1),
        (prices.CONTEXT_CITE, 8),
        (prices.INFORMED, 8),
        (prices.DESIGNED, 8),
    ]
    whole = reader.log_probabilities(np.ones((1, 10), bool))
    without = reader.log_probabilities(~np.eye(10, dtype=bool))
    np.testing.assert_allclose(scored[1].scores, whole - without, rtol=1e-5, atol=1e-5)
    assert scored[3].price == pytest.approx(3 + scored[4].price)
    assert 2 < scored[4].price < 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of what it then fails at
@pytest.mark.parametrize(
    "texts, game",
    [
        (39, lambda kept: kept @ np.arange(6.0)),
        (64, lambda kept: np.full(len(kept), 3.0)),
        (64, lambda kept: np.zeros(len(kept))),
    ],
    ids=["few texts", "one value", "zero"],
)
def test_proxy_spex_says_nothing_where_none_of_its_trees_splits(texts, game):
    """A leaf holds twenty texts, and a split has something to tell apart."""
    pytest.importorskip("shapiq")
    assert prices.proxy_spex(6, texts, game) is None
    assert prices.proxy_spex(6, 64, lambda kept: kept @ np.arange(6.0)) is not None


@pytest.mark.slow
def test_an_error_of_reading_texts_is_no_failure_of_proxy_spex():
    """A network that fails on a text fails aloud, and does not leave the method out."""
    pytest.importorskip("shapiq")

    def game(kept):
        return np.zeros(3)[[len(kept)]]

    with pytest.raises(IndexError, match="index 64 is out of bounds"):
        prices.proxy_spex(6, 64, game)


def of_shapiq(reader, texts):
    """A score of nothing, by as many texts as were asked for."""
    yield prices.Priced(prices.KERNEL_SHAP, texts, texts / 2, np.zeros(reader.parts))


def test_prompts_begin_after_those_on_which_rules_were_chosen(tmp_path, monkeypatch):
    """Of forty keys and of sentences at the fourth, of ten parts at the first."""
    asked = []

    def rows_of_prompt(job, kind, number):
        asked.append((kind, number, job.setting.prompts))
        return [{"kind": kind, "prompt": number}]

    def job_of(network, tokenizer, setting, ends):
        return SimpleNamespace(setting=setting)

    monkeypatch.setattr(prices, "rows_of_prompt", rows_of_prompt)
    monkeypatch.setattr(faithfulness, "job_of", job_of)
    model = LanguageModel(byte_network(16, depth=1))
    rows = prices.study(model, ["10 keys", "40 keys"], 2, tmp_path)
    assert asked == [("10 keys", 0, 2), ("40 keys", 16, 18), ("10 keys", 1, 2), ("40 keys", 17, 18)]
    assert rows == [{"kind": kind, "prompt": number} for kind, number, _ in asked]
    assert prices.KINDS["sentences"].first == 16


@pytest.mark.slow
def test_long_texts_are_scored_by_fewer_methods_and_without_documents_first(monkeypatch):
    """By those of shapiq on sixteen texts alone, and with documents first on eight."""
    asked = []
    monkeypatch.setattr(prices, "_scores_of_shapiq", of_shapiq)

    def remembered(read, *arguments):
        asked.append(arguments)
        return documents_first(read, *arguments)

    monkeypatch.setattr(prices, "documents_first", remembered)
    reader = reader_of(FACTS, 5)
    setting = FaithfulnessSetting((FACTS,), 1, 1, 5)
    kind = prices.Kind(setting, (8, 16), (16,), documents_first=(8,))
    prior = np.linspace(-1, 1, 5)
    drawn = prices.random_ablations(5, 16, 0)
    scored = list(prices.priced_scores(reader, kind, [prices.Priced("m", 1, 3.0, prior)], drawn))
    at_each = [prices.CONTEXT_CITE, prices.INFORMED, prices.DESIGNED]
    assert [(one.method, one.level) for one in scored] == [
        ("m", 1),
        (prices.LEAVE_ONE_OUT, 1),
        *((method, 8) for method in at_each),
        (prices.HIERARCHY, 8),
        *((method, 16) for method in (*at_each, prices.KERNEL_SHAP)),
    ]
    ((documents, scores_before, texts),) = asked
    np.testing.assert_array_equal(documents, np.arange(5))
    np.testing.assert_array_equal(scores_before, prior)
    assert texts == 8
    kept, values = documents_first(reader.logits, np.arange(5), prior, 8)
    np.testing.assert_array_equal(scored[5].scores, shrunk_regression(kept, values, prior).scores)
    assert scored[5].price == pytest.approx(3 + reader.price(kept))


def test_a_title_begins_a_document():
    """Each of five documents has a title, two sentences and a fact."""
    np.testing.assert_array_equal(reader_of(SENTENCES, (2, 2)).documents, np.arange(20) // 4)
