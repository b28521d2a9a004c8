"""Results in sentences: the first lines of a command and of a page."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from lim_jax._text_tables import text_table
from lim_jax.adjoint.certificate import Certificate
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.attribution.mean_scores import MeanScore
from lim_jax.attribution.parts import IN_NO_PART, UNNAMED, MeanShare
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import HOPS
from lim_jax.report.wording import PLAIN, QUESTIONS, verdict
from lim_jax.results.percentages import error_words, percent

ANSWERS = {True: "Yes, so it follows.", False: "No, so nothing follows."}
CHANNELS_SAY = (
    "Channels say which part of the layers wrote the influence last: mostly networks at the token "
    "itself, where early layers change the scale of the state. Hops say how often attention was "
    "taken on the way from the loss: how it got there. Both divide the same influence."
)


def influence_finding(influence: Influence, rest: Influence | None = None) -> str:
    """Say how much the middle matters beside the ends, with its error, and what that decides.

    With `rest`, the influence without the tokens that the loss asks from, it is told of this.
    """
    if rest is not None:
        sentence = influence_finding(rest)
        return f"Before the tokens that the loss asks for, {sentence[0].lower()}{sentence[1:]}"
    sentence = verdict(influence)
    if bool(influence.degenerate):
        return sentence
    indices = influence.indices()
    delta = float(influence.regions.delta)
    lim = float(indices.lim)
    error = float(influence.index_errors().lim)
    end = "first" if indices.left <= indices.right else "last"
    if lim < -1:
        times = f"{1 - lim:.1f}{error_words(error)}"
        much = f"{times} times the influence of one"
    else:
        less = "less" if lim >= 0 else "more"
        much = f"{percent(abs(lim), error)} {less} influence than one"
    return (
        f"A token in the middle {percent(1 - 2 * delta)} of the context has on average {much} in "
        f"the {end} {percent(delta)}, the weaker end. {sentence}"
    )


def records_finding(records: Sequence[Any]) -> str:
    """Tell which named parts hold most of the influence; at most three are named."""
    named = (record for record in records if record.kind != UNNAMED)
    parts = sorted(named, key=lambda record: -record.share)
    if not parts:
        return ""
    top, *others = parts
    first = f"{part_words(top)} holds {percent(top.share, top.error)} of the influence in "
    rest = [f"{part_words(part)} {percent(part.share, part.error)}" for part in others[:2]]
    finding = ", ".join([first + f"{percent(top.of_tokens)} of the tokens", *rest]) + "."
    contexts = max(record.contexts for record in records)
    if any(part.contexts < contexts for part in parts[:3]):  # then shares need not add up
        finding += " Each share is of the contexts that have the part."
    return finding


def part_words(record: Any) -> str:
    """Name a part, with the number of its texts where contexts have different ones."""
    if record.kind == UNNAMED:
        return IN_NO_PART
    if record.texts > 1:
        return f"“{record.name}” ({record.texts} different texts)"
    return f"“{record.name}”"


def parts_finding(channels: Float[Any, "3"], hops: Float[Any, " hops"], depth: int) -> str:
    """Say by which hops and channels the influence came, the largest shares of each.

    The sentence is empty where there is no influence.
    """
    if not np.any(channels) and not np.any(hops):
        return ""

    def largest(names: Sequence[str], energies: Any) -> str:
        """Name the parts with their shares, largest first, down to 0.05 %."""
        energies = np.asarray(energies, float)
        shares = energies / (energies.sum() or 1)
        order = [at for at in np.argsort(-shares, kind="stable") if shares[at] >= 5e-4]
        return ", ".join(f"{names[at]} {percent(shares[at])}" for at in order)

    return (
        f"By hops: {largest(HOPS, hops)}. By channels at depth {depth}: "
        f"{largest(CHANNELS, channels)}. {CHANNELS_SAY}"
    )


def certificate_lines(certificates: Sequence[Certificate]) -> list[str]:
    """Return certificates as questions and answers, and a line for those that cannot decide."""
    lines = [
        f"{QUESTIONS.get(claim.name, claim.name + '?')} {ANSWERS[claim.holds]} "
        f"Measured apart from it: {PLAIN.get(claim.name, claim.conclusion)}: "
        f"{'yes' if claim.concluded else 'no'}."
        for claim in certificates
        if not claim.vacuous
    ]
    hopeless = [claim.name for claim in certificates if claim.vacuous]
    if hopeless:
        count = f"{len(hopeless)} of {len(certificates)}"
        lines.append(f"{count} criteria cannot decide here: {', '.join(hopeless)}.")
    return lines


SHARED = ("part", "   share", "   error", "  tokens", " of tokens", "contexts", "most in")
SCORED = ("part", "   score", "   error", " of documents", *SHARED[3:])


def record_lines(records: Sequence[MeanShare]) -> list[str]:
    """Return the lines of a table of parts, the largest share first, and the rest last."""
    return _lines(SHARED, sorted(records, key=lambda part: (part.kind == UNNAMED, -part.share)))


def score_lines(records: Sequence[MeanScore]) -> list[str]:
    """Return the lines of a table of scores by a method, the largest first, and the rest last."""
    return _lines(SCORED, sorted(records, key=lambda part: (part.kind == UNNAMED, -part.score)))


def _lines(head: Sequence[str], parts: Sequence[MeanShare] | Sequence[MeanScore]) -> list[str]:
    """Return the lines of a table of parts; none where there are no parts."""
    rows = [head, *([part_words(part), *_numbers(part), part.most] for part in parts)]
    return text_table(rows, left=(0, len(head) - 1)).splitlines() if parts else []


def _numbers(part: MeanShare | MeanScore) -> list[str]:
    """Return the numbers of a part's row: its share or scores, error, tokens and contexts."""
    tokens = f"{part.tokens:.0f}" if part.tokens.is_integer() else f"{part.tokens:.1f}"
    if isinstance(part, MeanScore):
        error = f"{part.error:.3f}"
        of = part.of_documents
        first = [f"{part.score:+.3f}", error, "" if of is None else f"{of:+.1%}"]
    else:
        first = [f"{part.share:.1%}", f"{part.error:.1%}"]
    first[1] = first[1] if np.isfinite(part.error) else "-"
    return [*first, tokens, f"{part.of_tokens:.1%}", f"{part.contexts}"]
