"""Every option of every family's configuration beside transformers: the same numbers, or a refusal.

``python benchmarks/changed_options.py`` (the extra ``parity`` brings torch and transformers) takes
each family's configuration, changes its options one at a time to other values, leaves them out,
sets them null, and spells them as older files do. transformers makes a small network of each, with
weights off their defaults, and reads its folder; `models.load` must give the same logits of the
same folder, or refuse it in words. It prints what is neither, and keeps the counts.
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers as t
from record import RESULTS, keep
from safetensors.numpy import save_file

import lim_jax as lim

Document = dict[str, Any]
NEAR = 3e-6  # of the largest logit
ROUNDING = 1e-4  # up to which float32 is done again in float64
GONE = object()  # leaves an option out
VERDICTS = ("equal", "refused", "unmade", "wrong", "foreign")
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7, 30]
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
NO_WORDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
SIZES = {
    "vocab_size": 37, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
GPT = {"vocab_size": 37, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64, "n_inner": 40}
HEADS = {"head_dim": 8}
WINDOW = {"sliding_window": 4}
MIXED = WINDOW | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
    "v_head_dim": 5, "moe_intermediate_size": 9, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "num_key_value_heads": 4, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
}  # fmt: skip
# What each family's configuration says beside the sizes, small enough for logits in a moment.
FAMILIES: dict[str, Document] = {
    "afmoe": HEADS | MIXED | {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 10},
    "arcee": {}, "bloom": {"n_layer": 3, "n_head": 4}, "cohere": {}, "cohere2": MIXED,
    "deepseek_v2": LATENT, "deepseek_v3": LATENT, "ernie4_5": HEADS, "exaone4": MIXED,
    "falcon": {}, "gemma": HEADS, "gemma2": HEADS | MIXED, "gemma3_text": HEADS | MIXED,
    "glm": HEADS, "glm4": HEADS, "gpt2": GPT,
    "gpt_neo": {"num_layers": 3, "num_heads": 4, "window_size": 4,
                "attention_types": [[["global", "local"], 1], [["local"], 1]]},
    "gpt_neox": {"hidden_size": 32}, "gpt_oss": EXPERTS | HEADS | MIXED,
    "gptj": GPT | {"rotary_dim": 4},
    "granite": {}, "granitemoe": EXPERTS, "helium": {"head_dim": 6},
    "hunyuan_v1_dense": HEADS, "llama": {},
    "llama4_text": HEADS | {
        "num_local_experts": 3, "num_experts_per_tok": 1, "intermediate_size_mlp": 20,
        "attention_chunk_size": 5, "floor_scale": 4, "no_rope_layers": [1, 0, 1],
        "interleave_moe_layer_step": 2},
    "ministral": HEADS | MIXED, "mistral": WINDOW, "mixtral": EXPERTS,
    "nemotron": {"hidden_size": 32}, "olmo2": {}, "olmo3": MIXED,
    "opt": {"ffn_dim": 40, "word_embed_proj_dim": 24}, "phi": {"hidden_size": 32}, "phi3": {},
    "qwen2": {}, "qwen3": HEADS,
    "qwen3_moe": HEADS | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 10},
    "seed_oss": HEADS, "smollm3": {"no_rope_layers": [1, 0, 1]},
    "stablelm": {"hidden_size": 32}, "starcoder2": {},
}  # fmt: skip
ACTIVATIONS = (
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "gelu_10", "gelu_python",
    "relu", "relu2", "relu6", "silu", "swish", "tanh", "mish",
)  # fmt: skip
KINDS = ("full_attention", "sliding_attention", "chunked_attention")
LAYERS = [[a, b, c] for a in KINDS for b in KINDS for c in KINDS[:2]]
THETA = {"rope_theta": 300.0}
TRAINED = {"original_max_position_embeddings": 8}
YARN = {"rope_type": "yarn", "factor": 4.0} | TRAINED
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Scalings of rotary positions; those of longrope are made for the size of a head.
SCALINGS: list[Document] = [
    {}, {"rope_type": "default"}, {"type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 3}, {"factor": 3.0}, {"type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0} | TRAINED,
    {"rope_type": "dynamic", "alpha": 50.0}, {"type": "dynamic", "factor": 2.0, "alpha": 50.0},
    LLAMA3 | TRAINED, LLAMA3, {"type": "llama3"} | LLAMA3 | TRAINED,
    YARN, {"type": "yarn"} | YARN, YARN | {"factor": None}, YARN | {"attention_factor": 1.7},
    YARN | {"beta_fast": 4, "beta_slow": 0.5}, YARN | {"truncate": False},
    YARN | {"mscale": 0.7}, YARN | {"mscale_all_dim": 0.7},
    YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}, YARN | {"mscale": 0, "mscale_all_dim": 1.0},
    YARN | {"finetuned": True}, {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "longrope"}, {"type": "su"}, {"type": "longrope"} | TRAINED,
    {"rope_type": "longrope", "factor": 4.0} | TRAINED,
    {"rope_type": "longrope", "attention_factor": 1.3} | TRAINED,
    {"type": "longrope", "short_mscale": 1.1, "long_mscale": 1.2} | TRAINED,
    {"rope_type": "proportional", "factor": 2.0}, {"rope_type": "proportional"},
    {"rope_type": "mrope", "mrope_section": [1, 1, 1]}, {"partial_rotary_factor": 0.5},
    {"rope_type": "yarn", "partial_rotary_factor": 0.5} | YARN,
]  # fmt: skip
# Other values of options by name, where their kind does not tell enough.
OTHER: dict[str, list[Any]] = {
    "architectures": [["GPT2LMHeadModel"], ["LlamaForCausalLM"], []],
    "attention_chunk_size": [2, 14, 100], "attention_types": [[[["local"], 3]]],
    "attention_layers": [["local", "global", "local"]], "dtype": ["bfloat16"],
    "experts_implementation": ["eager"], "first_k_dense_replace": [0, 2, 3],
    "floor_scale": [1, 2, 100], "head_dim": [4, 6, 10, 16], "hidden_size": [16, 32, 48],
    "hidden_act": [*ACTIVATIONS], "hidden_activation": [*ACTIVATIONS],
    "activation_function": [*ACTIVATIONS], "activation": [*ACTIVATIONS],
    "interleave_moe_layer_step": [1, 3], "layer_types": LAYERS, "max_position_embeddings": [16, 32],
    "max_window_layers": [0, 1, 2, 3], "mlp_only_layers": [[0], [1, 2], [0, 1, 2]],
    "model_type": ["llama", "qwen2", "gemma", "granite"], "moe_layers": [[], [0], [0, 2]],
    "moe_layer_freq": [2], "n_group": [1, 2], "no_rope_layer_interval": [1, 2, 3],
    "no_rope_layers": [[0, 0, 1], [1, 1, 1], [0, 0, 0], []], "num_attention_heads": [2, 8],
    "num_key_value_heads": [1, 2, 4], "num_kv_heads": [1, 2, 4], "n_head": [2, 3, 6],
    "num_experts_per_tok": [1, 2, 4], "num_hidden_layers": [2], "n_layer": [2], "num_layers": [2],
    "num_local_experts": [2, 6], "num_experts": [4, 6], "n_routed_experts": [4, 12],
    "n_shared_experts": [0, 2], "num_ln_in_parallel_attn": [1, 2],
    "num_nextn_predict_layers": [0, 2], "ep_size": [2], "pretraining_tp": [2],
    "partial_rotary_factor": [0.5, 1.0], "rotary_pct": [0.5, 1.0], "rotary_dim": [2, 6],
    "qk_rope_head_dim": [2, 8], "q_lora_rank": [4], "scoring_func": ["softmax", "sigmoid"],
    "sliding_window": [1, 3, 5, 13, 14, 100], "_sliding_window_pattern": [1, 2, 3],
    "sliding_window_pattern": [1, 2, 3, "LLG"], "topk_group": [1, 3, 4],
    "topk_method": ["greedy", "group_limited_greedy", "noaux_tc"], "window_size": [1, 2, 14],
    "norm_topk_prob": [True, False], "use_bidirectional_attention": [True, "all", False],
    "quantization_config": [{"quant_method": "fp8"}], "word_embed_proj_dim": [16],
    "attn_implementation": ["eager"], "rope_theta": [100.0, 500_000.0],
    "rope_local_base_freq": [100.0], "rotary_emb_base": [100], "default_theta": [100.0],
}  # fmt: skip
# What files say beside what transformers writes today.
OLDER: list[Document] = [
    {"rope_parameters": GONE, "rope_theta": 300.0, "rope_local_base_freq": 50.0},
    {"rope_parameters": GONE, "partial_rotary_factor": 0.5},
    {"rope_parameters": GONE, "rotary_pct": 0.5}, {"rope_parameters": GONE, "rotary_emb_base": 99},
    {"rope_theta": 300.0}, {"rope_theta": 300}, {"rope_local_base_freq": 50.0},
    {"partial_rotary_factor": 0.5}, {"rotary_pct": 0.5}, {"rotary_emb_base": 99},
    {"layer_types": GONE, "sliding_window_pattern": 2}, {"layer_types": GONE, "sliding_window": 3},
    {"layer_types": GONE, "_sliding_window_pattern": 2}, {"layer_types": None, "sliding_window": 3},
    {"layer_types": GONE, "sliding_window": None}, {"layer_types": GONE, "sliding_window": GONE},
    {"layer_types": GONE, "sliding_window_pattern": "LLG"},
    {"layer_types": GONE, "use_sliding_window": True, "sliding_window": 3},
    {"layer_types": GONE, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 3},
    {"use_sliding_window": True, "sliding_window": None},
    {"use_sliding_window": False, "sliding_window": 3},
    {"layer_types": ["sliding_attention"] * 3, "sliding_window": None},
    {"layer_types": GONE, "no_rope_layers": GONE}, {"no_rope_layers": None},
    {"layer_types": GONE, "no_rope_layers": GONE, "no_rope_layer_interval": 2},
    {"moe_layers": GONE, "interleave_moe_layer_step": 1},
    {"new_decoder_architecture": True, "num_kv_heads": 2},
    {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    {"new_decoder_architecture": True, "num_kv_heads": 2, "parallel_attn": False},
    {"multi_query": False, "parallel_attn": False, "bias": True}, {"multi_query": False},
    {"use_parallel_residual": True, "qk_layernorm": True}, {"attention_layers": GONE},
    {"tie_word_embeddings": GONE, "hidden_act": GONE}, {"hidden_activation": GONE},
    {"hidden_act": "gelu", "hidden_activation": None}, {"n_embed": 32, "hidden_size": GONE},
    {"num_attention_heads": 4, "n_head": GONE}, {"head_dim": None, "num_key_value_heads": None},
    {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
    {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1},
    {"is_causal": False}, {"add_cross_attention": True}, {"is_decoder": True},
    {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
]  # fmt: skip


def other_values(name: str, value: Any) -> list[Any]:
    """Return other values that an option may have, by its name or by its kind."""
    if name in OTHER:
        return [other for other in OTHER[name] if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value] if value else [1, 2]
    if isinstance(value, float):
        if value == 0:
            return [0.3]
        return [0.01] if 0 < value < 1e-3 else [0.4 * value, 1.7 * value]
    return [0.5, 2, True] if value is None else []


def edits(document: Document) -> Iterator[Document]:
    """Yield all changes of a family's configuration, those of one option first."""
    for name, value in document.items():
        yield {name: GONE}
        yield {name: None}
        yield from ({name: other} for other in other_values(name, value))
    for edit in OLDER:
        if all(name in document for name, value in edit.items() if value is GONE):
            yield edit
    yield from borrowed_options(document)
    if "rope_parameters" in document or "rope_theta" in document:
        yield from rope_edits(document)


