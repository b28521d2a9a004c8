"""Small random recurrent layers, and networks of layers of several kinds."""

import jax
import numpy as np
from reference.networks import WIDTH, random_flow

import lim_jax as lim
from lim_jax.network import RMSNorm
from lim_jax.network.field import SumOfFields
from lim_jax.network.gated_delta import GatedDelta, KimiDelta
from lim_jax.network.layer_kinds import LayersByKind
from lim_jax.network.mamba2 import Mamba2
from lim_jax.network.norms import GroupedNorm
from lim_jax.network.short_convolution import ShortConvolution

ORDER = (0, 1, 1)
NO_BIASES = dict.fromkeys(
    ("query_tap_bias", "key_tap_bias", "value_tap_bias", "query_bias", "key_bias")
)


def arrays(seed, scale=0.6):
    """A function of shapes that draws their arrays one after another, about a mean."""
    draw = np.random.default_rng(seed).standard_normal
    return lambda *shape, mean=0.0: jax.device_put(mean + scale * draw(shape))


def _mixer(kind, new, *, groups=1, heads=2, size=3, features=2, width=WIDTH, **options):
    biases = {
        "query_tap_bias": new(groups, size), "key_tap_bias": new(groups, size),
        "value_tap_bias": new(heads, features), "query_bias": new(groups, size),
        "key_bias": new(groups, size), "value_bias": new(heads, features),
        "gate_bias": new(heads, features), "output_bias": new(width),
    }  # fmt: skip
    vectors = (groups, size)
    head_shape = (heads, features)
    matrices = {
        "norm": RMSNorm(new(width, mean=1), 0.1), "query": new(*vectors, width),
        "key": new(*vectors, width), "value": new(*head_shape, width), "rate": new(heads, width),
        "rate_bias": new(heads), "log_decay": new(heads), "gate": new(*head_shape, width),
        "output": new(heads, width, features), "query_taps": new(*vectors, 3),
        "key_taps": new(*vectors, 3), "value_taps": new(*head_shape, 3),
    }  # fmt: skip
    return kind(**{**matrices, **biases, **options})


def gated_delta(seed=0):
    """Without biases, and a norm of each head before the gates."""
    new = arrays(seed)
    norm = GroupedNorm(new(2, 2, mean=1), 2, 0.1)
    return _mixer(
        GatedDelta, new, head_norm=norm, write=new(2, WIDTH), largest_write=2.0, **NO_BIASES
    )


def mamba2(seed=1):
    """Four heads in two groups, all biases, a norm of a group after the gates, limited rates."""
    new = arrays(seed)
    norm = GroupedNorm(new(4, 2, mean=1), 2, 0.1)
    limits = (0.3, 0.9)
    return _mixer(
        Mamba2,
        new,
        head_norm=norm,
        norm_before_gate=False,
        skip=new(4),
        rate_limits=limits,
        groups=2,
        heads=4,
    )


def short_convolution(seed=2):
    new = arrays(seed)
    biases = {name: new(4) for name in ("write_bias", "read_bias", "value_bias", "tap_bias")}
    return ShortConvolution(
        RMSNorm(new(WIDTH, mean=1), 0.1),
        new(4, WIDTH),
        new(4, WIDTH),
        new(4, WIDTH),
        new(4, 3),
        new(WIDTH, 4),
        output_bias=new(WIDTH),
        **biases,
    )


def lightning(seed=8):
    """Two heads without rates, convolutions and D, whose states decay as they always do."""
    new = arrays(seed)
    bare = dict.fromkeys(("rate", "rate_bias", "query_taps", "key_taps", "value_taps", "skip"))
    norm = GroupedNorm(new(2, 2, mean=1), 1, 0.1)
    return _mixer(Mamba2, new, groups=2, head_norm=norm, **bare)


def kimi_delta(seed=9):
    """Rates of every feature and gates, both of vectors of lower rank."""
    new = arrays(seed)
    return _mixer(
        KimiDelta,
        new,
        groups=2,
        head_norm=GroupedNorm(new(2, 2, mean=1), 2, 0.1),
        write=new(2, WIDTH),
        rate=new(2, 3, 4),
        rate_bias=new(2, 3),
        rate_down=new(4, WIDTH),
        gate=new(2, 2, 5),
        gate_down=new(5, WIDTH),
        least_decay=-2.0,
        **NO_BIASES,
    )


RECURRENT = {
    "delta": gated_delta,
    "mamba": mamba2,
    "convolution": short_convolution,
    "lightning": lightning,
    "kimi": kimi_delta,
}


def hybrid_flow(step=lim.split):
    """Attention and Mamba-2 side by side before a network, then two short convolutions alone."""
    dense = random_flow(depth=1).layers
    convolutions = jax.tree.map(
        lambda *each: jax.device_put(np.stack(each)), short_convolution(3), short_convolution(4)
    )
    mamba = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[None]), mamba2(6))
    kinds = (
        SumOfFields((SumOfFields((dense.attention, mamba)), dense.feed_forward)),
        SumOfFields((convolutions,)),
    )
    return lim.ResidualFlow(LayersByKind(kinds, ORDER), horizon=2.0, step=step)
