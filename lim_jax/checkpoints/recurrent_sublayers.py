"""Readers of layers that read a state: gated delta rules, Mamba-2 and short convolutions."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from lim_jax.checkpoints.checkpoint import require_shape
from lim_jax.checkpoints.options import Configuration, require_config
from lim_jax.checkpoints.recipe import Recipe
from lim_jax.checkpoints.sublayers import Arrays, read_norm
from lim_jax.checkpoints.tensor_reader import Reader, Tensor, split_heads
from lim_jax.network.gated_delta import GatedDelta, KimiDelta
from lim_jax.network.mamba2 import Mamba2
from lim_jax.network.masks import AttentionMask, SwitchedMask
from lim_jax.network.norms import GroupedNorm, Norm, Scaled
from lim_jax.network.short_convolution import ShortConvolution

Mask = AttentionMask | SwitchedMask
Shapes = dict[str, tuple[str, tuple[int, ...]]]  # of matrices, with the letters of their names
INFINITY = {"__float__": "Infinity"}  # as transformers writes it
CONVOLVED = ("value", "key", "query")
LIGHTNING_NORM_EPS = 1e-6  # whatever the other norms have


class DeltaSizes(NamedTuple):
    """The sizes of a gated delta layer."""

    groups: int  # of queries and keys
    heads: int  # of values
    size: int  # of a key
    features: int  # of a value
    taps: int


def delta_sizes(config: Configuration, defaults: tuple[int, int, int, int]) -> DeltaSizes:
    """Read the sizes of gated delta layers; `defaults` are those of all but the taps."""
    names = "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"
    pairs = zip(names, defaults, strict=True)
    stated = [config.get_int_or(f"linear_{name}", default) for name, default in pairs]
    sizes = DeltaSizes(*stated, taps=config.get_int("linear_conv_kernel_dim", 4))
    require_config(
        sizes.heads % sizes.groups == 0,
        f"{sizes.heads} heads of values and {sizes.groups} of keys",
        "as many values for each key",
    )
    return sizes


def gated_delta(
    sizes: DeltaSizes,
    matrices: Callable[[Reader, str, DeltaSizes, int], Arrays],
    *,
    norm: str = "norm",
    norm_eps: float | None = None,
    output: str = "out_proj",
    largest_write: float = 1.0,
) -> Callable[..., GatedDelta]:
    """Return a reader of gated delta layers, for `recipe.Recipe.attention`."""

    def attention(read: Reader, at: str, recipe: Recipe, mask: Mask) -> GatedDelta:
        """Read one gated delta layer."""
        before = _norm_before(read, at, recipe)
        width = recipe.sizes.width
        heads = sizes.heads
        features = sizes.features
        at = f"{at}.linear_attn"
        head_norm_eps = recipe.sizes.norm_eps if norm_eps is None else norm_eps
        scale: Tensor = np.tile(read(f"{at}.{norm}.weight", features), (heads, 1))
        matrix = read(f"{at}.{output}.weight", width, heads * features)
        return GatedDelta(
            before,
            **matrices(read, at, sizes, width),
            output=split_heads(matrix, heads),
            rate_bias=read(f"{at}.dt_bias", heads),
            log_decay=read(f"{at}.A_log", heads),
            head_norm=GroupedNorm(scale, heads, head_norm_eps),
            activation=recipe.activation,
            largest_write=largest_write,
        )

    return attention


def qwen3_5_matrices(read: Reader, at: str, sizes: DeltaSizes, width: int) -> Arrays:
    """Read one matrix of queries, keys and values, and one each of gates, writes and rates."""
    heads = sizes.heads
    features = sizes.features
    rows = 2 * sizes.groups * sizes.size + heads * features
    return {
        **_by_part(read(f"{at}.in_proj_qkv.weight", rows, width), sizes),
        **_taps(read, f"{at}.conv1d", sizes),
        "gate": read(f"{at}.in_proj_z.weight", heads * features, width).reshape(heads, -1, width),
        "write": read(f"{at}.in_proj_b.weight", heads, width),
        "rate": read(f"{at}.in_proj_a.weight", heads, width),
    }


def qwen3_next_matrices(read: Reader, at: str, sizes: DeltaSizes, width: int) -> Arrays:
    """Read two matrices, each of which holds one key's group of rows after another."""
    groups, heads, size, features, _ = sizes
    each = heads // groups
    rows = 2 * groups * size + 2 * heads * features
    by_group = read(f"{at}.in_proj_qkvz.weight", rows, width).reshape(groups, -1, width)
    cuts = np.cumsum([size, size, each * features])
    query, key, value, gate = np.split(by_group, cuts, axis=1)
    both = read(f"{at}.in_proj_ba.weight", 2 * heads, width).reshape(groups, 2, each, width)
    return {
        "query": query,
        "key": key,
        "value": value.reshape(heads, features, width),
        "gate": gate.reshape(heads, features, width),
        "write": both[:, 0].reshape(heads, width),
        "rate": both[:, 1].reshape(heads, width),
        **_taps(read, f"{at}.conv1d", sizes),
    }


