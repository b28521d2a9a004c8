"""Layers without a limit and the flow that they drive, in closed form, under a depth profile."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.networks import small_fields

import lim_jax as lim
from lim_jax.limits import DepthProfile, proved_constants, shadowing_study
from lim_jax.network.regularity import field_regularity

# Two depths are enough where every error is known: its order then is that of the formula.
GRID = lim.graded_grid(4)
DEPTHS = (4, 16)
HORIZON = 2.0
STEPS = HORIZON / np.array(DEPTHS)
ROOT = np.sqrt(np.asarray(GRID.weights).sum())


class Drift(eqx.Module):
    """Every token moves alike, wherever it is."""

    speed: jax.Array

    def __call__(self, x, context, grid):
        return jnp.zeros_like(x) + self.speed[None, :]


class Growth(eqx.Module):
    """Every token grows at one rate."""

    rate: jax.Array

    def __call__(self, x, context, grid):
        return self.rate * x


def alternating(field, even, odd):
    """From the depth to layers of two kinds, which approach no control."""
    return lambda depth: field(jnp.asarray(np.stack([even, odd])[np.arange(depth) % 2]))


@pytest.mark.slow
def test_a_profile_that_rises_is_followed_a_step_behind():
    """zeta = 1 + t and speeds 5 and 10 err by eps^2/2 times the speed in a layer."""
    # `thm:resnet-ode`, `ass:depth-profile`.
    slow = np.array([3.0, -4.0])
    study = shadowing_study(
        alternating(Drift, slow, 2 * slow),
        jnp.asarray(np.ones((4, 2))),
        GRID,
        DEPTHS,
        horizon=HORIZON,
        profile=DepthProfile(lambda time: 1 + time, bound=3.0, lipschitz=1.0),
        lipschitz=True,
    )
    np.testing.assert_allclose(study.errors, ROOT * 7.5 * HORIZON * STEPS / 2, rtol=1e-9)
    # M = 10 and Lip(zeta) = 1, and nothing else.
    np.testing.assert_allclose(np.array(study.bounds), ROOT * 10 * HORIZON * STEPS / 2, rtol=1e-9)
    assert (study.source, study.claimed, study.verdict) == ("thm:resnet-ode", 1.0, "measured")
    assert study.reference_error < 1e-12 and study.refinements == DEPTHS


def halves(field, x, grid, increment):
    """Two halves of a step, of which the defect is (eps zeta a / 2)^2 x."""
    return lim.euler(field, lim.euler(field, x, grid, increment / 2), grid, increment / 2)


@pytest.mark.parametrize("step", [lim.euler, halves])
def test_layers_that_grow_shadow_their_flow_as_the_profile_has_it(step):
    """Rates 1/2 and 1/4 under zeta = 2.6 / (1 + 0.7 t), whose integral is a logarithm."""
    # `thm:resnet-ode`, `eq:discrete-residual-with-defect`.
    study = shadowing_study(
        alternating(Growth, np.array(0.5), np.array(0.25)),
        jnp.asarray(np.ones((4, 1))),
        GRID,
        DEPTHS,
        horizon=HORIZON,
        profile=DepthProfile(lambda time: 2.6 / (1 + 0.7 * time), bound=2.6, lipschitz=1.82),
        step=step,
        lipschitz=True,
    )
    errors = []
    defects = []
    states = []
    for depth in DEPTHS:
        times = np.linspace(0, HORIZON, depth + 1)
        rates = np.tile([0.5, 0.25], depth // 2)
        taken = HORIZON / depth * 2.6 / (1 + 0.7 * times[:-1]) * rates
        extra = 0 if step is lim.euler else taken**2 / 4
        ours = np.cumprod([1, *(1 + taken + extra)])
        theirs = np.exp([0, *np.cumsum(rates * np.diff(2.6 / 0.7 * np.log1p(0.7 * times)))])
        errors.append(ROOT * np.abs(ours - theirs).max())
        defects.append(ROOT * np.max(extra * ours[:-1]) * (depth / HORIZON) ** 2)
        states.append(np.maximum(ours, theirs))
    assert np.abs(np.subtract(study.errors, errors)).max() < study.reference_error < 1e-6
    # The coarsest is fastest in the last layer of the larger rate, which is the last but one.
    moving = (2.6**2 * 0.5 + 2.6 * 0.7) * ROOT * 0.5 * states[0][-3] / 2
    constant = HORIZON * np.exp(HORIZON * 2.6 * 0.5) * (max(defects) + moving)
    np.testing.assert_allclose(np.array(study.bounds), constant * STEPS, rtol=2e-3)
    assert study.verdict == "measured"


@pytest.mark.slow
def test_bounds_of_normalised_layers_are_proved_and_kept():
    # `thm:resnet-ode`, `ass:depth-profile`, `prop:transformer-lipschitz`.
    three = small_fields()
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 3)))

    def layers(depth):
        return jax.tree.map(lambda leaf: leaf[np.arange(depth) % 3], three)

    def study(profile):
        return shadowing_study(layers, x, GRID, (2, 8), horizon=0.5, profile=profile)

    # Whose size is at most 3/2 on [0, 1/2], and 5/2 on [0, 1].
    stated = DepthProfile(lambda time: 0.5 + 2 * time, bound=1.5, lipschitz=2.0)
    proved = study(stated)
    regularity = field_regularity(three)
    state = float(regularity.lipschitz)
    speed = ROOT * float(regularity.bound)
    moving = (1.5**2 * state + 2) * speed / 2
    expected = 0.5 * np.exp(0.5 * 1.5 * state) * moving * 0.5 / np.array([2, 8])
    np.testing.assert_allclose(np.array(proved.bounds), expected, rtol=1e-9)
    assert proved.verdict == "holds" and not proved.sampled
    # Of a profile that states nothing they are not.
    assert proved_constants([three], None, stated.function, GRID) is None
    with pytest.raises(ValueError, match="profile.lipschitz: got 1, expected at least 2"):
        study(stated._replace(lipschitz=1.0))
