"""The memory of a profile, said before weights are read: `benchmarks/sizes.py` measures it."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from reference.hybrids import gated_delta
from reference.publishers import CONFIGS, write

from lim_jax import cost, models
from lim_jax.models import memory
from lim_jax.network.layer_kinds import LayersByKind


def test_what_is_said_grows_as_its_parts_do(tmp_path, monkeypatch):
    # Every leaf of the network is among its weights, in memory or in files.
    folder = write(tmp_path, CONFIGS["llama"])
    opened = models.open(folder)
    whole = models.load(folder)
    leaves = jax.tree.leaves(whole.flow.layers)
    layers = sum(leaf.nbytes for leaf in leaves)
    layer = layers / whole.flow.depth
    tables = sum(np.asarray(table).nbytes for table in (whole.embedding, whole.head))
    size = models.profile_memory(opened, 7)
    beside = (memory.LAYERS_WHOLE - memory.LAYERS_OFFLOADED) * layer
    np.testing.assert_allclose(
        size.in_memory - size.offloaded, layers + tables + beside, rtol=1e-12
    )

    # A token more: its states, the widest numbers of one layer, and its logits of a slice.
    width = whole.embedding.shape[1]
    words = whole.vocabulary
    widest = max(max(leaf.shape[1:]) for leaf in leaves)
    a_token = (whole.flow.depth + 1) * width + memory.TOKENS * widest + memory.SLICES * words
    longer = models.profile_memory(opened, 8)
    np.testing.assert_allclose(np.subtract(longer, size), 4 * a_token, rtol=1e-9)
    # Many states are in files, but for some.
    assert size.by_layers == size.offloaded
    monkeypatch.setattr(memory, "STATES_IN_MEMORY", 0)
    monkeypatch.setattr(memory, "STATES_BY_LAYERS", 1)
    in_files = 4 * whole.flow.depth * width * 7
    np.testing.assert_allclose(
        size.by_layers - models.profile_memory(opened, 7).by_layers, in_files, rtol=1e-9
    )
    norm = sum(leaf.nbytes for leaf in jax.tree.leaves(whole.norm))
    rest = 4 * (7 * a_token + memory.SLICES * words * width) + norm
    parts = memory.PROCESS + rest + memory.LAYERS_OFFLOADED * layer
    np.testing.assert_allclose(size.offloaded, parts, rtol=1e-12)


def test_layers_of_kinds_are_added_up_and_recurrent_heads_count(tmp_path):
    opened = models.open(write(tmp_path, CONFIGS["llama"]))
    layers = opened.flow.layers
    alone = replace(opened.flow, layers=LayersByKind((layers,), (0,) * layers.depth))
    assert models.profile_memory(replace(opened, flow=alone), 7) == models.profile_memory(opened, 7)
    both = LayersByKind((layers, layers), (0, 1) * layers.depth)
    memory_of_kinds, before = (
        models.profile_memory(replace(opened, flow=flow), 7)
        for flow in (replace(alone, layers=both), alone)
    )
    layer = memory._bytes(layers.source.like)
    states = 4 * layers.depth * 7 * 16
    # Twice as many layers, and the next one of each kind is read ahead.
    assert round(memory_of_kinds.offloaded - before.offloaded) == layer + states
    assert round(memory_of_kinds.in_memory - before.in_memory) == layers.depth * layer + states
    assert memory._numbers_of_token(gated_delta()) == 24 * 4  # two heads of two features


@pytest.mark.slow
def test_what_a_job_costs_is_known_of_weights_in_their_files(tmp_path):
    folder = write(tmp_path, CONFIGS["llama"])
    targets, weights = (jax.ShapeDtypeStruct((7,), kind) for kind in ("int32", "float32"))
    y: Any = models.Targets(targets, weights)  # pyright: ignore[reportArgumentType]
    x = jax.ShapeDtypeStruct((7, 16), "float32")

    def job(model, x, y):
        return jax.grad(model.loss)(x, y)

    opened = models.open(folder)
    whole = models.load(folder)
    here, there = (cost.job_cost(job, model, x, y) for model in (whole, opened))
    assert there.operations == here.operations > 0
    layers = sum(leaf.nbytes for leaf in jax.tree.leaves(whole.flow))
    assert here.arguments - there.arguments > layers - 1024  # but fingerprints


def test_a_model_in_memory_is_refused(tmp_path, as_users_run):
    model = models.load(write(tmp_path, CONFIGS["llama"]))
    with pytest.raises(ValueError, match=r"model: got CausalLM.*models\.open"):
        models.profile_memory(model, 7)
    with pytest.raises(ValueError, match="tokens: got 0"):
        models.profile_memory(model, 0)
