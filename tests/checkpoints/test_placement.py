"""However weights are held, whole, in half precision or in their files, they are one network."""

import json
import os
import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from reference import publishers
from reference.as_users import ROOT, temporary_bytes
from safetensors.numpy import load_file, save_file

from lim_jax import models
from lim_jax.checkpoints import checkpoint, placement
from lim_jax.density import LossOfIds
from lim_jax.grid import token_grid
from lim_jax.models import causal
from lim_jax.network import RingAttention
from lim_jax.weights import FetchedLayers, FetchedRows, HalfLayers, HalfRows

RECORD = json.loads((Path(__file__).parent / "recorded.json").read_text(encoding="utf-8"))
WRITE = runpy.run_path(str(ROOT / "benchmarks" / "random_weights.py"))["write"]
IDS = np.array(RECORD["ids"])
FILE = "model.safetensors"


def folder_of(name, folder):
    network = RECORD["networks"][name]
    return WRITE(folder, network["config"], network["shapes"])


@eqx.filter_jit
def logits_and_gradients(model, ids):
    """Logits, the loss, and its gradient in the embedded ids, of one way through the network."""
    queries = models.Targets(jnp.roll(ids, -1), jnp.full(ids.shape, 1 / ids.size))
    grid = token_grid(ids.size, model.embedding.dtype)

    def loss(x):
        state = model.flow(x, grid)
        return model.terminal_loss(state, queries), state

    (value, state), gradient = jax.value_and_grad(loss, has_aux=True)(model.embed(ids, queries))
    return model.readout(state, grid), value, gradient


logits = eqx.filter_jit(lambda model, ids: model.logits(ids))
# A biased head, a tied one and layers that see differently; learned places, a normed embedding.
NETWORKS = {
    "gptj": logits_and_gradients,
    "gemma3_text": logits_and_gradients,
    "gpt2": logits,
    "bloom": logits,
}


@pytest.mark.slow
@pytest.mark.parametrize("name, job", NETWORKS.items())
def test_weights_left_in_their_files_give_the_numbers_of_weights_in_memory(
    name, job, tmp_path, monkeypatch
):
    folder = folder_of(name, tmp_path)
    expected = eqx.filter_jit(job)(models.load(folder, dtype="float64"), IDS)
    # Heads by slices of an odd size, the last of which begins within the one before.
    monkeypatch.setattr(causal, "WORDS_AT_ONCE", 11)
    found = job(models.open(folder, dtype="float64"), IDS)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        bound = 1e-12 * np.abs(np.asarray(other)).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=bound)


def test_layers_of_other_kinds_are_looked_at_too(tmp_path):
    folder = folder_of("deepseek_v3", tmp_path)
    whole = models.load(folder)
    opened = models.open(folder)
    shapes = jax.tree.map(lambda leaf: (leaf.shape[1:], leaf.dtype), whole.flow.layers)
    assert shapes == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), opened.flow.kinds[0])
    for index in range(whole.flow.depth):
        of_one = jax.tree.map(lambda leaf, i=index: np.asarray(leaf)[i], whole.flow.layers)
        layer = opened.flow.layers.source.fetch(np.array(index))
        jax.tree.map(np.testing.assert_array_equal, layer, jax.tree.leaves(of_one))


