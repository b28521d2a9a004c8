"""The constants of a field's regularity, each step of their proof by itself, in NumPy."""

import dataclasses
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.dense import prefix_weights
from reference.networks import GRIDS, layer_of, random_flow, random_states, randomised

import lim_jax as lim
from lim_jax.grid.cells import CellGrid
from lim_jax.network import regularity
from lim_jax.network.controls import linear_control
from lim_jax.network.norms import LayerNorm
from lim_jax.network.positions import UnitRotary
from lim_jax.network.regularity import (
    HARDY,
    FieldRegularity,
    attention_regularity,
    feed_forward_regularity,
    field_regularity,
    hardy_bound,
    norm_constants,
    trajectory_radius,
)
from lim_jax.network.tokenwise import FeedForward

ETA = 0.1


def small_layer(seed=0, scale=0.5):
    """A layer with two unequal heads, whose scores stay below one."""
    layer = layer_of(random_flow(seed, depth=1))
    scaled = jax.tree.map(lambda leaf: jax.device_put(scale * np.asarray(leaf)), layer)
    query = np.asarray(scaled.attention.query) * np.array([0.3, 0.1])[:, None, None]
    return eqx.tree_at(lambda f: f.attention.query, scaled, jax.device_put(query))


def pairs(nodes, seed):
    """States that differ a lot and a little, by what Hardy's average enlarges, and near a mean.

    Tokens of little variance are where layer normalisation is steep.
    """
    generator = np.random.default_rng(seed)
    x, noise = generator.standard_normal((2, nodes.size, 6))
    singular = 1e-3 * noise[:1] / np.sqrt(nodes)[:, None]
    flat = 1e-2 * x + np.linspace(-3.0, 5.0, nodes.size)[:, None]
    steps = [
        (x, 3 * noise),
        (x, 1e-4 * noise),
        (x, singular),
        (flat, singular),
        (flat, 0.1 * noise),
    ]
    return [(start, start + step) for start, step in steps]


def numpy_norm(norm, x):
    centred = x - x.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True) + ETA)
    return np.asarray(norm.scale) * centred / spread + np.asarray(norm.shift)


def numpy_head(attention, head, x, prefix):
    """Scores, kernel as masses of cells, and output of one head."""
    u = numpy_norm(attention.norm, x)
    query, key, value = (
        u @ np.asarray(matrix)[head].T + np.asarray(bias)[head]
        for matrix, bias in (
            (attention.query, attention.query_bias),
            (attention.key, attention.key_bias),
            (attention.value, attention.value_bias),
        )
    )
    scores = query @ key.T / np.sqrt(query.shape[1])
    mass = prefix * np.exp(scores)
    mass = mass / mass.sum(axis=1, keepdims=True)
    return scores, mass, mass @ value


