"""Published configurations, made tiny, beside transformers.

``python benchmarks/published.py [PART]`` (the extra ``parity``) takes those of
tests/checkpoints/published.json whose names contain PART. transformers makes a network of each and
saves it; its ``config.json`` is then replaced by the published one, sizes apart, and the logits of
what `models.load` reads are compared in float64. Weights are in full precision. What is refused is
printed with the reason.
"""

import copy
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import peer_transformers as peer
import torch
import transformers
from configurations import IDS
from record import RESULTS, keep
from safetensors.numpy import load_file, save_file
from tiny import tiny

import lim_jax as lim
from lim_jax._argument_error import Refusal
from lim_jax.checkpoints.families.family_table import recipe_of
from lim_jax.models.reading import open_files

CONFIGS = Path(__file__).parent.parent / "tests" / "checkpoints" / "published.json"
# What transformers calls otherwise, or writes by other names than the publisher does.
CALLED = {"mimo": "qwen2", "kimi_k2": "deepseek_v3"}
INSIDE = dict.fromkeys(("kimi_k25", "llama4"), "language_model.")
LEFT_OUT = "quantization_config", "auto_map", "pad_token_id"  # of a larger vocabulary


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tiny configuration of unquantised weights, which needs no code of its publisher."""
    small = {name: value for name, value in tiny(config).items() if name not in LEFT_OUT}
    if "text_config" in small:
        small["text_config"] = plain(config["text_config"]) | {"num_nextn_predict_layers": 0}
    return small


def difference(config: dict[str, Any], folder: Path) -> float:
    """Return the largest difference of logits, relative to the largest of them."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    file = folder / "model.safetensors"
    save_file({"lm_head.weight": np.zeros(1)}, file)
    recipe_of(open_files(folder).config)  # which says why, if it is not read
    prefix = INSIDE.get(config["model_type"], "")
    theirs = copy.deepcopy(config["text_config"] if prefix else config)  # which it writes into
    theirs["model_type"] = CALLED.get(theirs["model_type"], theirs["model_type"])
    kind = transformers.CONFIG_MAPPING[theirs.pop("model_type")]
    network = peer.save_network(kind(**theirs), folder, {})
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({prefix + name: array for name, array in load_file(file).items()}, file)
    ours = np.asarray(lim.models.load(folder, dtype="float64").logits(jnp.array(IDS)))
    with peer.Doubled():
        expected = peer.copy_in_double(network)(torch.tensor([IDS])).logits[0].detach().numpy()
    return float(f"{np.abs(ours - expected).max() / np.abs(expected).max():.1e}")


def main() -> None:
    """Print a line for each, and keep the differences."""
    part = "".join(sys.argv[1:2])
    rows = []
    for name, config in json.loads(CONFIGS.read_text(encoding="utf-8")).items():
        if part not in name:
            continue
        with tempfile.TemporaryDirectory() as folder, jax.enable_x64(True):
            try:
                gap = difference(plain(config), Path(folder))
            except Refusal as refused:
                print(f"{name:50s} {refused}", flush=True)
                continue
        print(f"{name:50s} {gap:.1e}", flush=True)
        rows.append({"configuration": name, "logits": gap})
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    keep(RESULTS / "published.json", rows, ("configuration",), **versions)


if __name__ == "__main__":
    main()
