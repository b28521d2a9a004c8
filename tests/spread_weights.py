"""Read a network onto several devices and print how many of its numbers are those of one.

Roles of `devices.py`: ``weights`` of its 8 virtual devices, and the end of its two processes.
"""

import json
import runpy
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from reference import publishers
from reference.as_users import ROOT

import lim_jax as lim
from lim_jax import adjoint, models
from lim_jax.density import LossOfIds
from lim_jax.network.recurrent import RecurrentMixer

jax.config.update("jax_enable_x64", True)
WIDTH = 16
HIDDEN = 24
DEPTH = 3
HEADS = 8
GROUPS = 4
SIZE = 4
WORDS = 11
CONFIG = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": HIDDEN, "vocab_size": WORDS,
    "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
    "head_dim": SIZE, "rms_norm_eps": 1e-3,
}  # fmt: skip
LAYER = {
    "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
    "self_attn.q_proj": (HEADS * SIZE, WIDTH), "self_attn.k_proj": (GROUPS * SIZE, WIDTH),
    "self_attn.v_proj": (GROUPS * SIZE, WIDTH), "self_attn.o_proj": (WIDTH, HEADS * SIZE),
    "mlp.gate_proj": (HIDDEN, WIDTH), "mlp.up_proj": (HIDDEN, WIDTH),
    "mlp.down_proj": (WIDTH, HIDDEN),
}  # fmt: skip
BESIDE = {"model.embed_tokens": (WORDS, WIDTH), "lm_head": (WORDS, WIDTH), "model.norm": (WIDTH,)}
RECORD = ROOT / "tests" / "checkpoints" / "recorded.json"
WRITE = runpy.run_path(str(ROOT / "benchmarks" / "random_weights.py"))["write"]
WINDOW = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5])
GRID = lim.token_grid(8, float)
loss_of_ids = LossOfIds(models.CausalLM.embed, models.CausalLM.loss)


def tensors():
    """Drawn, by name."""
    generator = np.random.default_rng(0)
    shapes = dict(BESIDE)
    for index in range(DEPTH):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in LAYER.items()}
    return {
        f"{name}.weight": generator.standard_normal(shape).astype(np.float32) / 2
        for name, shape in shapes.items()
    }


def quantities(model, whole=True):
    """The loss's gradient in the weights, and an example's energies, channels and hops."""
    x, y = model.example(jnp.asarray(WINDOW), jnp.full(8, 1 / 8))
    batch = x[None], jax.tree.map(lambda leaf: leaf[None], y)
    flow = model.flow
    loss = model.terminal_loss
    gradient = eqx.filter_grad(lambda model: loss_of_ids(model, jnp.asarray(WINDOW[:-1]), y))(model)
    norms = [jnp.linalg.norm(leaf) for leaf in jax.tree.leaves(gradient)]
    if not whole:
        return norms
    return (
        norms,
        lim.influence(models.CausalLM.loss, model, batch, GRID).energy,
        adjoint.channels(flow, loss, (x, y), GRID).vectors,
        adjoint.attention_hops(flow, loss, (x, y), GRID, 2)[0],
    )


def compared(model, expected, mesh, whole):
    """Every number to 1e-12, on every process; `whole` with energies, channels and hops."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    arrays, static = eqx.partition(model, eqx.is_array)
    job = jax.jit(
        lambda arrays: quantities(eqx.combine(arrays, static), whole), out_shardings=everywhere
    )
    leaves = jax.tree.leaves(job(arrays))
    assert len(leaves) == len(expected) - (0 if whole else 3)
    for one, other in zip(leaves, expected[: len(leaves)], strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-12, atol=1e-13)
    print(f"{len(leaves)} equal")


def read(folder, mesh, **sizes):
    """The network on a mesh, whose devices hold so much of the parts named."""
    model = models.load(folder, "float64", mesh=mesh)
    over = mesh.shape["model"]
    layers = model.flow.layers
    embedding = model.embedding
    for name, size in ({"query": 1 / over, "output": 1 / over, "down": 1 / over} | sizes).items():
        part = getattr(layers.attention, name, None)
        part = getattr(layers.feed_forward, name) if part is None else part
        held = part.addressable_shards[0].data.size / part.size
        assert held == size, (name, held)
    assert isinstance(embedding, jax.Array)
    assert embedding.addressable_shards[0].data.shape[1] == embedding.shape[1] / over
    return model


def mesh_of(shape, *names):
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))


def over_eight(folder):
    """Spread over eight devices, and beside examples; the numbers of one device are saved."""
    publishers.write(Path(folder), CONFIG, tensors())
    alone = models.load(folder, "float64")
    one = jax.tree.leaves(eqx.filter_jit(quantities)(alone))
    np.savez(Path(folder) / "one.npz", *one)
    # Four groups of keys go over four devices; over eight each has them all.
    mesh = mesh_of((2, 4), "data", "model")
    compared(read(folder, mesh, key=1 / 4), one, mesh, whole=True)
    whole = read(folder, mesh_of((8,), "model"), key=1)
    leaves = (jax.tree.leaves(eqx.filter(model, eqx.is_array)) for model in (whole, alone))
    for ours, expected in zip(*leaves, strict=True):
        np.testing.assert_array_equal(ours, expected)
    print("weights equal")
    hybrid_over_eight(folder)


def hybrid_over_eight(folder):
    """Gated delta rules and attention: heads over four devices, rows over two."""
    (Path(folder) / "hybrid").mkdir()
    network = json.loads(RECORD.read_text(encoding="utf-8"))["networks"]["olmo_hybrid"]
    at = WRITE(Path(folder) / "hybrid", network["config"], network["shapes"])
    RecurrentMixer.chunk = 4
    mesh = mesh_of((2, 4), "data", "model")
    ids = jnp.asarray([WINDOW, WINDOW[::-1]])

    def gradients(model, ids):
        x, y = jax.vmap(model.example, in_axes=(0, None))(ids, jnp.full(8, 1 / 8))
        return jax.vmap(jax.grad(model.loss))(x, y)

    alone = models.load(at, "float64")
    whole = models.load(at, "float64", mesh=mesh)
    values = whole.flow.kinds[0].sublayers[0].value
    assert values.addressable_shards[0].data.size == values.size / 4
    spread = jax.device_put(ids, NamedSharding(mesh, PartitionSpec("data")))
    gradients_of_shards = eqx.filter_jit(gradients)(whole, spread)
    assert len(gradients_of_shards.sharding.device_set) == 8
    np.testing.assert_allclose(
        gradients_of_shards, eqx.filter_jit(gradients)(alone, ids), atol=1e-12
    )
    print("hybrid equal")


def over_two(folder):
    """Spread over two devices, each of a process of its own."""
    with np.load(Path(folder) / "one.npz") as file:
        expected = [file[name] for name in file.files]
    mesh = mesh_of((2,), "model")
    compared(read(folder, mesh, key=1 / 2), expected, mesh, whole=False)