def olmo_matrices(read: Reader, at: str, sizes: DeltaSizes, width: int) -> Arrays:
    """Read one matrix each of queries, keys, values, gates, writes and rates, and their taps."""
    values = (sizes.heads, sizes.features)
    heads = (sizes.heads,)
    return _apart(read, at, sizes, width, {"gate": ("g", values), "rate": ("a", heads)})


def _apart(read: Reader, at: str, sizes: DeltaSizes, width: int, more: Shapes) -> Arrays:
    """Read a matrix for each name by its letter and shape, and taps from three tensors."""
    groups, heads, size, features, taps = sizes
    keys = (groups, size)
    values = (heads, features)
    shapes: Shapes = {"query": ("q", keys), "key": ("k", keys), "value": ("v", values)}
    shapes = {**shapes, "write": ("b", (heads,)), **more}
    arrays = {}
    for name, (letter, shape) in shapes.items():
        columns = size if f"{name}_down" in shapes else width
        rows = read(f"{at}.{letter}_proj.weight", math.prod(shape), columns)
        arrays[name] = rows.reshape(*shape, columns)
    # The publisher has one of each kind, transformers saves thirds of all.
    names = [f"{at}.{letter}_conv1d.weight" for letter in "qkv"]
    rows = np.concatenate([read(name, read.shape(name)[0], 1, taps) for name in names])[:, 0]
    require_shape(names[0], (len(rows),), (2 * groups * size + heads * features,))
    return arrays | {f"{part}_taps": some for part, some in _by_part(rows, sizes).items()}


def kimi_delta(
    heads: int, size: int, taps: int, *, names: tuple[str, ...], low_rank: bool, least_decay: Any
) -> Callable[..., KimiDelta]:
    """Return a reader of Kimi's delta layers, whose output has one of these `names`."""
    sizes = DeltaSizes(heads, heads, size, size, taps)
    shape = (heads, size)
    more: Shapes = {"rate": ("f", shape), "gate": ("g", shape)}
    if low_rank:
        more = {"rate": ("f_b", shape), "gate": ("g_b", shape)}
        more |= {"rate_down": ("f_a", (size,)), "gate_down": ("g_a", (size,))}

    def attention(read: Reader, at: str, recipe: Recipe, mask: Mask) -> KimiDelta:
        """Read one layer of Kimi's delta rule."""
        before = _norm_before(read, at, recipe)
        width = recipe.sizes.width
        output = next((n for n in names if read.has(f"{at}.{n}.weight")), names[0])
        matrix = read(f"{at}.{output}.weight", width, heads * size)
        at = f"{at}.{output.rpartition('.')[0]}"
        decays = read(f"{at}.A_log", *((1, 1, heads, 1) if low_rank else (heads,)))
        scale: Tensor = np.tile(read(f"{at}.o_norm.weight", size), (heads, 1))
        return KimiDelta(
            before,
            **_apart(read, at, sizes, width, more),
            output=split_heads(matrix, heads),
            rate_bias=read(f"{at}.dt_bias", heads * size).reshape(shape),
            least_decay=least_decay,
            log_decay=decays.reshape(heads),
            activation=recipe.activation,
            head_norm=GroupedNorm(scale, heads, recipe.sizes.norm_eps),
            gate_activation=jax.nn.sigmoid,
        )

    return attention