def test_the_more_places_are_asked_the_fewer_words_stand_at_once(tmp_path, monkeypatch):
    model = models.load(folder_of("gpt2", tmp_path))
    words = model.vocabulary
    assert [model.words_at_once(queries) for queries in (1, 2048, 10**6)] == [words, words, 16]
    monkeypatch.setattr(causal, "WORDS_AT_ONCE", 11)
    assert [model.words_at_once(queries) for queries in (1, 2**21, 2**25)] == [11, 8, 1]
    # Logits that are all wanted are made in few products, however many places there are.
    monkeypatch.setattr(causal, "LOGITS_AT_ONCE", 1)
    state = np.ones((3, model.embedding.shape[1]), np.float32)
    grid = token_grid(3, "float32")
    program = str(jax.make_jaxpr(lambda state: model.readout(state, grid))(state))
    assert program.count("dot_general") == -(-words // 11)


@pytest.fixture
def folder(tmp_path):
    """Of a network whose head is its own; all its numbers are such as bfloat16 has, but norms'."""
    config = publishers.CONFIGS["llama"] | {"num_hidden_layers": 3}
    arrays = publishers.tensors(config)
    third = {
        name.replace("layers.0", "layers.2"): array + np.float32(0.25)
        for name, array in arrays.items()
        if "layers.0" in name
    }
    rounded = {
        name: array if "norm" in name else array.astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, array in (third | arrays).items()
    }
    return publishers.write(tmp_path, config, rounded)


WINDOW = np.array([3, 1, 4, 1, 5, 9, 2, 6])
loss_of_ids = LossOfIds(models.CausalLM.embed, models.CausalLM.loss)


def energies(model, **options):
    return models.energies_of_ids(model, [jax.device_put(WINDOW)], **options)[0]


@pytest.mark.slow
def test_half_precision_that_loses_nothing_gives_the_same_numbers(folder, monkeypatch):
    monkeypatch.setattr(placement, "ROWS_AT_ONCE", 4)
    whole = models.load(folder)
    on_device, kept = (
        models.load(folder, storage_dtype="bfloat16", on_host=host) for host in (False, True)
    )
    expected = energies(whole)
    for model in (on_device, kept):
        np.testing.assert_allclose(energies(model), expected, rtol=1e-6)
    like = kept.flow.kinds[0]
    layers = on_device.flow.layers
    widened = on_device.flow.layers.upcast()
    assert isinstance(layers, HalfLayers)
    for held, of_host in zip(*map(jax.tree.leaves, (layers, like)), strict=True):
        assert held.dtype == {"bfloat16": "uint16"}.get(of_host.dtype.name, "float32")
    jax.tree.map(np.testing.assert_array_equal, widened, whole.flow.layers)
    for rows, table in ((on_device.embedding, whole.embedding), (on_device.head, whole.head)):
        assert isinstance(rows, HalfRows) and rows.dtype == "float32"
        np.testing.assert_array_equal(
            rows.bits, np.asarray(table, ml_dtypes.bfloat16).view("uint16")
        )
    assert like.attention.query.dtype == like.feed_forward.gate.dtype == "bfloat16"
    # Norms stay as they are: theirs are other numbers.
    assert like.attention.norm.scale.dtype == "float32"
    for rows in (kept.embedding, kept.head):
        assert isinstance(rows, FetchedRows)
        assert rows.dtype == "float32" and rows.source.dtype == "bfloat16"


@pytest.mark.slow
def test_half_precision_that_loses_something_gives_the_numbers_of_rounded_matrices(folder):
    arrays = load_file(folder / FILE)
    matrices = [name for name in arrays if "norm" not in name]
    exact = arrays | {name: arrays[name] * np.float32(1.001) for name in matrices}
    save_file(exact, folder / FILE)
    whole = energies(models.load(folder))
    kept = models.load(folder, storage_dtype="float16")
    rounded_energies = energies(kept)
    halves = {name: exact[name].astype("float16").astype("float32") for name in matrices}
    save_file(exact | halves, folder / FILE)
    np.testing.assert_allclose(rounded_energies, energies(models.load(folder)), rtol=2e-6)
    assert np.abs(rounded_energies / whole - 1).max() > 1e-5


@pytest.mark.slow
def test_weights_stay_as_they_are_published(folder, tmp_path, monkeypatch):
    arrays = load_file(folder / FILE)
    halves = {
        name: array.astype(ml_dtypes.bfloat16) if array.ndim > 1 else array
        for name, array in arrays.items()
    }
    first = next(name for name in arrays if arrays[name].ndim > 1)
    expected = energies(models.load(folder))
    whole = models.load(folder, storage_dtype="as published")
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(whole))
    read = []
    read_rows = checkpoint.read_rows

    def noted(name, shape, dtype, rows):
        read.append((len(shape), dtype))
        return read_rows(name, shape, dtype, rows)

    monkeypatch.setattr(checkpoint, "read_rows", noted)
    # One matrix in another precision: what is mixed is read from its files.
    for stored, held in ((halves, "uint16"), (halves | {first: arrays[first]}, "float32")):
        save_file(stored, folder / FILE)
        model = models.load(folder, storage_dtype="as published")
        assert model.flow.kinds[0].attention.query.dtype == held
        # On its way to the device no matrix is widened.
        assert set(read) == {(1, "float32"), (2, "bfloat16" if held == "uint16" else held)}
        np.testing.assert_allclose(energies(model), expected, rtol=1e-6)
        read.clear()
    assert isinstance(model.flow.layers, FetchedLayers)


