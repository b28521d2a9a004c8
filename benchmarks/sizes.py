"""What a network of real size takes: peak memory and CPU time of one profile, however it is held.

``python benchmarks/sizes.py`` writes folders of a random Llama, in bfloat16 and shard by shard, and
profiles a last-token loss of one context, in a process of its own for each way of holding the
weights: whole (`models.load`), kept in half precision on the device (``storage_dtype="bfloat16"``;
of the holding ``"bfloat16 host"`` in the host's memory), and left in their files (`models.open`);
``walk`` is the last with a checkpoint, so that states of long contexts are in files too. Any of
them with ``"products"`` takes products in bfloat16. Reading and compiling count; beside stands what
`models.profile_memory` says beforehand. ``--network 7b`` takes a seven-billion one, ``--tokens``
another length; transformers is a row where it is installed. ``--contexts`` takes more of them than
one, which go in batches; of the holding ``"load alone"`` each goes by itself.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from record import RESULTS, keep
from safetensors.numpy import save_file

import lim_jax as lim

# Width, hidden, depth, heads, groups, words, and whether the head is the embedding.
NETWORKS = {
    "1m": (128, 512, 4, 8, 4, 16, False),
    "0.1b": (768, 2048, 12, 12, 4, 32_000, False),
    "1b": (2048, 8192, 16, 32, 8, 128_256, True),
    "7b": (4096, 11_008, 32, 32, 32, 32_000, False),
}
HOLDINGS = "open", "walk", "bfloat16", "bfloat16 products", "bfloat16 host", "float16 host", "load"
NAMES = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"


def config(network: str) -> dict:
    """Return the options of a network, as ``config.json`` has them."""
    width, hidden, depth, heads, groups, words, tied = NETWORKS[network]
    sizes = dict(zip(NAMES.split(), (width, hidden, depth, heads, groups), strict=True))
    return {
        "model_type": "llama",
        "vocab_size": words,
        "tie_word_embeddings": tied,
        **sizes,
        "max_position_embeddings": 131_072,
    }


def shards(network: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the name and shape of every tensor of every shard: one for each layer, one beside."""
    width, hidden, depth, heads, groups, words, tied = NETWORKS[network]
    keys = width // heads * groups
    layer = {
        "input_layernorm": (width,), "post_attention_layernorm": (width,),
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width), "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
    }  # fmt: skip
    beside = {"model.embed_tokens": (words, width), "model.norm": (width,)}
    beside |= {} if tied else {"lm_head": (words, width)}
    shapes_by_file = {"beside.safetensors": beside}
    for index in range(depth):
        layer_shapes = {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
        shapes_by_file[f"layer{index}.safetensors"] = layer_shapes
    return shapes_by_file


def write_network(folder: Path, network: str) -> Path:
    """Write a folder of random weights, as it is published; one shard at a time is in memory."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    weight_map = {}
    for file, shapes in shards(network).items():
        tensors = {}
        for name, shape in shapes.items():
            numbers = generator.standard_normal(shape, np.float32)
            numbers = numbers / np.sqrt(shape[-1]) if len(shape) > 1 else 1 + numbers / 10
            tensors[f"{name}.weight"] = numbers.astype(ml_dtypes.bfloat16)
        save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config(network)), encoding="utf-8")
    return folder


def windows(vocabulary: int, tokens: int, contexts: int) -> np.ndarray:
    """Draw the ids of some contexts, each with the id after it."""
    return np.random.default_rng(1).integers(0, vocabulary, (contexts, tokens + 1))


def load(path: Path, holding: str) -> lim.models.CausalLM:
    """Read the network with its weights held in one of the ways."""
    holding, *how = holding.split()
    compute = "bfloat16" if "products" in how else None
    if holding in ("open", "walk"):
        return lim.models.open(path, compute=compute)
    kept: Any = None if holding == "load" else holding
    return lim.models.load(path, storage_dtype=kept, compute=compute, on_host="host" in how)


def profile(model: lim.models.CausalLM, holding: str, tokens: int, contexts: int) -> np.ndarray:
    """Compute the energies of a last-token loss of some contexts."""
    holding, *how = holding.split()
    rows = [jax.device_put(row) for row in windows(model.vocabulary, tokens, contexts)]
    ask = lim.loss.last_token
    runs = [[row] for row in rows] if "alone" in how else [rows]
    with tempfile.TemporaryDirectory() as kept:
        checkpoint = Path(kept) if holding == "walk" else None
        energies = partial(lim.models.energies_of_ids, model, ask=ask, checkpoint=checkpoint)
        return np.concatenate([np.stack(energies(rows)) for rows in runs])


def profile_by_transformers(path: Path, precision: str, tokens: int, contexts: int) -> np.ndarray:
    """Compute them by transformers, one after the other."""
    import peer_llama

    model = peer_llama.load(path, precision)
    rows = windows(model.config.vocab_size, tokens, contexts)
    return np.stack([peer_llama.energies(model, row) for row in rows])


def measure(path: Path, holding: str, tokens: int, contexts: int, out: Path) -> dict:
    """Profile in this process."""
    peer, _, precision = holding.partition(" ")
    if peer == "transformers":
        np.save(out, profile_by_transformers(path, precision, tokens, contexts))
    else:
        np.save(out, profile(load(path, holding), holding, tokens, contexts))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = int(status.split("VmHWM:")[1].split()[0]) / 2**20
    expected = lim.models.profile_memory(lim.models.open(path), tokens)
    planned = {
        "open": expected.offloaded,
        "walk": expected.by_layers,
        "load": expected.in_memory,
    }
    predicted = planned.get(holding)
    return {
        "CPU seconds": usage.ru_utime + usage.ru_stime,
        "peak GiB": peak,
        "predicted GiB": predicted and predicted / 2**30,
    }


def main() -> None:
    """Print and keep a row for each way of holding the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="1b")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--contexts", type=int, default=1)
    parser.add_argument("--holdings", nargs="*", default=HOLDINGS, help="which, the first is truth")
    parser.add_argument("--folder", type=Path, help="where weights lie, or are put and left")
    parser.add_argument("--measure", nargs=2, help="a holding and a file, in this process")
    options = parser.parse_args()
    if options.measure:
        holding, out = options.measure
        sizes = options.tokens, options.contexts
        print(json.dumps(measure(options.folder, holding, *sizes, Path(out))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "weights"
        rows = []
        first = None
        if not folder.exists():
            write_network(folder, options.network)
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2**30
        for holding in options.holdings:
            out = Path(temporary) / "energies.npy"
            arguments = ["--measure", holding, str(out), "--folder", str(folder)]
            command = [sys.executable, __file__, *arguments, "--tokens", str(options.tokens)]
            command += ["--contexts", str(options.contexts)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            energies = np.load(out)
            first = energies if first is None else first
            off = float(np.abs(energies - first).max() / first.max())
            row = {"network": options.network, "tokens": options.tokens}
            row |= {"contexts": options.contexts, "holding": holding}
            row |= {"weights GiB": weights} | json.loads(done.stdout) | {"difference": off}
            rows.append(row)
            print(row, flush=True)
    keep(RESULTS / "sizes.json", rows, ("network", "tokens", "contexts", "holding"))


if __name__ == "__main__":
    main()
