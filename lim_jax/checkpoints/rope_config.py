"""Rotary positions and the windows of layers, as a configuration states them."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lim_jax._checks import described, is_real
from lim_jax.checkpoints.options import Configuration, Options, require_config
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
from lim_jax.network.masks import AttentionMask
from lim_jax.network.positions import Positions, Rotary

# The publishers' defaults.
WINDOW = 4096
CHUNK = 8192
FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
PART = "partial_rotary_factor"
TRAINED = "original_max_position_embeddings"
LENGTHS = ("max_position_embeddings", "n_positions")
OF_GGUF = "factors"  # the scaling that options of GGUF files get: one for each frequency
# The options of each kind of scaling.
SCALINGS = {
    "default": (),
    "linear": ("factor",),
    OF_GGUF: ("factors",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", TRAINED),
    "yarn": (
        "factor", TRAINED, "beta_fast", "beta_slow", "attention_factor", "mscale",
        "mscale_all_dim", "truncate",
    ),
    "longrope": ("short_factor", "long_factor", "factor", TRAINED, "attention_factor"),
    "dynamic": ("factor", TRAINED),
    "proportional": ("factor",),
}  # fmt: skip
SYNONYMS = {"su": "longrope", "none": "default", "mrope": "default"}
# Which features know rows and columns of images; in text all know the token's position.
SECTIONS_OF_IMAGES = "mrope_section", "mrope_interleaved"
TEMPERED = "llama_4_scaling_beta"


def rotary_of(
    config: Configuration,
    head_dim: int,
    base: str = "rope_theta",
    *,
    default: float = 10_000.0,
    default_part: float | None = None,
    default_scaling: Mapping[str, Any] = MappingProxyType({}),
    kind: str | None = None,
) -> Rotary:
    """Return a head's rotary embedding, from a configuration's base and scaling.

    `default`, `default_part` and `default_scaling` are for configurations that state none; a family
    without `default_part` rotates whole heads. `kind` is the layers' kind, where these differ.
    """
    # An empty rope_parameters says that there is no scaling; an empty rope_scaling says nothing.
    stated = config.get("rope_parameters") is not None or config.get("rope_scaling")
    rope = rope_options(config, kind) if stated else Configuration(default_scaling)
    scaling = scaling_kind(rope)
    _require_known(rope, scaling)
    theta = rotary_base(config, rope, base, default=default, kind=kind)
    if scaling == "proportional":
        require_pairs(head_dim, head_dim)
        part = _part(config, rope, default_part or 1.0)
        frequencies = proportional_frequencies(head_dim, theta, part)
        return Rotary(linear_scaling(frequencies, rope.get_positive_or("factor", 1.0)))
    if default_part is None:
        rope.refuse(partial_rotary_factor=1.0)
        rotary_dim = head_dim
    else:
        rotary_dim = int(head_dim * _part(config, rope, default_part))
    require_pairs(rotary_dim, head_dim, least=4 if scaling == "dynamic" else 2)
    if scaling == "dynamic":
        trained = config.get_int("max_position_embeddings")
        factor = rope.get_positive("factor")
        return Rotary(DynamicFrequencies(rotary_dim, theta, factor, trained))
    frequencies = rotary_frequencies(rotary_dim, theta)
    if scaling == "linear":
        return Rotary(linear_scaling(frequencies, rope.get_positive("factor")))
    if scaling == OF_GGUF:
        return Rotary(_divide(rope, "factors", frequencies))
    if scaling == "llama3":
        factor, low, high = (rope.get_positive(name) for name in SCALINGS[scaling][:3])
        bounds = {"low": low, "high": high, "trained": _trained(config, rope)}
        return Rotary(llama3_scaling(frequencies, factor=factor, **bounds))
    if scaling == "yarn":
        return _yarn(config, rope, frequencies, theta)
    return _longrope(config, rope, frequencies) if scaling == "longrope" else Rotary(frequencies)


def require_pairs(rotary_dim: int, head_dim: int, least: int = 2) -> None:
    """Raise ValueError unless a head has the rotated features, and these are whole pairs."""
    got = f"{rotary_dim} rotated features in heads of {head_dim}"
    require_config(rotary_dim <= head_dim, got, "no more than a head has")
    require_config(
        rotary_dim >= least and rotary_dim % 2 == 0,
        got,
        f"an even number of them, at least {least}",
    )


def scaling_kind(rope: Configuration) -> str:
    """Return the kind of scaling, by ``rope_type`` or by its older name ``type``."""
    stated = [rope.get_text("rope_type"), rope.get_text("type")]
    kinds = {SYNONYMS.get(kind, kind) for kind in stated if kind is not None}
    require_config(
        len(kinds) < 2,
        f"rope_type and type = {' and '.join(map(str, stated))}",
        "one kind of scaling",
        "Remove type, which readers take for the kind only where there is no rope_type.",
    )
    return kinds.pop() if kinds else "default"


def rotary_base(
    config: Configuration,
    rope: Configuration,
    base: str = "rope_theta",
    *,
    default: float = 10_000.0,
    kind: str | None = None,
) -> float:
    """Return the base of rotary positions, by the scaling's options or those beside it.

    The scaling's base goes first; one beside it is the same, unless layers differ in their `kind`.
    """
    inner = rope.get("rope_theta")
    outer = config.get(base) if kind is None or inner is None else None
    require_config(
        None in (inner, outer) or inner == outer,
        f"{base} = {outer} beside rope_theta = {inner} of a scaling",
        "the same in both",
    )
    if inner is not None:
        return rope.get_positive("rope_theta")
    return default if outer is None else config.get_positive(base)


def usual_base(config: Configuration, base: float) -> dict[str, float]:
    """Return a family's default base of rotary positions, or nothing if a base is stated."""
    inner = rope_options(config).get("rope_theta")
    return {"rope_theta": base} if inner is None else {}


