"""The command line: parse, call, print."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import tyro
from tqdm import tqdm

from lim_jax import plots
from lim_jax.adjoint import criteria
from lim_jax.adjoint.ledger import CHANNELS, boundary_strengths
from lim_jax.grid import boundary_regions, token_grid
from lim_jax.limits import convergence
from lim_jax.loss import last_token, teacher_forcing
from lim_jax.models import language
from lim_jax.studies import explanation, gallery, paper


def reproduce(out: Path = Path("section4")) -> int:
    """Compute section 4 of the paper in float64 and hold it against every figure it prints.

    Prints ours beside the paper's figures with the difference, and writes section4.json and the
    four figures of the section. The exit status is 1 where a figure differs in a printed digit.

    Args:
        out: The folder to write to; it is made where it is missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        results = paper.section4(partial(tqdm, desc="section 4", unit="stage"))
        numbers = paper.summary(results)
    (out / "section4.json").write_text(json.dumps(numbers, indent=2) + "\n")
    for draw in (
        plots.simulation_influence_profiles,
        plots.simulation_observability_profiles,
        plots.simulation_convergence,
        plots.simulation_probe_errors,
    ):
        draw(results).savefig(out / f"{draw.__name__}.png")
    comparisons = paper.compare(numbers)
    print(_comparison_table(comparisons))
    print(_beyond_the_paper(numbers))
    missed = [comparison.name for comparison in comparisons if not comparison.agrees]
    print(f"{len(comparisons) - len(missed)} of {len(comparisons)} printed figures agree.")
    print(f"Wrote section4.json and four figures to {out}.")
    return 1 if missed else 0


def rates(quick: bool = False, out: Path = Path("rates")) -> int:
    """Measure every limit of the paper: tokens to Volterra, layers to the depth flow.

    Prints claimed and measured orders with two standard errors, whether each stated bound held,
    and why an order differs from the printed one; writes rates.json and log-log figures. The exit
    status is 1 where an order is not the expected one to 0.15, or a bound is broken.

    Args:
        quick: Fewer refinements and the main theorems only.
        out: The folder to write to; it is made where it is missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):
        rows, curves = convergence.measure(
            quick=quick, progress=partial(tqdm, desc="rates", unit="group")
        )
        records = [row.record() for row in rows]
    costs = {name: [curve._asdict() for curve in found] for name, found in curves.items()}
    (out / "rates.json").write_text(json.dumps({"rates": records, "costs": costs}, indent=2) + "\n")
    for topic in dict.fromkeys(row.topic for row in rows):
        chosen = [row for row in rows if row.topic == topic]
        name = topic.replace(" ", "_")
        plots.convergence_rates(chosen, topic).savefig(out / f"{name}.png", bbox_inches="tight")
    for name, found in curves.items():
        cost = {"depth": "evaluations of the field", "position": "positions"}[name]
        plots.error_against_cost(found, cost).savefig(out / f"cost_{name}.png")
    print(_rates_table(rows))
    missed = [row.name for row in rows if not row.agrees]
    print(f"{len(rows) - len(missed)} of {len(rows)} orders and bounds are as expected.")
    print(f"Wrote rates.json and figures to {out}.")
    return 1 if missed else 0


def explain(
    out: Path = Path("explanation"),
    length: int = 64,
    steps: int = 300,
    contexts: int = 16,
    delta: float = 0.2,
    seed: int = 0,
) -> int:
    """Say which positions a language model uses, and why: density, channels, cone, certificates.

    A seeded network and the same network trained on the standard library's sources, each under
    uniform teacher forcing and under a last-token loss. Prints tables, and writes
    explanation.json and figures.

    Args:
        out: The folder to write to; it is made where it is missing.
        length: The context length L, in bytes.
        steps: How many steps of Adam to train for.
        contexts: How many contexts to average over.
        delta: The width of each boundary region.
        seed: For the network, the training and the contexts.
    """
    out.mkdir(parents=True, exist_ok=True)
    keys = jax.random.split(jax.random.key(seed), 4)
    with jax.enable_x64(True):
        text = language.standard_library_text()
        seeded = language.LanguageModel.init(length, key=keys[0])
        trained, losses = language.train(
            seeded, text, steps, key=keys[1], progress=partial(tqdm, desc="training", unit="step")
        )
        windows = language.sample_windows(text, length, contexts, key=keys[2])
        regions = boundary_regions(token_grid(length), delta)
        weights = {"teacher forcing": teacher_forcing(length), "last token": last_token(length)}
        models = {"seeded": seeded, "trained": trained}
        cases = [(model, loss) for model in models for loss in weights]
        found = {
            f"{model} network, {loss}": explanation.explain(
                models[model], windows, weights[loss], regions, key=keys[3]
            )
            for model, loss in tqdm(cases, desc="explaining", unit="case")
        }
        # Exact norms of every block: a few contexts settle the average.
        masses = {
            f"{name} network": explanation.average_cone_mass(model, windows[:4], regions)
            for name, model in tqdm(models.items(), desc="cone mass", unit="network")
        }
        records = {name: result.record() for name, result in found.items()}
        for name, result in found.items():
            _save_explanation(result, name, out)
            print(f"\n== {name} (L = {length}, {contexts} contexts) ==")
            print(_explanation_table(result))
    document = {
        "training_losses": losses.tolist(),
        "cone_mass": {
            name: {part: values.tolist() for part, values in mass._asdict().items()}
            for name, mass in masses.items()
        },
        "explanations": records,
    }
    (out / "explanation.json").write_text(json.dumps(document, indent=2) + "\n")
    plots.cone_masses(masses, regions).savefig(out / "cone_mass.png")
    print(f"\nTraining took the loss from {losses[0]:.3f} to {losses[-1]:.3f} nats a byte.")
    print(f"Wrote explanation.json and {3 * len(found) + 1} figures to {out}.")
    return 0


def _save_explanation(result: explanation.Explanation, name: str, out: Path) -> None:
    stem = name.replace(", ", "_").replace(" ", "_")
    for figure, kind in (
        (plots.influence_profile(result.influence), "influence"),
        (plots.channel_energies(result, name), "channels"),
        (plots.certificate_margins(result.certificates, name), "certificates"),
    ):
        figure.savefig(out / f"{stem}_{kind}.png")


def counterexamples() -> int:
    """Run the paper's four counterexamples to unconditional claims about shape."""
    with jax.enable_x64(True):
        found = gallery.counterexamples()
    for example in found:
        print(f'"{example.slogan}"  No: {example.because}')
        for name, values in example.numbers.items():
            print(f"    {name}: {'  '.join(f'{value:.4g}' for value in values.tolist())}")
    return 0