@pytest.mark.parametrize("name", GRIDS)
def test_every_step_of_the_proof_holds_by_itself(name):
    """No constant is too small; how large they are is for the next test."""
    grid = GRIDS[name](17)
    prefix = prefix_weights(grid)
    weights = np.asarray(grid.weights)
    past = prefix > 0
    attention = small_layer().attention
    bounds = jax.tree.map(np.asarray, attention_regularity(attention))
    sharpest = {}

    def holds(step, smaller, larger):
        ratio = np.max(np.where(larger > 0, smaller / np.where(larger > 0, larger, 1), 0))
        assert ratio <= 1 + 1e-9, (step, ratio)
        sharpest[step] = max(sharpest.get(step, 0), ratio)

    def mean_square(values):
        return np.sqrt(weights @ values**2)

    for x, y in pairs(np.asarray(grid.nodes), 1):
        h = np.linalg.norm(x - y, axis=1)
        hardy = prefix @ h / prefix.sum(axis=1)
        assert mean_square(hardy) <= HARDY * mean_square(h)
        holds(
            "norm",
            np.linalg.norm(numpy_norm(attention.norm, x) - numpy_norm(attention.norm, y), axis=1),
            float(norm_constants(attention.norm)[1]) * h,
        )
        for head in range(2):
            score, mass, output = numpy_head(attention, head, x, prefix)
            other_score, other_mass, other_output = numpy_head(attention, head, y, prefix)
            bound = {key: value[head] for key, value in bounds._asdict().items() if value.ndim}
            holds("score", np.abs(score), np.full_like(score, bound["score"]))
            density = mass / np.where(past, prefix, 1) * prefix.sum(axis=1, keepdims=True)
            holds("density", density, np.full_like(density, np.exp(2 * bound["score"])))
            local = bound["score_local"] * h[:, None]
            passed = bound["score_past"] * h[None, :]
            holds("score slope", np.abs(score - other_score), local + passed)
            kernel = bound["kernel_local"] * h + bound["kernel_hardy"] * hardy
            holds("kernel", np.abs(mass - other_mass).sum(axis=1), kernel)
            gap = np.linalg.norm(output - other_output, axis=1)
            holds("pointwise", gap, bound["head_local"] * h + bound["head_hardy"] * hardy)
            holds("head", mean_square(gap), bound["head"] * mean_square(h))
    # Not vacuous: how far the nearest case is from each bound.
    assert all(ratio > 1 / 60 for ratio in sharpest.values()), sharpest
    assert min(sharpest["score"], sharpest["density"], sharpest["norm"]) > 0.15, sharpest


def size(values):
    """A vector's norm, or a matrix's largest singular value."""
    if values.ndim == 2:
        return np.linalg.svd(values, compute_uv=False)[0]
    return np.hypot.reduce(values)


def largest_token(norm):
    return 6**0.5 * np.abs(norm.scale).max() + size(norm.shift)


def steepness(norm):
    return np.abs(norm.scale).max() / ETA**0.5


def head_sizes(attention, h):
    """Of queries, keys and values: the matrix's size, and how large a row of them can be."""
    sizes = []
    for name in ("query", "key", "value"):
        matrix = size(getattr(attention, name)[h])
        bias = size(getattr(attention, f"{name}_bias")[h])
        sizes.append((matrix, matrix * largest_token(attention.norm) + bias))
    return sizes


def head_steps(attention, h):
    """Every step's constant of one head, in the proof's order."""
    (q, queries), (k, keys), (v, values) = head_sizes(attention, h)
    slope = steepness(attention.norm)
    score = queries * keys / 3**0.5
    local = slope * q * keys / 3**0.5
    past = slope * k * queries / 3**0.5
    kernel = (2 * local, 2 * past * np.exp(2 * score))
    head = (values * kernel[0], values * kernel[1] + slope * v * np.exp(2 * score))
    return score, local, past, *kernel, *head, head[0] + 2 * head[1]


class Bounded(NamedTuple):
    """A layer's sublayers, its constants, and how large the values of each head can be."""

    attention: lim.CausalAttention
    feed_forward: FeedForward
    constants: FieldRegularity
    values: list[float]

    @property
    def output(self):
        return size(np.concatenate(self.attention.output, axis=1))

    @property
    def radius(self):
        """How large the network's inner features can be before the activation."""
        network = self.feed_forward
        return size(network.inner) * largest_token(network.norm) + size(network.inner_bias)

    @property
    def activated(self):
        return self.constants.feed_forward.slope * self.radius

    @property
    def through(self):
        """How much the network's output moves by its inner features before the activation."""
        return size(self.feed_forward.outer) * self.constants.feed_forward.slope


@pytest.fixture(scope="module")
def bounded():
    layer = small_layer(1)
    attention, network = jax.tree.map(np.asarray, (layer.attention, layer.feed_forward))
    values = [head_sizes(attention, h)[2][1] for h in range(2)]
    return Bounded(attention, network, field_regularity(layer), values)


assert_same = partial(np.testing.assert_allclose, rtol=1e-12)


