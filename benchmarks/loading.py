"""What reading weights takes: peak memory beside the weights that come back, and time.

``python benchmarks/loading.py`` makes folders of a random Llama of 125 million parameters, in
bfloat16 and in float32, and fetches SmolLM2's GGUF file as `real_model` does (``--file``
takes one instead). Each is read in a process of its own. MiB are those beyond what the process
holds once everything is imported, pages mapped from files included.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import jax
import ml_dtypes
import numpy as np
import safetensors
from real_model import fetch_weights
from record import RESULTS, keep, peak_memory, seconds
from safetensors.numpy import save_file

import lim_jax as lim

WIDTH = 768
HIDDEN = 2048
DEPTH = 12
HEADS = 12
GROUPS = 4
WORDS = 32_000
CONFIG = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "vocab_size": WORDS,
}
PRECISIONS = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor."""
    keys = WIDTH // HEADS * GROUPS
    layer = {
        "input_layernorm": (WIDTH,),
        "post_attention_layernorm": (WIDTH,),
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (keys, WIDTH),
        "self_attn.v_proj": (keys, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (HIDDEN, WIDTH),
        "mlp.up_proj": (HIDDEN, WIDTH),
        "mlp.down_proj": (WIDTH, HIDDEN),
    }
    outside = {"model.embed_tokens": (WORDS, WIDTH), "lm_head": (WORDS, WIDTH)}
    by_name = outside | {"model.norm": (WIDTH,)}
    for index in range(DEPTH):
        by_name |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in by_name.items()}


def write_folder(folder: Path, precision: str) -> Path:
    """Write a folder of random weights, as it is published."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    tensors = {
        name: generator.standard_normal(shape, np.float32).astype(PRECISIONS[precision])
        for name, shape in shapes().items()
    }
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


def measure(path: Path) -> dict:
    """Read weights in this process."""
    _ = lim.models.load, gguf.GGUFReader, safetensors.safe_open  # loaded when first used
    jax.block_until_ready(jax.device_put(np.zeros(1)))
    models = []
    times = []

    def job() -> None:
        """Read the weights once."""
        models.append(jax.block_until_ready(lim.models.load(path)))

    peak = peak_memory(lambda: times.append(seconds(job)))
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(models)) / 2**20
    return {"weights MiB": weights, "peak MiB": peak, "ratio": peak / weights, "seconds": times[0]}


def main() -> None:
    """Print and keep a row for each kind of file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a GGUF file; fetched if left out")
    parser.add_argument("--read", type=Path, help="weights to read in this process")
    options = parser.parse_args()
    if options.read:
        print(json.dumps(measure(options.read)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = []
        paths = {f"safetensors, {p}": write_folder(folder / p, p) for p in PRECISIONS}
        paths["GGUF, Q4_1"] = options.file or fetch_weights(folder)
        for name, path in paths.items():
            command = [sys.executable, __file__, "--read", str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append({"kind": name} | json.loads(done.stdout))
            print(rows[-1], flush=True)
    keep(RESULTS / "loading.json", rows, ("kind",))


if __name__ == "__main__":
    main()