def _part(config: Configuration, rope: Configuration, default: float) -> float:
    """Return the rotated part of each head, by the scaling's options or those beside it."""
    outer = config.get(PART)
    return rope.get_positive(PART, default if outer is None else outer)


def _yarn(
    config: Configuration, rope: Configuration, frequencies: Any, base: float | int
) -> Rotary:
    """Return rotary positions scaled by YaRN."""
    trained, factor, amplitude = _extension(config, rope)
    weights = yarn_weights(rope)
    if amplitude is None and all(weights):
        amplitude = yarn_amplitude(factor, weights[0]) / yarn_amplitude(factor, weights[1])
    scaled = yarn_scaling(
        frequencies,
        base=base,
        factor=factor,
        trained=trained,
        fast=rope.get_positive_or("beta_fast", 32),
        slow=rope.get_positive_or("beta_slow", 1),
        whole_pairs=rope.get_flag("truncate", True),
    )
    return Rotary(scaled, amplitude=yarn_amplitude(factor) if amplitude is None else amplitude)


def _extension(config: Configuration, rope: Configuration) -> tuple[int, Any, Any]:
    """Return the trained length, the factor that extends it, and the amplitude if one is stated."""
    trained = _trained(config, rope)
    factor = rope.get_positive_or("factor", None)
    if factor is None:
        factor = config.get_int("max_position_embeddings") / trained
    return trained, factor, rope.get_positive_or("attention_factor", None)


def yarn_weights(rope: Configuration) -> tuple[float, float]:
    """Return the weights of YaRN's amplitude for rotated and for all features; zero if absent."""
    weights = [
        0.0 if rope.get(name) == 0 else rope.get_positive_or(name, 0.0)
        for name in ("mscale", "mscale_all_dim")
    ]
    return weights[0], weights[1]


def _longrope(config: Configuration, rope: Configuration, frequencies: Sequence[float]) -> Rotary:
    """Return rotary positions with LongRoPE's factors for short and for long contexts."""
    trained, factor, amplitude = _extension(config, rope)
    if amplitude is None:
        amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    short = _divide(rope, "short_factor", frequencies)
    long = _divide(rope, "long_factor", frequencies)
    return Rotary(LongFrequencies(short, long, trained), amplitude=amplitude)


def _divide(rope: Configuration, name: str, frequencies: Sequence[float]) -> tuple[float, ...]:
    """Divide each frequency by its factor, of the scaling's option of this name."""
    factors = rope.get_list(name)
    positive = all(is_real(factor) and 0 < factor < math.inf for factor in factors)
    rope.require(
        name,
        factors,
        positive and len(factors) == len(frequencies),
        f"{len(frequencies)} positive numbers, one for each frequency",
    )
    return tuple(frequency / by for frequency, by in zip(frequencies, factors, strict=True))


def _trained(config: Configuration, rope: Configuration) -> int:
    """Return the length of training before the scaling; raise ValueError where options disagree."""
    inner = rope.get(TRAINED)
    outer = config.get(TRAINED)
    agree = None in (inner, outer) or inner == outer
    require_config(
        agree,
        f"{TRAINED} = {described(inner)} of a scaling, and {described(outer)} beside it",
        "the same in both",
        "Readers disagree about which goes first.",
    )
    for options in (rope, config):
        if options.get(TRAINED) is not None:
            return options.get_int(TRAINED)
    return config.get_int("max_position_embeddings")


def trained_length(config: Configuration) -> int | None:
    """Return the length of the longest contexts that a network was made for; None if not stated."""
    # A scaling's factor counts from ``original_max_position_embeddings`` where that is stated, else
    # from ``max_position_embeddings``, which in Gemma 3 counts a linear scaling already.
    name = next((n for n in LENGTHS if config.get(n) is not None), None)
    if name is None:
        return None
    stated = config.get_int(name)
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scalings = [rope, *(rope.get(kind) or {} for kind in (FULL, SLIDING))]
    if config.get("model_type") == "gemma3_text":
        scalings = [scaling for scaling in scalings if scaling.get("rope_type") != "linear"]
    before = config.get(TRAINED) or stated
    extended = [(s.get("factor") or 1) * (s.get(TRAINED) or before) for s in scalings]
    return int(max(stated, *extended))