def _by_part(rows: Tensor, sizes: DeltaSizes) -> Arrays:
    """Split rows into those of queries, keys and values, with an axis of heads."""
    groups, heads, size, features, _ = sizes
    query, key, value = np.split(rows, [groups * size, 2 * groups * size])
    rest = rows.shape[1:]
    return {
        "query": query.reshape(groups, size, *rest),
        "key": key.reshape(groups, size, *rest),
        "value": value.reshape(heads, features, *rest),
    }


def _taps(read: Reader, name: str, sizes: DeltaSizes) -> Arrays:
    """Read a convolution's taps, split into those of queries, keys and values."""
    rows = 2 * sizes.groups * sizes.size + sizes.heads * sizes.features
    parts = _by_part(read(f"{name}.weight", rows, 1, sizes.taps)[:, 0], sizes)
    return {f"{part}_taps": taps for part, taps in parts.items()}


class MambaSizes(NamedTuple):
    """The sizes of a Mamba-2 layer, and which matrices have a bias."""

    heads: int
    features: int  # of a head
    groups: int  # of queries and keys
    size: int  # of a key
    taps: int
    input_bias: bool
    output_bias: bool
    tap_bias: bool


class MambaNames(NamedTuple):
    """The options of a configuration that state the sizes of Mamba-2 layers."""

    heads: str = "mamba_n_heads"
    features: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    size: str = "mamba_d_state"
    taps: str = "mamba_d_conv"
    input_bias: str = "mamba_proj_bias"
    output_bias: str = "mamba_proj_bias"
    tap_bias: str = "mamba_conv_bias"


NAMES = MambaNames()


def mamba_sizes(
    config: Configuration,
    inner: int | None,
    names: MambaNames = NAMES,
    *,
    features: int | str = "auto",
    groups: int = 1,
    size: int = 256,
) -> MambaSizes:
    """Read the sizes of Mamba-2 layers; `inner` is the width of all heads, None if it may vary."""
    heads = config.get_int(names.heads, 128)
    groups = config.get_int(names.groups, groups)
    require_config(
        heads % groups == 0, f"{heads} heads in {groups} groups", "as many heads in each"
    )
    head_features = config.get(names.features, features)
    if inner is not None and head_features in (None, "auto"):
        require_config(inner % heads == 0, f"{heads} heads of width {inner}", "heads of one width")
        head_features = inner // heads
    head_features = Configuration({names.features: head_features}).get_int(names.features)
    require_config(
        inner in (None, heads * head_features),
        f"{heads} heads of {head_features}",
        f"the width {inner} together",
    )
    return MambaSizes(
        heads,
        head_features,
        groups,
        config.get_int(names.size, size),
        config.get_int(names.taps, 4),
        config.get_flag(names.input_bias),
        config.get_flag(names.output_bias),
        config.get_flag(names.tap_bias, True),
    )


class MambaFactors(NamedTuple):
    """Multipliers of a Mamba-2 layer's input, of its parts, and of its output."""

    inside: float = 1.0
    gate: float = 1.0
    value: float = 1.0
    key: float = 1.0
    query: float = 1.0
    rate: float = 1.0
    outside: float = 1.0


PLAIN = MambaFactors()


