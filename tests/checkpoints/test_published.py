"""Published configurations, made tiny: each is read, or refused with the reason."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from reference.as_users import ROOT
from safetensors.numpy import save_file

from lim_jax.checkpoints.checkpoint import Checkpoint
from lim_jax.checkpoints.decoder import read_decoder
from lim_jax.checkpoints.families.family_table import recipe_of
from lim_jax.checkpoints.options import refuse_other_architectures
from lim_jax.models.reading import open_files

CONFIGS = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
TINY = runpy.run_path(str(ROOT / "benchmarks" / "tiny.py"))["tiny"]
# Of those that are not read, by how their names begin, the words of the reason.
REFUSED = {
    "deepseek-ai/DeepSeek-V4": "attention to compressed tokens, and several residual streams",
    "nvidia/DeepSeek-V4": "attention to compressed tokens, and several residual streams",
    "sgl-project/DeepSeek-V4": "'deepseek_ref' with indexed attention layers",
    "moonshotai/Kimi-K3": "layers that read what blocks of earlier layers gave",
    "MiniMaxAI/MiniMax-M3": "attention to blocks of tokens that an index chooses",
    "nvidia/MiniMax-M3": "attention to blocks of tokens that an index chooses",
    "XiaomiMiMo/MiMo-V2": "layers that differ in their numbers of key heads",
    "stepfun-ai/Step-3.7": "layers that differ in their numbers of heads",
}


class Everything(dict):
    """The files of every tensor."""

    def __contains__(self, name):
        return True


class Zeros(Checkpoint):
    """Of which every tensor that is asked for is zero, of whatever shape."""

    def read(self, name, shape, dtype="float32"):
        return np.zeros(shape, dtype)

    def shape(self, name):
        return ()

    def rows(self, name, shape):
        return lambda part: np.zeros((part.stop - part.start, *shape[1:]))


def read(folder, config):
    """The parts of a network of these options."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"lm_head.weight": np.zeros(2, np.float32)}, folder / "model.safetensors")
    source = open_files(folder)
    recipe = recipe_of(source.config)
    refuse_other_architectures(source.config, source.config["model_type"])
    return read_decoder(Zeros(source.config, Everything(), {}), "float32", recipe).parts


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_configuration_is_read_or_refused_with_the_reason(tmp_path, name):
    reason = next((words for start, words in REFUSED.items() if name.startswith(start)), None)
    if reason is not None:
        with pytest.raises(ValueError, match=reason):
            read(tmp_path, TINY(CONFIGS[name]))
        return
    parts = read(tmp_path, TINY(CONFIGS[name]))
    assert parts["embedding"].shape == (37, 64)


def test_every_reason_is_of_a_configuration():
    for start in REFUSED:
        assert any(name.startswith(start) for name in CONFIGS), start