def _require_known(rope: Configuration, scaling: str) -> None:
    """Raise ValueError at an unknown scaling, or at options that it does not have."""
    published = " or ".join(kind for kind in SCALINGS if kind != OF_GGUF)
    require_config(
        scaling in SCALINGS,
        f"rope_type = {scaling!r}",
        published,
        "Take another model: other scalings of rotary positions are not known here.",
    )
    names = {"rope_type", "type", "rope_theta", PART, *SECTIONS_OF_IMAGES, *SCALINGS[scaling]}
    if not rope.get(TEMPERED):
        names.add(TEMPERED)
    for name in sorted(rope):
        require_config(
            rope[name] is None or name in names,
            f"{name} = {described(rope[name])} of a {scaling} scaling",
            " and ".join(SCALINGS[scaling]) or "no such number",
            "State rope_type too; only some readers ignore what the scaling does not have.",
        )


def rope_options(config: Configuration, kind: str | None = None) -> Configuration:
    """Return the options of rotary positions; `kind` picks those of one kind of layers."""
    # ``rope_scaling`` goes before ``rope_parameters``, whose base transformers then ignores.
    newer = config.get_object("rope_parameters")
    older = config.get_object("rope_scaling")
    if kind is not None:
        return Configuration(_options_of_kind(newer, older, kind))
    if newer and older:
        bases = newer.get("rope_theta"), older.get("rope_theta", config.get("rope_theta"))
        require_config(
            bases[0] in (None, bases[1]),
            f"rope_theta = {bases[0]} in rope_parameters, {bases[1]} with rope_scaling",
            "the same in both",
            "Put the scaling into rope_parameters itself.",
        )
    return Configuration(older or newer)


def _options_of_kind(newer: Options, older: Options, kind: str) -> Options:
    """Return the options of one kind of layers; raise ValueError if some are for all kinds."""
    for name in sorted(set(newer) - {FULL, SLIDING, CHUNKED}):
        require_config(
            False,
            f"{name} in rope_parameters",
            f"an entry for each kind of layers, such as {FULL}",
            "The family's layers differ: give each kind its own options.",
        )
    got = described(older.get("type"))
    require_config(
        "type" not in older or "rope_type" in older,
        f"type = {got} in rope_scaling",
        "rope_type",
        "In families whose layers differ, transformers ignores type.",
    )
    return {**Configuration(newer).get_object(kind), **(older if kind == FULL else {})}


def layer_kinds(config: Configuration, depth: int, *default: str) -> tuple[str, ...]:
    """Return each layer's kind by ``layer_types``, or `default` if that is not stated."""
    # Only families that have chunked layers by default accept ``chunked_attention``.
    kinds = tuple(config.get_texts("layer_types") or default)
    supported_kinds = {FULL, SLIDING} | set(default)
    require_config(
        len(kinds) == depth and set(kinds) <= supported_kinds,
        f"layer_types = {len(kinds)} of {sorted(set(kinds))}",
        f"{depth} of {' or '.join(sorted(supported_kinds))}",
        "Other kinds are not known here.",
    )
    return kinds


def full_every(period: int, depth: int, other: str = SLIDING) -> tuple[str, ...]:
    """Return the kinds of layers of which every `period`-th is full."""
    return tuple(FULL if (k + 1) % period == 0 else other for k in range(depth))


def slide_if_stated(
    config: Configuration, depth: int, window: int | None = None
) -> tuple[str, ...]:
    """Return kinds of layers that all slide if there is a ``sliding_window``, and else are full."""
    return depth * (FULL if config.get("sliding_window", window) is None else SLIDING,)


def masks_of(
    config: Configuration,
    kinds: Sequence[str],
    positions: Positions | Mapping[str, Positions | None] | None,
    window: int | None = WINDOW,
) -> tuple[AttentionMask, ...]:
    """Return each layer's mask by its kind; `window` is the default of ``sliding_window``."""
    by_kind = positions if isinstance(positions, Mapping) else dict.fromkeys(kinds, positions)
    seen = {FULL: {}}
    sliding = config.get("sliding_window", window)
    if SLIDING in kinds:
        seen[SLIDING] = {
            "window": Configuration({"sliding_window": sliding}).get_int("sliding_window")
        }
    if CHUNKED in kinds:
        seen[CHUNKED] = {"chunk": config.get_int("attention_chunk_size", CHUNK)}
    mask_of_kind = {kind: AttentionMask(**seen[kind], positions=by_kind[kind]) for kind in {*kinds}}
    return tuple(mask_of_kind[kind] for kind in kinds)
