"""Networks of layers of several kinds: what is split of their adjoints, beside plain loops."""

from dataclasses import replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.hybrids import ORDER, hybrid_flow
from reference.networks import WIDTH, random_flow, random_states

import lim_jax as lim
from lim_jax import adjoint, weights
from lim_jax.adjoint import tangent
from lim_jax.adjoint.sites import AttentionSites, attention_of, require_attention
from lim_jax.attribution.gradients import attention_rollout
from lim_jax.network import euler, heun, strang
from lim_jax.network.field import SumOfFields
from lim_jax.network.kv_cache import extend, has_kv_cache, prefill
from lim_jax.network.layer_kinds import LayersByKind, layer_of, select_part
from lim_jax.network.recurrent import RecurrentMixer

LENGTH = 5
FLOW = hybrid_flow()
GRID = lim.token_grid(LENGTH)
X, Y = random_states(4, 2, LENGTH, WIDTH)


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecurrentMixer, "chunk", 2)
        yield


def loss(state, y):
    return jnp.sum(jnp.sin(state[-2:]) * y[-2:])


def one_by_one(x, grid):
    """The layers in a loop of Python's, each taken from its kind by hand."""
    seen = [0] * len(FLOW.kinds)
    for kind in ORDER:
        layer = layer_of(FLOW.layers.kinds[kind], jnp.array(seen[kind]))
        seen[kind] += 1
        for field in layer.sublayers:
            x = euler(field, x, grid, FLOW.horizon / len(ORDER))
    return x


def fetched():
    """The same network, whose layers of each kind a source hands out."""

    def of_kind(layers):
        host = jax.tree.map(np.asarray, layers)
        depth = len(jax.tree.leaves(host)[0])
        source = weights.LayerSource(lambda at: jax.tree.map(lambda leaf: leaf[at], host), depth)
        return weights.FetchedLayers(jnp.zeros(1), source)

    layers = LayersByKind(tuple(map(of_kind, FLOW.layers.kinds)), ORDER)
    return lim.ResidualFlow(layers, FLOW.horizon, step=FLOW.step)


@eqx.filter_jit
def split_adjoint(flow):
    """All that is split of the adjoint."""
    parts = adjoint.channels(flow, loss, (X, Y), GRID)
    sites = adjoint.attention_sites(flow, parts.states, parts.covectors, GRID)
    masked = adjoint.mask_gradient(flow, loss, (X, Y), GRID)
    return {
        "channels": parts,
        "hops": adjoint.attention_hops(flow, loss, (X, Y), GRID, 1),
        "heads": adjoint.cone_by_head(sites, GRID),
        "mask": masked.by_head,
    }


@cache
def adjoint_of_flow():
    return jax.tree.map(np.asarray, split_adjoint(FLOW))


@cache
def expected():
    """The state after the loop, and the gradients of its loss in the input and in log weights."""

    def loss_and_state(x, log_weights):
        state = one_by_one(x, GRID.weighted(log_weights))
        return loss(state, Y), state

    of_both = jax.jit(jax.grad(loss_and_state, (0, 1), has_aux=True))
    gradients, state = of_both(X, jnp.zeros(LENGTH))
    return state, *gradients


@pytest.mark.slow
def test_layers_of_several_kinds_are_a_loop_over_them():
    state, gradient, _ = expected()
    np.testing.assert_allclose(adjoint_of_flow()["channels"].states[-1], state, atol=1e-13)
    np.testing.assert_allclose(
        adjoint_of_flow()["channels"].covectors[0], LENGTH * gradient, atol=1e-12
    )


@pytest.mark.slow
def test_hops_and_heads_sum_to_the_channels():
    parts = adjoint_of_flow()
    cone = adjoint_of_flow()["channels"].cone_by_depth
    np.testing.assert_allclose(parts["hops"].sum(axis=1), parts["channels"].covectors, atol=1e-12)
    np.testing.assert_allclose(parts["heads"].sum(axis=1), cone, atol=1e-12)
    assert parts["heads"].shape[:2] == (3, 6)  # two heads of attention, and four of Mamba-2
    assert np.abs(parts["heads"]).max(axis=(2, 3)).astype(bool).sum(axis=1).tolist() == [6, 1, 1]


@pytest.mark.slow
def test_a_mask_gradient_is_the_loss_by_log_weights():
    by_head = adjoint_of_flow()["mask"] / LENGTH
    assert by_head.shape == (3, 6, LENGTH) and np.abs(by_head[0]).max(axis=1).all()
    np.testing.assert_allclose(by_head.sum(axis=(0, 1)), expected()[2], atol=1e-13)


