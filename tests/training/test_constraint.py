"""The risk under a limit on the discrepancy, against a problem whose solution is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.differences import central_difference
from reference.networks import random_states

import lim_jax as lim
from lim_jax.training import (
    Penalty,
    constrained_objective,
    influence_penalty,
    raised_multiplier,
    risk_and_penalty,
)

SIZE = 5
GRID = lim.token_grid(SIZE)
WANTED = np.array([0.4, -0.3, 0.2, -0.5, 0.1])  # what the risk alone would have
TARGET = np.array([1.2, 0.9, 1.1, 0.9, 0.9])
BATCH = jax.device_put(np.zeros((1, SIZE, 1))), None
PENALTY = Penalty(target=jax.device_put(TARGET), epsilon=0.0)


def loss(params, x, y):
    """A quadratic at x = 0, whose density is 1 + s - mean(s): so the discrepancy is one too."""
    amplitudes = jnp.sqrt(1 + params - params.mean())
    return jnp.mean((params - WANTED) ** 2) / 2 + jnp.mean(amplitudes * x[:, 0])


def lagrangian(params, **constraint):
    return constrained_objective(loss, params, BATCH, GRID, PENALTY, **constraint)


def minimised(params, **constraint):
    """Newton's method, to rounding."""

    def newton(_, at):
        def value(params):
            return lagrangian(params, **constraint)

        return at - jnp.linalg.solve(jax.hessian(value)(at), jax.grad(value)(at))

    return jax.lax.fori_loop(0, 12, newton, params)


@jax.jit
def alternated(limit, stiffness, params, multiplier):
    """Minimise, raise the multiplier, and again."""

    def turn(_, carried):
        params, multiplier = carried
        constraint = {"limit": limit, "stiffness": stiffness}
        params = minimised(params, multiplier=multiplier, **constraint)
        value = influence_penalty(loss, params, BATCH, GRID, PENALTY)
        return params, raised_multiplier(multiplier, value, **constraint)

    return jax.lax.fori_loop(0, 80, turn, (params, multiplier))


@pytest.mark.parametrize("stiffness", [300.0, 1000.0])
def test_the_constrained_minimiser_is_that_of_karush_kuhn_and_tucker(stiffness):
    """By hand: deviations from the target fall to 1/(1 + lambda) of those that the risk wants.

    With b = a - mean(a) - (nu - 1) what is left is s - mean(s) - (nu - 1) = b/(1 + lambda), so that
    |b|^2 / (2 (1 + lambda)^2) = tau; and the mean of s is that of a.
    """
    limit = 0.005
    wanted = WANTED - WANTED.mean() - (TARGET - 1)
    multiplier = np.sqrt(np.mean(wanted**2) / (2 * limit)) - 1
    expected = WANTED.mean() + (TARGET - 1) + wanted / (1 + multiplier)
    assert multiplier > 0.5
    minimiser = alternated(limit, stiffness, jax.device_put(WANTED), 0.0)
    np.testing.assert_allclose(minimiser[1], multiplier, rtol=1e-9)
    np.testing.assert_allclose(minimiser[0], expected, rtol=1e-9)


def test_a_constraint_that_the_risk_keeps_to_costs_nothing():
    """The multiplier falls to zero from wherever it began; the minimiser is the risk's own."""
    params, multiplier = alternated(1.0, 10.0, jax.device_put(np.zeros(SIZE)), 3.0)
    np.testing.assert_allclose(params, WANTED, rtol=1e-12)
    assert multiplier == 0
    value = lagrangian(jax.device_put(WANTED), limit=1.0, multiplier=0.0, stiffness=10.0)
    np.testing.assert_allclose(value, 0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0.01, 0.3], ids=["above", "below"])
def test_its_derivatives_are_differences_in_all_that_it_is_given(limit):
    """In parameters, limit, multiplier and stiffness together; forward, in reverse and mapped."""
    at = {"params": jax.device_put(WANTED / 2), "limit": limit, "multiplier": 0.7, "stiffness": 9.0}
    at = jax.device_put(at)
    along = {"params": random_states(0, SIZE), "limit": 0.3, "multiplier": -0.6, "stiffness": 0.5}
    along = jax.device_put(along)

    def value(given):
        return lagrangian(**given)

    @jax.jit
    def derivatives(given):
        gradient = jax.grad(value)(given)
        pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(along), strict=True)
        slopes = {
            "reverse": sum(jnp.vdot(one, other) for one, other in pairs),
            "forward": jax.jvp(value, (given,), (along,))[1],
        }
        several = jax.vmap(lambda m: value(given | {"multiplier": m}))(jnp.array([0.1, 0.7]))
        return gradient, slopes, several, value(given), central_difference(value, given, along)

    gradient, slopes, several, alone, expected = derivatives(at)
    assert abs(expected) > 1e-2
    for name, slope in slopes.items():
        np.testing.assert_allclose(slope, expected, rtol=1e-7, err_msg=name)
    np.testing.assert_allclose(several[1], alone, rtol=1e-13)
    # The gradient is that of the risk, and the raised multiplier times that of the discrepancy.
    values, apart, _ = jax.jit(lambda p: risk_and_penalty(loss, p, BATCH, GRID, PENALTY))(
        at["params"]
    )
    raised = max(0.0, 0.7 + 9.0 * (float(values.penalty) - limit))
    assert (raised > 0) is (limit < 0.1)
    by_hand = float(values.risk) + (raised**2 - 0.7**2) / (2 * 9.0)
    np.testing.assert_allclose(alone, by_hand, rtol=1e-12)
    np.testing.assert_allclose(
        gradient["params"], apart.risk + raised * apart.penalty, rtol=1e-10, atol=1e-15
    )


def test_the_multiplier_is_its_formula():
    options = {"limit": 0.25, "stiffness": 4.0}
    for multiplier, value, expected in ((1.0, 0.5, 2.0), (1.0, 0.125, 0.5), (1.0, 0.0, 0.0)):
        assert raised_multiplier(multiplier, value, **options) == expected
    slopes = jax.grad(lambda m: raised_multiplier(m, 0.5, **options))(1.0)
    assert slopes == 1


@pytest.mark.parametrize("function", ["constrained_objective", "raised_multiplier"])
@pytest.mark.parametrize(
    "constraint, message",
    [
        ({"stiffness": 0.0}, "stiffness: got zero or a number below, expected a positive"),
        ({"stiffness": -1.0}, "stiffness: got zero or a number below, expected a positive"),
        ({"multiplier": -0.1}, "multiplier: got .*expected nothing below zero"),
        ({"limit": np.nan}, "limit: got nan, expected a finite number"),
    ],
)
def test_what_is_no_constraint_is_refused(function, constraint, message):
    arguments = {"limit": 0.1, "multiplier": 0.5, "stiffness": 2.0} | constraint
    calls = {
        "constrained_objective": lambda: lagrangian(jax.device_put(WANTED), **arguments),
        "raised_multiplier": lambda: raised_multiplier(
            arguments["multiplier"], 0.2, limit=arguments["limit"], stiffness=arguments["stiffness"]
        ),
    }
    with pytest.raises((ValueError, RuntimeError), match=message):
        calls[function]()
