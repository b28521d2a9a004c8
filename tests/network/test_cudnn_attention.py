"""Where an NVIDIA GPU takes the fused kernel, by what is lowered for one; and the numbers.

These are of JAX's own attention in the kernel's place, and of the kernel where there is a GPU.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from reference.networks import random_states

import lim_jax as lim
from lim_jax.network import attention, cudnn_attention, tiled_attention, tiles
from lim_jax.network.attention import attention_weights, causal_attention
from lim_jax.network.caps_and_sinks import PLAIN, Shaping

LENGTH = 12
SIZE = 8  # features of a head, the kernel's granularity
FORWARD = "@__cudnn$fmhaSoftmax("
BACKWARD = "@__cudnn$fmhaSoftmaxBackward("
TOKENS = lim.token_grid(LENGTH)


@pytest.fixture
def machine(monkeypatch):
    """One tile, and a card and its library as far as lowering asks."""
    monkeypatch.setattr(attention, "DENSE", 4)
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91300)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda *_: True)
    monkeypatch.setattr(cudnn_attention, "_capability", lambda: 9.0)


def gradient(*at, grid=TOKENS, shaping=PLAIN):
    def total(*at):
        heads = jax.vmap(lambda q, k, v: causal_attention(q, k, v, grid, shaping))(*at)
        return jnp.sum(jnp.sin(heads.astype(jnp.float32)))

    return jax.grad(total, argnums=(0, 1, 2))(*at)


def calls(job, *dtypes, platform="cuda", features=SIZE):
    """Of the kernel in what is lowered, forward and backward."""
    sizes = (SIZE, SIZE, features)
    dtypes = dtypes or (jnp.bfloat16,)
    shapes = [
        jax.ShapeDtypeStruct((2, LENGTH, size), dtype)
        for size, dtype in zip(sizes, dtypes * 3, strict=False)
    ]
    # A function of its own: what a job was lowered to is remembered.
    text = (
        jax.jit(lambda *at: job(*at)).trace(*shapes).lower(lowering_platforms=(platform,)).as_text()
    )
    return text.count(FORWARD), text.count(BACKWARD)


@pytest.mark.usefixtures("machine")
def test_a_gradient_takes_it():
    assert calls(gradient) == calls(gradient, jnp.float16) == (2, 1)
    with jax.default_matmul_precision("bfloat16"):
        assert calls(gradient, jnp.float32) == (2, 1)


OTHERWISE = {
    "grid": {"grid": lim.midpoint_grid(LENGTH)},
    "graded": {"grid": lim.graded_grid(LENGTH)},
    "window": {"grid": TOKENS.windowed(5)},
    "log weights": {"grid": TOKENS.weighted(random_states(4, LENGTH))},
    "cap": {"shaping": Shaping(2.0)},
}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("otherwise", OTHERWISE.values(), ids=OTHERWISE)
def test_what_the_kernel_does_not_know_goes_by_tiles(otherwise):
    assert calls(lambda *at: gradient(*at, **otherwise)) == (0, 0)


@pytest.mark.usefixtures("machine")
def test_other_numbers_go_by_tiles():
    assert calls(gradient, jnp.float32) == (0, 0)
    assert calls(gradient, features=2 * SIZE) == (0, 0)
    assert calls(gradient, platform="cpu") == calls(gradient, platform="tpu") == (0, 0)


@pytest.mark.usefixtures("machine")
def test_old_cards_go_by_tiles(monkeypatch):
    monkeypatch.setattr(cudnn_attention, "_capability", lambda: 7.5)
    assert calls(gradient) == (0, 0)


def test_without_the_library_all_goes_by_tiles(monkeypatch):
    """As it is here; with the library and no card too."""
    monkeypatch.setattr(attention, "DENSE", 4)
    monkeypatch.setattr(cudnn, "cuda_versions", None)
    assert calls(gradient) == (0, 0)
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91300)
    monkeypatch.setattr(jax, "local_devices", no_device)
    assert calls(gradient) == (0, 0)


def no_device(*_, backend):
    raise RuntimeError(f"Unknown backend {backend}")


def forward_over_reverse(*at):
    return jax.jvp(gradient, at, at)


def reverse_over_reverse(*at):
    def steepness(*at):
        return sum(jnp.sum(slope.astype(jnp.float32) ** 2) for slope in gradient(*at))

    return jax.grad(steepness)(*at)


def with_sinks(*at):
    return gradient(*at, shaping=Shaping(sink=jnp.bfloat16(0.5)))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("job", [forward_over_reverse, reverse_over_reverse, with_sinks])
def test_second_derivatives_and_those_of_log_sum_exps_go_by_tiles(job):
    assert calls(job)[1] == 0


def test_the_numbers_are_the_dense_formula_s(monkeypatch):
    """Of several heads and covectors, to the rounding of half precision; log-sum-exps to less."""
    if jax.default_backend() != "gpu":
        monkeypatch.setattr(cudnn_attention, "IMPLEMENTATION", "xla")
        monkeypatch.setattr(cudnn_attention, "_capability", lambda: 9.0)
    point = [random_states(seed, 2, LENGTH, SIZE).astype(jnp.bfloat16) for seed in range(3)]
    covectors = random_states(3, 2, 4, LENGTH, SIZE)
    tiling = tiles.tiling(TOKENS)

    @jax.jit
    def ours(query, key, value, covectors):
        heads = query, key, value
        found = cudnn_attention.outputs_or(tiled_attention._attend)(heads, [], tiling, ())
        vectors = covectors, jnp.zeros(covectors.shape[:-1])
        by_kernel, by_tiles = (
            cudnn_attention.pulled_or(tiled_attention._pull_back)(
                (*heads, *found), vectors, tiling, zero
            )
            for zero in ((False, True), (False, False))
        )
        return found, by_kernel, by_tiles

    @jax.jit
    @jax.vmap
    def dense(query, key, value, covectors):
        def outputs(query, key, value):
            return attention_weights(query * np.sqrt(SIZE), key, TOKENS) @ value

        found, pull = jax.vjp(outputs, query, key, value)
        scores = jnp.where(TOKENS.past, query @ key.T, -jnp.inf) - np.log(LENGTH)
        return found, jax.nn.logsumexp(scores, axis=1), jax.vmap(pull)(covectors)

    with jax.numpy_dtype_promotion("standard"):  # JAX's own attention promotes
        (features, log_total), by_kernel, by_tiles = ours(*point, covectors)
    outputs, log_sums, pulled = dense(*(np.asarray(x, float) for x in point), covectors)
    np.testing.assert_allclose(log_total, log_sums, rtol=1e-6, atol=1e-6)
    digits = 3 * float(jnp.finfo(jnp.bfloat16).eps)
    for found, expected in ((features, outputs), *zip(by_kernel, pulled, strict=True)):
        assert np.abs(np.asarray(found, float) - expected).max() < digits * np.abs(expected).max()
    assert not np.array_equal(by_kernel[0], by_tiles[0])  # so it was not by tiles
