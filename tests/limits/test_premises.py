"""What studies claim: nothing whose premise is neither known nor said, or that points refute."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lim_jax as lim
from lim_jax.grid.panels import PanelGrid
from lim_jax.limits import DepthConstants, DepthProfile, Scheme, depth
from lim_jax.limits.premises import require_lipschitz, require_resnet_premises, require_smooth
from lim_jax.network.flow import unit_profile

# Sizes that leave 1 when divided by 3: a jump at 1/3 divides a cell by thirds.
SIZES = (4, 64)
DEPTHS = (16, 32, 64, 128)
THIRDS = tuple(PanelGrid(breaks=(0.0, 1 / 3, 1.0), order=order) for order in (4, 5))
LINEAR = lim.LinearReadout(jax.device_put(np.eye(2)))
GRID = lim.graded_grid(3)
ROOT = np.sqrt(np.asarray(GRID.weights).sum())
X = jax.device_put(np.ones((3, 1)))


class Made(eqx.Module):
    """A sine, a kink at 1/2, a jump at 0.3 and a power of the distance from a place."""

    rate: jax.Array
    kink: jax.Array
    jump: jax.Array
    power: jax.Array
    place: jax.Array

    def __call__(self, p):
        power = jnp.abs(p - self.place) ** self.power
        rough = self.kink * jnp.abs(p - 0.5) + jnp.where(p > 0.3, self.jump, 0.0)
        return (jnp.sin(self.rate * p) + rough + power)[:, None]


def made(rate=0.0, kink=0.0, jump=0.0, power=2.0, place=0.0):
    return Made(*map(jax.device_put, map(np.float64, (rate, kink, jump, power, place))))


# Whether each is resolved as smooth, and as Lipschitz; what is said of the last four is not so.
FIELDS = {
    "p^1.1": (made(power=1.1), True, True),
    "p^1.2": (made(power=1.2), True, True),
    "p^1.3": (made(power=1.3), True, True),
    "|p - 0.4|^1.3": (made(power=1.3, place=0.4), True, True),
    "sin 1e4 p": (made(rate=1e4), True, True),
    "a kink": (made(kink=1.0), False, True),
    "a kink beside sin 40 p": (made(rate=40.0, kink=0.1), False, True),
    "a jump": (made(jump=0.01), False, False),
    "a jump of 1e-5 beside sin 40 p": (made(rate=40.0, jump=1e-5), False, False),
    "p^0.6": (made(power=0.6), False, False),
    "p^0.2": (made(power=0.2), False, False),
    "not a number": (made(power=np.nan), False, False),
    "smooth, and finer than the grid": (made(rate=1e5), False, False),
    "of slopes that are barely continuous": (made(power=1.02), False, True),
    "a jump of 1e-5 beside sin 400 p": (made(rate=400.0, jump=1e-5), True, True),
    "a jump of 1e-15": (made(jump=1e-15), True, True),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_resolved_on_a_grid_or_not_and_no_more_is_said(name):
    # `thm:attention-continuum-error`, `thm:loss-adjoint-continuum-error`.
    field, *resolved = FIELDS[name]
    checks = {"smooth": require_smooth, "Lipschitz": require_lipschitz}
    for (word, check), passes in zip(checks.items(), resolved, strict=True):
        if passes:
            check(field)
        else:
            said = f"got a field that is not resolved as {word} on this grid: from 0.* at 25,600.*"
            with pytest.raises(
                ValueError, match=f"{said}Leave .* the field may be {word} nonetheless"
            ):
                check(field)


def test_a_refusal_says_where_and_by_how_much():
    """Fourth differences of slopes that jump by 2 are at most 3 times that, at every scale."""
    said = "from 0.49 to 0.50 it is uneven by 6 at 1,600 points and by 6 at 25,600"
    with pytest.raises(ValueError, match=f"states: .*: {said}, expected four fifths"):
        lim.limits.attention_studies(
            lim.limits.averaging_attention(), made(kink=1.0), (5, 10, 20, 40), smooth=True
        )


def flat(p):
    return jnp.broadcast_to(jnp.array([[1.0, -0.5]]), (p.size, 2))


def even(p):
    return jnp.zeros((p.size, 2))


def one_hot(p):
    return jnp.stack([p < 1 / 3, p >= 1 / 3], axis=1).astype(float)


def assert_silent(study):
    assert (study.claimed, study.verdict, study.holds) == (None, "no bound", None)


POSITION = {
    "loss": (
        "logits, labels",
        lambda **options: lim.limits.loss_study(flat, one_hot, SIZES, **options),
        0.5 / np.array(SIZES),  # a third of a cell, where the loss jumps by 1.5
    ),
    "terminal adjoint": (
        "states, labels",
        lambda **options: lim.limits.terminal_adjoint_study(
            lambda size: LINEAR, LINEAR, even, one_hot, SIZES, **options
        ),
        np.sqrt(2 / 3 / np.array(SIZES)),  # P_T jumps by the root of two
    ),
    "readout": (
        "residuals",
        lambda **options: lim.limits.readout_consistency_study(
            lambda size: LINEAR, LINEAR, even, one_hot, SIZES, **options
        ),
        np.sqrt(2 / 3 / np.array(SIZES)),
    ),
}


@pytest.mark.parametrize("name", POSITION)
def test_a_field_that_jumps_gets_no_claim_and_the_reference_of_ones_own(name):
    # `thm:loss-adjoint-continuum-error`, `eq:readout-adjoint-consistency`,
    # `eq:cross-entropy-discrete-continuum-error`.
    argument, study, expected = POSITION[name]
    result = study(references=THIRDS)
    assert_silent(result)
    np.testing.assert_allclose(result.errors, expected, rtol=1e-9)
    assert result.reference_error < 1e-12
    with pytest.raises(ValueError, match=f"{argument}: got a field that is not resolved as Lip"):
        study(lipschitz=True)


def test_only_what_the_theorem_says_of_tokenwise_readouts_is_claimed():
    """A window is none, though it be its own limit; and one that has a kink hands back a jump."""
    # `eq:terminal-adjoint-discrete-continuum-error`, `rem:linear-readout-consistency`.
    window = lim.BandReadout(LINEAR.weight, 0.5, "zero")
    kinked = lim.TokenwiseReadout(lambda z: jnp.maximum(z - 0.5, 0))

    def study(readout):
        return lim.limits.terminal_adjoint_study(
            lambda size: readout,
            readout,
            lambda p: jnp.stack([p, p], axis=1),
            flat,
            SIZES[:1],
            references=(lim.gauss_grid(3), lim.gauss_grid(4)),
            lipschitz=True,
        )

    assert_silent(study(window))
    with pytest.raises(ValueError, match="states, labels: got .* from 0.49 to 0.50|0.50 to 0.51"):
        study(kinked)


class Growth(eqx.Module):
    rate: jax.Array

    def __call__(self, x, context, grid):
        return self.rate * x


class Roots(eqx.Module):
    """One sublayer that moves from where the other is no Lipschitz one."""

    speed: jax.Array

    @property
    def sublayers(self):
        return lambda x, *_: 0 * x + self.speed, lambda x, *_: jnp.sqrt(jnp.abs(x - 1))

    def __call__(self, x, context, grid):
        return sum(layer(x) for layer in self.sublayers)


TERMS = 0.2 * 2 ** (-0.4 * np.arange(20)), 2 * np.pi * 2.0 ** np.arange(20)


def weierstrass(time):
    return 1.5 + (TERMS[0] * jnp.cos(TERMS[1] * time)).sum()


def growing(depth):
    return Growth(jax.device_put(np.ones(depth)))


def test_a_rough_profile_gets_no_claim_in_shadowing_and_the_reference_of_ones_own():
    """Of x' = zeta x, whose flow is the exponential of an integral that is known."""

    # `thm:resnet-ode`, `ass:depth-profile`.
    def integral(times):
        return 1.5 * times + np.sin(np.multiply.outer(times, TERMS[1])) @ (TERMS[0] / TERMS[1])

    def exact(layers, x, grid):
        times = np.linspace(0, 1, layers.rate.size + 1)
        return x[None] * jnp.asarray(np.exp(integral(times)))[:, None, None]

    few = DEPTHS[::3]
    study = lim.limits.shadowing_study(
        growing, X, GRID, few, profile=weierstrass, references=(exact, exact), lipschitz=True
    )
    assert_silent(study)
    expected = []
    for count in few:
        times = np.linspace(0, 1, count + 1)
        zeta = 1.5 + np.cos(np.multiply.outer(times[:-1], TERMS[1])) @ TERMS[0]
        gap = np.cumprod([1, *(1 + zeta / count)]) - np.exp(integral(times))
        expected.append(ROOT * np.abs(gap).max())
    np.testing.assert_allclose(study.errors, expected, rtol=1e-9)
    assert study.errors[0] / study.errors[1] < (few[1] / few[0]) ** 0.6
    assert study.reference_error == 0