def test_the_constants_of_attention_are_those_of_the_steps_by_singular_values(bounded):
    # `eq:score-l2-difference`, `eq:attention-density-hardy-bound`,
    # `eq:normalized-kernel-l1-difference`, `eq:attention-pointwise-hardy-stability`.
    steps = np.transpose([head_steps(bounded.attention, h) for h in range(2)])
    for ours, expected in zip(bounded.constants.attention[:8], steps, strict=True):
        assert_same(ours, expected)


def test_fields_are_lipschitz_in_the_states_by_their_steps(bounded):
    # `eq:global-l2-attention-stability`, `eq:transformer-field-state-lipschitz`.
    constants = bounded.constants
    heads = np.array([head_steps(bounded.attention, h)[-1] for h in range(2)])
    assert_same(constants.attention.lipschitz, bounded.output * size(heads))
    network = bounded.feed_forward
    steepest = bounded.through * size(network.inner) * steepness(network.norm)
    assert_same(constants.feed_forward.lipschitz, steepest)
    assert_same(constants.lipschitz, constants.attention.lipschitz + steepest)


def test_fields_are_bounded_by_the_sizes_of_values_and_features(bounded):
    # `prop:transformer-lipschitz`, `eq:transformer-field-uniform-bound`.
    constants = bounded.constants
    of_attention = bounded.output * size(np.array(bounded.values))
    assert_same(constants.attention.bound, of_attention + size(bounded.attention.output_bias))
    network = bounded.feed_forward
    assert_same(constants.feed_forward.radius, bounded.radius)
    expected = size(network.outer) * bounded.activated + size(network.outer_bias)
    assert_same(constants.feed_forward.bound, expected)
    assert_same(constants.bound, constants.attention.bound + expected)


def test_attention_is_lipschitz_in_its_parameters_block_by_block(bounded):
    c = largest_token(bounded.attention.norm)
    heads = []
    through_norm = []
    for h in range(2):
        (q, queries), (k, keys), (v, values) = head_sizes(bounded.attention, h)
        by_query = values * keys / 3**0.5
        by_key = values * queries / 3**0.5
        constants = [by_query * c, by_query, by_key * c, by_key, c, 1.0]
        heads.append(size(np.array(constants)))
        through_norm.append(by_query * q + by_key * k + v)
    matrices = bounded.output * size(np.array(heads))
    shift = bounded.output * size(np.array(through_norm))
    # The norm's scale moves a token by sqrt(6) at most.
    blocks = [1.0, size(np.array(bounded.values)), matrices, shift * 6**0.5, shift]
    assert_same(bounded.constants.attention.control, size(np.array(blocks)))


def test_networks_are_lipschitz_in_their_parameters_block_by_block(bounded):
    constants = bounded.constants
    network = bounded.feed_forward
    through = bounded.through
    shift = through * size(network.inner)
    inner = through * largest_token(network.norm)
    blocks = [1.0, bounded.activated, inner, through, shift * 6**0.5, shift]
    assert_same(constants.feed_forward.control, size(np.array(blocks)))
    assert_same(
        constants.control, np.hypot(constants.attention.control, constants.feed_forward.control)
    )


def test_the_kernels_bound_is_attained():
    """One key along the query among many against it, both as long as layer norm allows."""
    # `eq:attention-density-hardy-bound`.
    sign = np.where(np.arange(2000) == 1999, 1.0, -1.0)
    x = 1e4 * sign[:, None] * np.array([1.0, -1.0])
    square = 0.8 * jnp.eye(2)[None]
    attention = lim.CausalAttention(LayerNorm.init(2, norm_eps=ETA), square, square, square, square)
    query = attention.queries(jnp.asarray(x), None)
    key, _ = attention.sources(jnp.asarray(x), None)
    scores = np.asarray(query[0])[-1] @ np.asarray(key[0]).T / 2**0.5
    density = np.exp(scores) / np.exp(scores).mean()
    bound = np.exp(2 * np.asarray(attention_regularity(attention).score)[0])
    assert 0.99 * bound < density.max() <= bound


