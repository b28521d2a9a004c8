"""Why this and not that: odds of two continuations against NumPy, influence against two passes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import byte_network, random_states
from reference.publishers import CONFIGS, WORDS, logits, write
from scipy.special import log_softmax

import lim_jax as lim
from lim_jax import models
from lim_jax.models import Targets, contrast_loss
from lim_jax.models.foils import contrast

PLACES = 22
GENERATOR = np.random.default_rng(2)
# Prompt, answer, foil: of one token and of several; the rows of both are of 6 and 7 tokens.
SIZES = [(6, 1, 2), (5, 2, 3)]
CASES = [tuple(GENERATOR.integers(WORDS, size=size) for size in sizes) for sizes in SIZES]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def model(family, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return models.load(write(folder, CONFIGS[family]), dtype="float64")


def contrast_of_case(case):
    return contrast(*map(jax.device_put, case), dtype="float64")


def loss_of(model, prompt, y):
    def loss(model, prompt, y):
        return contrast_loss(model, model.embed(prompt), y)

    return eqx.filter_jit(loss)(model, prompt, y)


def log_probability(family, prompt, ids):
    """Of a continuation as a whole, by NumPy."""
    rows = logits(CONFIGS[family], np.concatenate([prompt, ids[:-1]]))[len(prompt) - 1 :]
    return sum(log_softmax(row)[one] for row, one in zip(rows, ids, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_loss_is_the_log_odds_of_the_foil(family, model, case):
    prompt, answer, foil = case
    expected = log_probability(family, prompt, foil) - log_probability(family, prompt, answer)
    loss = loss_of(model, jax.device_put(prompt), contrast_of_case(case))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    # Of logits of one's own the same, by the formula alone.
    both = [logits(CONFIGS[family], np.concatenate([prompt, one[:-1]])) for one in (answer, foil)]
    rows = [jax.device_put(one[len(prompt) - 1 :]) for one in both]
    of_logits = lim.loss.contrast_loss(
        rows[0], jax.device_put(answer), rows[1], jax.device_put(foil)
    )
    np.testing.assert_allclose(of_logits, expected, rtol=1e-12)


def test_weights_of_one_over_the_number_of_tokens_make_means(family, model):
    prompt, answer, foil = CASES[1]
    y = contrast_of_case(CASES[1])._replace(
        answer_weights=jnp.full(2, 1 / 2), foil_weights=jnp.full(3, 1 / 3)
    )
    expected = (
        log_probability(family, prompt, foil) / 3 - log_probability(family, prompt, answer) / 2
    )
    loss = loss_of(model, jax.device_put(prompt), y)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def longer(model):
    """With as many learned places as padding takes."""
    if model.positions is None:
        return model
    places = random_states(1, PLACES, model.positions.shape[1])
    return eqx.tree_at(lambda model: model.positions, model, places)


def whole_row(prompt, ids):
    """The row of a prompt and what follows it, and targets of the mean over what follows."""
    window = np.concatenate([prompt, ids])
    weights = (np.arange(1, len(window)) >= len(prompt)) / len(ids)
    row, targets, weights = jax.device_put((window[:-1], window[1:], weights))
    return row, Targets(targets, weights)


def gradient(model, ids, y):
    return jax.grad(model.loss)(model.embed(ids), y)


def squares_by_two_passes(model, prompt, answer, foil, log_weights=None, parts=None):
    """Norms squared of what plain gradients of both whole rows leave on the prompt's tokens."""

    def of_sum(ids):
        row, y = whole_row(prompt, ids)
        if log_weights is not None and parts is not None:
            more = (0, len(ids) - 1)
            y = y._replace(
                log_weights=jax.device_put(np.pad(log_weights, more)),
                parts=jax.device_put(np.pad(parts, more, constant_values=-1)),
            )
        gradients = eqx.filter_jit(gradient)(model, row, y)
        return len(ids) * gradients[: len(prompt)]

    return ((of_sum(answer) - of_sum(foil)) ** 2).sum(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2"], indirect=True)  # whose places are learned
def test_energies_are_those_of_both_passes_on_the_prompts_own_grid(model):
    model = longer(model)
    case = CASES[1]
    window = jax.device_put(np.append(case[0], 0))
    (energy,) = models.energies_of_ids(
        model, [window], ask=[contrast_of_case(case)], loss=contrast_loss
    )
    expected = np.asarray(squares_by_two_passes(model, *case)) * len(case[0]) ** 2
    np.testing.assert_allclose(energy, expected, rtol=1e-9)


DYNAMIC = CONFIGS["llama"] | {
    "max_position_embeddings": 16,
    "rope_scaling": {"type": "dynamic", "factor": 2.0},
}


@pytest.mark.parametrize(
    "config, sizes",
    [(CONFIGS["gpt2"], (3, 2, 5)), (DYNAMIC, (9, 2, 3)), (DYNAMIC, (13, 4, 5))],
    ids=["8 learned places", "rotary base of 11 tokens", "rotary base of 17 tokens"],
)
def test_padding_leaves_a_contrast_in_its_places_and_its_frequencies(tmp_path, config, sizes):
    """A foil ends within the places that are known, or its base is that of its own length."""
    model = models.load(write(tmp_path, config), dtype="float64")
    generator = np.random.default_rng(4)
    prompt, answer, foil = (generator.integers(WORDS, size=size) for size in sizes)
    y = contrast_of_case((prompt, answer, foil))
    window = jax.device_put(np.append(prompt, 0))
    (energy,) = models.energies_of_ids(model, [window], ask=[y], loss=contrast_loss)
    expected = np.asarray(squares_by_two_passes(model, prompt, answer, foil)) * len(prompt) ** 2
    np.testing.assert_allclose(energy, expected, rtol=1e-9)


@pytest.mark.parametrize("family", ["llama"], indirect=True)
def test_energies_are_those_under_the_contrasts_mask(model):
    case = CASES[1]
    mask = np.array([-1.5, 0.7, -0.2, 0.4, 0.0]), np.array([0, 0, 1, 1, -1])
    log_weights, parts = jax.device_put(mask)
    y = contrast_of_case(case)._replace(log_weights=log_weights, parts=parts)
    window = jax.device_put(np.append(case[0], 0))
    (energy,) = models.energies_of_ids(model, [window], ask=[y], loss=contrast_loss)
    expected = squares_by_two_passes(model, *case, log_weights=mask[0], parts=mask[1])
    np.testing.assert_allclose(energy, np.asarray(expected) * len(case[0]) ** 2, rtol=1e-9)
    short = y._replace(log_weights=log_weights[:4])
    with pytest.raises(ValueError, match=r"ask: got a contrast with a mask of shape \(4,\)"):
        models.energies_of_ids(model, [window], ask=[short], loss=contrast_loss)


@pytest.mark.usefixtures("as_users_run")
def test_ids_of_few_bits_follow_a_long_prompt():
    generator = np.random.default_rng(3)
    prompt, answer, foil = (generator.integers(256, size=size) for size in (300, 2, 3))
    model = byte_network(302)
    mean = eqx.filter_jit(lambda row, y: model.loss(model.embed(row), y))
    expected = 3 * mean(*whole_row(prompt, foil)) - 2 * mean(*whole_row(prompt, answer))
    few_bits = jax.device_put([ids.astype(np.uint8) for ids in (prompt, answer, foil)])
    loss = loss_of(model, few_bits[0], contrast(*few_bits, dtype="float64"))
    np.testing.assert_allclose(loss, -expected, rtol=1e-10)


@pytest.mark.usefixtures("as_users_run")
def test_what_contrasts_nothing_is_refused(model):
    prompt, answer, _ = map(jax.device_put, CASES[1])
    with pytest.raises(ValueError, match="foil: got the answer itself, expected another text"):
        contrast(prompt, answer, answer)
    x = model.embed(prompt)
    with pytest.raises(ValueError, match="y: got Targets, expected an instance of Contrast"):
        contrast_loss(model, x, Targets(answer, jnp.array([0.5, 0.5])))  # pyright: ignore
    short = contrast_of_case(CASES[1])._replace(answer_weights=jnp.ones(3))
    with pytest.raises(ValueError, match=r"weights: got shape \(3,\), expected \(2,\)"):
        contrast_loss(model, x, short)
    with pytest.raises(ValueError, match="ask: got a contrast after 5 ids, expected after 4"):
        models.energies_of_ids(
            model, [prompt], ask=[contrast_of_case(CASES[1])], loss=contrast_loss
        )


@pytest.mark.usefixtures("as_users_run")
def test_fewer_queries_than_places_need_their_places():
    """Also of so many words that logits stand in slices."""
    model = byte_network(6)
    head = jax.device_put(np.ones((9000, 4)))
    model = eqx.tree_at(lambda model: (model.embedding, model.head), model, (head, head))
    state = jax.device_put(np.ones((6, 4)))
    for few, loss in ((1, models.CausalLM.loss), (3, models.CausalLM.margin_loss)):
        y = Targets(jnp.arange(few), jnp.full(few, 1 / few))
        with pytest.raises(
            ValueError, match=f"positions: got {few} queries of a context of 6 places"
        ):
            loss.terminal(model, state, y)


@pytest.mark.usefixtures("as_users_run")
@pytest.mark.parametrize("name", ["prompt", "answer", "foil"])
@pytest.mark.parametrize("ids", [np.array([], int), "abc", np.array([0.5]), None])
def test_a_contrast_of_what_are_no_ids_is_refused(name, ids):
    given: Any = {part: np.array([at]) for at, part in enumerate(("prompt", "answer", "foil"))}
    with pytest.raises(ValueError, match=f"{name}: got .*, expected at least one whole number"):
        contrast(**{**given, name: ids})