def capped(time):
    return jnp.minimum(jnp.abs(time - 1 / 3) ** -0.5, 1e3)


@pytest.mark.slow
def test_a_capped_profile_gets_no_claim_in_depth_and_the_reference_of_ones_own():
    """The flows that are passed are those of a rate of 1 or 2 and no profile."""
    # `thm:resnet-ode`, `ass:depth-profile`.
    one, two = (lim.ContinuousFlow(lambda time, r=r: Growth(jnp.array(r))) for r in (1.0, 2.0))
    studies = lim.limits.trajectory_studies(
        lambda time: Growth(jnp.array(1.0)),
        X,
        GRID,
        DEPTHS[:2],
        {"Euler": Scheme()},
        profile=capped,
        references=(one, two),
    )
    for study in studies.values():
        assert_silent(study)
        np.testing.assert_allclose(study.reference_error, ROOT * (np.e**2 - np.e), rtol=1e-3)
    for count, error in zip(DEPTHS, studies["Euler: on layers"].errors, strict=False):
        times = np.linspace(0, 1, count + 1)
        taken = np.cumprod([1, *(1 + np.abs(times[:-1] - 1 / 3) ** -0.5 / count)])
        np.testing.assert_allclose(error, ROOT * np.abs(taken - np.exp(2 * times)).max(), rtol=1e-3)
    stated = DepthProfile(capped, bound=1e3, lipschitz=1.0)
    with pytest.raises(ValueError, match="profile.lipschitz: got 1, expected at least"):
        lim.limits.shadowing_study(growing, X, GRID, DEPTHS, profile=stated, lipschitz=True)


