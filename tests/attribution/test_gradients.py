"""Attributions against closed forms of linear and quadratic losses, and dense twins in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_network
from reference.architectures import architecture_flow
from reference.differences import fitted_order
from reference.hybrids import hybrid_flow
from reference.networks import WIDTH, falling_profile, layer_of, random_flow, random_states

import lim_jax as lim
from lim_jax.attribution.gradients import (
    attention_rollout,
    gradient_times_input,
    integrated_gradients,
)

LENGTH = 5
generator = np.random.default_rng(0)
X, BASELINE, SLOPE = generator.standard_normal((3, LENGTH, WIDTH))
ROOT = generator.standard_normal((LENGTH * WIDTH, LENGTH * WIDTH))
QUADRATIC = ROOT + ROOT.T


def linear(slope, x, y):
    return y * jnp.sum(slope * x)


def quadratic(form, x, y):
    return y * x.reshape(-1) @ form @ x.reshape(-1) / 2


def curved(form, x, y):
    """No polynomial, and every token's share depends on all others."""
    return jnp.exp(0.1 * quadratic(0.05 * form, x, y)) + jnp.sum(jnp.sin(x))


def on_device(*arrays):
    return [jax.device_put(np.asarray(array)) for array in arrays]


@pytest.fixture(scope="module")
def by_loss():
    """Both attributions of the linear and of the quadratic loss, by one program."""

    @jax.jit
    def attributions(slope, form, x, baseline):
        def of(loss, params):
            return {
                "gradient times input": gradient_times_input(loss, params, x, 2.0),
                "integrated": integrated_gradients(loss, params, x, 2.0, baseline, steps=3),
            }

        return {"linear": of(linear, slope), "quadratic": of(quadratic, form)}

    return jax.tree.map(np.asarray, attributions(*on_device(SLOPE, QUADRATIC, X, BASELINE)))


def test_of_a_linear_loss_both_attributions_are_its_terms(by_loss):
    expected = {
        "gradient times input": 2 * (SLOPE * X).sum(axis=1),
        "integrated": 2 * (SLOPE * (X - BASELINE)).sum(axis=1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(by_loss["linear"][name], values, rtol=1e-12, atol=1e-13)


def test_of_a_quadratic_loss_they_are_its_gradients_where_they_look(by_loss):
    """At the input, and halfway to the baseline."""

    def gradient(x):
        return 2 * (QUADRATIC @ x.ravel()).reshape(x.shape)

    halfway = (X + BASELINE) / 2
    expected = {
        "gradient times input": (X * gradient(X)).sum(axis=1),
        "integrated": ((X - BASELINE) * gradient(halfway)).sum(axis=1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(by_loss["quadratic"][name], values, rtol=1e-12, atol=1e-12)


def test_integrated_gradients_sum_to_what_the_loss_gains_at_order_two():
    form, x, baseline = on_device(QUADRATIC, X, BASELINE)

    @jax.jit
    def gaps(form, x, baseline):
        gain = curved(form, x, 1.0) - curved(form, baseline, 1.0)
        parts = [
            integrated_gradients(curved, form, x, 1.0, baseline, steps=steps)
            for steps in (4, 8, 16, 32, 64)
        ]
        return jnp.stack(parts).sum(axis=1) - gain, gain

    missing, gain = map(np.asarray, gaps(form, x, baseline))
    assert abs(missing[-1]) < 1e-3 * abs(gain)
    assert fitted_order([4, 8, 16, 32, 64], np.abs(missing)) == pytest.approx(2, abs=0.15)


FLOWS = {
    "split": random_flow(1, step=lim.split, depth=3, profile=falling_profile),
    "euler": random_flow(2, step=lim.euler, depth=2, horizon=1.5),
    "everything": architecture_flow("everything", 3, depth=2),
}


@pytest.mark.parametrize("name", FLOWS)
def test_rollout_is_the_product_of_mean_attention_matrices(name):
    flow = FLOWS[name]
    x = random_states(4, 12, WIDTH)
    rollout = jax.jit(lambda flow, x: attention_rollout(flow, x, lim.token_grid(12)))(flow, x)
    layers = [layer_of(flow, index) for index in range(flow.depth)]
    scheme = "euler" if name == "euler" else "split"
    expected = numpy_network.rollout(layers, np.asarray(x), flow.horizon, scheme, falling_profile)
    np.testing.assert_allclose(rollout, expected, rtol=1e-11, atol=1e-14)
    assert np.abs(rollout[-1, 1:] - rollout[-1, :-1]).max() > 1e-2


def test_layers_that_read_a_state_have_no_attention_to_roll_out():
    with pytest.raises(ValueError, match="flow.layers: got .*, expected attention in every layer"):
        attention_rollout(hybrid_flow(), random_states(4, 12, WIDTH), lim.token_grid(12))


def test_attributions_pass_through_transformations():
    """Under vmap each example's own, and differentiable: of the quadratic loss known."""
    form, x, baseline = on_device(QUADRATIC, X, BASELINE)
    several = jnp.stack([x, 2 * x])

    @jax.jit
    def sums(several):
        def total(x):
            parts = (
                gradient_times_input(quadratic, form, x, 1.0).sum(),
                integrated_gradients(quadratic, form, x, 1.0, baseline, steps=2).sum(),
            )
            return jnp.stack(parts)

        return jax.vmap(total)(several), jax.vmap(jax.jacrev(total))(several)

    values, slopes = map(np.asarray, sums(several))
    for row, scale in enumerate((1.0, 2.0)):
        here = scale * X
        slope = (QUADRATIC @ here.ravel()).reshape(X.shape)
        np.testing.assert_allclose(values[row, 0], (here * slope).sum(), rtol=1e-11)
        np.testing.assert_allclose(slopes[row, 0], 2 * slope, rtol=1e-11)
        np.testing.assert_allclose(slopes[row, 1], slope, rtol=1e-11)