@pytest.mark.slow
@pytest.mark.parametrize("compute", [None, "bfloat16"])
def test_no_stack_of_kept_weights_is_ever_in_float32(compute, folder):
    """In no type of the program for a GPU, and in no memory of a CPU's."""
    model = models.load(folder, storage_dtype="bfloat16", compute=compute)
    grid = token_grid(5, "float32")
    leaves = jax.tree.leaves(model.flow.layers)
    matrices = [leaf.shape[1:] for leaf in leaves if leaf.dtype == "uint16"]
    many = jax.tree.map(lambda leaf: np.resize(leaf, (77, *leaf.shape[1:])), model.flow.layers)
    gradient = jax.jit(jax.grad(lambda x, flow: jnp.sum(flow(x, grid) ** 2)))
    x = np.zeros((5, model.embedding.shape[1]), "float32")
    traced = gradient.trace(x, replace(model.flow, layers=many))
    written = traced.lower(lowering_platforms=("cuda",)).as_text()
    for shape in matrices:
        assert f"tensor<{'x'.join(map(str, (77, *shape)))}xui16>" in written
        assert f"tensor<{'x'.join(map(str, (77, *shape)))}xf32>" not in written
    assert temporary_bytes(traced) < 77 * 4 * sum(map(np.prod, matrices)) / 4


def test_vectors_stay_whole(tmp_path):
    """Bit for bit: `test_families` has their names in every family."""
    folder = publishers.write(tmp_path, publishers.CONFIGS["gpt2"])
    kept = models.load(folder, storage_dtype="bfloat16", on_host=True)
    whole = models.load(folder).flow.layers
    layer = jax.tree.unflatten(
        jax.tree.structure(kept.flow.kinds[0]), kept.flow.layers.source.fetch(np.array(1))
    )
    assert layer.attention.query.dtype == "bfloat16"
    for name in ("query_bias", "key_bias", "value_bias", "output_bias"):  # three are by heads
        ours = getattr(layer.attention, name)
        theirs = getattr(whole.attention, name)
        np.testing.assert_array_equal(ours, theirs[1])
        assert ours.dtype == "float32"
    assert layer.feed_forward.inner_bias.dtype == "float32"
    assert kept.positions is not None and kept.positions.dtype == "float32"


def test_weights_are_read_in_the_precision_in_which_the_files_were_opened(folder):
    """Also by the thread that reads ahead, for which other settings of JAX may hold."""
    with jax.enable_x64(False):
        opened = {"float32": models.open(folder, dtype="float64")}
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            opened["float64"] = models.open(folder, dtype="float64")
        for dtype, model in opened.items():
            fetched = model.flow.layers.source.fetch(np.array(1))
            arrays = [*jax.tree.leaves((model.flow.kinds[0], model.norm)), *fetched]
            assert isinstance(model.embedding, FetchedRows)
            assert all(leaf.dtype == dtype for leaf in [*arrays, model.embedding.source])
    finally:
        jax.config.update("jax_enable_x64", True)