def test_an_activation_that_does_not_vanish_at_rest_counts():
    network = lim.FeedForward.init(
        4, intermediate_size=9, activation=jax.nn.sigmoid, norm_eps=ETA, key=jax.random.key(0)
    )
    network = eqx.tree_at(lambda n: n.inner, network, 0 * network.inner)
    bounds = feed_forward_regularity(network)
    largest = np.linalg.svd(np.asarray(network.outer), compute_uv=False)[0] * 3 / 2
    np.testing.assert_allclose(bounds.bound, largest, rtol=1e-12)


@eqx.filter_jit
def slopes_and_size(field, first, second, grid):
    """The largest ratio of differences over pairs, and the largest value, in the grid's norm."""

    def size(values):
        return jnp.sqrt(jax.vmap(lambda v: lim.inner(v, v, grid))(values))

    images = [jax.vmap(lambda z: field(z, z, grid))(states) for states in (first, second)]
    return jnp.max(size(images[0] - images[1]) / size(first - second)), jnp.max(size(images[1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("seed", range(2))
def test_a_field_is_never_steeper_nor_larger_than_its_constants(name, seed):
    # `prop:transformer-lipschitz`.
    grid = GRIDS[name](17)
    layer = small_layer(seed)
    first, second = map(
        jax.device_put, np.swapaxes(np.array(pairs(np.asarray(grid.nodes), seed)), 0, 1)
    )
    bounds = field_regularity(layer)
    parts = (
        (layer, bounds),
        (layer.attention, bounds.attention),
        (layer.feed_forward, bounds.feed_forward),
    )
    for part, constants in parts:
        slope, size = slopes_and_size(part, first, second, grid)
        assert slope <= constants.lipschitz < 60 * slope, (slope, constants.lipschitz)
        assert size <= constants.bound < 20 * size, (size, constants.bound)


def test_a_field_moves_with_its_parameters_by_no_more_than_its_constant():
    """Along one direction in each block, and in all of them together."""
    # `prop:transformer-lipschitz`, `thm:resnet-ode`.
    grid = GRIDS["tokens"](17)
    layer = small_layer()
    states = jax.device_put(np.random.default_rng(4).standard_normal((17, 6)))
    leaves, tree = jax.tree.flatten(layer)
    generator = np.random.default_rng(5)
    blocks = range(len(leaves))
    noise = [generator.standard_normal(leaf.shape) for leaf in leaves]
    kept = np.array([*np.eye(len(leaves)), np.ones(len(leaves))])
    kept *= 1e-3 / np.sqrt(kept @ [(step**2).sum() for step in noise])[:, None]
    kept = np.concatenate([0 * kept[:1], kept])
    directions = [np.multiply.outer(kept[:, i], noise[i]) for i in blocks]

    @jax.jit
    def images(directions):
        def moved(direction):
            pairs = zip(leaves, direction, strict=True)
            return jax.tree.unflatten(tree, [a + b for a, b in pairs])(states, states, grid)

        return jax.lax.map(moved, directions)

    found = np.asarray(images([jax.device_put(direction) for direction in directions]))
    slopes = np.sqrt(((found[1:] - found[0]) ** 2).sum(axis=(1, 2)) / 17) / 1e-3
    regularity = field_regularity(layer)
    constant = float(regularity.control)
    assert slopes.max() <= constant < 10 * slopes.max(), (slopes, constant)
    # Cauchy's inequality over the two sublayers' blocks, which one of them alone would not see.
    parts = regularity.attention.control, regularity.feed_forward.control
    np.testing.assert_allclose(constant, np.linalg.norm(parts), rtol=1e-12)


@pytest.mark.parametrize("name", GRIDS)
def test_averaging_is_as_steep_as_its_constant_but_for_hardys_on_the_grid(name):
    """No scores, tokens without variance: LN is steepest, and what is left is prefix averaging."""
    grid = GRIDS[name](40)
    weights = np.asarray(grid.weights)
    prefix = prefix_weights(grid)
    average = prefix / prefix.sum(axis=1, keepdims=True)
    root = np.sqrt(weights)
    _, singular, directions = np.linalg.svd(root[:, None] * average / root[None, :])
    zeros = jnp.zeros((1, 2, 6))
    value = 3 * jnp.eye(6)[None]
    norm = LayerNorm(jnp.full(6, 0.7), jnp.ones(6), ETA)
    attention = lim.CausalAttention(norm, zeros, zeros, value, 0.5 * jnp.eye(6)[None])
    step = 1e-5 * (directions[0] / root)[:, None] * np.array([1.0, -1, 0, 0, 0, 0])
    still = jnp.ones((1, 40, 6))
    slope, _ = slopes_and_size(attention, still, still + jnp.asarray(step)[None], grid)
    bounds = attention_regularity(attention)
    steepest = 0.5 * 3 * 0.7 / np.sqrt(ETA)
    np.testing.assert_allclose(slope, steepest * singular[0], rtol=1e-6)
    np.testing.assert_allclose(bounds.lipschitz, steepest * HARDY, rtol=1e-12)
    assert 1.5 < singular[0] < HARDY
    np.testing.assert_allclose(bounds.bound, 0.5 * 3 * (0.7 * 6**0.5 + 6**0.5), rtol=1e-12)


CELLS = [
    CellGrid(cells=count, offset=Fraction(offset), power=power)
    for count in (1, 2, 3, 7, 30, 100)
    for offset in ("0", "1/3", "1/2", "2/3", "9/10", "99/100")
    for power in (1, 2, 3, 5)
]


def hardys_norm(grid):
    """The largest singular value of averaging, and where it is attained, in the grid's norm."""
    prefix = prefix_weights(grid)
    root = np.sqrt(np.asarray(grid.weights))
    average = prefix / prefix.sum(axis=1, keepdims=True)
    _, singular, directions = np.linalg.svd(root[:, None] * average / root[None, :])
    return singular[0], directions[0] / root


def test_hardys_bound_is_above_its_norm_and_near_it():
    for grid in CELLS:
        norm, _ = hardys_norm(grid)
        assert norm * (1 - 1e-12) <= hardy_bound(grid) <= 1.05 * norm, grid


@pytest.mark.parametrize("name", GRIDS)
def test_hardys_constant_holds_on_the_grids_that_people_use(name):
    """It is 2 in the limit: sizes up to two hundred thousand, in float32 too."""
    for size in (1, 2, 3, 10, 1000, 16_384, 200_000):
        for dtype in (None, jnp.float32):
            assert hardy_bound(GRIDS[name](size, dtype)) < HARDY


def test_a_radius_counts_the_mass_of_the_grid():
    """Cells whose weights sum to 45/32: a field that is its bias moves them all by it."""
    grid = CellGrid(cells=4, offset=Fraction(0), power=3)
    zero = jax.tree.map(lambda leaf: jax.device_put(0 * np.asarray(leaf)), small_layer())
    layer = eqx.tree_at(lambda f: f.feed_forward.outer_bias, zero, jnp.eye(6)[0])
    still = jnp.zeros((4, 6))
    times = jnp.array([0.0, 2.0])
    radius = trajectory_radius(layer, still, grid, times, profile_bound=3.0)
    np.testing.assert_allclose(radius, [0, 6 * np.sqrt(45 / 32)], rtol=1e-12)
    with pytest.raises(
        RuntimeError, match="times: got a number below zero, expected nothing below zero"
    ):
        trajectory_radius(layer, still, grid, -times)
    with pytest.raises(ValueError, match="profile_bound: got -1.0, expected nothing below zero"):
        trajectory_radius(layer, still, grid, times, profile_bound=-1.0)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_a_trajectory_starts_at_the_size_of_a_state_of_any_scale(scale):
    """In float32, which has no squares of the first and the last."""
    # `rem:bounded-state-preln`.
    layer = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf,
        small_layer(),
    )
    x = (scale * np.random.default_rng(0).standard_normal((7, 6))).astype(np.float32)
    grid = lim.token_grid(7, jnp.float32)
    start = trajectory_radius(layer, jax.device_put(x), grid, jnp.zeros(1, jnp.float32))
    exact = np.sqrt((np.asarray(x, float) ** 2).sum() / 7)
    np.testing.assert_allclose(np.asarray(start, float), exact, rtol=1e-5)


def test_bounds_of_few_bits_are_of_single_precision():
    """Squares of 2^-13 are no numbers of float16, and neither is three million."""
    # `eq:preln-uniform-normalized-bound`, `prop:transformer-lipschitz`.
    small = jnp.full(4, 2.0**-13, jnp.float16)
    large = jnp.full(4, 3e4, jnp.float16)
    bound, slope = norm_constants(LayerNorm(large, small, 1e-4))
    exact = float(large[0])
    np.testing.assert_allclose(float(bound), 2 * exact, rtol=1e-6)
    np.testing.assert_allclose(float(slope), 100 * exact, rtol=1e-6)
    bound, _ = norm_constants(LayerNorm(small, small, 0.25))
    np.testing.assert_allclose(float(bound), 2 * 2.0**-13 + 2 * 2.0**-13, rtol=1e-6)
    network = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, jnp.float16), small_layer().feed_forward
    )
    biased = eqx.tree_at(lambda n: n.outer_bias, network, jnp.full(6, 2.0**-13, jnp.float16))
    bound = feed_forward_regularity(biased).bound
    np.testing.assert_allclose(float(bound), np.sqrt(6) * 2.0**-13, rtol=1e-6)


