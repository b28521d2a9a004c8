"""What a configuration says of positions: how they are known, and which of them layers see."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lim_jax._checks import described, require
from lim_jax.models.options import positive, refuse_options, whole
from lim_jax.network.frequencies import (
    DynamicFrequencies,
    LongFrequencies,
    linear_scaling,
    llama3_scaling,
    proportional_frequencies,
    rotary_frequencies,
    yarn_amplitude,
    yarn_scaling,
)
from lim_jax.network.positions import Places, Rotary
from lim_jax.network.span import Span

WINDOW, CHUNK = 4096, 8192  # the publishers' own, where nothing is said
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
PART = "partial_rotary_factor"
TRAINED = "original_max_position_embeddings"
LENGTHS = ("max_position_embeddings", "n_positions")
# What each scaling of rotary positions may be told.
SCALINGS = {
    "default": (),
    "linear": ("factor",),
    "factors": ("factors",),  # of llama.cpp, one for each frequency
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", TRAINED),
    "yarn": (
        "factor", TRAINED, "beta_fast", "beta_slow", "attention_factor", "mscale",
        "mscale_all_dim", "truncate",
    ),
    "longrope": ("short_factor", "long_factor", "factor", TRAINED, "attention_factor"),
    "dynamic": ("factor", TRAINED),
    "proportional": ("factor",),
}  # fmt: skip
SPELT = {"su": "longrope", "none": "default"}


def rotary_of(
    config: Mapping[str, Any],
    size: int,
    base: str = "rope_theta",
    *,
    default: float = 10_000.0,
    default_part: float | None = None,
    default_scaling: Mapping[str, Any] = MappingProxyType({}),
    kind: str | None = None,
) -> Rotary:
    """How a head of `size` features turns, by a configuration's base and scaling.

    Parameters
    ----------
    config
        All options; those of turning may be spelt in either of two ways (`rope_options`).
    size
        That of a head.
    base
        Under which name the base stands beside the older spelling.
    default, default_part, default_scaling
        The base, the share of a head's features that turn, and the scaling, where nothing is said.
        Without a share the family turns whole heads, and takes no other.
    kind
        Of which kind of layers, where the configuration tells kinds apart.

    Raises
    ------
    ValueError
        Where the scaling is not known, or is told what it does not take.
    """
    # An empty object of the newer spelling says that there is no scaling; of the older, nothing.
    said = config.get("rope_parameters") is not None or config.get("rope_scaling")
    rope = rope_options(config, kind) if said else default_scaling
    named = rope.get("rope_type", rope.get("type", "default"))
    scaling = SPELT.get(named, named)
    _require_known(rope, scaling)
    theta = rope.get("rope_theta") or config.get(base) or default
    if scaling == "proportional":
        whole_head = proportional_frequencies(size, theta, _part(config, rope, default_part or 1.0))
        return Rotary(linear_scaling(whole_head, rope.get("factor") or 1.0))
    turning = size if default_part is None else int(size * _part(config, rope, default_part))
    if default_part is None:
        refuse_options(rope, partial_rotary_factor=1.0)
    if scaling == "dynamic":
        trained = whole(config, "max_position_embeddings")
        return Rotary(DynamicFrequencies(turning, theta, positive(rope, "factor"), trained))
    frequencies = rotary_frequencies(turning, theta)
    if scaling == "linear":
        return Rotary(linear_scaling(frequencies, positive(rope, "factor")))
    if scaling == "factors":
        divided = zip(frequencies, rope["factors"], strict=True)
        return Rotary(tuple(turn / factor for turn, factor in divided))
    if scaling == "llama3":
        factor, low, high = (positive(rope, name) for name in SCALINGS[scaling][:3])
        trained = _trained(config, rope)
        return Rotary(
            llama3_scaling(frequencies, factor=factor, low=low, high=high, trained=trained)
        )
    if scaling == "yarn":
        return _yarn(config, rope, frequencies, theta)
    return _longrope(config, rope, frequencies) if scaling == "longrope" else Rotary(frequencies)


def _part(config: Mapping[str, Any], rope: Mapping[str, Any], default: float) -> float:
    """Which share of a head turns, by a configuration's inner or outer word."""
    outer = config.get(PART)
    return positive(rope, PART, default if outer is None else outer)


