"""What a configuration says: every option is asked for, known to change nothing, or refused.

An option that is passed over unseen would give another network than the publisher's, silently.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lim_jax._checks import described, require

# What changes no number of the network: sampling, training, labels of other heads, the file itself.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _name_or_path architectures attention_dropout
    attention_probs_dropout_prob attn_pdrop begin_suppress_tokens bos_token_id classifier_dropout
    decoder_start_token_id do_sample dtype embd_pdrop eos_token_id finetuning_task
    gradient_checkpointing hidden_dropout hidden_dropout_prob id2label initializer_factor
    initializer_range is_decoder is_llama_config keys_to_ignore_at_inference label2id
    max_position_embeddings max_sequence_length model_max_length model_type n_ctx num_labels
    output_attentions output_hidden_states pad_token_id pretraining_tp problem_type
    reorder_and_upcast_attn resid_pdrop return_dict sep_token_id summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj task_specific_params
    temperature tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version unk_token_id use_bfloat16 use_cache
    """.split()
)
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
    """Refuse options of another value than the one that is meant here, the family's default."""
    for name, value in meant.items():
        found = config.get(name, value)
        require(
            found is None or found == value,
            "config.json",
            got=f"{name} = {described(found)}",
            expected=f"{value}",
            cure="The family's networks with this option are not known here.",
        )


def refuse_other_architectures(config: Mapping[str, Any], family: str) -> None:
    """Refuse weights that say they are of another family than the options are."""
    stem = family.replace("_", "")
    known = rf"{stem}(for|lmhead|model|doubleheads)"
    for name in config.get("architectures") or ():
        require(
            re.match(known, str(name).lower()) is not None,
            "config.json",
            got=f"architectures = {name} with model_type = {family}",
            expected="one family in both",
            cure="A model_type that was changed by hand reads the weights as another network.",
        )
