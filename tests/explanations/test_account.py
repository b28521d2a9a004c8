"""The account of one context's tokens: gradients and ledgers of the rest of the network."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.compilations import compilations
from reference.networks import byte_network

import lim_jax as lim
from lim_jax import explanations
from lim_jax.adjoint.hops import attention_hops
from lim_jax.adjoint.ledger import channels, cone_by_head
from lim_jax.adjoint.sites import attention_sites
from lim_jax.explanations import account_of_context
from lim_jax.models.padding import padded_size

LENGTH = 5
LAYERS = 3
DEPTH = 1
GRID = lim.token_grid(LENGTH)
WINDOW = np.array([104, 101, 108, 108, 111, 33])
ASKED = np.array([0.1, 0.4, 0.0, 0.2, 0.3])
close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-14)


@cache
def model():
    """Of more places than the context has: it is padded."""
    network = byte_network(LENGTH + 2, depth=LAYERS)
    assert padded_size(network, LENGTH) == LENGTH + 2
    return network


def account():
    return account_of_context(model(), jax.device_put(WINDOW), jax.device_put(ASKED), DEPTH)


def rest_from(depth):
    """The layers after some, as a network of its own."""
    layers = jax.tree.map(lambda leaf: leaf[depth:], model().flow.layers)
    return lim.ResidualFlow(layers, float(LAYERS - depth), step=lim.split)


def squares(vectors):
    return (np.asarray(vectors) ** 2).sum(axis=-1)


@pytest.mark.slow
def test_the_energy_at_every_depth_is_that_of_the_gradient_of_the_layers_after_it():
    breakdown = account()
    network = model()

    @jax.jit
    @jax.value_and_grad
    def loss_of_moved(moved):
        """The loss of states that are each moved, before every layer and at the end."""
        x, y = network.example(jnp.asarray(WINDOW), jnp.asarray(ASKED))

        def layer(x, at):
            field, shift = at
            return network.flow.transition((field, jnp.ones(())), x + shift, GRID), None

        last, _ = jax.lax.scan(layer, x, (network.flow.layers, moved[:-1]))
        return network.terminal_loss(last + moved[-1], y)

    loss, gradients = map(np.asarray, loss_of_moved(np.zeros((LAYERS + 1, LENGTH, 4))))
    close(breakdown.loss, loss)
    close(breakdown.by_depth, squares(LENGTH * gradients))
    close(breakdown.energy, breakdown.by_depth[DEPTH])
    close(breakdown.query_weights, ASKED)
    assert breakdown.depth == DEPTH


@pytest.mark.slow
def test_at_a_depth_channels_hops_and_heads_are_those_of_the_layers_after_it(monkeypatch):
    """Whether or not rows that the loss asks go by themselves, of which one is named thrice."""
    breakdown = account()
    network = model()
    rest = rest_from(DEPTH)
    monkeypatch.setattr(explanations.account, "FEW", 0)
    by_rows = account()
    for whole, rows in zip(breakdown, by_rows, strict=True):
        close(rows, whole)
    assert all(
        np.any(np.asarray(one) != np.asarray(other))
        for one, other in zip(breakdown[2:], by_rows[2:], strict=True)
    )  # by other sums

    @jax.jit
    def measured():
        x, y = network.example(jnp.asarray(WINDOW), jnp.asarray(ASKED))
        example = network.flow.trajectory(x, GRID).states[DEPTH], y
        ledger = channels(rest, network.terminal_loss, example, GRID)
        sites = attention_sites(rest, ledger.states, ledger.covectors, GRID)
        hops = attention_hops(rest, network.terminal_loss, example, GRID, 3)[0]
        return ledger.vectors, hops, cone_by_head(sites, GRID)

    vectors, hops, heads = map(np.asarray, measured())
    for parts in (vectors, hops):
        close(squares(parts.sum(axis=0)), breakdown.energy)
    close(breakdown.channels, squares(vectors))
    close(breakdown.hops, squares(hops))
    assert breakdown.heads.shape == (LAYERS - DEPTH, 2)
    close(breakdown.heads, squares(heads).mean(axis=2))  # equal cells: the integral is the mean
    # The loss asks at all places but one, and two layers make at most two hops.
    assert (np.asarray(breakdown.hops[0]) > 0).tolist() == (ASKED > 0).tolist()
    assert not np.any(breakdown.hops[3])


def test_contexts_of_one_length_are_compiled_for_once():
    account()  # now: what an earlier test compiled may be forgotten
    with compilations() as programs:
        other = jax.device_put(WINDOW[::-1].copy())
        account_of_context(model(), other, jax.device_put(ASKED), DEPTH)
    assert programs == []


@pytest.mark.usefixtures("as_users_run")
def test_a_context_inside_a_transformation_is_refused():
    """Else it ended in JAX's TracerArrayConversionError, without what to do."""
    with pytest.raises(ValueError, match="window: got traced arrays, .+ Call it outside jax.jit"):
        jax.jit(lambda window: account_of_context(model(), window, ASKED).loss)(WINDOW)
    with pytest.raises(ValueError, match="query_weights: got traced arrays"):
        jax.grad(lambda asked: account_of_context(model(), WINDOW, asked).loss)(ASKED)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"window": WINDOW[:1]}, "window: got one id, expected a context"),
        ({"window": WINDOW + 0.5}, "window: got an array of float"),
        ({"query_weights": ASKED[1:]}, "query_weights: got shape"),
        ({"depth": LAYERS}, "depth: got 3, expected a whole number from 0 to 2"),
    ],
)
@pytest.mark.usefixtures("as_users_run")
def test_what_is_no_context_is_refused(wrong, message):
    right = {"window": WINDOW, "query_weights": ASKED, "depth": DEPTH}
    with pytest.raises(ValueError, match=message):
        account_of_context(model(), **(right | wrong))
