"""The same weights for whoever draws them: a folder of a network, by the shapes of its tensors."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


def draw(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Draw normal numbers by name in order: vectors about 1/2, by 0.3, others about 0, by 0.2.

    Norms keep the size of what they take so, and biases are not small beside it.
    """
    generator = np.random.default_rng(7)
    arrays = {}
    for name in sorted(shapes):
        centre, spread = (0.5, 0.3) if len(shapes[name]) == 1 else (0.0, 0.2)
        numbers = centre + spread * generator.standard_normal(shapes[name])
        arrays[name] = np.asarray(numbers, np.float32)
    return arrays


def write(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> Path:
    """Write a folder as it is published, with such weights."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(draw(shapes), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