def test_a_control_that_is_rough_in_time_is_refused_as_lipschitz():
    # `thm:resnet-ode`.
    with pytest.raises(ValueError, match="control: got a field that is not resolved as Lipschitz"):
        lim.limits.trajectory_studies(
            lambda time: Growth(weierstrass(time)), X, GRID, DEPTHS, {}, lipschitz=True
        )


@pytest.mark.slow
def test_the_split_defect_of_a_root_gets_no_claim_and_is_refused_as_lipschitz():
    """Of speed 2 it is the root of 2 / M, over M: of order 1.5."""
    # `eq:discrete-residual-with-defect`.
    field = Roots(jax.device_put(np.array(2.0)))
    study = lim.limits.split_defect_study(field, X, GRID, DEPTHS)
    np.testing.assert_allclose(study.errors, ROOT * np.sqrt(2) * np.array(DEPTHS) ** -1.5)
    assert_silent(study)
    with pytest.raises(ValueError, match="grow by the factor 1.41 from 64 layers to 128"):
        lim.limits.split_defect_study(field, X, GRID, DEPTHS, lipschitz=True)
    smooth = lim.TransformerField.init(4, norm_eps=0.1, key=jax.random.key(0))
    x = jnp.ones((3, 4)) * GRID.nodes[:, None]
    assert lim.limits.split_defect_study(smooth, x, GRID, DEPTHS[:1]).claimed == 2


def test_a_step_that_is_none_of_eulers_is_known_by_its_defects():
    # `thm:resnet-ode`, `eq:discrete-residual-with-defect`.
    def half(field, x, grid, increment):
        return lim.euler(field, x, grid, increment / 2)

    constants = DepthConstants(1.0, 1.0, 1.0)
    assert depth._premises(constants, unit_profile, lim.euler, lipschitz=False)
    assert not depth._premises(constants, unit_profile, half, lipschitz=False)
    assert not depth._premises(constants, weierstrass, lim.euler, lipschitz=True)
    assert not depth._premises(None, unit_profile, lim.euler, lipschitz=False)
    with pytest.raises(ValueError, match="grow by the factor 2 from 16 layers to 32"):
        require_resnet_premises({8: 1.0, 16: 2.0, 32: 4.0}, 0.0)
    with pytest.raises(ValueError, match="got True, constants .*inf"):
        require_resnet_premises({8: 1.0, 16: 1.0}, 0.0, (1.0, np.inf))
    # Rounding grows like the square of the depth, and is no defect.
    require_resnet_premises({8: 1e-15, 16: 3e-13}, 1e-14)
    with pytest.raises(ValueError, match="lipschitz: got True, .* grow by the factor"):
        lim.limits.shadowing_study(growing, X, GRID, (4, 8), step=half, lipschitz=True)
    with pytest.raises(ValueError, match=r"depths: got \[8\], expected two or more"):
        lim.limits.shadowing_study(growing, X, GRID, (8,), step=half, lipschitz=True)


def test_an_order_is_claimed_from_four_depths_or_more():
    """It is fitted to the theorem's rates, which no message about errors explains."""
    few = DEPTHS[:2]
    schemes = {"Euler": lim.limits.Scheme()}
    with pytest.raises(ValueError, match="depths: got .* layers, expected 4 refinements or more"):
        lim.limits.trajectory_studies(
            lambda time: Growth(jnp.array(1.0)), X, GRID, few, schemes, lipschitz=True
        )
