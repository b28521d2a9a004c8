"""Recurrent layers as fields in two slots: beside loops over tokens, heads and rows by NumPy."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.hybrids import RECURRENT, gated_delta
from reference.networks import WIDTH, random_states

import lim_jax as lim
from lim_jax.adjoint import stages, tangent
from lim_jax.adjoint.cone import cone_mass
from lim_jax.network.gated_delta import GatedDelta, KimiDelta
from lim_jax.network.recurrent import RecurrentMixer
from lim_jax.network.short_convolution import ShortConvolution

# Chunks of 16: contexts that begin within chunks, at their ends, and one that is longer.
LENGTH = 37
CUTS = (0, 3, 16, 17, 37)
STARTS = np.repeat(CUTS[:-1], np.diff(CUTS))
# The others compute in no other way than these.
DIFFERENT = "mamba", "convolution", "kimi"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(RecurrentMixer, "chunk", 16)


def silu(x):
    return x / (1 + np.exp(-x))


def normed(norm, rows):
    means = np.mean(rows**2, axis=-1, keepdims=True)
    return np.asarray(norm.scale) * rows / np.sqrt(means + norm.norm_eps)


def shown(part):
    return 0 if part is None else np.asarray(part)


def convolved(rows, own, taps, starts, left):
    """Each row of the sum over taps, the own row from `own`, those before as much as they left."""
    total = np.zeros_like(rows)
    taps = np.asarray(taps)
    for i in range(len(rows)):
        total[i] = taps[:, -1] * own[i]
        for back in range(1, taps.shape[1]):
            if i - back >= starts[i]:
                total[i] += taps[:, -1 - back] * left[i - back] * rows[i - back]
    return total


def delta_step(field, state, key, value, beta, decay):
    key = key / np.sqrt(key @ key + 1e-6)
    state = decay * state
    return state + beta * np.outer(key, value - state.T @ key)


def convolution_by_tokens(field, z, c, starts, left):
    write, value = (
        c @ np.asarray(matrix).T + shown(bias)
        for matrix, bias in ((field.write, field.write_bias), (field.value, field.value_bias))
    )
    rows = convolved(write * value, write * value, field.taps, starts, left[0])
    read = z @ np.asarray(field.read).T + shown(field.read_bias)
    passed = read * (rows + shown(field.tap_bias))
    return passed @ np.asarray(field.output).T + shown(field.output_bias)


def mixed_rows(field, name, at, own, c, starts, left):
    """A head's queries, keys or values after the short convolution, the own row from `own`."""
    matrix = np.asarray(getattr(field, name))[at]
    bias = getattr(field, f"{name}_bias")
    bias = 0 if bias is None else np.asarray(bias)[at]
    taps = getattr(field, f"{name}_taps")
    tap_bias = getattr(field, f"{name}_tap_bias")
    taps = np.ones((len(matrix), 1)) if taps is None else taps[at]
    mixed = convolved(c @ matrix.T + bias, own @ matrix.T + bias, taps, starts, left)
    return silu(mixed + (0 if tap_bias is None else np.asarray(tap_bias)[at]))


def writes_and_decays(field, h, c):
    """How much of each token a head writes, and how much of its state is left before."""
    most = np.exp(float(field.log_decay[h]))
    rates = c
    rate = np.ones(len(c))
    if field.rate is not None:
        rates = c @ np.asarray(field.rate_down).T if isinstance(field, KimiDelta) else c
        rates = rates @ np.asarray(field.rate)[h].T + np.asarray(field.rate_bias)[h]
        rate = np.log1p(np.exp(rates))
    if not isinstance(field, GatedDelta):
        rate = np.clip(rate, *field.rate_limits)
        return rate, np.exp(-most * rate)
    write = field.largest_write / (1 + np.exp(-c @ np.asarray(field.write)[h]))
    decay = np.exp(-most * rate)
    if isinstance(field, KimiDelta):
        if field.least_decay is not None:
            decay = np.exp(field.least_decay / (1 + np.exp(-most * rates)))
        decay = decay[:, :, None]  # of the rows of the state
    return write, decay


def head_by_tokens(field, h, z, c, starts, left):
    """What one head reads of its state, token by token, `left[j]` how much of token j it writes."""
    delta = isinstance(field, GatedDelta)
    group = h * len(field.key) // len(field.value)
    query = mixed_rows(field, "query", group, z, c, starts, left)
    key = mixed_rows(field, "key", group, c, c, starts, left)
    value = mixed_rows(field, "value", h, c, c, starts, left)
    if delta:
        query = query / np.sqrt((query**2).sum(1, keepdims=True) + 1e-6) / np.sqrt(3)
    write, decay = writes_and_decays(field, h, c)
    state = np.zeros((key.shape[1], value.shape[1]))
    read = np.zeros_like(value)
    for i in range(len(c)):
        state = 0 * state if starts[i] == i else state
        if delta:
            state = delta_step(field, state, key[i], value[i], left[i] * write[i], decay[i])
        else:
            state = decay[i] * state + left[i] * write[i] * np.outer(key[i], value[i])
        read[i] = state.T @ query[i]
    skip = None if delta else field.skip
    return read if skip is None else read + float(skip[h]) * value