def test_the_constants_of_norm_and_activations_in_closed_form():
    scale = jnp.asarray(np.array([1.0, -3.0, 2.0, 0.5]))
    norm = LayerNorm(scale, jnp.zeros(4), 0.25)
    assert float(norm_constants(norm)[1]) == 6
    # Attained, but for the projection off the mean, where the variance vanishes.
    step = 1e-6 * np.eye(4)[1]
    moved = norm(jnp.asarray(step)) - norm(jnp.zeros(4))
    np.testing.assert_allclose(jnp.linalg.norm(moved) / 1e-6, 6, rtol=0.3)


def test_the_slopes_of_activations_are_their_steepest_differences():
    """On the whole line: beyond 20 each is straight to 1e-8."""
    exact = partial(jax.nn.gelu, approximate=False), regularity.GELU_SLOPES[False]
    points = np.linspace(-20, 20, 400_001)
    for activation, slope in (*regularity.SLOPES, exact):
        values = np.asarray(activation(jax.device_put(points)))
        steepest = np.abs(np.diff(values) / np.diff(points)).max()
        assert steepest - 1e-9 <= slope <= steepest + 2e-8, activation
        assert regularity._activation_slope(activation) == slope


class Louder(lim.TransformerField):
    def __call__(self, x, context, grid):
        return 400 * super().__call__(x, context, grid)


