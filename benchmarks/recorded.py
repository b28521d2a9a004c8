"""Write tests/checkpoints/recorded.json: logits of transformers, of weights that anybody can draw.

``python benchmarks/recorded.py [FAMILY ...]`` (the extra ``parity``). Of every configuration it
keeps ``config.json`` as transformers saves it, the names and shapes of the tensors there, and some
logits of `random_weights.draw`'s weights, read by transformers and computed in double
(`peer_transformers.Doubled`). `tests/checkpoints/test_families.py` needs neither it nor torch.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import peer_transformers as peer
import torch
import transformers
from configurations import CONFIGURATIONS, IDS, PUBLISHED, chosen, ids_of
from random_weights import write
from safetensors import safe_open

RECORD = Path(__file__).parent.parent / "tests" / "checkpoints" / "recorded.json"
PLACES = [0, 6, 13]
WORDS = [0, 9, 20, 36]  # of which logits are kept
LONG_PLACES = [0, 13, 63, 69]


def record_network(name: str, folder: Path) -> dict[str, Any]:
    """Record one network: its configuration, tensors and logits."""
    config = CONFIGURATIONS[name]
    kind = peer.kind_of(config)
    kind.from_config(config, dtype=torch.float32).save_pretrained(folder)
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        names = [name for name in sorted(file.keys()) if not name.endswith(peer.MADE)]
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    network, loading = kind.from_pretrained(
        write(folder, saved, shapes), **peer.PLAIN, dtype=torch.float32, output_loading_info=True
    )
    missing = [name for name in loading.pop("missing_keys") if not name.endswith(peer.MADE)]
    assert not missing and not any(loading.values()), (missing, loading)
    ids = ids_of(config)
    positions = PLACES if ids is IDS else LONG_PLACES
    with peer.Doubled():
        logits = peer.copy_in_double(network)(torch.tensor([ids])).logits[0].detach()
    return {
        **({} if ids is IDS else {"ids": ids, "places": positions}),
        "config": saved | PUBLISHED.get(name, {}),
        "shapes": shapes,
        "largest": float(logits.abs().max()),
        "logits": logits[positions][:, WORDS].tolist(),
    }


def main() -> None:
    """Write the record, one configuration a line; the others' lines stay."""
    networks = json.loads(RECORD.read_text(encoding="utf-8"))["networks"]
    for name in chosen(sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            networks[name] = record_network(name, Path(folder))
    lines = [
        f"{json.dumps(name)}: {json.dumps(networks[name], separators=(',', ':'))}"
        for name in CONFIGURATIONS
    ]
    header = {
        "ids": IDS,
        "places": PLACES,
        "words": WORDS,
        "transformers": transformers.__version__,
    }
    header_json = json.dumps(header)[:-1]
    RECORD.write_text(
        f'{header_json}, "networks": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
