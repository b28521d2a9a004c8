"""Decoders of linear attention: MiniMax's lightning attention, Kimi's delta rule."""

from dataclasses import replace
from typing import Any, NamedTuple

from lim_jax.checkpoints import recurrent_sublayers, rope_config, sublayers
from lim_jax.checkpoints.families.deepseek import beside_shared, count_mtp_layers, latent_like
from lim_jax.checkpoints.families.hybrid import LINEAR, mix_kinds, multiplied
from lim_jax.checkpoints.families.mixture import OF_MIXTRAL, mixtral
from lim_jax.checkpoints.options import Configuration, refuse_unknown, require_config
from lim_jax.checkpoints.recipe import Names, Recipe
from lim_jax.checkpoints.rope_config import FULL, PART
from lim_jax.checkpoints.tensor_reader import Reader
from lim_jax.network.field import SumOfFields
from lim_jax.network.tokenwise import NormedResidual

OF_LING = Names(
    embedding="word_embeddings", output="attention.dense", output_gate="attention.g_proj"
)
# Tensors that follow from a layer's number.
OF_LIGHTNING = tuple(
    f"self_attn.{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
)
# DeepSeek's names of Kimi's options.
OF_KIMI = {
    "moe_renormalize": "norm_topk_prob", "moe_router_activation_func": "scoring_func",
    "num_expert_group": "n_group", "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
}  # fmt: skip


class OnNorm(NamedTuple):
    """A reader of a sublayer whose residual path has its norm: a LN(x) + b f(x), not x + f(x)."""

    sublayer: Any
    residual: float
    added: float

    def __call__(self, read: Reader, at: str, recipe: Recipe, *more: Any) -> SumOfFields:
        """Read the sublayer, and add its norm as a second field."""
        field = self.sublayer(read, at, recipe, *more)
        if self.added != 1:
            field = replace(field, output_norm=multiplied(self.added))
        return SumOfFields((field, NormedResidual(field.norm, self.residual)))


def minimax(config: Configuration) -> Recipe:
    """MiniMax 01 and M1: lightning attention, every eighth layer softmax; residuals are normed."""
    recipe = mixtral(config)
    sizes = recipe.sizes
    config.refuse(postnorm=True, shared_intermediate_size=0)
    config.ignore("block_size", "shared_moe_mode")
    part = config.get_int_or("rotary_dim", sizes.head_dim) / sizes.head_dim
    rotary = rope_config.rotary_of(config, sizes.head_dim, default=1e6, default_part=part)
    slides = rope_config.slide_if_stated(config, sizes.depth)

    def factors(name: str, older: str) -> list[float]:
        """Read the factors of a residual path and of its sublayer, by new or old names."""
        pairs = [(f"{name}_{of}_factor", f"layernorm_{older}_{of}") for of in ("alpha", "beta")]
        stated = [new if config.get(new) is not None else old for new, old in pairs]
        return [config.get_positive(option, 1.0) for option in stated]

    residual, added = factors("linear_attn", "linear_attention")
    linear = recurrent_sublayers.lightning(sizes.heads, sizes.head_dim, sizes.depth, added)
    full = recipe._replace(
        masks=rope_config.masks_of(config, slides, rotary),
        attention=OnNorm(sublayers.read_attention, *factors("full_attn", "full_attention")),
        network=OnNorm(recipe.network, *factors("mlp", "mlp")),
        names=recipe.names._replace(ignored=OF_LIGHTNING),
    )
    recipes = {FULL: full, LINEAR: full._replace(attention=OnNorm(linear, residual, 1.0))}
    listed = config.get_list("attn_type_list", None)
    usual = [FULL if k % 2 == 0 else LINEAR for k in range(sizes.depth)]
    if listed is not None:
        usual = [_kind_of_number(number) for number in listed]
    return mix_kinds(recipes, config.get_texts("layer_types") or usual, sizes.depth)


def _kind_of_number(number: Any) -> str:
    """Return the kind of layers that MiniMax's files call 1 or 0; others in their own words."""
    if number == 1:
        return FULL
    if number == 0:
        return LINEAR
    return f"{number}"