def read_rate_limits(config: Configuration) -> tuple[float, float]:
    """Read the bounds of Mamba-2's time steps, from zero to infinity by default."""
    stated = config.get("time_step_limit")
    limits = [0.0, INFINITY] if stated is None else stated
    pair = isinstance(limits, list | tuple) and len(limits) == 2
    numbers = [float("inf") if n == INFINITY else n for n in limits] if pair else []
    are_numbers = all(isinstance(n, int | float) for n in numbers)
    config.require(
        "time_step_limit",
        stated,
        pair and are_numbers and 0 <= numbers[0] <= numbers[1],
        "two numbers that are not negative, in order",
    )
    return float(numbers[0]), float(numbers[1])


def mamba2(
    sizes: MambaSizes,
    name: str,
    rate_limits: tuple[float, float],
    activation: Callable[..., Any],
    *,
    head_norm: bool = True,
    norm_before_gate: bool = False,
    factors: MambaFactors = PLAIN,
) -> Callable[..., Mamba2]:
    """Return a reader of Mamba-2 layers, for `recipe.Recipe.attention`."""
    heads = sizes.heads
    features = sizes.features
    inner = sizes.heads * sizes.features
    # Factors of matrices are put where numbers stay in full precision. A norm of gated numbers
    # would take the last one out again.
    after_norm = head_norm and not norm_before_gate
    gate_factor = 1.0 if after_norm else factors.outside
    gate_activation = jax.nn.silu
    if factors.gate != 1 or gate_factor != 1:
        gate_activation = Scaled(jax.nn.silu, factors.gate, gate_factor)

    def attention(read: Reader, at: str, recipe: Recipe, mask: Mask) -> Mamba2:
        """Read one Mamba-2 layer, with multipliers put into its norms and small arrays."""
        width = recipe.sizes.width
        norm = _norm_before(read, at, recipe)
        at = f"{at}.{name}"
        arrays = _mamba_inputs(read, at, sizes, width, factors)
        if head_norm:
            scale = read(f"{at}.norm.weight", inner).reshape(heads, features)
            scale = factors.outside * scale if after_norm else scale
            arrays["head_norm"] = GroupedNorm(scale, sizes.groups, recipe.sizes.norm_eps)
        if sizes.output_bias:
            arrays["output_bias"] = factors.outside * read(f"{at}.out_proj.bias", width)
        return Mamba2(
            jax.tree.map(lambda scale: factors.inside * scale, norm),
            **arrays,
            output=split_heads(read(f"{at}.out_proj.weight", width, inner), heads),
            log_decay=read(f"{at}.A_log", heads),
            skip=read(f"{at}.D", heads),
            norm_before_gate=norm_before_gate,
            gate_activation=gate_activation,
            rate_limits=rate_limits,
            activation=activation,
        )

    return attention


def _mamba_inputs(
    read: Reader, at: str, sizes: MambaSizes, width: int, factors: MambaFactors
) -> Arrays:
    """Read the projections of a token, a matrix for each part, with taps, biases and rates."""
    heads = sizes.heads
    values = (heads, sizes.features)
    keys = (sizes.groups, sizes.size)
    shapes = {"gate": values, "value": values, "key": keys, "query": keys, "rate": (heads,)}
    projected = sum(math.prod(shape) for shape in shapes.values())
    convolved = sum(math.prod(shapes[part]) for part in CONVOLVED)

    def cut(rows: Tensor, suffix: str, parts: tuple[str, ...]) -> Arrays:
        """Split rows into those of some parts, each with its own axes."""
        cuts = np.cumsum([math.prod(shapes[part]) for part in parts])[:-1]
        return {
            part + suffix: some.reshape(*shapes[part], *rows.shape[1:])
            for part, some in zip(parts, np.split(rows, cuts), strict=True)
        }

    arrays = cut(read(f"{at}.in_proj.weight", projected, width), "", tuple(shapes))
    rows = read(f"{at}.conv1d.weight", convolved, 1, sizes.taps)[:, 0]
    for name, some in cut(rows, "_taps", CONVOLVED).items():
        arrays[name] = getattr(factors, name.removesuffix("_taps")) * some
    arrays["rate"] = factors.rate * arrays["rate"]
    if sizes.tap_bias:
        arrays |= cut(read(f"{at}.conv1d.bias", convolved), "_tap_bias", CONVOLVED)
    rate_bias = read(f"{at}.dt_bias", heads)
    if sizes.input_bias:
        arrays |= cut(read(f"{at}.in_proj.bias", projected), "_bias", tuple(shapes))
        rate_bias = rate_bias + factors.rate * arrays["rate_bias"]
    return arrays | {"rate_bias": rate_bias}