@pytest.mark.slow
def test_layers_that_are_fetched_give_the_numbers_of_those_in_memory():
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13),
        eqx.filter_jit(adjoint.channels)(fetched(), loss, (X, Y), GRID),
        adjoint_of_flow()["channels"],
    )


def test_what_is_a_softmax_alone_says_so():
    parts = select_part(FLOW.layers, attention_of)
    sites = AttentionSites(parts, jnp.ones((1, 3)), jnp.ones((1, 3)), X[None, None], X[None, None])
    with pytest.raises(
        ValueError, match="got SumOfFields and ShortConvolution, expected CausalAttention"
    ):
        adjoint.joint_cone(sites, GRID)
    with pytest.raises(ValueError, match="no attention matrix to roll out"):
        attention_rollout(FLOW, X, GRID)
    with pytest.raises(ValueError, match="blocks in closed form are those of a softmax"):
        tangent._require_attention(layer_of(parts.kinds[1], jnp.array(0)), X, GRID)
    with pytest.raises(ValueError, match=r"got \[1, 2\] of each kind, expected \[2, 1\]"):
        LayersByKind(FLOW.layers.kinds[::-1], ORDER)


def test_heads_of_sublayers_one_after_the_other_are_refused(as_users_run):
    """Each reads another state; side by side, in a sum or a step of Euler's, they read one."""
    attention = random_flow(depth=1).layers.attention
    flow = lim.ResidualFlow(SumOfFields((attention, attention)), step=lim.split)
    states = jnp.stack([X, X])
    for call in (
        lambda: adjoint.attention_sites(flow, states, states, GRID),
        lambda: adjoint.one_hop_by_head(flow, loss, (X, Y), GRID),
        lambda: adjoint.mask_gradient(flow, loss, (X, Y), GRID),
        lambda: adjoint.mask_gradient(replace(flow, step=strang), loss, (X, Y), GRID),
    ):
        with pytest.raises(ValueError, match="got a layer that applies 2 sublayers with heads one"):
            call()
    require_attention(replace(flow, step=euler))
    require_attention(replace(flow, layers=SumOfFields((flow.layers,))))


def test_results_of_each_kind_are_put_in_the_layers_order():
    """A layer of the second kind, two of the first, another of each."""
    layer = random_flow(depth=1).layers
    first, second = (jax.tree.map(partial(jnp.repeat, repeats=n, axis=0), layer) for n in (3, 2))
    flow = replace(FLOW, layers=LayersByKind((first, second), (1, 0, 0, 1, 0)))
    results = jnp.array([[1.0], [2.0], [4.0]]), jnp.array([[0.0], [3.0]])
    assert flow.in_order(results).tolist() == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    alone = replace(FLOW, layers=first)
    assert alone.in_order(results[:1]).tolist() == [[1.0], [2.0], [4.0]]


@pytest.mark.slow
def test_tokens_more_are_those_of_the_whole_context():
    """Of three at once the last is none of the context's; a memory without it serves the next."""

    @eqx.filter_jit
    def passed_in_three(flow, x, length):
        grid = lim.token_grid(LENGTH)
        padded = jnp.where(jnp.arange(LENGTH)[:, None] < length, x, 1.0)
        first = prefill(flow, padded, grid, length)
        two = jnp.concatenate([jax.lax.dynamic_slice_in_dim(x, length, 2), jnp.ones_like(x[:1])])
        middle = extend(flow, two, length, first.caches, grid, jnp.array(2))
        row = jax.lax.dynamic_slice_in_dim(x, length + 2, 1)
        return first, middle, extend(flow, row, length + 2, middle.caches, grid)

    assert has_kv_cache(FLOW) and not has_kv_cache(replace(FLOW, step=heun))
    *before, whole = adjoint_of_flow()["channels"].states
    cut = slice(2), slice(2, 4), slice(4, 5)
    rows = slice(2), slice(2), slice(1)
    passes = passed_in_three(FLOW, X, jnp.array(2))
    for passed, place, row in zip(passes, cut, rows, strict=True):
        np.testing.assert_allclose(passed.state[row], whole[place], atol=1e-12)
        states = [state[place] for state in before]
        np.testing.assert_allclose(passed.states[:, row], states, atol=1e-12)
    with pytest.raises(ValueError, match="expected one context whose tokens weigh the same"):
        prefill(FLOW, X, GRID.weighted(jnp.zeros(LENGTH)))