def rope_edits(document: Document) -> Iterator[Document]:
    """Yield scalings in both spellings, the older one alone and beside the newer."""
    size = document.get("head_dim") or document.get("hidden_size", 24) // 4
    size = document.get("qk_rope_head_dim", size)
    kinds = set(document.get("rope_parameters") or ()) & set(KINDS)
    for scaling in SCALINGS:
        rope = dict(scaling)
        if rope.get("rope_type", rope.get("type")) in ("longrope", "su"):
            counts = np.arange(size // 2)
            rope |= {"short_factor": (1 + counts / 4).tolist()}
            rope |= {"long_factor": (1 + 2.0 * counts).tolist()}
        for newer in (rope | THETA, rope):
            yield {"rope_parameters": dict.fromkeys(kinds, newer) if kinds else newer}
        if kinds:
            yield {"rope_parameters": rope}
            yield {"rope_parameters": {"full_attention": rope | THETA}}
        yield {"rope_scaling": rope, "rope_parameters": GONE} | THETA
        yield {"rope_scaling": rope, "rope_parameters": GONE}
        yield {"rope_scaling": rope}
        yield {"rope_scaling": rope} | THETA
    yield {"rope_scaling": [1]}
    yield {"rope_parameters": [1]}


def apply_edit(document: Document, edit: Document) -> Document:
    """Return a configuration with an edit's values, without those that are gone."""
    return {name: value for name, value in (document | edit).items() if value is not GONE}


def spell(edit: Document) -> str:
    """Spell an edit in words."""
    words = {name: "(left out)" if value is GONE else value for name, value in edit.items()}
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in words.items())


