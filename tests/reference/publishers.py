"""Networks as their publishers write them: configurations, tensors by name, and logits in NumPy.

Written apart from the library: rows are tokens, heads are loops, positions are indices.
"""

import json

import numpy as np
from safetensors.numpy import save_file
from scipy.special import erf, softmax
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

WORDS = 11
WIDTH = 16
HEADS = 4
DEPTH = 2
HIDDEN = 10
PLACES = 8
COMMON = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": DEPTH,
    "intermediate_size": HIDDEN,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
CONFIGS = {
    "gpt2": {
        "model_type": "gpt2", "n_embd": WIDTH, "n_head": HEADS, "n_layer": DEPTH, "n_inner": HIDDEN,
        "vocab_size": WORDS, "n_positions": PLACES, "layer_norm_epsilon": 1e-3,
    },
    "gpt_neox": COMMON | {"model_type": "gpt_neox", "rotary_pct": 0.7, "layer_norm_eps": 1e-3},
    "gpt_neox, serial": COMMON | {
        "model_type": "gpt_neox", "use_parallel_residual": False, "hidden_act": "gelu_new",
        "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
    "llama": COMMON | {"model_type": "llama", "num_key_value_heads": 2, "rms_norm_eps": 1e-3},
    "llama, tied and biased": COMMON | {
        "model_type": "llama", "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True,
        "head_dim": 4, "tie_word_embeddings": True,
    },
    "llama 3": COMMON | {"model_type": "llama", "head_dim": 6, "rope_scaling": LLAMA3},
    "llama, linear": COMMON | {
        "model_type": "llama", "head_dim": 6, "rope_theta": 70.0,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    },
    "mistral": COMMON | {
        "model_type": "mistral", "num_key_value_heads": 2, "head_dim": 2, "sliding_window": 3,
    },
    "qwen2": COMMON | {
        "model_type": "qwen2", "num_key_value_heads": 2, "head_dim": 4,
        "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0,
    },
    "qwen3": COMMON | {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 6},
}  # fmt: skip


def shapes(config):
    """The name and shape of every tensor."""
    family = config["model_type"]
    d = WIDTH
    h = HIDDEN
    if family == "gpt2":
        layer = {
            "ln_1": (d,), "attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "ln_2": (d,),
            "mlp.c_fc": (d, h), "mlp.c_proj": (h, d),
        }  # fmt: skip
        tensors = {"wte.weight": (WORDS, d), "wpe.weight": (PLACES, d)} | biased("ln_f", (d,), d)
        for k in range(DEPTH):
            for name, shape in layer.items():
                tensors |= biased(f"h.{k}.{name}", shape, shape[-1])
        return tensors
    if family == "gpt_neox":
        layer = {
            "input_layernorm": (d,), "post_attention_layernorm": (d,), "attention.dense": (d, d),
            "attention.query_key_value": (3 * d, d), "mlp.dense_h_to_4h": (h, d),
            "mlp.dense_4h_to_h": (d, h),
        }  # fmt: skip
        tensors = {"gpt_neox.embed_in.weight": (WORDS, d), "embed_out.weight": (WORDS, d)}
        tensors |= biased("gpt_neox.final_layer_norm", (d,), d)
        for k in range(DEPTH):
            for name, shape in layer.items():
                tensors |= biased(f"gpt_neox.layers.{k}.{name}", shape, shape[0])
        return tensors
    return llama_shapes(config)


def biased(name, shape, rows):
    return {f"{name}.weight": shape, f"{name}.bias": (rows,)}


def llama_shapes(config):
    d = WIDTH
    size = config.get("head_dim", WIDTH // HEADS)
    q = HEADS * size
    kv = config.get("num_key_value_heads", HEADS) * size
    tensors = {"model.embed_tokens.weight": (WORDS, d), "model.norm.weight": (d,)}
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = (WORDS, d)
    for k in range(DEPTH):
        at = f"model.layers.{k}"
        tensors |= {
            f"{at}.input_layernorm.weight": (d,),
            f"{at}.post_attention_layernorm.weight": (d,),
        }
        rows = {"q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q)}
        for name, shape in rows.items():
            tensors[f"{at}.self_attn.{name}_proj.weight"] = shape
            if config.get("attention_bias") or (config["model_type"] == "qwen2" and name != "o"):
                tensors[f"{at}.self_attn.{name}_proj.bias"] = shape[:1]
        if config["model_type"] == "qwen3":
            tensors |= {f"{at}.self_attn.{name}_norm.weight": (size,) for name in "qk"}
        for name, shape in {"gate": (HIDDEN, d), "up": (HIDDEN, d), "down": (d, HIDDEN)}.items():
            tensors[f"{at}.mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                tensors[f"{at}.mlp.{name}_proj.bias"] = shape[:1]
    return tensors


def tensors(config) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        name: generator.standard_normal(shape).astype(np.float32) / 2
        for name, shape in shapes(config).items()
    }


def write(folder, config, arrays=None):
    """A folder as it is published."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors(config) if arrays is None else arrays, folder / "model.safetensors")
    return folder


LETTERS = "abcdefghijk"


def write_with_letters(folder, config):
    """The same with a tokenizer, to which each letter is a word: its number in `LETTERS`."""
    words = {letter: index for index, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token=LETTERS[-1]))
    tokenizer.pre_tokenizer = Split("", "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(folder / "tokenizer.json"))
    return write(folder, config)


def spelt(ids):
    """A text whose letters have these numbers."""
    return "".join(LETTERS[number] for number in ids)


def logits(config, ids, arrays=None):
    """Of every next word."""
    arrays = tensors(config) if arrays is None else arrays
    t = {name: array.astype(float) for name, array in arrays.items()}
    family = {"gpt2": gpt2, "gpt_neox": neox}.get(config["model_type"], llama)
    return family(config, t, np.asarray(ids))


def layer_norm(t, name, x, eta):
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eta)
    return scaled * t[f"{name}.weight"] + t[f"{name}.bias"]


def rms_norm(t, name, x, eta):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eta) * t[f"{name}.weight"]


def gelu_new(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu(x):
    return x / 2 * (1 + erf(x / np.sqrt(2)))


def dense(t, name, x):
    return x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0)


def attend(q, k, v, window=None):
    """One head: (tokens, size) each."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    scores[np.triu_indices(len(q), 1)] = -np.inf
    if window is not None:
        scores[np.tril_indices(len(q), -window)] = -np.inf
    return softmax(scores, axis=1) @ v


def turned(x, config, turning, base):
    """One head's rows, each turned by its index, in the pairs (m, m + turning / 2)."""
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get(base, 10_000.0))
    out = x.copy()
    for m in range(turning // 2):
        rate = theta ** (-2 * m / turning)
        kind = rope.get("rope_type", rope.get("type"))
        if kind == "linear":
            rate /= rope["factor"]
        if kind == "llama3":
            wave = 2 * np.pi / rate
            low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
            high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
            if wave > low:
                rate /= rope["factor"]
            elif wave > high:
                smooth = (
                    rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]
                ) / (rope["high_freq_factor"] - rope["low_freq_factor"])
                rate = (1 - smooth) * rate / rope["factor"] + smooth * rate
        for place in range(len(x)):
            c = np.cos(place * rate)
            s = np.sin(place * rate)
            a = x[place, m]
            b = x[place, m + turning // 2]
            out[place, m], out[place, m + turning // 2] = a * c - b * s, b * c + a * s
    return out


def gpt2(config, t, ids):
    eta = config["layer_norm_epsilon"]
    x = t["wte.weight"][ids] + t["wpe.weight"][: len(ids)]
    for k in range(DEPTH):
        at = f"h.{k}"
        qkv = layer_norm(t, f"{at}.ln_1", x, eta) @ t[f"{at}.attn.c_attn.weight"]
        q, key, v = np.split(qkv + t[f"{at}.attn.c_attn.bias"], 3, axis=1)
        heads = [attend(q[:, h], key[:, h], v[:, h]) for h in np.split(np.arange(WIDTH), HEADS)]
        x = x + np.hstack(heads) @ t[f"{at}.attn.c_proj.weight"] + t[f"{at}.attn.c_proj.bias"]
        h = layer_norm(t, f"{at}.ln_2", x, eta) @ t[f"{at}.mlp.c_fc.weight"]
        h = gelu_new(h + t[f"{at}.mlp.c_fc.bias"])
        x = x + h @ t[f"{at}.mlp.c_proj.weight"] + t[f"{at}.mlp.c_proj.bias"]
    return layer_norm(t, "ln_f", x, eta) @ t.get("lm_head.weight", t["wte.weight"]).T


def neox(config, t, ids):
    eta = config.get("layer_norm_eps", 1e-5)
    size = WIDTH // HEADS
    rope = config.get("rope_parameters", {})
    turning = int(size * rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25)))
    act = {"gelu_new": gelu_new, "gelu_fast": gelu_new}.get(config.get("hidden_act", "gelu"), gelu)
    x = t["gpt_neox.embed_in.weight"][ids]
    for k in range(DEPTH):
        at = f"gpt_neox.layers.{k}"
        normed = layer_norm(t, f"{at}.input_layernorm", x, eta)
        qkv = dense(t, f"{at}.attention.query_key_value", normed)
        heads = []
        for h in range(HEADS):
            q, key, v = np.split(qkv[:, 3 * size * h : 3 * size * (h + 1)], 3, axis=1)
            q, key = (turned(a, config, turning, "rotary_emb_base") for a in (q, key))
            heads.append(attend(q, key, v))
        attention = dense(t, f"{at}.attention.dense", np.hstack(heads))
        network_input = x if config.get("use_parallel_residual", True) else x + attention
        h = act(
            dense(
                t,
                f"{at}.mlp.dense_h_to_4h",
                layer_norm(t, f"{at}.post_attention_layernorm", network_input, eta),
            )
        )
        x = x + attention + dense(t, f"{at}.mlp.dense_4h_to_h", h)
    head = t.get("embed_out.weight", t["gpt_neox.embed_in.weight"])
    return layer_norm(t, "gpt_neox.final_layer_norm", x, eta) @ head.T


def llama(config, t, ids):
    eta = config.get("rms_norm_eps", 1e-6)
    size = config.get("head_dim", WIDTH // HEADS)
    share = HEADS // config.get("num_key_value_heads", HEADS)
    x = t["model.embed_tokens.weight"][ids]
    kinds = config.get("layer_types") or ["sliding"] * DEPTH
    kinds = ["full"] * config.get("max_window_layers", 0) + kinds
    for k in range(DEPTH):
        at = f"model.layers.{k}"
        attention = f"model.layers.{k}.self_attn"
        normed = rms_norm(t, f"{at}.input_layernorm", x, eta)
        q, key, v = (dense(t, f"{attention}.{name}_proj", normed) for name in "qkv")
        heads = []
        for h in range(HEADS):
            pair = q[:, size * h :][:, :size], key[:, size * (h // share) :][:, :size]
            if config["model_type"] == "qwen3":
                names = (f"{attention}.q_norm", f"{attention}.k_norm")
                pair = (rms_norm(t, n, a, eta) for n, a in zip(names, pair, strict=True))
            query, source = (turned(a, config, size, "rope_theta") for a in pair)
            rows = v[:, size * (h // share) :][:, :size]
            window = config.get("sliding_window") if kinds[k].startswith("sliding") else None
            heads.append(attend(query, source, rows, window))
        x = x + dense(t, f"{attention}.o_proj", np.hstack(heads))
        normed = rms_norm(t, f"{at}.post_attention_layernorm", x, eta)
        gate = dense(t, f"{at}.mlp.gate_proj", normed)
        gated = gate / (1 + np.exp(-gate)) * dense(t, f"{at}.mlp.up_proj", normed)
        x = x + dense(t, f"{at}.mlp.down_proj", gated)
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    return rms_norm(t, "model.norm", x, eta) @ head.T