def test_a_norm_of_any_class_stays_whole(folder):
    """Also one whose parameters are a matrix: of a layer's own matrices the fields are known."""
    layer = jax.tree.map(lambda leaf: np.asarray(leaf)[0], models.load(folder).flow.layers)
    whitening = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    layer = eqx.tree_at(lambda layer: layer.attention.norm, layer, whitening)
    attention = placement.halve(layer, "bfloat16").attention
    np.testing.assert_array_equal(attention.norm.weight, whitening.weight)
    assert attention.query.dtype == "bfloat16"


@pytest.mark.parametrize("kept, dtype", [("int8", "float32"), ("bfloat16", "float64")])
def test_other_precisions_are_refused(kept, dtype, folder, as_users_run):
    with pytest.raises(ValueError, match=r"storage_dtype: got .* expected None, or one of"):
        models.load(folder, dtype=dtype, storage_dtype=kept)
    with pytest.raises(ValueError, match=r"on_host: got storage_dtype=None.* a storage_dtype"):
        models.load(folder, on_host=True)
    with pytest.raises(ValueError, match="dtype: got 'float16'"):
        models.open(folder, dtype="float16")


def test_a_mesh_has_an_axis_for_the_model(folder, monkeypatch):
    auto = (jax.sharding.AxisType.Auto,)
    with pytest.raises(ValueError, match=r"mesh: got the axes \('data',\).*'model'"):
        models.load(folder, mesh=jax.make_mesh((1,), ("data",), axis_types=auto))
    mesh = jax.make_mesh((1,), ("model",), axis_types=auto)
    with pytest.raises(ValueError, match=r"on_host: got storage_dtype='bfloat16', mesh=Mesh"):
        models.load(folder, storage_dtype="bfloat16", mesh=mesh, on_host=True)
    halves = (models.load(folder, storage_dtype="bfloat16", mesh=at) for at in (mesh, None))
    jax.tree.map(np.testing.assert_array_equal, *halves)
    put = []
    device_put = jax.device_put
    whole = models.load(folder)

    def counted(array, *device):
        put.extend(jax.tree.leaves(array))
        return device_put(array, *device)

    with monkeypatch.context() as patched:
        patched.setattr(jax, "device_put", counted)
        spread = models.load(folder, mesh=mesh)
    assert {type(leaf) for leaf in put} == {np.ndarray} and len(put) == len(jax.tree.leaves(spread))
    jax.tree.map(np.testing.assert_array_equal, spread, whole)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(whole))