def gated_and_normed(field, z, read):
    """What all heads read, through their gates and the norm of each group of heads."""
    heads = len(read)
    z = z @ np.asarray(field.gate_down).T if isinstance(field, KimiDelta) else z
    gates = silu(np.einsum("hfw,lw->hlf", field.gate, z) + np.asarray(field.gate_bias)[:, None])
    norm: Any = field.head_norm
    scale = np.asarray(norm.scale)[:, None]
    passed = read if field.norm_before_gate else read * gates
    means = np.mean((passed**2).reshape(norm.groups, -1, *passed.shape[1:]), (1, 3), keepdims=True)
    means = np.broadcast_to(means, (norm.groups, heads // norm.groups, *means.shape[2:]))
    passed = scale * passed / np.sqrt(means.reshape(heads, -1, 1) + norm.norm_eps)
    return passed * gates if field.norm_before_gate else passed


def by_tokens(field, x, context, starts, left):
    """A field's output, `left[h, j]` how much of token j head h writes."""
    z, c = (normed(field.norm, np.asarray(rows)) for rows in (x, context))
    if isinstance(field, ShortConvolution):
        return convolution_by_tokens(field, z, c, starts, left)
    heads = range(len(field.value))
    read = np.stack([head_by_tokens(field, h, z, c, starts, left[h]) for h in heads])
    passed = gated_and_normed(field, z, read)
    return np.einsum("hwf,hlf->lw", field.output, passed) + shown(field.output_bias)


@pytest.mark.parametrize("name", RECURRENT)
def test_chunks_are_a_loop_over_tokens_of_packed_rows_whose_tokens_weigh_otherwise(name):
    field = RECURRENT[name]()
    x, context = random_states(4, 2, LENGTH, WIDTH)
    log_weights = 0.5 * np.random.default_rng(5).standard_normal((4, LENGTH))
    log_weights[:, 20], log_weights[1, 5] = -1e4, -1e4  # removed, in all heads and in one
    grid = lim.token_grid(LENGTH)

    @eqx.filter_jit
    def compute(field, x, context, starts, log_weights):
        begun = replace(grid.starting(starts), log_weights=log_weights)
        return field(x, context, begun)

    for starts, weights in ((STARTS, log_weights), (0 * STARTS, 0 * log_weights)):
        features = compute(field, x, context, jnp.asarray(starts), jnp.asarray(weights))
        expected = by_tokens(field, x, context, starts, np.exp(weights))
        np.testing.assert_allclose(features, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT)
def test_the_slots_are_the_local_operator_and_the_kernel_by_heads(name, monkeypatch):
    for kind in (RecurrentMixer, KimiDelta):
        monkeypatch.setattr(kind, "chunk", 2)
    field = RECURRENT[name]()
    grid = lim.token_grid(4)
    x, rows = random_states(6, 2, 4, WIDTH)
    sparse = stages.SparseRows(jnp.array([1, 3, 1]), rows[:3])
    covector = sparse.dense(4)

    def of(field, x, covector):
        _, push = jax.linearize(lambda x, context: field(x, context, grid), x, x)
        basis = jnp.eye(2 * x.size).reshape(-1, 2, *x.shape)
        slots = jnp.split(jax.vmap(push)(basis[:, 0], basis[:, 1]), 2)
        parts = tangent.pull_back(field, x, covector, grid)
        _, pull = stages._linearise(field, x, grid)
        pulled: Any = pull(jnp.zeros_like(x)[None], sparse)
        return slots, parts, pulled, cone_mass(field, x, grid)

    slots, parts, (_, (own, of_rows), heads), mass = eqx.filter_jit(of)(field, x, covector)
    local, kernel = (each.reshape(4, WIDTH, 4, WIDTH).transpose(2, 0, 3, 1) for each in slots)
    rows, columns = np.indices((4, 4))
    assert np.all(local[rows != columns] == 0) and np.all(kernel[columns > rows] == 0)
    assert (np.abs(kernel[3, 0]).max() > 1e-4) == (name != "convolution")  # of three taps
    expected = 4 * (np.linalg.norm(kernel, 2, axis=(2, 3)) ** 2).sum(axis=0)
    np.testing.assert_allclose(mass, expected, rtol=1e-12)
    for part, blocks in zip(parts, (local, kernel), strict=True):
        np.testing.assert_allclose(part, np.einsum("ijab,ia->jb", blocks, covector), atol=1e-12)
    np.testing.assert_allclose(heads.sum(axis=0), parts.kernel, atol=1e-12)
    np.testing.assert_allclose(of_rows, parts.kernel, atol=1e-12)
    np.testing.assert_allclose(sparse._replace(rows=own).dense(4), parts.local, atol=1e-12)
    if name == "kimi":  # whose heads are normed one by one
        silent = eqx.tree_at(lambda field: field.output, field, field.output.at[1].set(0))
        _, (_, kernel), _, _ = eqx.filter_jit(of)(silent, x, covector)
        np.testing.assert_allclose(heads[0], kernel, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT)
def test_derivatives_of_both_orders_are_central_differences_mapped_over_examples(name):
    """Forward over reverse, in states and parameters at once, inside of vmap."""
    length = 19
    small = 1e-5
    grid = lim.token_grid(length).weighted(0.3 * random_states(5, length, 1)[:, 0])
    arrays, static = eqx.partition(RECURRENT[name](), eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten((arrays, jnp.zeros((length, WIDTH))))
    moves = [0.1 * random_states(7, leaf.size, 1).reshape(leaf.shape) for leaf in leaves]
    move = jax.tree.unflatten(tree, moves)
    weights = random_states(6, length, WIDTH)

    def loss(at, x):
        layer, shift = at
        field = eqx.combine(layer, static)
        return jnp.sum(weights * jnp.sin(field(x + shift, x + shift, grid)))

    @jax.vmap
    def derivatives(x):
        """Before, at and after the point: the value, its slope, and how both move."""

        def along(size):
            at = jax.tree.map(lambda leaf, step: leaf + size * step, (arrays, 0 * move[1]), move)
            return loss(at, x)

        def of(size):
            return jax.jvp(jax.value_and_grad(along), (size,), (jnp.ones(()),))

        return jax.lax.map(of, small * jnp.arange(-1.0, 2.0))

    examples = jnp.stack([random_states(seed, length, WIDTH) for seed in (3, 4)])
    (values, slopes), (moved, curved) = eqx.filter_jit(derivatives)(examples)
    for found in (slopes, moved):
        expected = (values[:, 2] - values[:, 0]) / (2 * small)
        np.testing.assert_allclose(found[:, 1], expected, rtol=1e-6)
    expected = (slopes[:, 2] - slopes[:, 0]) / (2 * small)
    np.testing.assert_allclose(curved[:, 1], expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lightning", "kimi"])
def test_rows_that_follow_go_on_from_the_memory_of_those_that_count(name):
    """The others' memory is that of `tests/adjoint/test_hybrids.py`."""
    field = RECURRENT[name]()
    x = random_states(4, 21, WIDTH)

    @jax.jit
    def compute(field, x):
        features, memory = field.advance(x[:19], jnp.array(17))  # two rows fill up
        following, _ = field.advance(x[17:], jnp.array(4), memory)
        return jnp.concatenate([features[:17], following]), field(x, x, lim.token_grid(21))

    features, expected = compute(field, x)
    np.testing.assert_allclose(features, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["delta", "mamba", "lightning", "kimi"])
def test_devices_share_arrays_along_their_heads_or_groups(name):
    """The first axis of each of a layer's arrays, and all of those that have one."""
    field = RECURRENT[name]()
    axes = type(field).sharded_axes
    for part, axis in axes.items():
        array = getattr(field, part, None)
        assert array is None or array.ndim == -axis, part
    whole = {"norm", "head_norm", "output_bias", "rate_down", "gate_down"}
    arrays = {part for part, value in vars(field).items() if eqx.is_array(value)}
    assert arrays <= {*axes} | whole


def test_what_is_no_row_of_tokens_is_refused():
    field = gated_delta()
    x = random_states(4, 5, WIDTH)
    with pytest.raises(ValueError, match="got CellGrid, expected token_grid"):
        field(x, x, lim.graded_grid(5))
    sliding = lim.token_grid(5).starting(jnp.array([0, 0, 1, 2, 3]))
    with pytest.raises(RuntimeError, match="got rows of a window"):
        field(x, x, sliding)
    groups = eqx.tree_at(lambda field: field.key, field, field.value[:, :, :])
    with pytest.raises(ValueError, match="3 heads in 2 groups"):
        type(field).__check_init__(
            eqx.tree_at(lambda field: field.value, groups, jnp.zeros((3, 2, WIDTH)))
        )


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_keys_and_queries_of_few_bits_have_length_one_at_any_size(dtype, size):
    """Squares of 300 are infinite in float16, and keys and queries were zeros."""
    rows = (size * random_states(0, 3, 64)).astype(dtype)
    exact = np.asarray(rows, float)
    unit = exact / np.sqrt(np.sum(exact**2, axis=1, keepdims=True) + 1e-6)
    layer = gated_delta()
    rounding = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(layer.transform_key(rows), float), unit, rtol=rounding)
    query = np.asarray(layer.transform_query(rows), float)
    np.testing.assert_allclose(query, unit / 8, rtol=rounding)
