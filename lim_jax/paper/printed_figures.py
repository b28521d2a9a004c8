"""The figures that section 4 of the paper prints, beside ours."""

from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

from lim_jax._text_tables import text_table

TABLE_COLUMNS = "left middle right gap symmetric_contrast lim influence_imbalance Z".split()
# tab:simulation-remedy-results
PRINTED_TABLE = {
    "baseline": "3.2269 0.1417 1.3479 1.2062 0.8097 0.8949 9.2503 4.1487",
    "algorithm1": "1.0163 0.9960 0.9958 -0.0002 -0.0001 -0.0002 0.0002 9.7981",
    "algorithm2": "3.0303 0.1631 1.4804 1.3173 0.8015 0.8898 8.5348 3.8028",
    "algorithm3": "2.8192 0.6671 0.1794 -0.4877 -0.5761 -2.7181 1.3952 1.7226",
}
# The text around the table, of sec:simulations.
PRINTED_TEXT = {
    "change algorithm2_imbalance_decrease": "7.7%",
    "change algorithm3_Z": "41.5%",
    "observability imbalance before": "39.4921",
    "observability imbalance after": "0.3392",
    "observability trace_averages before left": "0.2905",
    "observability trace_averages before middle": "0.0351",
    "observability trace_averages before right": "4.6041",
    "observability trace_averages after left": "1.6292",
    "observability trace_averages after middle": "0.8788",
    "observability trace_averages after right": "0.7343",
    "condition_number left mean": "171.1",
    "condition_number middle mean": "36.7",
    "condition_number right mean": "16.6",
    "condition_number left min": "76.5",
    "condition_number left max": "482.8",
    "condition_number middle min": "20.8",
    "condition_number middle max": "70.2",
    "condition_number right min": "1.03",
    "condition_number right max": "20.2",
    "observability penalty": "0.3438",
    "probe 1 bias": "44.0%",
    "probe 32 bias": "1.0%",
    "probe 1 std": "216.3%",
    "probe 32 std": "24.4%",
}


class Comparison(NamedTuple):
    """One figure of the paper beside ours; `agrees` to every digit that is printed."""

    name: str
    printed: str
    ours: float
    difference: float
    agrees: bool


def compare_with_printed(numbers: dict[str, Any]) -> list[Comparison]:
    """Compare `summary`'s numbers with every figure that the paper prints in section 4."""
    comparisons = []
    for path, printed in printed_figures():
        value: Any = reduce(getitem, path, numbers)
        digits = len(printed.rstrip("%").partition(".")[2])
        percent = printed.endswith("%")
        theirs = float(printed.rstrip("%")) / (100 if percent else 1)
        agrees = f"{value:.{digits}{'%' if percent else 'f'}}" == printed
        name = " ".join(path)
        comparisons.append(Comparison(name, printed, value, value - theirs, agrees))
    return comparisons


def printed_figures() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every figure that the paper prints, as a path into `summary` and the printed text."""
    for row, printed in PRINTED_TABLE.items():
        for column, text in zip(TABLE_COLUMNS, printed.split(), strict=True):
            yield ("table", row, column), text
    for path, printed in PRINTED_TEXT.items():
        yield tuple(path.split()), printed


def comparison_table(comparisons: list[Comparison]) -> str:
    """Lay out the paper's figures beside ours."""
    rows = [["figure", "paper", "ours", "difference", ""]]
    for name, printed, ours, difference, agrees in comparisons:
        our_text = f"{100 * ours:.4f}%" if printed.endswith("%") else f"{ours:.6f}"
        rows.append([name, printed, our_text, f"{difference:+.1e}", "" if agrees else "DIFFERS"])
    return text_table(rows, left=(0, 4))


def beyond_the_paper(numbers: dict) -> str:
    """Lay out what `summary` holds and the paper does not print: minima and exact probe figures."""
    lines = ["", "Beyond the paper: the minima that 400 Adam steps do not reach"]
    for name, row in numbers["minimiser"].items():
        lines.append(
            f"  {name}: objective {row['objective']:.4f}, influence imbalance "
            f"{row['influence_imbalance']:.4f}, LIM {row['lim']:.4f}, Z {row['Z']:.4f}"
        )
    lines.append("and the probe study's exact values beside the sampled ones")
    for count, row in numbers["probe"].items():
        lines.append(
            f"  {count:>2s} probes: bias {row['bias']:7.2%} (exact {row['bias_exact']:7.3%}), "
            f"deviation {row['std']:7.1%} (exact {row['std_exact']:7.1%})"
        )
    return "\n".join([*lines, ""])
