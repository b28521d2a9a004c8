"""The derivative in the measure of attention: NumPy, removal, identities and the continuum."""

import math
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_network
from reference.architectures import architecture_flow
from reference.differences import difference_by_calls
from reference.light import light_flow
from reference.networks import (
    LENGTH,
    byte_network,
    falling_profile,
    layer_of,
    random_flow,
    random_states,
)

import lim_jax as lim
from lim_jax.adjoint import mask_gradient, mask_path
from lim_jax.limits.network_studies import Quantity
from lim_jax.loss import last_token
from lim_jax.models import CausalLM, Targets
from lim_jax.network import attention, tiles
from lim_jax.network.kv_cache import extend, prefill

TOKENS = lim.token_grid(LENGTH)
PARTS = np.array([-1, 0, 0, 0, 1, 1, 1, 1, 2, 2, -1, -1])
NO_PARTS = np.full(LENGTH, -1)
LOG_WEIGHTS = np.random.default_rng(5).standard_normal(LENGTH)
EXAMPLE = random_states(1), random_states(2)


def loss(state, y):
    return jnp.sum(jnp.sin(state + y))


def in_tiles(patch):
    """A loss whose programs are not those of whole matrices, which a jit remembers."""
    patch.setattr(tiles, "TILE", 5)
    patch.setattr(attention, "DENSE", 5)
    return lambda state, y: loss(state, y)


def layers_of(flow):
    return [layer_of(flow, index) for index in range(flow.depth)]


def complex_steps(flow, log_weights, parts, directions):
    """The loss and its slopes along log weights of every layer and head, by NumPy."""
    moved = log_weights + 1j * numpy_network.STEP * directions
    masks = [numpy_network.soft_mask(moved[:, k], parts) for k in range(flow.depth)]
    x, y = (np.asarray(array, complex) for array in EXAMPLE)
    states = np.broadcast_to(x, (len(moved), *x.shape))
    rest = flow.horizon, "split", falling_profile, masks
    losses = np.sin(numpy_network.flow(layers_of(flow), states, *rest) + y).sum(axis=(1, 2))
    return losses[0].real, numpy_network.derivative(losses)


