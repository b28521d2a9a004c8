"""Scores, on cases by hand that pin each rule of their sources."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lim_jax.tasks import decodes_greedily


def decoded(step, prompt, count):
    """Greedy decoding word by word: the network reads what it has said itself."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(np.argmax(step(ids))))
    return ids[len(prompt) :]


def test_decoding_gives_the_answer_exactly_where_every_asked_word_is_the_best():
    """A causal network of random tables; its logits depend on all that it has read."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(4, 4))

    def step(ids):
        return sum(table[one] * np.cos(place) for place, one in enumerate(ids))

    outcomes = []
    decodes = jax.jit(decodes_greedily)
    for prompt in rng.integers(4, size=(30, 3)).tolist():
        right = decoded(step, prompt, 2)
        for answer in (right, [right[0], (right[1] + 1) % 4], [(right[0] + 1) % 4, right[1]]):
            window = prompt + answer
            logits = np.stack([step(window[: place + 1]) for place in range(4)])
            targets = np.array(window[1:])
            weights = np.array([0.0, 0.0, 0.5, 0.5])
            outcome = bool(decodes(*map(jax.device_put, (logits, targets, weights))))
            assert outcome == (answer == right)
            outcomes.append((outcome, bool((logits.argmax(1) == targets).all())))
    # What is not asked is often wrong, and does not count.
    assert sum(outcome for outcome, _ in outcomes) == 30 and (True, False) in outcomes


@pytest.mark.slow
def test_examples_are_decoded_side_by_side():
    logits = jnp.array([[[0.0, 1.0], [3.0, 2.0]], [[1.0, 1.0], [0.0, 9.0]]])
    targets = jnp.array([[1, 0], [1, 1]])
    weights = jnp.array([[0.5, 0.5], [0.5, 0.5]])
    # Of equal logits the first counts: the second example's first word is 0.
    assert jax.vmap(decodes_greedily)(logits, targets, weights).tolist() == [True, False]
    assert bool(decodes_greedily(logits[1], jnp.array([0, 1]), weights[1]))


@pytest.mark.usefixtures("as_users_run")
def test_places_that_ask_nothing_or_no_word_are_refused():
    logits = jnp.eye(2)
    targets = jnp.array([0, 1])
    with pytest.raises(Exception, match="weights: got zeros alone"):
        decodes_greedily(logits, targets, jnp.zeros(2))
    for outside in (-1, 2):
        with pytest.raises(
            Exception, match="targets: got a number .*expected numbers from 0 to 1 where weights"
        ):
            decodes_greedily(logits, jnp.array([0, outside]), jnp.array([0.5, 0.5]))
    assert decodes_greedily(logits, jnp.array([0, -1]), jnp.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="targets: got 3 of them, expected 2"):
        decodes_greedily(logits, jnp.array([0, 1, 1]), jnp.array([0.5, 0.5]))


def test_targets_of_few_bits_are_not_confused_with_words_beyond_them():
    """300 is 44 in eight bits, and the likeliest word is 300."""
    logits = jnp.zeros((1, 400)).at[0, 300].set(1.0)
    assert not decodes_greedily(logits, jnp.array([44], jnp.uint8), jnp.ones(1))
    assert decodes_greedily(logits, jnp.array([300], jnp.uint16), jnp.ones(1))
