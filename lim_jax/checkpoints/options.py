"""Options of a configuration: each one is read, known to change nothing, or refused."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from lim_jax._checks import described, require

# Options that change no number of the network: they concern sampling, training, labels of other
# heads, the file itself (`quantised_formats` reads how), or how other programs compute the network.
HARMLESS = frozenset(
    """
    architectures attention_softmax_in_fp32 _attn_implementation _attn_implementation_autoset
    auto_map aux_loss_alpha bad_words_ids begin_suppress_tokens bias_dropout_fusion bos_token_id
    cache_implementation decoder_start_token_id diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size eod_token_id eos_token_id exponential_decay_length_penalty
    finetuning_task _flash_attn_2_enabled for_llm_compressor forced_bos_token_id forced_eos_token_id
    gradient_checkpointing id2label init_std initializer_factor initializer_range input_jitter_noise
    is_decoder is_llama_config keys_to_ignore_at_inference label2id layerdrop length_penalty
    masked_softmax_fusion max_length max_position_embeddings max_sequence_length min_length
    model_max_length model_type n_ctx n_positions _name_or_path no_repeat_ngram_size num_beam_groups
    num_beams num_labels num_return_sequences offset_alibi original_max_position_embeddings
    output_attentions output_hidden_states output_router_logits output_scores pad_token_id prefix
    pretraining_tp problem_type quantization quantization_config remove_invalid_values
    reorder_and_upcast_attn repetition_penalty return_dict return_dict_in_generate
    router_aux_loss_coef router_jitter_noise scale_attention_softmax_in_fp32 sep_token_id seq_aux
    seq_length skip_bias_add skip_bias_add_qkv slow_but_exact summary_activation
    summary_proj_to_labels summary_type summary_use_proj suppress_tokens task_specific_params
    temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript
    transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed unsloth_version
    use_bfloat16 use_cache use_parallel_embedding internal_version _num_labels attn_implementation
    neftune_noise_alpha num_logits_to_keep
    """.split()
)
# Ends of names of tokens with a meaning of their own, and of what training leaves out.
HARMLESS_ENDS = "_token_id", "_token_index", "dropout", "dropout_prob", "pdrop"
# Families whose classes in transformers have another name.
CLASSES = {
    "hunyuan_v1_dense": "hunyuandensev1", "hunyuan_v1_moe": "hunyuanmoev1",
    "internlm3": "(internlm3|llama)", "iquestcoder": "(iquestcoder|llama)",
    "kimi_k2": "(kimik2|deepseekv3)", "sarvam_moe": "(sarvammoe|glm4moe)",
}  # fmt: skip
# Options that any family may state, with the only value that is supported.
SUPPORTED = {
    "add_cross_attention": False, "chunk_size_feed_forward": 0, "is_causal": True,
    "is_encoder_decoder": False, "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip
# How classes of networks end that have another head than that over words.
CLASSIFIES = re.compile("(Classification|QuestionAnswering|MultipleChoice|Reward(Model)?)$")
Options = Mapping[str, Any]
# The files that errors name.
CONFIG = "config.json"
GGUF = "GGUF"
DOWNLOAD = "Download it again."
CONVERT = "Convert the publisher's folder again."
OTHER_OPTION = "Take another model: this option of the family is not known here."
OTHER_NETWORK = (
    "Take another model: this option may change the network, and its numbers would not be the "
    "publisher's."
)


def require_in(source: str, holds: bool, got: str, expected: str, cure: str = "") -> None:
    """Raise ValueError about a file or a tensor, unless `holds`."""
    cure = cure or (CONVERT if source == GGUF else DOWNLOAD)
    require(holds, source, got=got, expected=expected, cure=cure)


require_config = partial(require_in, CONFIG)


class Configuration(Mapping[str, Any]):
    """A file's options, and the names of those that were read."""

    def __init__(self, options: Options, file: str = CONFIG):
        self.options = options
        self.read_names = set()
        self.file = file

    def __getitem__(self, name: str) -> Any:
        """Return an option, and remember that it was read."""
        self.read_names.add(name)
        return self.options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)

    def with_defaults(self, **defaults: Any) -> "Configuration":
        """Return a configuration with defaults for the options that the file does not state."""
        return self.replace(**{**defaults, **self.options})

    def replace(self, **options: Any) -> "Configuration":
        """Return a configuration with some options replaced, and one record of names read."""
        same = Configuration({**self.options, **options}, self.file)
        same.read_names = self.read_names
        return same

    def ignore(self, *names: str) -> None:
        """Mark options as read, since any value of them leaves this network's numbers unchanged."""
        self.read_names.update(names)

    def refuse(self, **supported: Any) -> None:
        """Raise ValueError at options whose value is not the only supported one, the default."""
        # Null is as good as false, zero or nothing, as in transformers.
        for name, only in supported.items():
            value = self.get(name, only)
            holds = value == only or (value is None and not only)
            self.require(name, value, holds, f"{only}", OTHER_OPTION)

    def require(self, name: str, value: Any, holds: bool, expected: str, cure: str = "") -> Any:
        """Return the value of an option if it `holds`, else raise ValueError."""
        require_in(self.file, holds, f"{name} = {described(value)}", expected, cure)
        return value

    def get_int(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an option that is an integer of at least `least`; raise ValueError at others."""
        value = self.get(name, default)
        return self.require(
            name,
            value,
            isinstance(value, int) and not isinstance(value, bool) and value >= least,
            "a positive whole number" if least else "a whole number from zero",
        )

    def get_int_or(self, name: str, default: Any, *, least: int = 1) -> Any:
        """Return an option as `get_int` does, or the default if it is absent or null."""
        return default if self.get(name) is None else self.get_int(name, least=least)

    def get_positive(
        self, name: str, default: float | int | None = None, *, below: float = math.inf
    ) -> float:
        """Return an option that is a positive number below `below`; raise ValueError at others."""
        value = self.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        expected = "a positive number"
        if below < math.inf:
            expected += f" below {below}"
        self.require(name, value, is_number and 0 < value < below, expected)
        return float(value)

    def get_positive_or(self, name: str, default: Any) -> Any:
        """Return an option that is a positive number, or the default if it is absent or null."""
        return default if self.get(name) is None else self.get_positive(name)

    def get_choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return an option that is one of the known words; raise ValueError at others."""
        value = self.get(name, default)
        return self.require(
            name,
            value,
            value in [*choices],
            " or ".join(choices),
            "Take another model: any other value is of another network.",
        )

    def get_text(self, name: str) -> str | None:
        """Return an option that is a text, or None if it is absent or null."""
        value = self.get(name)
        return self.require(name, value, value is None or isinstance(value, str), "a text")

    def get_list(self, name: str, default: Any = ()) -> Any:
        """Return an option that is a list, or the default if it is absent or null."""
        value = self.get(name)
        self.require(name, value, value is None or isinstance(value, list | tuple), "a list")
        return default if value is None else value

    def get_layers(self, name: str, depth: int, default: Any = ()) -> Any:
        """Return an option that lists layers, or the default if it is absent or null."""
        # One that is no layer would pass for a layer of another kind.
        layers = self.get_list(name, default)
        return self.require(
            name,
            layers,
            all(type(layer) is int and 0 <= layer < depth for layer in layers),
            f"a list of layers, each from 0 to {depth - 1}",
        )

    def get_texts(self, name: str) -> Sequence[str]:
        """Return an option that is a list of texts, which is empty if it is absent or null."""
        # A text by itself would be read letter by letter.
        value = self.get(name)
        holds = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
        self.require(name, value, value is None or holds, "a list of texts")
        return value or ()

    def get_object(self, name: str) -> Options:
        """Return an option that is an object, which is empty if it is absent or null."""
        value = self.get(name)
        is_object = value is None or isinstance(value, Mapping)
        self.require(name, value, is_object, "an object of names and values")
        return value or {}

    def get_flag(self, name: str, default: bool = False) -> bool:
        """Return an option that is true or false; raise ValueError at others, such as a text."""
        # Null is as good as false, and 0 and 1 as false and true, as in transformers.
        value = self.get(name, default)
        return bool(self.require(name, value, value is None or value in (0, 1), "true or false"))

    def get_alike(self, name: str, default: Any) -> Any:
        """Return an option that is one value for all layers, or a list of equal values."""
        value = self.get(name)
        values = value if isinstance(value, list) else [default if value is None else value]
        self.require(
            name,
            value,
            len(values) > 0 and all(other == values[0] for other in values),
            "the same in every layer",
        )
        return values[0]


def refuse_unknown(
    config: Configuration, implied: Mapping[str, Sequence[Any]] | None = None
) -> None:
    """Raise ValueError at an option that nobody read, unless null, harmless or `implied`."""
    config.refuse(**SUPPORTED)
    for name, value in config.options.items():
        harmless = name in HARMLESS or name.endswith(HARMLESS_ENDS)
        if value is None or name in config.read_names or harmless:
            continue
        values = (implied or {}).get(name, ())
        is_implied = any(_alike(value, other) for other in values)
        config.require(
            name,
            value,
            is_implied,
            " or ".join(map(str, values)) or "options of the family",
            OTHER_NETWORK,
        )


def _alike(value: Any, other: Any) -> bool:
    """Tell whether two values are equal, numbers up to a relative error of 1e-6."""
    numbers = isinstance(value, int | float) and isinstance(other, int | float)
    return math.isclose(value, other, rel_tol=1e-6) if numbers else value == other


def refuse_other_architectures(config: Configuration, family: str) -> None:
    """Raise ValueError if ``architectures`` names another family, or no language model."""
    expected = "a language model"
    other = "Take the model that it was made from, ...ForCausalLM."
    for name in config.get_texts("architectures"):
        classifies = CLASSIFIES.search(name) is not None
        require_config(
            not classifies,
            f"architectures = {name}, which gives no logits over words",
            expected,
            other,
        )
    stem = CLASSES.get(family, family.removesuffix("_text")).replace("_", "")
    pattern = rf"{stem}(for|lmhead|model|doubleheads)"
    cure = "A model_type that was changed by hand reads the weights as another network."
    for name in config.get_texts("architectures"):
        same = re.match(pattern, name.lower().replace("_", "")) is not None
        require_config(
            same,
            f"architectures = {name} with model_type = {family}",
            "the same family in both",
            cure,
        )