class LouderNetwork(lim.FeedForward):
    def __call__(self, x, context, grid):
        return 400 * super().__call__(x, context, grid)


class LouderAttention(lim.CausalAttention):
    def __call__(self, x, context, grid):
        return 400 * super().__call__(x, context, grid)


class LouderNorm(LayerNorm):
    def __call__(self, z):
        return 400 * super().__call__(z)


def of_kind(kind, parent):
    """The same arrays in a subclass."""
    return kind(**{field.name: getattr(parent, field.name) for field in dataclasses.fields(parent)})


def louder(query, key, value, grid):
    return 400 * value


def narrow(z):
    return 1e3 * jnp.tanh(z + 1e3 * (z - 0.01234) ** 3)


def unproved(layer):
    """A layer with something that is not proved, by what is said of it."""
    change = dataclasses.replace
    attention = layer.attention
    network = layer.feed_forward
    normed = LayerNorm(jnp.full(6, 40.0), jnp.zeros(6), 1e-6)
    networks = {
        "network: got a norm of its output": change(network, output_norm=normed),
        "network: got LouderNetwork": of_kind(LouderNetwork, network),
        "norm: got LouderNorm": change(network, norm=of_kind(LouderNorm, network.norm)),
        "activation: got narrow, expected jnp.tanh": change(network, activation=narrow),
    }
    attentions = {
        "attention: got heads that attend by louder": change(attention, attend=louder),
        "attention: got LouderAttention": of_kind(LouderAttention, attention),
    }
    yield "field: got Louder", of_kind(Louder, layer)
    yield from ((said, change(layer, feed_forward=other)) for said, other in networks.items())
    yield from ((said, change(layer, attention=other)) for said, other in attentions.items())