def config_of(family: str) -> t.PretrainedConfig:
    """Return a family's configuration, small."""
    kind: Any = t.models.auto.configuration_auto.CONFIG_MAPPING[family]
    sizes = {name: value for name, value in SIZES.items() if name in kind.__dataclass_fields__}
    return kind(**(NO_WORDS | sizes | FAMILIES[family]))


def borrowed_options(document: Document) -> Iterator[Document]:
    """Yield options of other families, one at a time."""
    options = {name: value for f in FAMILIES for name, value in config_of(f).to_dict().items()}
    for name in sorted(set(options) - set(document)):
        yield {name: (other_values(name, options[name]) or [options[name]])[0]}


class Audit:
    """One family's folder, written anew for each edit."""

    def __init__(self, family: str, folder: Path):
        self.family = family
        self.folder = folder
        self.done = {}  # logits by all that a model is: many options change nothing
        self.save_network(config_of(family))
        self.document = json.loads((folder / "config.json").read_text(encoding="utf-8"))

    def save_network(self, config: t.PretrainedConfig) -> None:
        """Save a network of a configuration, with weights off their defaults."""
        torch.manual_seed(0)
        network = t.AutoModelForCausalLM.from_config(config, **EAGER)
        with torch.no_grad():
            preferences = [b for name, b in network.named_buffers() if "correction" in name]
            for parameter in [*network.parameters(), *preferences]:
                spread = 0.15 if parameter.ndim > 1 else 0.3
                parameter.add_(spread * torch.randn_like(parameter))
        network.save_pretrained(self.folder)

    def write(self, document: Document) -> None:
        """Put a configuration into the folder, in place of its own."""
        (self.folder / "config.json").write_text(json.dumps(document), encoding="utf-8")

    def verdict(self, edit: Document, *, save_unedited: bool = False) -> tuple[str, str]:
        """Tell equal, refused, unmade by transformers and wrong, and what is wrong.

        With `save_unedited` weights are those of the configuration as it was.
        """
        document = apply_edit(self.document, edit)
        refused = self.refusal(document)
        if refused is not None:
            return refused
        try:
            self.write(self.document if save_unedited else document)
            self.save_network(t.AutoConfig.from_pretrained(self.folder))
            self.write(document)  # which was saved as transformers spells it
            theirs = self.their_logits()
        except Exception as error:  # transformers has no network of such options
            return "unmade", f"{type(error).__name__}: {error}"
        if not np.isfinite(theirs).all():
            return "unmade", "not finite"
        try:
            gap = relative_difference(self.our_logits(), theirs)
            if NEAR < gap < ROUNDING:
                with jax.enable_x64(True):
                    gap = relative_difference(
                        self.our_logits("float64"), self.their_logits(torch.float64)
                    )
        except ValueError as error:
            return "refused", str(error)
        except Exception as error:
            return "foreign", f"{type(error).__name__}: {error}"
        return ("equal", "") if gap <= NEAR else ("wrong", f"{gap:.1e}")

    def refusal(self, document: Document) -> tuple[str, str] | None:
        """Tell whether options alone are refused, and how: no weights are made of these."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(document), encoding="utf-8")
            save_file({"none": np.zeros(1)}, Path(folder) / "model.safetensors")
            try:
                lim.models.load(folder)
            except ValueError as error:
                return ("refused", str(error)) if str(error).startswith("config.json") else None
            except Exception as error:
                return "foreign", f"{type(error).__name__}: {error}"
        return None

    def their_logits(self, dtype: torch.dtype = torch.float32) -> np.ndarray:
        """Compute the folder's logits by transformers, which must find all weights in it."""
        loaded: Any = t.AutoModelForCausalLM.from_pretrained(
            self.folder, output_loading_info=True, dtype=dtype, **EAGER
        )
        network, loading = loaded
        odd = {name: keys for name, keys in loading.items() if keys and name != "unexpected_keys"}
        if odd:
            raise ValueError(f"not all weights fit: {odd}")
        with torch.no_grad():
            return network.eval()(torch.tensor([IDS])).logits[0].numpy()

    def our_logits(self, dtype: str = "float32") -> np.ndarray:
        """Compute the logits by the library, step by step: compiling takes ten times that."""
        model = lim.models.load(self.folder, dtype=dtype)
        leaves, tree = jax.tree.flatten(model)
        network_key = tree, tuple(np.asarray(leaf).tobytes() for leaf in leaves)
        if network_key not in self.done:
            with jax.disable_jit():
                self.done[network_key] = np.asarray(model.logits(jnp.array(IDS, jnp.int32)))
        return self.done[network_key]


