"""The language model and its explanation: learning, and numbers that other modules give."""

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import random_states

import lim_jax as lim
from lim_jax import plots
from lim_jax.adjoint.cone import cone_mass
from lim_jax.adjoint.ledger import channels
from lim_jax.loss import last_token, teacher_forcing
from lim_jax.models import language
from lim_jax.probes import sample_mean

LENGTH = 8
REGIONS = lim.boundary_regions(lim.token_grid(LENGTH), 0.25)


@cache
def model():
    init = eqx.filter_jit(language.LanguageModel.init)
    return init(LENGTH, width=4, heads=2, depth=2, key=jax.random.key(0))


@cache
def windows(count=3):
    text = language.standard_library_text(10_000)
    cut = eqx.filter_jit(language.sample_windows)
    return cut(text, LENGTH, count, key=jax.random.key(1))


def test_text_is_the_librarys_own_and_windows_are_cut_from_it():
    text = np.asarray(language.standard_library_text(5_000))
    assert b"def " in bytes(text.astype(np.uint8))
    for window in np.asarray(windows(20)):
        needle = bytes(window.astype(np.uint8))
        whole = bytes(np.asarray(language.standard_library_text(10_000)).astype(np.uint8))
        assert len(needle) == LENGTH + 1 and needle in whole
    with pytest.raises(ValueError, match="size: got"):
        language.standard_library_text(10**10)
    with pytest.raises(ValueError, match="text: got 8 bytes"):
        language.sample_windows(jnp.arange(8), 8, 1, key=jax.random.key(0))


def test_the_models_loss_is_the_next_bytes_surprise():
    @eqx.filter_jit
    def measured(model, windows):
        batch, targets = language.batch_of_windows(model, windows)
        end = model.flow(batch[0], lim.token_grid(LENGTH))
        return model.loss(batch[0], targets[0], last_token(LENGTH)), end @ model.readout.weight

    found, logits = measured(model(), windows())
    logits = np.asarray(logits)[-1]
    byte = int(windows()[0, -1])
    expected = np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[byte]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.slow
def test_training_learns_a_text_of_one_byte():
    text = jnp.asarray(np.full(200, 65))
    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        trained, losses = language.train(model(), text, 60, key=jax.random.key(2), rate=1e-2)
    assert losses[0] > 3 and losses[-1] < 0.2
    assert trained.length == LENGTH


@pytest.mark.slow
def test_interrupted_training_goes_on_with_the_same_numbers(tmp_path):
    def stopped(steps):
        yield from (index for index in steps if index < 55)
        raise KeyboardInterrupt

    text = jnp.asarray(np.arange(200) % 7 + 65)
    run = partial(language.train, model(), text, 60, key=jax.random.key(2))
    with jax.numpy_dtype_promotion("standard"):  # optax promotes
        whole, losses = run()
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=tmp_path / "run", progress=stopped)
        visited = []
        resumed, again = run(
            checkpoint=tmp_path / "run",
            progress=lambda steps: [visited.append(i) or i for i in steps],
        )
    assert visited == list(range(50, 60))
    np.testing.assert_array_equal(again, losses)
    for left, right in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.slow
def test_an_explanation_is_made_of_its_parts():
    # `eq:residual-influence-component`.
    regions, weights = REGIONS, teacher_forcing(LENGTH)
    found = lim.studies.explain(model(), windows(), weights, regions, key=jax.random.key(3))
    network = model()

    @jax.jit
    @jax.vmap
    def ledgers(x, y):
        def loss(state):
            return network.terminal_loss(state, y, weights)

        return channels(network.flow, loss, x, regions.grid).vectors

    vectors = np.asarray(ledgers(*language.batch_of_windows(network, windows())))
    np.testing.assert_allclose(
        found.channel_energies, (vectors**2).sum(axis=3).mean(axis=0), rtol=1e-10
    )
    energy = (vectors.sum(axis=1) ** 2).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(found.influence.energy, energy, rtol=1e-10)
    terminal = (vectors[:, 0] ** 2).sum(axis=2)
    averages = np.array([lim.regional_averages(jnp.asarray(t), regions) for t in terminal])
    contrasts = (averages[:, 2] - averages[:, 1]) / (terminal.mean())
    np.testing.assert_allclose(found.terminal_contrast.value, contrasts.mean(), rtol=1e-10)
    error = contrasts.std(ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(found.terminal_contrast.error, error, rtol=1e-10)
    assert len(found.certificates) == 5
    assert found.head_energies.shape == (2, 2)


def test_the_cone_mass_averages_layers_and_contexts():
    found = lim.studies.average_cone_mass(model(), windows(2), REGIONS)
    x, _ = language.batch_of_windows(model(), windows(2))
    flow, grid = model().flow, REGIONS.grid

    @jax.jit
    @jax.vmap
    def masses(state):
        states = flow.trajectory(state, grid).states[:-1]
        of_layer = jax.vmap(lambda attention, state: cone_mass(attention, state, grid))
        return of_layer(flow.layers.attention, states)

    expected = np.mean(masses(x), axis=(0, 1))
    np.testing.assert_allclose(found.value, expected, rtol=1e-10)


def test_figures_of_an_explanation_show_its_numbers():
    found = lim.studies.explain(
        model(), windows(), last_token(LENGTH), REGIONS, key=jax.random.key(3)
    )
    upper, lower = plots.channel_energies(found, "title").axes
    curve = np.asarray(upper.lines[0].get_ydata())
    np.testing.assert_allclose(curve, found.influence.density)
    tops = [np.asarray(part.get_paths()[0].vertices)[:, 1].max() for part in lower.collections]
    shares = found.channel_energies / found.channel_energies.sum(axis=0, keepdims=True)
    np.testing.assert_allclose(tops, np.cumsum(shares, axis=0).max(axis=1), rtol=1e-12)
    (axes,) = plots.certificate_margins(found.certificates, "title").axes
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels[0] == "right-biased queries: holds"
    assert len(labels) == sum(len(c.inequalities) for c in found.certificates)
    estimate = sample_mean(random_states(0, 3, LENGTH) ** 2)
    (axes,) = plots.cone_masses({"network": estimate}, REGIONS).axes
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_ydata()), estimate.value)