def test_what_the_proof_does_not_treat_is_refused():
    """Each is steeper or larger than the constants of the layer that it may be taken for."""
    # `prop:transformer-lipschitz`.
    grid = lim.token_grid(17)
    layer = small_layer()
    x, y = points = np.array(pairs(np.asarray(grid.nodes), 0)[4])
    claimed = field_regularity(layer)
    fields = dict(unproved(layer))

    @eqx.filter_jit
    def images(fields, points):
        return [jax.vmap(lambda z: field(z, z, grid))(points) for field in fields]  # noqa: B023

    found = map(np.asarray, images(list(fields.values()), jax.device_put(points)))
    for (said, field), (ours, theirs) in zip(fields.items(), found, strict=True):
        slope = np.linalg.norm(ours - theirs) / np.linalg.norm(x - y)
        size = np.linalg.norm(ours) / 17**0.5
        assert slope > claimed.lipschitz or size > claimed.bound, said
        with pytest.raises(ValueError, match=said):
            field_regularity(field)


def test_places_that_divide_queries_and_keys_are_refused():
    """However small the matrices: scores that are divided by their size are of size one."""

    def small(a):
        return a.query, a.key, a.query_bias, a.key_bias

    layer = eqx.tree_at(lambda f: small(f.attention), small_layer(), replace_fn=lambda w: 1e-4 * w)
    mask = lim.network.AttentionMask(positions=UnitRotary((1.0,), norm_eps=1e-9))
    divided = dataclasses.replace(layer.attention, mask=mask)
    x = random_states()
    rope = divided.rope(lim.token_grid(len(x)))
    scores = np.einsum("hik,hjk->hij", divided.queries(x, rope), divided.sources(x, rope)[0])
    assert np.abs(scores).max() > 1e6 * field_regularity(layer).attention.score.max()
    with pytest.raises(ValueError, match="attention: got queries, keys, scores .* normalised"):
        attention_regularity(divided)