def _explanation_table(result: explanation.Explanation) -> str:
    indices, errors = result.influence.indices(), result.influence.index_errors()
    regional, contrast = result.regional, result.terminal_contrast
    strengths = boundary_strengths(regional, result.influence.regions)
    lines = [f"{'':26s} {'left':>10s} {'middle':>10s} {'right':>10s}"]
    rows = {
        "influence density": (indices.left, indices.middle, indices.right),
        "  standard error": (errors.left, errors.middle, errors.right),
        **{f"{name} energy": regional.energies[:, a] for a, name in enumerate(CHANNELS)},
        "cross terms": regional.cross_terms,
    }
    for name, values in rows.items():
        lines.append(f"{name:26s} " + " ".join(f"{float(value):10.4g}" for value in values))
    lines += [
        f"LIM {float(indices.lim):+.3f} ± {float(errors.lim):.3f}, "
        f"symmetric contrast {float(indices.symmetric_contrast):+.3f}; "
        f"boundary strengths: primacy {float(strengths.primacy):.4g}, "
        f"recency {float(strengths.recency):.4g}",
        "right-minus-middle contrast of the terminal covector, over its mean: "
        f"{float(contrast.value):+.3f} ± {float(contrast.error):.3f}",
        criteria.certificate_table(result.certificates),
    ]
    return "\n".join(lines)


def _rates_table(rows: list[convergence.Row]) -> str:
    lines = [
        f"{'limit':58s} {'claimed':>7s} {'expected':>8s} {'measured':>14s} {'bound':>6s} "
        f"{'constant':>9s} {'reference':>9s}"
    ]
    for row in rows:
        study, order = row.study, row.study.order
        bound = {True: "holds", False: "BROKEN", None: "-"}[study.holds]
        lines.append(
            f"{row.name:58s} {study.claimed:7.2f} {row.expected:8.2f} "
            f"{order.value:7.2f} ±{order.half_width:5.2f} {bound:>6s} {order.constant:9.2g} "
            f"{study.reference_error:9.1e}{'' if row.agrees else '   DIFFERS'}"
        )
    reasons = dict.fromkeys(row.reason for row in rows if row.reason)
    lines += ["", "Where the expected order is not the claimed one:"]
    for reason in reasons:
        names = [row.name for row in rows if row.reason == reason]
        lines.append(f"- {reason}: {'; '.join(names)}")
    return "\n".join(lines)


def _comparison_table(comparisons: list[paper.Comparison]) -> str:
    lines = [f"{'figure':44s} {'paper':>9s} {'ours':>12s} {'difference':>11s}"]
    for name, printed, ours, difference, agrees in comparisons:
        shown = f"{100 * ours:.4f}%" if printed.endswith("%") else f"{ours:.6f}"
        mark = "" if agrees else "   DIFFERS"
        lines.append(f"{name:44s} {printed:>9s} {shown:>12s} {difference:+11.1e}{mark}")
    return "\n".join(lines)


def _beyond_the_paper(numbers: dict) -> str:
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments`, by default the process's own; returns its status."""
    return tyro.extras.subcommand_cli_from_dict(
        {
            "reproduce": reproduce,
            "rates": rates,
            "explain": explain,
            "counterexamples": counterexamples,
        },
        prog="lim-jax",
        description="Which positions of a long context a causal Transformer really uses.",
        args=arguments,
    )
