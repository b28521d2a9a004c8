"""One page of HTML that shows what a network uses of its contexts, token by token.

It is one file that loads nothing; Vega, which draws its charts, makes 0.9 MB of it.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lazy_loader
import numpy as np

from lim_jax._checks import require, require_extra, require_kind, require_several
from lim_jax.adjoint.certificate import Certificate
from lim_jax.adjoint.ledger import CHANNELS
from lim_jax.attribution.parts import IN_NO_PART, UNNAMED, MeanShare
from lim_jax.density.statistics import Influence
from lim_jax.explanations.account import HOPS, TokenBreakdown
from lim_jax.grid.cells import token_grid
from lim_jax.grid.interpolation import carrying_shares
from lim_jax.grid.partition import boundary_regions
from lim_jax.report.charts import depth_chart, head_chart, profile_chart, share_chart
from lim_jax.report.html_page import Page
from lim_jax.report.sentences import influence_finding, parts_finding, records_finding
from lim_jax.report.shades import COUNT, Shading, choose_shades, style
from lim_jax.report.token_cards import (
    FIELDS,
    blocks_of,
    context_density,
    parts_shares,
    shown_context,
)
from lim_jax.report.wording import certificate_words, index_words, verdict
from lim_jax.results.percentages import percent

jinja2: Any = lazy_loader.load("jinja2")  # of the extra; the rest does without
markupsafe: Any = lazy_loader.load("markupsafe")
vl_convert: Any = lazy_loader.load("vl_convert")
PACKAGES = ("altair", "jinja2", "vl_convert")
HERE = Path(__file__).parent

CHANNEL_COLOURS = ("var(--blue)", "var(--orange)", "var(--green)")
HOP_COLOURS = ("var(--grey)", "var(--orange)", "var(--purple)", "var(--ink)")
BINS = 48  # of the map over depth: what a screen can show


def influence_page(
    influence: Influence,
    accounts: Sequence[TokenBreakdown],
    texts: Sequence[Sequence[str]],
    *,
    title: str,
    answer: str = "",
    findings: Sequence[str] = (),
    about: Mapping[str, str] | None = None,
    certificates: Sequence[Certificate] = (),
    without_queries: Influence | None = None,
    names: Sequence[str] = (),
    measured: int | None = None,
    spans: Sequence[Sequence[Any]] = (),
    records: Sequence[MeanShare] = (),
    by_place: Sequence[Sequence[str]] = (),
) -> Page:
    """Make a page on a network's contexts: findings, named parts, text, profile, certificates.

    Every token is shaded by the influence density of its own context, on one scale for all, and
    tells of itself under the pointer or the keyboard's focus. A notebook shows the page, and
    ``.save("page.html")`` writes it. Needs the extra ``report``.

    Parameters
    ----------
    influence
        The influence over all contexts, such as `Explanation.influence`, or by
        `models.influence_of_ids`.
    accounts
        The breakdowns by token of the contexts to show, all of one network and depth, by
        `explanations.account_of_context`.
    texts
        The text of each id of these contexts' windows, by `checkpoints.texts_of_ids`.
    title
        The heading.
    answer
        The answer that stands under a heading which is a question. By default there is none.
    findings
        The first sentences. By default those on records and on positions.
    about
        Facts that the page shows, by name, such as the model's. By default it shows those of the
        contexts alone.
    certificates
        Those that the page shows, such as `Explanation.certificates`. By default there are none.
    without_queries
        The influence of the tokens before those that the loss asks for, which gets a profile of
        its own. By default there is none.
    names
        The names of the contexts shown. By default they are numbered.
    measured
        How many contexts were measured, where `influence` counts otherwise, as it does where
        orders of documents were averaged. By default as many as it counts.
    spans
        The named parts of each context, such as documents: each has a ``name`` and its
        ``positions``, counted from 0. By default there are none.
    records
        What parts of each name hold over all contexts. By default there are none.
    by_place
        A table of shares by document and place, whose first row names the columns. By default
        there is none.

    Returns
    -------
    Page
        The page, one file that loads nothing.

    Raises
    ------
    ModuleNotFoundError
        Without the packages of the extra ``report``.
    ValueError
        If the accounts, the texts or the places of spans do not fit one another.
    """
    require_page_packages()
    _require_fitting(influence, accounts, texts)
    shade = choose_shades(np.concatenate([context_density(account) for account in accounts]))
    contexts = [
        shown_context(account, context_texts, influence, shade)
        for account, context_texts in zip(accounts, texts, strict=True)
    ]
    profiles = {"All positions": influence}
    if without_queries is not None:
        profiles["Before the tokens that the loss asks for"] = without_queries
    parts = spans or [()] * len(contexts)
    names = names or [f"context {number}" for number in range(len(contexts))]
    blocks = [
        blocks_of(account, context_texts, named, shade)
        for account, context_texts, named in zip(accounts, texts, parts, strict=True)
    ]
    charts = {f"profile-{n}": profile_chart(profile) for n, profile in enumerate(profiles.values())}
    maps, legends = _maps(accounts)
    page = template("page").render(
        title=title,
        answer=answer,
        facts=_facts(influence, accounts, measured, about or {}),
        findings=findings
        or (records_finding(records), influence_finding(influence, without_queries)),
        records=_record_rows(records),
        by_place=by_place,
        blocks=[*zip(names, blocks, strict=True)],
        names=names,
        rest=IN_NO_PART,
        several=int(influence.count) > 1,
        ways=_ways(accounts),
        profiles=[
            (name, verdict(profile), index_words(profile)) for name, profile in profiles.items()
        ],
        legends={"tokens": _legend(shade)} | legends,
        contexts=contexts,
        channels=CHANNELS,
        hops=HOPS,
        fields=FIELDS,
        certificates=[certificate_words(certificate) for certificate in certificates],
        charts=charts | maps | _bars(influence, accounts),
        style=style() + (HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        bundle=vl_convert.javascript_bundle(),
    )
    return Page(page)


def require_page_packages() -> None:
    """Raise ModuleNotFoundError unless the packages of the extra ``report`` are installed."""
    for package in PACKAGES:
        require_extra(package, "report")


def _require_fitting(
    influence: Influence, accounts: Sequence[TokenBreakdown], texts: Sequence[Sequence[str]]
) -> None:
    """Raise ValueError unless accounts are of one network and depth, with a text for each id."""
    require_kind(influence, Influence, "influence", "Measure it with lim.influence.")
    require_several(
        accounts, TokenBreakdown, "accounts", "Make them by explanations.account_of_context."
    )
    shapes = {(account.heads.shape, account.by_depth.shape[0]) for account in accounts}
    require(
        len(shapes) == 1,
        "accounts",
        got=f"heads and depths of {sorted(shapes)}",
        expected="those of one network at one depth",
        cure="Write a page for each.",
    )
    lengths = [*map(len, texts)]
    needed = [len(account.energy) + 1 for account in accounts]
    require(
        lengths == needed,
        "texts",
        got=f"windows of {lengths} ids",
        expected=f"of {needed}",
        cure="Give the text of every id of a window: the context's, and the one after it.",
    )


def _facts(
    influence: Influence,
    accounts: Sequence[TokenBreakdown],
    measured: int | None,
    about: Mapping[str, str],
) -> dict[str, str]:
    """Return facts by name: those given, the contexts, their tokens, the regions, the depth."""
    lengths = sorted({len(account.energy) for account in accounts})
    count = int(influence.count) if measured is None else measured
    depth = accounts[0].depth
    size = len(accounts)
    delta = float(influence.regions.delta)
    boundary = percent(delta)
    return {
        **about,
        "contexts shown": f"first {size} of {count} measured" if size < count else f"all {size}",
        "their tokens": "–".join(map(str, dict.fromkeys((lengths[0], lengths[-1])))),
        "left and right": f"the first {boundary} and the last {boundary}",
        **({"measured at": f"the states after layer {depth}"} if depth else {}),
    }


def _record_rows(records: Sequence[MeanShare]) -> list[dict[str, Any]]:
    """Return the row of each part over all contexts: the largest share first, the rest last."""
    rows = []
    for record in sorted(records, key=lambda record: (record.kind == UNNAMED, -record.share)):
        rest = record.kind == UNNAMED
        error = " (one context has it: no error)" if np.isinf(record.error) else ""
        name, texts = (IN_NO_PART, 1) if rest else (record.name, record.texts)
        rows.append(
            {
                "rest": rest,
                "name": name,
                "texts": texts,
                "share": percent(record.share, record.error) + error,
                "tokens": percent(record.of_tokens),
                "contexts": record.contexts,
                "most": record.most,
            }
        )
    return rows


def _ways(accounts: Sequence[TokenBreakdown]) -> str:
    """Say how the influence came, by hops and by channels, over the contexts shown."""
    channels = sum(np.asarray(account.channels, float).mean(axis=1) for account in accounts)
    hops = sum(np.asarray(account.hops, float).mean(axis=1) for account in accounts)
    return parts_finding(channels, hops, accounts[0].depth)


def _legend(shade: Shading) -> dict[str, Any]:
    """Return a legend: the shades' numbers, their edges, and whether these are logarithmic."""
    edges = [f"{edge:.2g}" for edge in shade.edges]
    return {"shades": range(COUNT), "edges": edges, "logarithmic": shade.logarithmic}


