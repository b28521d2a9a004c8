"""Every family beside what transformers computed, with weights that both drew; no torch is needed.

`benchmarks/recorded.py` wrote the record, and `benchmarks/parity.py` compares derivatives too.
"""

import json
import runpy
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.as_users import ROOT
from safetensors.numpy import load_file, save_file

from lim_jax import models
from lim_jax._digest import digest
from lim_jax.checkpoints import placement
from lim_jax.checkpoints.families.family_table import FAMILIES
from lim_jax.network.layer_kinds import kinds_of

RECORD = json.loads((Path(__file__).parent / "recorded.json").read_text(encoding="utf-8"))
WRITE = runpy.run_path(str(ROOT / "benchmarks" / "random_weights.py"))["write"]
IDS = np.array(RECORD["ids"])
BOUND = 1e-13
# One configuration of each family with recurrent layers; the others have rows of their own.
PACKED = {
    name for name, network in RECORD["networks"].items() if "ids" in network and "," not in name
}
MATRICES = {"query", "key", "value", "output", "gate", "up", "down", "inner", "outer", "router",
            "rope_key", "query_down", "rate_down", "gate_down", "shared_gate", "inward", "outward",
            "write", "read"}  # fmt: skip


def test_every_family_is_recorded():
    recorded = {name.partition(",")[0] for name in RECORD["networks"]}
    assert recorded == {*FAMILIES}


@pytest.mark.parametrize(
    "name, more, prefix",
    [
        ("deepseek_v3", "model.layers.3.enorm.weight", ""),
        ("deepseek_v3", "model.layers.3.enorm.weight", "model."),  # of a trunk without it
        ("mimo", "model.mtp_layers.0.norm.weight", ""),
        ("exaone4", "mtp.norm.weight", ""),
        ("exaone_moe", "mtp.norm.weight", ""),
        ("hy_v3", "model.layers.3.enorm.weight", ""),
    ],
)
def test_layers_that_predict_further_tokens_are_passed_over(tmp_path, name, more, prefix):
    network = RECORD["networks"][name]
    config = network["config"] | {"num_nextn_predict_layers": 1}
    shapes = network["shapes"] | {more: [24]}
    shapes = {key.removeprefix(prefix): shape for key, shape in shapes.items()}
    model = models.load(WRITE(tmp_path, config, shapes))
    assert model.flow.depth == config["num_hidden_layers"]


def logits(model, ids, y=None):
    return eqx.filter_jit(models.CausalLM.logits)(model, jax.device_put(ids), y)


@pytest.mark.parametrize(
    "name, saved, published",
    [
        ("kimi_linear", "layers.0.block_sparse_moe", "layers.0.mlp"),
        ("bailing_hybrid", "layers.0.attention.dense", "layers.0.attention.o_proj"),
        ("opt", "model.decoder.", "decoder."),
        ("opt", "model.decoder.", ""),
        ("gpt2", "transformer.", ""),
    ],
)
def test_names_may_be_the_publishers_or_those_of_transformers(tmp_path, name, saved, published):
    network = RECORD["networks"][name]
    folder = WRITE(tmp_path, network["config"], network["shapes"])
    expected = models.load(folder)
    file = folder / "model.safetensors"
    arrays = {key.replace(saved, published): array for key, array in load_file(file).items()}
    save_file(arrays, file)
    assert arrays.keys() != network["shapes"].keys()
    pairs = zip(jax.tree.leaves(models.load(folder)), jax.tree.leaves(expected), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)


def test_convolutions_of_another_size_are_refused_by_their_name(tmp_path):
    """OLMo's three have sixty rows together, wherever they are cut."""
    network = RECORD["networks"]["olmo_hybrid"]
    name = next(name for name in network["shapes"] if name.endswith("q_conv1d.weight"))
    rows, *rest = network["shapes"][name]
    folder = WRITE(tmp_path, network["config"], network["shapes"] | {name: [rows + 1, *rest]})
    with pytest.raises(ValueError, match=rf"{name.removeprefix('model.')}: got shape \(61,\)"):
        models.load(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, left_out",
    [
        ("bailing_hybrid", ["kda_safe_gate", "kda_lower_bound", "linear_conv_kernel_dim"]),
        ("bamba", ["mamba_conv_bias", "mamba_d_conv", "mamba_d_head", "mamba_expand"]),
        ("falcon_h1", ["mamba_conv_bias", "mamba_d_conv", "mamba_norm_before_gate"]),
        ("kimi_linear", ["linear_conv_kernel_dim"]),
        ("olmo_hybrid", ["linear_allow_neg_eigval", "linear_conv_kernel_dim"]),
        ("qwen3_next", ["linear_conv_kernel_dim"]),
    ],
)
def test_options_of_states_that_are_left_out_are_the_publishers(tmp_path, name, left_out):
    network = RECORD["networks"][name]
    folder = WRITE(tmp_path, network["config"], network["shapes"])
    expected = models.load(folder)
    less = {option: of for option, of in network["config"].items() if option not in left_out}
    assert len(less) == len(network["config"]) - len(left_out)
    (folder / "config.json").write_text(json.dumps(less), encoding="utf-8")
    assert eqx.tree_equal(models.load(folder), expected)