def lightning(heads: int, size: int, depth: int, factor: float) -> Callable[..., Mamba2]:
    """Return a reader of lightning attention, whose output is multiplied by a factor."""

    def attention(read: Reader, at: str, recipe: Recipe, mask: Mask) -> Mamba2:
        """Read one layer of lightning attention, with decays that follow from its number."""
        before = _norm_before(read, at, recipe)
        width = recipe.sizes.width
        number = at.split(".")[-1]
        at = f"{at}.self_attn"
        inner = heads * size
        rows = read(f"{at}.qkv_proj.weight", 3 * inner, width).reshape(heads, 3, size, width)
        gate = read(f"{at}.output_gate.weight", inner, width).reshape(heads, size, width)
        output = split_heads(read(f"{at}.out_proj.weight", width, inner), heads)
        scale = factor * read(f"{at}.norm.weight", inner).reshape(heads, size)
        # Decays of heads are those of ALiBi, less the later the layer is, and are not learned.
        later = 1 - int(number) / (depth - 1 + 1e-5) + 1e-5
        decays = read.zeros(heads) + np.log(later * 0.5 ** (8 / heads * (1 + np.arange(heads))))
        query, key, value = np.moveaxis(rows, 1, 0)
        return Mamba2(
            norm=before,
            query=query,
            key=key,
            value=value,
            rate=None,
            rate_bias=None,
            log_decay=decays,
            gate=gate,
            output=output,
            query_taps=None,
            key_taps=None,
            value_taps=None,
            head_norm=GroupedNorm(scale, 1, LIGHTNING_NORM_EPS),
            skip=None,
            activation=recipe.activation,
            gate_activation=jax.nn.sigmoid,
        )

    return attention


def short_convolution(taps: int, biased: bool) -> Callable[..., ShortConvolution]:
    """Return a reader of short convolutions, for `recipe.Recipe.attention`."""

    def attention(read: Reader, at: str, recipe: Recipe, mask: Mask) -> ShortConvolution:
        """Read one short convolution."""
        before = _norm_before(read, at, recipe)
        width = recipe.sizes.width
        at = f"{at}.conv"
        parts = "write", "read", "value"
        rows = np.split(read(f"{at}.in_proj.weight", 3 * width, width), 3)
        arrays: Arrays = dict(zip(parts, rows, strict=True))
        if biased:
            rows = np.split(read(f"{at}.in_proj.bias", 3 * width), 3)
            arrays |= {f"{part}_bias": bias for part, bias in zip(parts, rows, strict=True)}
            arrays["tap_bias"] = read(f"{at}.conv.bias", width)
            arrays["output_bias"] = read(f"{at}.out_proj.bias", width)
        arrays["taps"] = read(f"{at}.conv.weight", width, 1, taps)[:, 0]
        arrays["output"] = read(f"{at}.out_proj.weight", width, width)
        return ShortConvolution(before, **arrays)

    return attention


def _norm_before(read: Reader, at: str, recipe: Recipe) -> Norm:
    """Read the norm before a layer's sublayer, or return the identity if there is none."""
    return read_norm(read, at, recipe.names.before_attention, recipe) or eqx.nn.Identity()