def _maps(accounts: Sequence[TokenBreakdown]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the charts by head and by depth, and return them with their legends."""
    heads = 100 * np.mean([_head_energies(account) for account in accounts], axis=0)
    depths = _density_by_depth(accounts)
    head_shades = choose_shades(heads)
    depth_shades = choose_shades(depths)
    drawn = {
        "heads": head_chart(heads, accounts[0].depth, head_shades),
        "depths": depth_chart(depths, depth_shades),
    }
    return drawn, {"heads": _legend(head_shades), "depths": _legend(depth_shades)}


def _head_energies(account: TokenBreakdown) -> np.ndarray:
    """Return the energy that each head adds, over that of the influence at its own layer."""
    standing = np.asarray(account.by_depth, float)[account.depth : -1].mean(axis=1, keepdims=True)
    return np.asarray(account.heads, float) / np.where(standing > 0, standing, 1)


def _density_by_depth(accounts: Sequence[TokenBreakdown]) -> np.ndarray:
    """Return the density at every depth, of all contexts together, on `BINS` cells at most."""
    target = token_grid(min(BINS, *(len(account.energy) for account in accounts)))
    energies = [
        carrying_shares(token_grid(len(account.energy)), target)
        @ np.asarray(account.by_depth, float).T
        for account in accounts
    ]
    energy = np.mean(energies, axis=0).T
    totals = energy.mean(axis=1, keepdims=True)
    return energy / np.where(totals > 0, totals, 1)


def _bars(influence: Influence, accounts: Sequence[TokenBreakdown]) -> dict[str, Any]:
    """Draw each region's shares by channel and by attention hops."""
    channels = np.zeros((len(CHANNELS), 3))
    hops = np.zeros((len(HOPS), 3))
    for account in accounts:
        grid = token_grid(len(account.energy))
        regions = boundary_regions(grid, influence.regions.delta, influence.regions.convention)
        weights = np.asarray(regions.weights, float).T
        channels += np.asarray(account.channels, float) @ weights
        hops += np.asarray(account.hops, float) @ weights
    return {
        "channels": share_chart(
            CHANNELS, parts_shares(channels).T, CHANNEL_COLOURS, "share by channel"
        ),
        "hops": share_chart(HOPS, parts_shares(hops).T, HOP_COLOURS, "share by attention hops"),
    }


def comparison_page(
    *,
    title: str,
    sentences: Sequence[str],
    rows: Sequence[Sequence[str]],
    figures: Mapping[str, Path],
    pages: Sequence[tuple[str, str]],
) -> Page:
    """Make a page on two results: sentences, a table, SVG figures, and their own two pages."""
    pictures = {
        caption: base64.b64encode(figure.read_bytes()).decode()
        for caption, figure in figures.items()
    }
    page = template("compare").render(
        title=title,
        sentences=sentences,
        rows=rows,
        figures=pictures,
        pages=pages,
        style="".join((HERE / name).read_text("utf-8") for name in ("page.css", "compare.css")),
    )
    return Page(page)


def template(name: str) -> Any:
    """Return the template of a page, which escapes what is put in."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["isolated"] = _isolated
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    return environment.get_template(f"{name}.html.jinja")


def _isolated(sentence: str) -> Any:
    """Return a sentence whose quotations run each in its own direction of writing."""
    parts = re.split("(?<=“)([^“”]*)(?=”)", sentence)
    quoted = markupsafe.Markup("<bdi>{}</bdi>")
    pieces = [quoted.format(part) if at % 2 else part for at, part in enumerate(parts)]
    return markupsafe.Markup("").join(pieces)