def relative_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to the largest entry."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def main() -> None:
    """Print what is neither equal nor refused, and keep a row of counts for each family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    parser.add_argument("--results", type=Path, default=RESULTS / "options.json")
    parser.add_argument("--log", type=Path, help="every edit and what became of it, a line each")
    options = parser.parse_args()
    torch.set_num_threads(1)  # such small products wait for one another
    t.utils.logging.set_verbosity_error()
    t.utils.logging.disable_progress_bar()
    log = open(options.log or os.devnull, "a", encoding="utf-8")
    versions = {"torch": torch.__version__, "transformers": t.__version__}
    for family in options.only:
        with tempfile.TemporaryDirectory() as folder:
            audit = Audit(family, Path(folder))
            counts = Counter()
            tried = set()
            tries = [(edit, False) for edit in edits(audit.document)]
            tries += [({"tie_word_embeddings": tied}, True) for tied in (True, False)]
            for edit, save_unedited in tries:
                if (spell(edit), save_unedited) in tried:
                    continue
                tried.add((spell(edit), save_unedited))
                outcome, words = audit.verdict(edit, save_unedited=save_unedited)
                counts[outcome] += 1
                words = " ".join(words.split())
                print(family, outcome, spell(edit), words, sep="\t", file=log, flush=True)
                if outcome in ("wrong", "foreign"):
                    print(f"{family:18s} {outcome:8s} {spell(edit)}: {words}", flush=True)
        print(f"{family:18s} {dict(counts)}", flush=True)
        row = {"family": family, "tried": len(tried)} | {name: counts[name] for name in VERDICTS}
        keep(options.results, [row], ("family",), **versions)


if __name__ == "__main__":
    main()