def _yarn(config: Mapping[str, Any], rope: Mapping[str, Any], frequencies: Any, base: Any):
    trained = _trained(config, rope)
    factor = rope.get("factor") or whole(config, "max_position_embeddings") / trained
    amplitude, weights = rope.get("attention_factor"), yarn_weights(rope)
    if amplitude is None and all(weights):
        amplitude = yarn_amplitude(factor, weights[0]) / yarn_amplitude(factor, weights[1])
    scaled = yarn_scaling(
        frequencies, base=base, factor=factor, trained=trained,
        fast=rope.get("beta_fast") or 32, slow=rope.get("beta_slow") or 1,
        whole_pairs=rope.get("truncate", True),
    )  # fmt: skip
    return Rotary(scaled, amplitude=yarn_amplitude(factor) if amplitude is None else amplitude)


def yarn_weights(rope: Mapping[str, Any]) -> tuple[float, float]:
    """What YaRN's amplitude is weighed by in turning features, and in all; zero where not said."""
    return float(rope.get("mscale") or 0), float(rope.get("mscale_all_dim") or 0)


def _longrope(config: Mapping[str, Any], rope: Mapping[str, Any], frequencies: Any) -> Rotary:
    trained = _trained(config, rope)
    factor = rope.get("factor") or whole(config, "max_position_embeddings") / trained
    amplitude = rope.get("attention_factor")
    if amplitude is None:
        amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    short, long = (_divided(rope, name, frequencies) for name in ("short_factor", "long_factor"))
    return Rotary(LongFrequencies(short, long, trained), amplitude=amplitude)


def _divided(rope: Mapping[str, Any], name: str, frequencies: Sequence[float]) -> tuple[float, ...]:
    factors = rope.get(name)
    fits = isinstance(factors, list) and len(factors) == len(frequencies)
    require(
        fits and all(isinstance(f, int | float) and f > 0 for f in factors or ()),
        "config.json",
        got=f"{name} = {described(factors)}",
        expected=f"{len(frequencies)} positive numbers, one for each frequency",
        cure="Download it again.",
    )
    return tuple(turn / factor for turn, factor in zip(frequencies, factors or (), strict=True))


def _trained(config: Mapping[str, Any], rope: Mapping[str, Any]) -> int:
    """How many tokens the contexts of training had, by a configuration's inner or outer word."""
    inner, outer = rope.get(TRAINED), config.get(TRAINED)
    require(
        None in (inner, outer) or inner == outer,
        "config.json",
        got=f"{TRAINED} = {described(inner)} of a scaling, and {described(outer)} beside it",
        expected="the same in both",
        cure="Readers disagree about which goes first.",
    )
    for options in (rope, config):
        if options.get(TRAINED) is not None:
            return whole(options, TRAINED)
    return whole(config, "max_position_embeddings")


def trained_length(config: Mapping[str, Any]) -> int | None:
    """How many tokens the longest contexts have that a network was made for, or None if not said.

    A scaling's factor counts from the length before it, where a configuration names that, and else
    from ``max_position_embeddings``; a linear one of Gemma 3, which was trained so, is counted in
    that already.

    Examples
    --------
    >>> scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    >>> trained_length({"max_position_embeddings": 40, "rope_scaling": scaling})
    128
    """
    name = next((n for n in LENGTHS if config.get(n) is not None), None)
    if name is None:
        return None
    said, rope = whole(config, name), config.get("rope_scaling") or config.get("rope_parameters")
    scalings = [rope or {}, *((rope or {}).get(kind) or {} for kind in (FULL, SLIDING))]
    if config.get("model_type") == "gemma3_text":
        scalings = [one for one in scalings if one.get("rope_type") != "linear"]
    before = config.get(TRAINED) or said
    extended = [(one.get("factor") or 1) * (one.get(TRAINED) or before) for one in scalings]
    return int(max(said, *extended))