def test_stacked_layers_bound_what_lies_between_them():
    """Norms are convex: the constants of two layers hold on the segment between them."""
    # `ass:bounded`.
    stacked = random_flow(2, depth=2).layers
    together = field_regularity(stacked)
    ends = [field_regularity(layer_of(random_flow(2, depth=2), k)) for k in (0, 1)]
    for part in (together, together.attention, together.feed_forward):
        assert np.isfinite(float(part.lipschitz))
    middle = field_regularity(linear_control(stacked)(jnp.array(0.3)))
    for one in (middle, *ends):
        pairs_of = zip(jax.tree.leaves(one), jax.tree.leaves(together), strict=True)
        assert all(np.all(np.asarray(a) <= np.asarray(b) * (1 + 1e-12)) for a, b in pairs_of)
    # One field stacked alone has its own constants, and of two those of the one larger throughout.
    first = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[:1]), stacked)
    grown = jax.tree.map(lambda leaf: 2 * leaf[0], first)
    both = jax.tree.map(lambda large, leaf: jnp.stack([large, leaf[0]]), grown, first)
    for fields, one in ((first, ends[0]), (both, field_regularity(grown))):
        pairs_of = zip(jax.tree.leaves(field_regularity(fields)), jax.tree.leaves(one), strict=True)
        for a, b in pairs_of:
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("step", [lim.euler, lim.split, lim.network.rk4])
def test_trajectories_stay_within_their_radius(step):
    # `rem:bounded-state-preln`.
    grid = lim.graded_grid(12)
    x = random_states()
    flow = random_flow(1, depth=4, step=step, horizon=1.5, profile=lambda t: 2 * t)
    trajectory = jax.jit(lambda x: flow.trajectory(x, grid))(x)
    sizes = np.sqrt((np.asarray(trajectory.states) ** 2).sum(axis=2) @ np.asarray(grid.weights))
    radius = trajectory_radius(flow.layers, x, grid, trajectory.times, profile_bound=3.0)
    np.testing.assert_allclose(radius[0], sizes[0], rtol=1e-12)
    assert np.all(sizes <= np.asarray(radius) * (1 + 1e-12))


def twice(time):
    return 2 * jnp.ones_like(time)


def test_the_depth_flow_stays_within_its_radius_and_may_reach_it():
    """A constant output bias alone moves every token at the bound's speed."""
    # `rem:bounded-state-preln`.
    grid = lim.token_grid(12)
    x = random_states()
    plain = layer_of(random_flow(depth=1))
    zero = jax.tree.map(lambda leaf: jax.device_put(0 * np.asarray(leaf)), plain)
    bias = jnp.asarray(np.arange(6.0))
    layer = eqx.tree_at(lambda f: f.feed_forward.outer_bias, zero, bias)
    x = jax.device_put(0.5 * np.broadcast_to(np.arange(6.0), x.shape))
    flow = lim.ContinuousFlow(lambda time: layer, horizon=2.0, profile=twice)
    end = eqx.filter_jit(flow)(x, grid)
    radius = trajectory_radius(layer, x, grid, jnp.array(2.0), profile_bound=2.0)
    size = np.sqrt(np.asarray(grid.weights) @ (np.asarray(end) ** 2).sum(axis=1))
    np.testing.assert_allclose(size, radius, rtol=1e-6)


def test_a_field_without_layer_normalisation_is_refused():
    one = jnp.ones((1, 1, 1))
    averaging = lim.CausalAttention(eqx.nn.Identity(), one, one, one, one)
    with pytest.raises(ValueError, match="norm: got Identity, expected a LayerNorm"):
        attention_regularity(averaging)


def test_a_radius_is_of_means_and_those_of_panels_have_signs():
    """Averages by panels' prefix weights may be twice as large as what they are of."""
    grid = lim.gauss_grid(8)
    layer = small_layer()
    prefix = np.asarray(grid.prefix_weights())
    assert (np.abs(prefix).sum(axis=1) / prefix.sum(axis=1)).max() > 2
    with pytest.raises(ValueError, match="grid: got PanelGrid, expected a grid of cells"):
        trajectory_radius(layer, random_states(0, 8, 6), grid, jnp.zeros(1))


def test_constants_are_differentiated_and_never_indeterminate():
    layer = small_layer()
    gradient = jax.jit(jax.grad(lambda f: field_regularity(f).lipschitz))(layer)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    # Scores too large for floating point: infinite where attention moves, zero where it does not.
    large = randomised(layer.attention, 0, scale=50.0)
    assert np.isinf(float(attention_regularity(large).lipschitz))
    silent = eqx.tree_at(lambda a: (a.value, a.value_bias), large, replace_fn=lambda leaf: 0 * leaf)
    assert not np.isnan(float(attention_regularity(silent).lipschitz))