# Windows, groups and turns; latent vectors; caps, gates and layers that differ; sinks and chunks.
ARCHITECTURES = [
    ("everything", NO_PARTS, False),
    ("latent, experts", PARTS, False),
    ("normed outputs", NO_PARTS, True),
    ("sinks", PARTS, True),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, parts, by_tiles", ARCHITECTURES)
def test_by_layer_and_head_it_is_the_reference_networks_derivative(
    name, parts, by_tiles, monkeypatch
):
    loss_in_tiles = in_tiles(monkeypatch) if by_tiles else loss
    flow = architecture_flow(name)
    grid = TOKENS.weighted(jnp.asarray(LOG_WEIGHTS), jnp.asarray(parts))
    gradient = mask_gradient(flow, loss_in_tiles, EXAMPLE, grid)
    by_head = np.asarray(gradient.by_head) / LENGTH
    directions = np.random.default_rng(6).standard_normal((6, *by_head.shape))
    value, slopes = complex_steps(flow, LOG_WEIGHTS, parts, directions)
    np.testing.assert_allclose(gradient.loss, value, rtol=1e-12)
    np.testing.assert_allclose(np.tensordot(directions, by_head, 3), slopes, rtol=1e-10)
    np.testing.assert_allclose(gradient.total / LENGTH, by_head.sum(axis=(0, 1)), rtol=1e-12)
    if parts is NO_PARTS:  # positions compete for what there is
        np.testing.assert_allclose(by_head.sum(axis=2), 0, atol=1e-13)


def test_minus_infinity_is_removal(monkeypatch):
    """Of the first positions too, with which a window of four has rows that see nothing else."""
    loss_in_tiles = in_tiles(monkeypatch)
    removed = np.isin(np.arange(LENGTH), [0, 1, 2, 3, 4, 8])
    kept = np.flatnonzero(~removed)
    flow = architecture_flow("everything")
    grid = TOKENS.weighted(jnp.asarray(np.where(removed, -np.inf, 0.0)))
    x, y = EXAMPLE
    gradient = mask_gradient(
        flow, lambda state, y: loss_in_tiles(state[kept], y[kept]), (x, y), grid
    )
    rest = flow.horizon, "split", falling_profile, None, kept
    states = numpy_network.flow(layers_of(flow), np.asarray(x)[kept], *rest)
    np.testing.assert_allclose(gradient.loss, np.sin(states + np.asarray(y)[kept]).sum(), 1e-12)
    for removed_gradient in (gradient.by_head[:, :, removed], gradient.covector[removed]):
        np.testing.assert_array_equal(removed_gradient, 0)
    assert np.isfinite(gradient.by_head).all()


@pytest.mark.parametrize("make_grid", [lim.graded_grid, lim.gauss_grid])
def test_on_other_grids_both_derivatives_are_densities_of_central_differences(make_grid):
    """The signed weights of panels too."""
    grid = make_grid(LENGTH)
    flow = light_flow(step=lim.split)

    def measured(at):
        x, log_weights = at
        weighted = grid.weighted(log_weights, jnp.asarray(PARTS))
        return mask_gradient(flow, loss, (x, EXAMPLE[1]), weighted)

    at = EXAMPLE[0], LOG_WEIGHTS
    xi = random_states(3, *EXAMPLE[0].shape)
    along = random_states(4, LENGTH)
    slope = difference_by_calls(lambda at: measured(at).loss, at, (xi, along))
    gradient = measured(jax.device_put(at))
    directional = lim.grid.inner(gradient.covector, xi, grid) + lim.integral(
        along * gradient.total, grid
    )
    np.testing.assert_allclose(directional, slope, rtol=1e-8)


@pytest.mark.slow
def test_it_converges_to_the_first_variation_in_the_measure():
    """Of a smooth field and a smooth measure, by layer, in the largest norm, to order 1."""
    flow = light_flow(width=3)

    def measured(x, grid):
        weighted = grid.weighted(jnp.sin(3 * grid.nodes))
        tested_loss = partial(total, grid=grid)
        return mask_gradient(flow, tested_loss, (x, None), weighted).by_head.sum(axis=1).T

    (row,) = lim.limits.convergence_study(
        measured,
        lambda p: jnp.stack([jnp.cos(2 * p), p, jnp.exp(-p)], axis=1),
        [lim.token_grid(size) for size in (15, 30, 60, 90)],
        {"mask gradient": Quantity(lambda gradient, grid: gradient, 1, norm=largest)},
        references=(lim.gauss_grid(8, panels=4), lim.gauss_grid(12, panels=4)),
    )
    assert row.study.reference_error < min(row.study.errors) / 20
    assert abs(row.study.order.value - 1) < 0.15, row.study


def total(state, y, grid):
    return lim.integral(jnp.sin(state), grid).sum()


def largest(gap, grid):
    """Inside: at the left end tokens lose the rate, as they do of the input adjoint."""
    return np.abs(gap[np.asarray(grid.nodes) >= 0.2]).max()


@pytest.mark.slow
def test_its_derivative_is_the_hessian_of_the_loss(monkeypatch):
    """Forward over reverse in tiles: symmetric, and a central difference of the gradient."""
    loss_in_tiles = in_tiles(monkeypatch)
    flow = light_flow(step=lim.split)
    directions = random_states(3, 2, LENGTH)

    def gradient(log_weights):
        grid = TOKENS.weighted(log_weights, jnp.asarray(PARTS))
        return mask_gradient(flow, loss_in_tiles, EXAMPLE, grid).total / LENGTH

    @jax.jit
    def of_both(log_weights):
        def along(direction):
            return jax.jvp(gradient, (log_weights,), (direction,))

        return jax.vmap(along, out_axes=(None, 0))(directions)

    _, slopes = of_both(LOG_WEIGHTS)
    differences = difference_by_calls(lambda u: of_both(u)[0], LOG_WEIGHTS, directions[0])
    np.testing.assert_allclose(slopes[0], differences, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(directions[1] @ slopes[0], directions[0] @ slopes[1], rtol=1e-9)


@pytest.mark.slow
def test_in_single_precision_it_is_the_same_to_rounding():
    flow = random_flow(step=lim.split)
    exact = mask_gradient(flow, loss, EXAMPLE, TOKENS.weighted(jnp.asarray(LOG_WEIGHTS)))
    single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), (flow, EXAMPLE, LOG_WEIGHTS))
    with jax.enable_x64(False):
        flow, example, log_weights = jax.device_put(single)
        grid = lim.token_grid(LENGTH).weighted(log_weights)
        gradient = mask_gradient(flow, loss, example, grid)
        assert gradient.by_head.dtype == gradient.covector.dtype == jnp.float32
    for ours, theirs in zip(gradient, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


PATH = {"chosen": jnp.asarray(PARTS >= 0), "grid": TOKENS.weighted(jnp.asarray(LOG_WEIGHTS))}


@pytest.mark.slow
def test_a_path_is_complete_and_says_how_far_it_is_not():
    """At twenty-four nodes to 1e-8; at two its remainder is that of the sum of two gradients."""
    flow = random_flow(step=lim.split)
    chosen = PATH["chosen"]

    def on(weight):
        return TOKENS.weighted(jnp.where(chosen, jnp.log(weight), 0.0) + LOG_WEIGHTS)

    fine = mask_path(flow, loss, EXAMPLE, **PATH, nodes=24)
    whole, without = (mask_gradient(flow, loss, EXAMPLE, on(w)).loss for w in (1.0, 1e-3))
    np.testing.assert_allclose((fine.loss, fine.loss_without), (whole, without), rtol=1e-12)
    np.testing.assert_allclose(fine.total.mean(), whole - without, atol=1e-8)
    coarse = mask_path(flow, loss, EXAMPLE, **PATH, nodes=2)
    middle = np.log(1e-3) / 2
    apart = -np.log(1e-3) / 2 / np.sqrt(3)
    at = [mask_gradient(flow, loss, EXAMPLE, on(np.exp(middle + s))) for s in (apart, -apart)]
    expected = -middle * np.where(chosen, sum(np.asarray(one.by_head) for one in at), 0)
    np.testing.assert_allclose(coarse.by_head, expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(coarse.remainder, whole - without - coarse.total.mean(), atol=1e-13)
    assert abs(fine.remainder) < 1e-8 < 1e-3 < abs(coarse.remainder)
    assert np.abs(np.asarray(fine.total - coarse.total)).max() > 1e-3


@pytest.mark.slow
def test_a_language_models_loss_may_be_differentiated_in_log_weights():
    """Of packed contexts, by JAX, and by layer and head."""
    model = byte_network(LENGTH, heads=2, depth=2)
    ids = np.arange(60, 61 + LENGTH)
    starts = jnp.asarray(np.where(np.arange(LENGTH) < 5, 0, 5))
    weights = last_token(LENGTH)

    def of_log_weights(log_weights, ids, starts, parts, weights):
        y = Targets(ids[1:], weights, None, starts, log_weights, parts)
        return CausalLM.loss(model, model.embed(ids[:-1], y), y)

    row = jnp.asarray(LOG_WEIGHTS), jnp.asarray(ids), starts, jnp.asarray(PARTS), weights
    packed = jax.jit(jax.grad(of_log_weights))(*row)
    y = Targets(row[1][1:], weights, None, starts, *row[::3])
    grid = TOKENS.starting(starts).weighted(*row[::3])
    example = model.embed(row[1][:-1], y), y
    gradient = mask_gradient(model.flow, model.terminal_loss, example, grid)
    np.testing.assert_allclose(gradient.total / LENGTH, packed, rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(packed[:5], 0)
    assert np.abs(packed[5:]).min() > 1e-6


def test_tokens_more_read_keys_by_their_log_weights_too():
    """The three last, of which one is in a part of the tokens before."""
    flow = random_flow(step=lim.split)
    x, _ = EXAMPLE
    grid = TOKENS.weighted(jnp.asarray(LOG_WEIGHTS), (jnp.arange(LENGTH) + 2) // 4)
    place = LENGTH - 3

    @jax.jit
    def both_ways(flow, x):
        first = prefill(flow, x.at[place:].set(0), grid, jnp.array(place))
        rest = extend(flow, x[place:], jnp.array(place), first.caches, grid)
        return rest.state, flow(x, grid)[place:]

    np.testing.assert_allclose(*both_ways(flow, x), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("make_grid", [lim.midpoint_grid, lim.graded_grid])
def test_tokens_more_have_no_half_cells(make_grid):
    """A row of those reads a part of its own cell, which a row of cached keys reads whole."""
    grid = make_grid(LENGTH)
    for call in (
        lambda: prefill(FLOW, EXAMPLE[0], grid),
        lambda: extend(FLOW, EXAMPLE[0][:1], jnp.array(0), (), grid),
    ):
        with pytest.raises(ValueError, match="grid: got .*, expected the token grid. Take token_g"):
            call()


REFUSED = {
    "log_weights": lambda: TOKENS.weighted(jnp.zeros(3)),
    "parts": lambda: TOKENS.weighted(jnp.zeros(LENGTH), jnp.zeros(3, int)),
    "chosen": lambda: mask_path(FLOW, loss, EXAMPLE, TOKENS, jnp.asarray(PARTS)),
    "nodes": lambda: mask_path(FLOW, loss, EXAMPLE, **PATH, nodes=0),
    "least": lambda: mask_path(FLOW, loss, EXAMPLE, **PATH, least=1.0),
    "flow.layers": lambda: mask_gradient(of_own_attention(), loss, EXAMPLE, TOKENS),
}
FLOW = random_flow()


def of_own_attention():
    """Which may read no log weights: its derivative in them would be zero."""
    attention = replace(FLOW.layers.attention, attend=lambda *slots, **options: slots[-1])
    return replace(FLOW, layers=replace(FLOW.layers, attention=attention))


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("as_users_run")
def test_arguments_that_do_not_fit_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"^{name}: got"):
        REFUSED[name]()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_log_weight_is_below_infinity(number):
    with pytest.raises(
        Exception, match="log_weights: got infinity or NaN, expected numbers below infinity"
    ):
        TOKENS.weighted(jnp.asarray(np.where(np.arange(LENGTH) == 3, number, 0.0)))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_path_of_half_precision_is_summed_in_single(dtype):
    """Where all weigh alike the integrand is one number, and 64 nodes add up to the path's length.

    Their shares were rounded, and the sum after each of them.
    """
    grid = lim.token_grid(12, dtype)
    layer = jax.tree.map(lambda leaf: leaf[None].astype(dtype), lim.limits.averaging_attention())
    flow = lim.ResidualFlow(layer)
    x = jnp.asarray(np.random.default_rng(0).uniform(1, 2, (12, 1)), dtype)
    problem = flow, lambda state, y: state[-1, 0], (x, None), grid
    path = mask_path(*problem, jnp.ones(12, bool), nodes=64)
    expected = math.log(1e3) * np.asarray(mask_gradient(*problem).by_head, float)
    np.testing.assert_allclose(path.by_head, expected, rtol=1e-5)