def _require_known(rope: Mapping[str, Any], scaling: Any) -> None:
    require(
        isinstance(scaling, str) and scaling in SCALINGS,
        "config.json",
        got=f"rope_type = {scaling!r}",
        expected=" or ".join(SCALINGS),
        cure="Other scalings of rotary positions are not known here.",
    )
    told = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *SCALINGS[scaling]}
    odd = sorted(name for name, value in rope.items() if value is not None and name not in told)
    require(
        not odd,
        "config.json",
        got=f"{odd[0]} = {described(rope[odd[0]])} of a {scaling} scaling" if odd else "",
        expected=" and ".join(SCALINGS[scaling]) or "no such number",
        cure="Say rope_type too; what a scaling does not take would be passed over.",
    )


def rope_options(config: Mapping[str, Any], kind: str | None = None) -> Mapping[str, Any]:
    """What a configuration says of rotary positions; the older spelling goes first, where both are.

    So it does with the publishers' own reader, which then knows no base but the older one. Of a
    `kind` of layers, where the newer spelling has an entry for each.
    """
    newer, older = config.get("rope_parameters"), config.get("rope_scaling")
    for name, found in (("rope_parameters", newer), ("rope_scaling", older)):
        require(
            found is None or isinstance(found, Mapping),
            "config.json",
            got=f"{name} = {described(found)}",
            expected="an object of names and values",
            cure="Download it again.",
        )
    if kind is not None:
        return _of_kind(newer or {}, older or {}, kind)
    if newer and older:
        bases = newer.get("rope_theta"), older.get("rope_theta", config.get("rope_theta"))
        require(
            bases[0] in (None, bases[1]),
            "config.json",
            got=f"rope_theta = {bases[0]} in rope_parameters, {bases[1]} with rope_scaling",
            expected="the same in both",
            cure="Put the scaling into rope_parameters itself.",
        )
    return older or newer or {}


def _of_kind(newer: Mapping[str, Any], older: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """What is said of one kind of layers; the older spelling speaks of those that see all."""
    odd = sorted(set(newer) - {FULL, SLIDING, CHUNKED})
    require(
        not odd,
        "config.json",
        got=f"{odd[0]} in rope_parameters" if odd else "",
        expected=f"an entry for each kind of layers, such as {FULL}",
        cure="The family's layers differ: say for each how it turns.",
    )
    require(
        "type" not in older or "rope_type" in older,
        "config.json",
        got=f"type = {described(older.get('type'))} in rope_scaling",
        expected="rope_type",
        cure="Of families whose layers differ, the publishers' own readers pass over the other.",
    )
    return {**(newer.get(kind) or {}), **(older if kind == FULL else {})}


def layer_kinds(config: Mapping[str, Any], depth: int, *spelt: str) -> tuple[str, ...]:
    """The kind of every layer, by ``layer_types``; `spelt` are their kinds if it does not say.

    Chunks are for families some of whose layers have them by themselves.
    """
    kinds, known = tuple(config.get("layer_types") or spelt), {FULL, SLIDING} | set(spelt)
    require(
        len(kinds) == depth and set(kinds) <= known,
        "config.json",
        got=f"layer_types = {len(kinds)} of {sorted(set(map(str, kinds)))}",
        expected=f"{depth} of {' or '.join(sorted(known))}",
        cure="Other kinds of layers are not known here.",
    )
    return kinds


def every(period: int, depth: int) -> tuple[str, ...]:
    """Sliding layers, of which every `period`-th is full."""
    return tuple(FULL if (k + 1) % period == 0 else SLIDING for k in range(depth))


def spans(
    config: Mapping[str, Any],
    kinds: Sequence[str],
    places: Callable[[str], Places | None],
    window: int | None = WINDOW,
) -> tuple[Span, ...]:
    """What each layer sees, by its kind; `window` is the width where nothing is said."""
    sliding = config.get("sliding_window", window)
    slides = SLIDING in kinds
    width = whole({"sliding_window": sliding}, "sliding_window") if slides else None
    seen = {FULL: {}, SLIDING: {"window": width}}
    if CHUNKED in kinds:
        seen[CHUNKED] = {"chunk": whole(config, "attention_chunk_size", CHUNK)}
    of_kind = {kind: Span(**seen[kind], places=places(kind)) for kind in dict.fromkeys(kinds)}
    return tuple(of_kind[kind] for kind in kinds)
