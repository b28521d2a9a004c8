"""Mixtures of experts: how they are chosen, sorted and gated, by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.architectures import architecture_flow
from reference.networks import layer_of, random_states

import lim_jax as lim
from lim_jax.network.experts import ClampedGate, Experts, MixtureOfExperts, Routing


def weights_of(routing, scores, preference=None):
    logits = jnp.log(jnp.asarray(scores) / (1 - jnp.asarray(scores)))
    weights, chosen = routing.weights(logits[None], preference)
    return {int(e): float(w) for e, w in zip(chosen[0], weights[0], strict=True)}


def test_groups_are_judged_by_the_sum_of_their_best():
    """The first group has the best expert, the second the best pair; the third is better than both
    by one expert alone, which a preference lets lose."""
    scores = [0.9, 0.1, 0.2, 0.6, 0.5, 0.55, 0.95, 0.05, 0.05]
    routing = Routing(2, "sigmoid", groups=3, topk_group=1, best=2)
    assert weights_of(routing, scores) == pytest.approx({3: 0.6 / 1.15, 5: 0.55 / 1.15})
    by_one = routing._replace(best=1)
    assert set(weights_of(by_one, scores)) == {6, 7}
    preference = jnp.array([0.0] * 6 + [-0.5, 0.0, 0.0])
    first = weights_of(by_one, scores, preference)
    assert set(first) == {0, 2} and first[0] == pytest.approx(0.9 / 1.1)


def test_a_clamped_gate_has_no_least_value():
    """At most the limit, as far below as it is; what comes up is within it on both sides."""
    gates, ups = np.meshgrid([-7.0, -2.5, -1.0, 1.0, 2.5], [-9.0, -1.0, 1.0, 9.0])
    values = ClampedGate(0.5, 2.0)(jnp.asarray(gates), jnp.asarray(ups))
    gates = np.where(gates > 2, 2, gates)
    ups = np.where(abs(ups) > 2, 2 * np.sign(ups), ups)
    np.testing.assert_allclose(values, gates / (1 + np.exp(-gates / 2)) * (ups + 1), rtol=1e-12)


def test_weights_are_of_scores_and_not_of_preferences():
    routing = Routing(2, "sigmoid", normalised=False, factor=2.0)
    weights = weights_of(routing, [0.2, 0.3, 0.4], jnp.array([1.0, 0.0, 0.0]))
    assert weights == pytest.approx({0: 0.4, 2: 0.8})


def test_more_pairs_than_a_tile_holds_go_to_one_expert():
    """Ninety tokens, all of them to the experts 4 and 1, of which each fills three tiles."""
    network = layer_of(architecture_flow("clamped experts")).feed_forward
    width = network.router.shape[1]
    router = jnp.zeros_like(network.router)
    bias = jnp.array([0.0, 3.0, 0.0, 0.0, 4.0, 0.0])
    x = random_states(3, 90, width)
    grid = lim.token_grid(90)
    parts = network.norm, router, network.experts, network.routing, bias
    features = eqx.filter_jit(MixtureOfExperts(*parts))(x, x, grid)
    share = 1 / (1 + np.exp(-1.0))
    normed = jax.vmap(network.norm)(x)
    expected = sum(
        weight * np.asarray(network.experts.apply(jnp.array(expert), normed))
        for expert, weight in ((4, share), (1, 1 - share))
    )
    np.testing.assert_allclose(features, expected, rtol=1e-11, atol=1e-13)


def test_what_no_router_can_choose_is_refused():
    one = jnp.ones((4, 2, 3))
    experts = Experts(one, one, jnp.ones((4, 3, 2)))

    def made(routing):
        return MixtureOfExperts(lambda z: z, jnp.ones((4, 3)), experts, routing)

    with pytest.raises(ValueError, match="routing.top: got 5, expected from 1 to 4 experts"):
        made(Routing(5))
    with pytest.raises(ValueError, match="routing.groups: got 1 of 3 groups of 4 experts"):
        made(Routing(1, groups=3))
    with pytest.raises(ValueError, match="routing.groups: got 3 of 2 groups"):
        made(Routing(1, groups=2, topk_group=3))
    with pytest.raises(ValueError, match="routing.best: got groups of 1, expected groups of at le"):
        made(Routing(1, groups=4, topk_group=2, best=2))
    made(Routing(1, groups=4, topk_group=4, best=2))  # where all are open none is judged
