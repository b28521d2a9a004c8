"""Influence one layer at a time: the numbers of one program, from any step on."""

import dataclasses
from contextlib import nullcontext
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import falling_profile
from reference.publishers import CONFIGS, write

import lim_jax as lim
from lim_jax import models
from lim_jax.density import LossOfIds, adjoint_energies
from lim_jax.models import CausalLM, layerwise
from lim_jax.models.causal import LossOfLogits

LENGTH = 5
CONTEXTS = 2
LOSS = CausalLM.margin_loss
RUN = {"function": "a test"}


class Interrupted(Exception):
    pass


def until(stop):
    """A progress that ends the run before some step."""

    def progress(steps):
        for step in steps:
            if step == stop:
                raise Interrupted
            yield step

    return progress


@pytest.fixture(scope="module", params=["in memory", "in their files"])
def model(request, tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("weights"), CONFIGS["llama"])
    read = models.open if request.param == "in their files" else models.load
    model = read(folder, dtype="float64")
    flow = dataclasses.replace(model.flow, horizon=1.5, profile=falling_profile)
    return eqx.tree_at(lambda model: model.flow, model, flow)


def batch_of(model):
    """Two contexts, asked at some places with unequal weights."""
    ids = np.random.default_rng(0).integers(0, model.vocabulary, (CONTEXTS, LENGTH))
    weights = jnp.array([[0.25, 0.75], [0.5, 0.5]])
    places = jnp.array([[1, 4], [0, 3]])
    y = models.Targets(jax.device_put(ids[:, :2]), weights, places)
    return jax.device_put(ids), y


@pytest.mark.slow
def test_a_walk_goes_on_from_any_step_with_the_numbers_of_one_program(model, tmp_path):
    batch = batch_of(model)
    last = 2 * model.flow.depth + 1
    together = partial(adjoint_energies, LossOfIds(CausalLM.embed, LOSS))
    expected = eqx.filter_jit(together)(model, batch, lim.token_grid(LENGTH))
    walked = partial(layerwise.energies_by_layers, LOSS, model, *batch, run=RUN)
    for stop in range(last + 1):
        folder = tmp_path / str(stop)
        with pytest.raises(Interrupted):
            walked(folder, progress=until(stop))
        # All states on the way ahead; then one gradient, and the states that are still needed.
        depth = model.flow.depth
        kept = range(stop) if stop <= depth + 1 else [*range(last - stop + 1), stop - 1]
        assert sorted(int(file.name) for file in folder.glob("*")) == list(kept)
        np.testing.assert_allclose(walked(folder), expected, rtol=1e-12)
        assert [file.name for file in folder.glob("*")] == [str(last)]


def test_a_walk_that_goes_on_reads_no_layer_again_that_it_is_done_with(tmp_path):
    opened = models.open(write(tmp_path, CONFIGS["llama"]), dtype="float64")
    depth = opened.flow.depth
    fetched = []
    source = opened.flow.layers.source
    fetch = source.fetch
    source.fetch = lambda index: fetched.append(int(index)) or fetch(index)
    walked = partial(
        layerwise.energies_by_layers, LOSS, opened, *batch_of(opened), tmp_path / "walk", RUN
    )
    for stop in (2, depth + 2, None):
        with pytest.raises(Interrupted) if stop else nullcontext():
            walked(progress=until(stop))
    assert fetched == [*range(depth), *reversed(range(depth))]


def test_files_of_another_run_and_what_is_not_finite_are_refused(model, tmp_path):
    batch = batch_of(model)
    with pytest.raises(Interrupted):
        layerwise.energies_by_layers(LOSS, model, *batch, tmp_path, RUN, until(2))
    with pytest.raises(ValueError, match="checkpoint: got .*of function a test"):
        layerwise.energies_by_layers(LOSS, model, *batch, tmp_path, {"function": "another"})
    infinite = LossOfLogits("infinite", lambda *parts: LOSS.from_logits(*parts) + jnp.inf)
    with pytest.raises(eqx.EquinoxRuntimeError, match="loss: got NaN or infinite"):
        layerwise.energies_by_layers(infinite, model, *batch, tmp_path, RUN)


@pytest.mark.slow
def test_contexts_of_many_states_go_on_at_a_layer(tmp_path, monkeypatch):
    model = models.load(write(tmp_path, CONFIGS["llama"]), dtype="float64")
    windows = [np.arange(6), np.arange(1, 7)]
    expected = models.energies_of_ids(model, windows)
    # Each is padded to 16, and by itself.
    size = layerwise.states_size(model, jnp.zeros((1, 16), int))
    assert size == (model.flow.depth + 1) * 16 * model.embedding.shape[1] * 8
    walks = 2 * list(range(2 * model.flow.depth + 2))
    for limit, steps in ((size, []), (size - 1, walks)):
        monkeypatch.setattr(models.ids, "STATES_IN_MEMORY", limit)
        seen = []
        energies = models.energies_of_ids(
            model,
            windows,
            checkpoint=tmp_path / str(limit),
            progress_of_layers=lambda items, seen=seen: seen.extend(items) or items,
        )
        assert seen == steps
        for one, other in zip(energies, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_loss_that_reads_the_network_otherwise_is_measured_in_one_program(tmp_path, monkeypatch):
    model = models.load(write(tmp_path, CONFIGS["llama"]), dtype="float64")
    monkeypatch.setattr(models.ids, "STATES_IN_MEMORY", 0)

    def of_twice_the_input(model, x, y):
        return model.loss(2 * x, y)

    measure = partial(models.energies_of_ids, model, [np.arange(6)], loss=of_twice_the_input)
    with pytest.raises(ValueError, match="run: got no name for the function .*of_twice_the_input"):
        measure(checkpoint=tmp_path / "kept")
    energies = measure(checkpoint=tmp_path / "kept", run="twice the input")
    np.testing.assert_array_equal(measure()[0], energies[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_energies_of_a_walk_in_half_precision_are_squares_of_single(dtype):
    """Squares of gradients of some 1e-5 are zeros of float16, and 1/7 is off in either."""
    numbers = np.random.default_rng(0).uniform(1e-5, 3e-5, size=(2, 7, 5))
    gradients = jax.device_put(numbers).astype(dtype)
    energies = layerwise._energies(gradients, lim.token_grid(7, dtype))
    squares = ((7 * np.asarray(gradients, float)) ** 2).sum(axis=2)
    np.testing.assert_allclose(energies, squares, rtol=1e-6)
