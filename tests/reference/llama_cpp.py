"""A small Llama as a file of llama.cpp."""

import gguf
import numpy as np
from reference import publishers
from reference.publishers import CONFIGS, DEPTH, HEADS, HIDDEN, WIDTH, WORDS

CONFIG = CONFIGS["llama"]
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def neighbours(rows, heads):
    """llama.cpp's order: feature m of a head beside feature m + size / 2."""
    size = len(rows) // heads
    order = [
        h * size + m + half * size // 2
        for h in range(heads)
        for m in range(size // 2)
        for half in (0, 1)
    ]
    return rows[order]


def write(file, architecture="llama", split_max_tensors=0, **options):
    writer = gguf.GGUFWriter(file, architecture, split_max_tensors=split_max_tensors)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(DEPTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_vocab_size(WORDS)
    writer.add_layer_norm_rms_eps(1e-3)
    writer.add_context_length(32)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    if factors := options.pop("factors", None):
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    for name, value in options.items():
        getattr(writer, f"add_{name}")(value)
    for name, array in publishers.tensors(CONFIG).items():
        stem = name.removesuffix(".weight")
        layer = ""
        if stem.startswith("model.layers."):
            _, _, index, stem = stem.split(".", 3)
            layer = f"blk.{index}."
        heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": 2}.get(stem)
        array = array if heads is None else neighbours(array, heads)
        writer.add_tensor(f"{layer}{NAMES[stem]}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