def test_states_of_olmo_hybrid_follow_from_its_width_where_nothing_is_said(tmp_path):
    """Keys have three quarters of a head's share of 24 features by two of keys, values twice it."""
    network = RECORD["networks"]["olmo_hybrid"]
    rows = {}
    for name, (_, *rest) in network["shapes"].items():
        letter = name.split("linear_attn.")[-1][0]
        if (
            name.endswith(
                (
                    "q_proj.weight",
                    "k_proj.weight",
                    "conv1d.weight",
                    "v_proj.weight",
                    "g_proj.weight",
                )
            )
            and "linear_attn" in name
        ):
            rows[name] = [18 if letter in "qk" else 72, *rest]
    for layer in (0, 2):
        at = f"model.layers.{layer}.linear_attn"
        rows |= {f"{at}.o_proj.weight": [24, 72], f"{at}.o_norm.weight": [18]}
    sizes = ("linear_key_head_dim", "linear_value_head_dim")
    config = {option: of for option, of in network["config"].items() if option not in sizes}
    delta = kinds_of(models.load(WRITE(tmp_path, config, network["shapes"] | rows)).flow.layers)[0]
    assert delta.attention.key.shape[1:] == (2, 9, 24)
    assert delta.attention.value.shape[1:] == (4, 18, 24)


def packed(model, ids, network):
    """Logits of a context behind another in one row, before a piece of it that is padded."""
    piece = network["places"][1] + 1
    gap = 6
    sizes = [gap, len(ids), piece, gap]
    row = np.concatenate([ids[:size] for size in sizes])
    starts = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    targets = models.Targets(
        *map(jnp.asarray, (row, np.ones(len(row)))), starts=jnp.asarray(starts)
    )
    _, whole, again, _ = np.split(logits(model, row, targets), np.cumsum(sizes[:-1]))
    np.testing.assert_allclose(again, whole[:piece], rtol=0, atol=BOUND * network["largest"])
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORD["networks"])
def test_a_family_gives_its_publishers_logits(tmp_path, name, monkeypatch):
    network = RECORD["networks"][name]
    folder = WRITE(tmp_path, network["config"], network["shapes"])
    read = []
    put = []
    leaves = jax.tree.leaves
    joined = placement._join
    device_put = jax.device_put

    def joined_as_read(layer, depth):
        read.extend(leaves(layer(0)))
        return joined(layer, depth)

    with monkeypatch.context() as patched:
        patched.setattr(placement, "_join", joined_as_read)
        patched.setattr(
            jax, "device_put", lambda tree: put.extend(leaves(tree)) or device_put(tree)
        )
        model = models.load(folder, dtype="float64")
    # Readers stay in NumPy, and each array goes to the device once, but normed embeddings; where
    # they are not the head's too, their rows go there to be normed.
    assert {type(leaf) for leaf in read + put} == {np.ndarray}
    assert len(put) == len(leaves(model)) - name.startswith(("bloom", "nanochat, tied"))
    digest(model)  # its data and names tell it from others: no file of a run asks for a name
    ids = np.array(network.get("ids", IDS))
    places = network.get("places", RECORD["places"])
    ours = packed(model, ids, network) if name in PACKED else logits(model, ids)
    asked = ours[np.ix_(places, RECORD["words"])]
    bound = BOUND * network["largest"]
    np.testing.assert_allclose(asked, network["logits"], rtol=0, atol=bound)
    np.testing.assert_allclose(np.abs(ours).max(), network["largest"], rtol=1e-9)
    # In half precision are matrices alone: biases by heads and experts, and norms, are whole.
    layer = jax.tree.map(lambda leaf: np.asarray(leaf)[0], kinds_of(model.flow.layers))
    for path, leaf in jax.tree.leaves_with_path(placement.halve(layer, "bfloat16")):
        assert (leaf.dtype == "bfloat16") == (path[-1].name in MATRICES), path