def kimi_linear(config: Configuration) -> Recipe:
    """Kimi Linear: Kimi's delta rule, every fourth layer latent attention without positions."""
    config = _with_newer_names(config)
    config.refuse(mla_use_nope=True, use_grouped_topk=True)
    config.ignore("rope_theta")
    linear_config = Configuration(config.get_object("linear_attn_config"))
    heads, size, taps = (
        linear_config.get_int(name, config.get_int(f"linear_{older}", usual))
        for name, older, usual in (
            ("num_heads", "num_heads", 32),
            ("head_dim", "head_dim", 128),
            ("short_conv_kernel_size", "conv_kernel_dim", 4),
        )
    )
    recipe = latent_like(config, 1e-5, None, names=Names(network="block_sparse_moe"))
    depth = recipe.sizes.depth
    full = linear_config.get_list("full_attn_layers", None)
    usual = [FULL if k and k % 4 == 0 else LINEAR for k in range(depth)]
    if full is not None:  # whose first layer is 1
        usual = [FULL if k + 1 in full else LINEAR for k in range(depth)]
        linear = [k + 1 for k, kind in enumerate(usual) if kind == LINEAR]
        require_config(
            sorted(linear_config.get_list("kda_layers") or linear) == linear,
            "kda_layers",
            "all layers that are not in full_attn_layers",
        )
    refuse_unknown(linear_config)
    mixture = beside_shared(config, depth, dense=1, count=256, hidden=1024, factor=2.446)
    recipe = recipe._replace(network=mixture._replace(read=OF_MIXTRAL, dense_name="mlp"))
    delta = recurrent_sublayers.kimi_delta(
        heads, size, taps, names=("self_attn.o_proj",), low_rank=True, least_decay=None
    )
    recipes = {FULL: recipe, LINEAR: recipe._replace(attention=delta)}
    return mix_kinds(recipes, config.get_texts("layer_types") or usual, depth)


def bailing_hybrid(config: Configuration) -> Recipe:
    """Ling 3: Kimi's delta rule, every sixth layer gated latent attention; experts in groups."""
    config.refuse(
        gated_attention_proj_granularity_type="head_wise",
        group_norm_size=1,
        linear_silu=True,
        moe_router_enable_expert_bias=True,
        no_kda_lora=True,
        num_kv_heads_for_linear_attn=0,
        scale_router_input=False,
        score_function="sigmoid",
        up_proj_norm=False,
        use_kda_lora=False,
        use_mla_nope=False,
        use_nGPT=False,
        use_qk_norm=True,
        value_norm=False,
    )
    config.ignore("mtp_loss_scaling_factor", "mtp_use_kda", "router_dtype", PART)
    rope = {name: value for name, value in rope_config.rope_options(config).items() if name != PART}
    config = _with_newer_names(config).replace(rope_parameters=rope, rope_scaling=None)
    recipe = latent_like(config, 1e-6, 6e6, names=OF_LING)
    depth = recipe.sizes.depth
    mixture = beside_shared(config, depth, dense=2, count=512, hidden=768, groups=(8, 4))
    recipe = recipe._replace(
        network=mixture._replace(preference="gate.expert_bias"),
        num_mtp_layers=count_mtp_layers(config),
    )
    bound = config.get("kda_lower_bound", -5.0)
    config.require(
        "kda_lower_bound", bound, isinstance(bound, int | float) and bound < 0, "a negative number"
    )
    delta = recurrent_sublayers.kimi_delta(
        config.get_int("linear_num_heads", recipe.sizes.heads),
        config.get_int("linear_head_dim", config.get_int("head_dim", 128)),
        config.get_int("linear_conv_kernel_dim", config.get_int("short_conv_kernel_size", 4)),
        names=("attention.dense", "attention.o_proj"),
        low_rank=False,
        least_decay=float(bound) if config.get_flag("kda_safe_gate", True) else None,
    )
    period = config.get_int("layer_group_size", 6)
    kinds = config.get_texts("layer_types")
    require_config(
        len(kinds) > 0 or depth % period == 0,
        f"{depth} layers in groups of {period}",
        "groups of one size",
        "Readers disagree about the layers after the last group: state layer_types.",
    )
    recipes = {FULL: recipe, LINEAR: recipe._replace(attention=delta)}
    return mix_kinds(recipes, kinds or rope_config.full_every(period, depth, LINEAR), depth)


def _with_newer_names(config: Configuration) -> Configuration:
    """Return a configuration with Kimi's options under DeepSeek's names."""
    config.ignore(*OF_KIMI)
    stated = {new: config[old] for old, new in OF_KIMI.items() if old in config}
    return config.with_defaults(**stated)
