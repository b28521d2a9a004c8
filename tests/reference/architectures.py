"""Fields of every architecture, with no trivial parameter: one option each, and all of them."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from reference.networks import WIDTH, falling_profile, randomised

import lim_jax as lim
from lim_jax.network import AttentionMask, GatedFeedForward, LayerNorm, RMSNorm, Rotary
from lim_jax.network.experts import ClampedGate, Experts, MixtureOfExperts, Routing
from lim_jax.network.latent import LatentAttention
from lim_jax.network.masks import SwitchedMask
from lim_jax.network.norms import AcrossHeads, EachHead
from lim_jax.network.positions import Alibi

HEADS = 4
GROUPS = 2
SIZE = 4
WINDOW = 4
# No two turns alike; of a head's four features two or all turn.
TURNING = Rotary((0.9, 0.23), tokens=12)
PARTLY_TURNING = Rotary((0.9,), tokens=12)


def _attention(key, width, **options):
    return lim.CausalAttention.init(width, head_dim=SIZE, norm_eps=0.1, key=key, **options)


def _with(attention, **parts):
    return dataclasses.replace(attention, **parts)


def _feed_forward(key, width):
    return lim.FeedForward.init(width, intermediate_size=7, norm_eps=0.1, key=key)


def _gated(key, width, activation=jax.nn.silu, **biases):
    made = GatedFeedForward.init(
        width, intermediate_size=5, activation=activation, norm_eps=0.1, key=key
    )
    return dataclasses.replace(made, **biases)


def _root_mean_squares(key, width):
    attention = _with(_attention(key, width, heads=2), norm=RMSNorm.init(width, 0.2))
    return attention, _gated(key, width)


def _gelu_gated(key, width):
    biases = {"gate_bias": jnp.zeros(5), "down_bias": jnp.zeros(width)}
    return _attention(key, width, heads=2), _gated(key, width, jax.nn.gelu, **biases)


def _grouped(key, width):
    biases = {"query_bias": jnp.zeros((HEADS, SIZE)), "value_bias": jnp.zeros((GROUPS, SIZE))}
    return _with(_attention(key, width, heads=HEADS, num_kv_heads=GROUPS), **biases), _feed_forward(
        key, width
    )


def _one_group(key, width):
    biases = {"key_bias": jnp.zeros((1, SIZE)), "output_bias": jnp.zeros(width)}
    return _with(_attention(key, width, heads=3, num_kv_heads=1), **biases), _feed_forward(
        key, width
    )


def _head_norms(key, width):
    norms = {"query_norm": RMSNorm.init(SIZE, 0.3), "key_norm": RMSNorm.init(SIZE, 0.2)}
    return _with(_attention(key, width, heads=2), **norms), _feed_forward(key, width)


def _turning(key, width):
    return _attention(key, width, heads=2, rotary=TURNING), _feed_forward(key, width)


def _partly_turning(key, width):
    return _attention(key, width, heads=2, bias=True, rotary=PARTLY_TURNING), _feed_forward(
        key, width
    )


def _everything(key, width):
    options = {"num_kv_heads": GROUPS, "bias": True, "rotary": PARTLY_TURNING, "window": WINDOW}
    attention = _with(
        _attention(key, width, heads=HEADS, **options),
        norm=RMSNorm.init(width, 0.2),
        query_norm=RMSNorm.init(SIZE, 0.3),
        key_norm=RMSNorm.init(SIZE, 0.2),
    )
    return attention, _gated(key, width, up_bias=jnp.zeros(5))


def _normed_outputs(key, width):
    """Norms after the sublayers, scores scaled and capped, layers that differ: as in Gemma 2.

    And gates, which act before the norm of the output.
    """
    near = AttentionMask(WINDOW, positions=TURNING)
    far = AttentionMask(positions=Rotary((0.4, 0.1), tokens=12))
    attention = _with(
        _attention(key, width, heads=HEADS, num_kv_heads=GROUPS, bias=True),
        mask=SwitchedMask((near, far), jnp.array(0)),
        output_norm=RMSNorm.init(width, 0.2),
        scale=0.7,
        cap=0.9,
        gate=jnp.zeros((HEADS, SIZE, width)),
    )
    return attention, _gated(key, width, output_norm=LayerNorm.init(width, 0.3))


def _sinks(key, width):
    """Sinks, stretches, lengthened turns, and norms of all heads together or each by itself."""
    attention = _with(
        _attention(key, width, heads=HEADS, num_kv_heads=GROUPS),
        mask=AttentionMask(chunk=WINDOW, positions=Rotary((0.9, 0.23), tokens=12, amplitude=1.3)),
        sinks=jnp.zeros(HEADS),
        cap=1.1,
        query_norm=AcrossHeads(RMSNorm.init(HEADS * SIZE, 0.3)),
        key_norm=EachHead(jax.tree.map(lambda leaf: jnp.stack(2 * [leaf]), LayerNorm.init(SIZE))),
    )
    return attention, _with(_feed_forward(key, width), inner_bias=None, outer_bias=None)


def _gated_outputs(key, width):
    """Gates of what heads read, from a norm of each token: as in Trinity."""
    attention = _attention(key, width, heads=HEADS, num_kv_heads=GROUPS, bias=True, rotary=TURNING)
    gate = jnp.zeros((HEADS, SIZE, width))
    return _with(attention, gate=gate), _gated(key, width)


def _alibi(key, width):
    attention = _attention(key, width, heads=HEADS, num_kv_heads=GROUPS)
    slopes = Alibi((0.5, 0.25, 0.125, 0.4), tokens=12)
    network = _with(_feed_forward(key, width), output_norm=RMSNorm.init(width, 0.2))
    return _with(attention, mask=AttentionMask(positions=slopes), scale=0.3), network


def _latent(key, width):
    """Latent attention of its own queries, and experts besides a shared one: as in DeepSeek V3."""
    ones = jnp.ones
    attention = LatentAttention(
        RMSNorm.init(width, 0.2),
        query=ones((3, SIZE, 5)),
        key=ones((3, SIZE - 2, 4)),
        value=ones((3, 3, 4)),
        output=ones((3, width, 3)),
        down=ones((4, width)),
        down_norm=RMSNorm.init(4, 0.3),
        rope_key=ones((2, width)),
        query_down=ones((5, width)),
        query_down_norm=RMSNorm.init(5, 0.2),
        mask=AttentionMask(positions=PARTLY_TURNING),
        scale=0.4,
    )
    shared = dataclasses.replace(_gated(key, width), norm=eqx.nn.Identity())
    routing = Routing(3, "sigmoid", factor=2.5, groups=3, topk_group=2, best=2)
    return attention, _experts(width, routing, preference=jnp.zeros(6), shared=shared)


def _clamped(key, width):
    """Experts with biases and clamped gates: as in gpt-oss."""
    biases = {name: jnp.zeros((6, 5)) for name in ("gate_bias", "up_bias")}
    options = {"down_bias": jnp.zeros((6, width)), "combine": ClampedGate(1.7, 0.4)}
    network = _experts(width, Routing(2), biases | options, router_bias=jnp.zeros(6))
    return _attention(key, width, heads=2), network


def _weighed_inputs(key, width):
    """Experts that read weighed tokens, of weights that are not normalised: as in Llama 4."""
    routing = Routing(1, "sigmoid", normalised=False)
    norm = LayerNorm.init(width, 0.3)
    network = _experts(width, routing, weighs_input=True, output_norm=norm)
    return _attention(key, width, heads=2), network


def _experts(width, routing, parts=None, **options):
    up = jnp.zeros((6, 5, width))
    down = jnp.zeros((6, width, 5))
    experts = Experts(up, up, down)
    experts = dataclasses.replace(experts, **(parts or {}))
    norm = RMSNorm.init(width, 0.2)
    return MixtureOfExperts(norm, jnp.zeros((6, width)), experts, routing, **options)


ARCHITECTURES = {
    "RMS norms, SwiGLU": _root_mean_squares,
    "GeGLU": _gelu_gated,
    "grouped queries": _grouped,
    "one group": _one_group,
    "head norms": _head_norms,
    "rotary": _turning,
    "partial rotary": _partly_turning,
    "everything": _everything,
    "normed outputs": _normed_outputs,
    "sinks": _sinks,
    "gated outputs": _gated_outputs,
    "alibi": _alibi,
    "latent, experts": _latent,
    "clamped experts": _clamped,
    "weighed inputs": _weighed_inputs,
}


def architecture_flow(
    name, seed=0, *, step=lim.split, depth=2, horizon=1.0, profile=falling_profile, width=WIDTH
):
    """A network of that architecture with random parameters."""

    def layer(key):
        return lim.TransformerField(*ARCHITECTURES[name](key, width))

    shapes = jax.eval_shape(lambda: jax.vmap(layer)(jax.random.split(jax.random.key(0), depth)))
    return lim.ResidualFlow(randomised(shapes, seed), horizon, profile, step)
