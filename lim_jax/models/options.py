"""What a configuration says: every option is asked for, known to change nothing, or refused.

An option that is passed over unseen would give another network than the publisher's, silently.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lim_jax._checks import described, require

# What changes no number of the network: sampling, training, labels of other heads, the file itself,
# how others' programs compute it.
HARMLESS = frozenset(
    """
    activation_dropout architectures attention_dropout attention_probs_dropout_prob
    attention_softmax_in_fp32 _attn_implementation _attn_implementation_autoset attn_pdrop auto_map
    aux_loss_alpha bad_words_ids begin_suppress_tokens bias_dropout_fusion bos_token_id
    cache_implementation classifier_dropout decoder_start_token_id diversity_penalty do_sample
    dropout dtype early_stopping embd_pdrop embed_dropout embedding_dropout
    encoder_no_repeat_ngram_size eod_token_id eos_token_id exponential_decay_length_penalty
    finetuning_task _flash_attn_2_enabled for_llm_compressor forced_bos_token_id forced_eos_token_id
    gradient_checkpointing hidden_dropout hidden_dropout_prob id2label init_std initializer_factor
    initializer_range input_jitter_noise is_decoder is_llama_config keys_to_ignore_at_inference
    label2id layerdrop length_penalty masked_softmax_fusion max_length max_position_embeddings
    max_sequence_length min_length model_max_length model_type n_ctx n_positions _name_or_path
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences offset_alibi
    output_attentions output_hidden_states output_router_logits output_scores pad_token_id prefix
    pretraining_tp problem_type remove_invalid_values reorder_and_upcast_attn repetition_penalty
    resid_dropout resid_pdrop residual_dropout return_dict return_dict_in_generate
    router_aux_loss_coef router_jitter_noise scale_attention_softmax_in_fp32 sep_token_id seq_aux
    seq_length skip_bias_add skip_bias_add_qkv slow_but_exact summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype
    torchscript transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed
    unsloth_version use_bfloat16 use_cache use_parallel_embedding
    """.split()
)
# Families whose classes have another name.
CLASSES = {"hunyuan_v1_dense": "hunyuandensev1"}
# What any family may state, as long as it states what is meant here.
MEANT = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "is_causal": True,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "rope_interleaved": False,
    "tie_encoder_decoder": False,
    "use_mrope": False,
}


class Configuration(Mapping[str, Any]):
    """A configuration that remembers which of its options were asked for.

    Examples
    --------
    >>> options = Configuration({"width": 8, "depth": 2})
    >>> options["width"], options.get("heads", 1), sorted(options.asked)
    (8, 1, ['heads', 'width'])
    """

    def __init__(self, options: Mapping[str, Any]):
        self.options, self.asked = options, set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return self.options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)


def refuse_unknown(options: Configuration) -> None:
    """Refuse what was not asked for and is not known to change nothing; null states nothing.

    Examples
    --------
    >>> refuse_unknown(Configuration({"use_cache": True, "is_causal": True, "logit_scale": None}))
    >>> refuse_unknown(Configuration({"logit_scale": 0.5}))
    Traceback (most recent call last):
    ValueError: config.json: got logit_scale = 0.5, expected options of the family. ...
    """
    refuse_options(options, **MEANT)
    for name, value in options.options.items():
        require(
            value is None or name in options.asked or name in HARMLESS,
            "config.json",
            got=f"{name} = {described(value)}",
            expected="options of the family",
            cure="It may change the network, whose numbers would be others than the publisher's.",
        )


def refuse_options(config: Mapping[str, Any], **meant: Any) -> None:
    """Refuse options of another value than the one that is meant here, the family's default.

    Null is as good as false, zero or nothing, as publishers' own readers have it.
    """
    for name, value in meant.items():
        found = config.get(name, value)
        require(
            found == value or (found is None and not value),
            "config.json",
            got=f"{name} = {described(found)}",
            expected=f"{value}",
            cure="The family's networks with this option are not known here.",
        )


def refuse_other_architectures(config: Mapping[str, Any], family: str) -> None:
    """Refuse weights that say they are of another family than the options are."""
    stem = CLASSES.get(family, family.removesuffix("_text")).replace("_", "")
    known = rf"{stem}(for|lmhead|model|doubleheads)"
    for name in config.get("architectures") or ():
        require(
            re.match(known, str(name).lower().replace("_", "")) is not None,
            "config.json",
            got=f"architectures = {name} with model_type = {family}",
            expected="one family in both",
            cure="A model_type that was changed by hand reads the weights as another network.",
        )


def whole(
    config: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1
) -> int:
    """A whole number of the configuration, positive or at least zero."""
    found = config.get(name, default)
    require(
        isinstance(found, int) and not isinstance(found, bool) and found >= least,
        "config.json",
        got=f"{name} = {described(found)}",
        expected="a positive whole number" if least else "a whole number from zero",
        cure="Download it again.",
    )
    assert isinstance(found, int)
    return found


def positive(config: Mapping[str, Any], name: str, default: float | int | None = None) -> float:
    """A positive number of the configuration."""
    found = config.get(name, default)
    usual = isinstance(found, int | float) and not isinstance(found, bool)
    require(
        usual and 0 < float(found) < math.inf,
        "config.json",
        got=f"{name} = {described(found)}",
        expected="a positive number",
        cure="Download it again.",
    )
    return float(found or 0)


def number(config: Mapping[str, Any], name: str, default: float) -> float:
    """A small positive number of the configuration."""
    found = config.get(name, default)
    require(
        isinstance(found, int | float) and 0 < float(found) < 1,
        "config.json",
        got=f"{name} = {described(found)}",
        expected="a small positive number",
        cure="Download it again.",
    )
    return float(found)


def chosen(config: Mapping[str, Any], name: str, known: Mapping[str, Any], default: str) -> Any:
    """One of the choices that are known here."""
    found = config.get(name, default)
    require(
        isinstance(found, str) and found in known,
        "config.json",
        got=f"{name} = {described(found)}",
        expected=" or ".join(known),
        cure="Another one is another network.",
    )
    return known[found]
