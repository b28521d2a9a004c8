"""Influence of ids: mixed lengths, each on its own grid, and training that moves the embedding."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.publishers import CONFIGS, write

import lim_jax as lim
from lim_jax import models
from lim_jax.loss import last_token, teacher_forcing

GRID = lim.token_grid(10)
REGIONS = lim.boundary_regions(GRID, 0.2)
WINDOWS = [
    jax.device_put(np.array(ids)) for ids in ([3, 1, 4, 1, 5, 9], [2, 6, 5, 3], [5, 8, 9, 7])
]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return models.load(write(folder, CONFIGS[request.param]), dtype="float64")


def test_every_context_lives_on_its_own_grid(model):
    """Against one gradient a context, its energies shared out over ten cells by loops."""
    found = models.influence_of_ids(model, WINDOWS, REGIONS, ask=last_token)
    expected = np.zeros(10)
    for window in WINDOWS:
        length = len(window) - 1
        y = models.Queries(window[1:], last_token(length))
        loss = lambda x: model.loss(x, y)  # noqa: B023, E731
        gradient = np.asarray(jax.jit(jax.grad(loss))(model.embed(window[:-1])))
        mass = (length * gradient**2).sum(axis=1)
        for cell in range(10):
            for place in range(length):
                shared = min((cell + 1) / 10, (place + 1) / length) - max(cell / 10, place / length)
                expected[cell] += length * max(shared, 0) * mass[place]
    np.testing.assert_allclose(found.energy / 10, expected / 3, rtol=1e-10)
    assert int(found.count) == 3


def test_windows_of_one_length_are_an_ordinary_batch(model):
    regions = lim.boundary_regions(lim.token_grid(3), "1/3")
    found = models.influence_of_ids(model, WINDOWS[1:], regions)
    examples = [model.example(window, teacher_forcing(3)) for window in WINDOWS[1:]]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *examples)
    expected = lim.influence(models.CausalLM.loss, model, batch, regions.grid, regions)
    np.testing.assert_allclose(found.density, expected.density, rtol=1e-12)
    np.testing.assert_allclose(found.density_error, expected.density_error, rtol=1e-10)


def test_training_on_ids_moves_the_embedding(model):
    window, *_ = WINDOWS
    adam = optax.sgd(0.1)

    @jax.jit
    def step(embedding):
        moved = eqx.tree_at(lambda m: m.embedding, model, embedding)
        return moved.loss_of_ids(window[:-1], models.Queries(window[1:], teacher_forcing(5)))

    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        value, gradient = jax.value_and_grad(step)(model.embedding)
        change, _ = adam.update(gradient, adam.init(model.embedding))
        after = step(optax.apply_updates(model.embedding, change))
    read = np.abs(np.asarray(gradient)).max(axis=1) > 1e-8
    assert read[np.asarray(window[:-1])].all() and after < value


@pytest.mark.parametrize(
    "windows, message",
    [([], "at least one"), ("3 1 4", "a list of arrays"), ([jnp.array([1])], "one id"),
     ([jnp.array([1.0, 2.0])], "whole number")],
)  # fmt: skip
def test_what_is_no_window_is_refused(model, windows, message, as_users_run):
    with pytest.raises(ValueError, match=message):
        models.influence_of_ids(model, windows, REGIONS)