@pytest.mark.slow
def test_over_an_axis_of_contexts_attention_goes_in_a_ring(folder):
    """Here of one device: `tests/devices.py` has rings of several."""
    mesh = jax.make_mesh((1, 1), ("model", "context"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    whole = models.load(folder, "float64")
    spread = models.load(folder, "float64", mesh=mesh)
    attention = spread.flow.layers.attention
    assert attention.attend == RingAttention(mesh, "context")
    for one, other in zip(jax.tree.leaves(spread), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(one, other)
    expected = eqx.filter_jit(logits_and_gradients)(whole, WINDOW)
    for one, other in zip(logits_and_gradients(spread, WINDOW), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


def test_what_is_wrong_with_names_and_shapes_is_told_as_files_are_looked_through(folder):
    whole = load_file(folder / FILE)
    gate = "model.layers.2.mlp.gate_proj.weight"
    cases = {
        f"got no {gate}": {name: whole[name] for name in whole if name != gate},
        "got other.weight, which the family does not have": whole | {"other.weight": whole[gate]},
        "got model.layers.1.other": whole | {"model.layers.1.other": whole[gate]},
        "embed_tokens.weight: got shape": whole | {"model.embed_tokens.weight": whole[gate]},
    }
    for message, arrays in cases.items():
        save_file(arrays, folder / FILE)
        with pytest.raises(ValueError, match=message):
            models.open(folder)


def test_what_is_wrong_with_numbers_is_told_as_they_are_read(folder):
    whole = load_file(folder / FILE)
    name = "model.layers.2.mlp.gate_proj.weight"
    for wrong in (name, "lm_head.weight", "model.embed_tokens.weight"):
        save_file(whole | {wrong: np.full_like(whole[wrong], np.nan)}, folder / FILE)
        model = models.open(folder)
        with pytest.raises(Exception, match=f"{wrong}: got NaN or infinite weights"):
            jax.block_until_ready(logits(model, WINDOW))
    save_file(whole | {name: whole[name].T.copy()}, folder / FILE)
    with pytest.raises(Exception, match=f"{name}: got shape"):
        jax.block_until_ready(logits(models.open(folder), WINDOW))


@pytest.mark.slow
@pytest.mark.parametrize("contexts, ways", [(2, 2), (5, 1), (33, 2)])
def test_a_batch_of_contexts_reads_each_layer_once_a_way(folder, monkeypatch, contexts, ways):
    """So that few contexts go together already; in memory five of 16 do not."""
    model = models.open(folder)
    expected = models.load(folder)
    layers = model.flow.layers
    read = []
    assert isinstance(layers, FetchedLayers)

    def counted(index, fetch=layers.source._read):
        read.append(index)
        return fetch(index)

    monkeypatch.setattr(layers.source, "_read", counted)
    windows = [jax.device_put(np.roll(WINDOW, shift)) for shift in range(contexts)]
    found = models.energies_of_ids(model, windows)
    # The last layer ends one way and begins the other, the first one ends both.
    assert read == ways * [1, 2, 1, 0]
    for one, other in zip(found, models.energies_of_ids(expected, windows), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_ids_outside_the_vocabulary_are_refused_of_files_too(folder):
    model = models.open(folder)
    with pytest.raises(Exception, match="ids: got .*expected numbers from 0 to 10"):
        jax.block_until_ready(jax.jit(lambda ids: model.embed(ids))(np.array([3, 11])))


def test_a_run_is_told_from_one_of_other_files(folder, tmp_path):
    checkpoint = tmp_path / "energies"
    first = energies(models.open(folder), checkpoint=checkpoint)
    np.testing.assert_array_equal(energies(models.open(folder), checkpoint=checkpoint), first)
    for other in (
        replace(models.open(folder), logit_scale=0.25),
        replace(models.open(folder), flow=replace(models.open(folder).flow, horizon=2.0)),
    ):
        with pytest.raises(ValueError, match=r"checkpoint: got .* of parameters"):
            energies(other, checkpoint=checkpoint)
    os.utime(folder / FILE, ns=(1, 1))
    with pytest.raises(ValueError, match=r"checkpoint: got .* of parameters"):
        energies(models.open(folder), checkpoint=checkpoint)
    halves = (
        models.load(folder, storage_dtype=half, on_host=True) for half in ("float16", "bfloat16")
    )
    prints = [models.open(folder), *halves]
    distinct = {tuple(np.asarray(model.flow.layers.fingerprint)) for model in prints}
    assert len(distinct) == 3
    assert all(np.asarray(model.flow.layers.fingerprint).size == 32 for model in prints)


@pytest.mark.parametrize(
    "held, cure",
    [
        (models.open, "Load the network whole by models.load"),
        (partial(models.load, storage_dtype="bfloat16"), "Load the network without storage_dtype"),
    ],
)
def test_weights_that_are_kept_or_fetched_do_not_train(held, cure, folder):
    model = held(folder)

    def loss(model):
        return loss_of_ids(
            model,
            jax.device_put(WINDOW[:-1]),
            models.Targets(jax.device_put(WINDOW[1:]), jnp.full(7, 1 / 7, "float32")),
        )

    with pytest.raises(NotImplementedError, match=cure):
        eqx.filter_grad(loss)(model)
