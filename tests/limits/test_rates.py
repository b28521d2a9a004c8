"""Measured orders of the paper's limits, and the honesty of the stated bounds."""

import dataclasses
import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.light import light_flow, light_layers, without_norm
from reference.networks import layer_of, random_flow, small_fields

import lim_jax as lim
from lim_jax.adjoint.adjoint_equation import continuous_adjoint
from lim_jax.limits.attention_error import attention_constant
from lim_jax.limits.cones import printed_cone_mass_study
from lim_jax.limits.depth import split_gap_study
from lim_jax.limits.fields import gaussian_attention, smooth_labels, smooth_states
from lim_jax.limits.position import cesaro_study, input_adjoint_studies, singularity_study
from lim_jax.limits.refinement import Study, fit_order, refine, richardson
from lim_jax.limits.rows import Row, rates_table
from lim_jax.limits.schemes import (
    Scheme,
    perturbation,
    reference_flows,
)
from lim_jax.network.controls import linear_control
from lim_jax.network.masks import AttentionMask
from lim_jax.network.positions import Rotary
from lim_jax.network.regularity import field_regularity
from lim_jax.network.steps import heun, rk4, strang

GRID = lim.token_grid(12)
SIZES = (15, 30, 60, 90)  # two thirds and a fifth are ends of tokens, whose matrices are dense
TWO = SIZES[::2]  # enough where every error is known: its order then is that of the formula
DEPTHS = (16, 32, 64, 128)
COARSE = (lim.gauss_grid(4), lim.gauss_grid(5))
MANY = (lim.gauss_grid(8, panels=30), lim.gauss_grid(12, panels=40))
smooth = smooth_states
labels = smooth_labels


def layer(seed=0):
    return layer_of(random_flow(seed, depth=1, width=3, heads=1))


def assert_order(study, order):
    assert study.reference_error < min(study.errors) / 20
    assert abs(study.order.value - order) < 0.15, study


@pytest.mark.slow
@pytest.mark.parametrize(
    "make_grid, inside, every_cell",
    [(lim.token_grid, 1, 1), (lim.graded_grid, 2, 2)],  # midpoints are in `test_volterra`
)
def test_attention_converges_to_the_volterra_operator(make_grid, inside, every_cell):
    # `thm:attention-continuum-error`, `eq:attention-continuum-pointwise-error`,
    # `eq:attention-continuum-l2-error`.
    studies = lim.limits.attention_studies(layer().attention, smooth, SIZES, make_grid, smooth=True)
    assert_order(studies["inside"], inside)
    assert_order(studies["mean square"], inside)
    assert_order(studies["every cell"], every_cell)
    tokens = make_grid is lim.token_grid
    assert {study.verdict for study in studies.values()} == {"measured" if tokens else "no bound"}
    # The theorem is on tokens, and its C/i is no order over every cell.
    claimed = [study.claimed for study in studies.values()]
    assert claimed == ([1, 1, None, 0, 1] if tokens else [None] * 5)


def test_rotary_attention_claims_nothing():
    """The theorem's keys do not turn; that such attention converges is tested beside."""
    turning = dataclasses.replace(
        layer().attention, mask=AttentionMask(positions=Rotary((1.0,), tokens=12))
    )
    few = {"references": COARSE, "smooth": True}
    studies = lim.limits.attention_studies(turning, smooth, (5,), **few)
    assert all(study.holds is None and study.claimed is None for study in studies.values())
    scaled = dataclasses.replace(turning, mask=AttentionMask(), scale=2.0)
    study = lim.limits.attention_studies(scaled, smooth, (5,), **few)
    assert study["inside"].bounds is None
    gated = dataclasses.replace(scaled, scale=None, gate=jnp.swapaxes(scaled.output, 1, 2))
    own = dataclasses.replace(scaled, scale=None, attend=lambda *slots, **options: slots[-1])
    beyond = {"positions": turning, "window": windowed(3), "scale": scaled, "gate": gated}
    beyond |= {"attend": own, "Doubled": Doubled(**vars(layer().attention))}
    for name, placed in beyond.items():
        with pytest.raises(ValueError, match=f"attention: got {name}, expected attention without"):
            attention_constant(placed, smooth)


class Doubled(lim.CausalAttention):
    """Attention of one's own, whose output no constant of its matrices knows."""

    def __call__(self, x, context, grid):
        return 2 * super().__call__(x, context, grid)


def windowed(window):
    return dataclasses.replace(layer().attention, mask=AttentionMask(window=window))


def test_windows_of_positions_have_no_continuum():
    with pytest.raises(ValueError, match="window: got 3 positions on PanelGrid"):
        lim.limits.attention_studies(windowed(3), smooth, SIZES)


@pytest.mark.parametrize("seed", range(6))
def test_the_bounds_of_the_attention_theorem_are_never_violated(seed):
    # `thm:attention-continuum-error`, `eq:attention-continuum-pointwise-error`,
    # `eq:attention-continuum-l2-error`, `eq:attention-global-cell-error`,
    # `eq:attention-left-regional-error`.
    studies = lim.limits.attention_studies(
        layer(seed).attention, smooth, (5, *SIZES[:3]), smooth=True
    )
    assert all(study._replace(sampled=False).holds for study in studies.values())
    assert all(study.holds is None for study in studies.values())


averaging = functools.cache(lim.limits.averaging_attention)


class Power(eqx.Module):
    """A power of position, and a spike at two thirds, which tokens see and no sample does.

    Studies of averaging share their programs, whatever the numbers.
    """

    exponent: float | jax.Array
    height: float | jax.Array

    def __call__(self, p):
        return p[:, None] ** self.exponent + self.height * spike(p)[:, None]


def spike(p):
    return jnp.exp(-(((p - 2 / 3) * 1e6) ** 2))


def averaging_studies(exponent, height=0.0, **options):
    states = Power(*map(jax.device_put, (np.float64(exponent), np.float64(height))))
    return lim.limits.attention_studies(averaging(), states, SIZES, references=MANY, **options)


@pytest.mark.slow
def test_a_field_that_is_not_smooth_gets_no_bound_and_its_own_order():
    studies = averaging_studies(0.6)
    assert_order(studies["every cell"], 0.6)
    # `thm:attention-continuum-error` supposes C^1 states: unsaid, it claims nothing.
    assert {(study.verdict, study.claimed) for study in studies.values()} == {("no bound", None)}
    # `eq:attention-continuum-pointwise-error`, `eq:attention-continuum-l2-error`,
    # `eq:attention-left-regional-error`: errors fall from the first cell on, so each has its own.
    for place, size in enumerate(SIZES):
        i = np.arange(1, size + 1)
        errors = np.abs(np.cumsum(i**0.6) / i - i**0.6 / 1.6) / size**0.6
        inside = errors[5 * i >= size]
        left = errors[5 * i <= size]
        errors_at_place = [
            studies[name].errors[place] for name in ("inside", "mean square", "left region")
        ]
        expected = inside.max(), np.sqrt((inside**2).sum() / size), left.mean()
        np.testing.assert_allclose(errors_at_place, expected, rtol=1e-3)


@pytest.mark.slow
def test_the_attention_bounds_are_those_of_the_proof_and_averaging_attains_them():
    """Averaging of p errs by 1/2L at every cell, and max |v'| / 2 is what the proof makes of it."""
    # `thm:attention-continuum-error`, `eq:attention-continuum-pointwise-error`,
    # `eq:attention-continuum-l2-error`, `eq:attention-global-cell-error`,
    # `eq:attention-left-regional-error`.
    sizes = np.array(SIZES)
    studies = averaging_studies(1.0, smooth=True)
    left = np.floor(0.2 * sizes)
    bounds = {
        "inside": 0.5 / sizes,
        "mean square": 0.5 / sizes,
        "every cell": 0.5 / sizes,
        "times i": 0.5 * np.ones(4),
        "left region": 0.5 * (1 + np.log(left)) / left,
    }
    for name, expected in bounds.items():
        np.testing.assert_allclose(np.array(studies[name].bounds), expected, rtol=1e-9)
    inside = np.array([(np.arange(1, size + 1) >= 0.2 * size).mean() for size in SIZES])
    errors = bounds | {"mean square": 0.5 * np.sqrt(inside) / sizes, "left region": 0.5 / sizes}
    for name, expected in errors.items():
        np.testing.assert_allclose(studies[name].errors, expected, rtol=1e-9)


def test_the_attention_constant_is_the_proofs_by_differences():
    """`eq:riemann-attention-error` with `eq:attention-two-denominator-lower-bounds`, in NumPy."""
    # `thm:attention-continuum-error`, `eq:score-bounded-lipschitz-from-bounded-assumption`.
    attention = layer().attention
    p = np.linspace(0, 1, 801)
    step = 1e-6
    norm = attention.norm
    query, key, value, output = (
        np.asarray(matrix)[0]
        for matrix in (attention.query, attention.key, attention.value, attention.output)
    )

    def normalised(p):
        x = np.stack([np.sin(3 * p) + 0.3, np.cos(5 * p), p**2 - 0.4 * np.sin(7 * p)], axis=1)
        centred = x - x.mean(axis=1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=1, keepdims=True) + norm.norm_eps)
        return np.asarray(norm.scale) * centred / spread + np.asarray(norm.shift)

    def affine(matrix, bias, q):
        return normalised(q) @ matrix.T + np.asarray(bias)[0]

    def integrands(q):
        scores = affine(query, attention.query_bias, p) @ affine(key, attention.key_bias, q).T
        mass = np.exp(scores / np.sqrt(3))
        projected = affine(value, attention.value_bias, q) @ output.T
        return mass, projected, mass[:, :, None] * projected[None]

    before, _, low = integrands(p - step)
    after, _, high = integrands(p + step)
    mass, projected, _ = integrands(p)
    past = p[None, :] <= p[:, None]
    moved = np.linalg.norm(high - low, axis=2) / (2 * step)
    grown = np.abs(after - before) / (2 * step)
    size = np.where(past, np.linalg.norm(projected, axis=1)[None], 0).max(axis=1)
    numerator = np.where(past, moved, 0).max(axis=1) + size * np.where(past, grown, 0).max(axis=1)
    expected = (numerator / (2 * np.where(past, mass, np.inf).min(axis=1))).max()
    constant = attention_constant(attention, smooth)
    np.testing.assert_allclose(constant, expected, rtol=1e-6)


def spiked(p):
    """The test field, with a spike at two thirds, which tokens see and no sample does."""
    return smooth(p) + jnp.outer(spike(p), jnp.array([300, -300, 0.0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "loss", "terminal adjoint"])
def test_a_spike_between_the_samples_refutes_no_theorem_in_position(name):
    """The constants miss it and the tokens do not: measured, and neither holds."""
    # `thm:attention-continuum-error`, `thm:loss-adjoint-continuum-error`,
    # `eq:cross-entropy-discrete-continuum-error`, `eq:terminal-adjoint-discrete-continuum-error`.
    sizes = SIZES[:1]
    readout = lim.LinearReadout(jnp.asarray(np.eye(3)))
    study = {
        "attention": lambda: averaging_studies(1.0, 300.0, smooth=True)["every cell"],
        "loss": lambda: lim.limits.loss_study(spiked, labels, sizes, lipschitz=True),
        "terminal adjoint": lambda: lim.limits.terminal_adjoint_study(
            lambda size: readout,
            readout,
            spiked,
            lambda p: labels(p) * (1 + spiked(p)),
            sizes,
            lipschitz=True,
        ),
    }[name]()
    assert study.bounds is not None and study.errors[0] > 1.5 * study.bounds[0]
    assert (study.verdict, study.holds) == ("measured", None)
    assert study._replace(sampled=False).verdict == "BROKEN"


@pytest.fixture(scope="module")
def trajectories():
    """Recursions of one control, as it is and perturbed: they share the depth flow."""
    zero = jax.tree.map(lambda leaf: jnp.asarray(0 * np.asarray(leaf)[0]), small_fields())
    direction = eqx.tree_at(lambda f: f.feed_forward.outer_bias, zero, jnp.asarray(np.ones(3)))
    schemes = {
        "euler": Scheme(),
        "heun": Scheme(heun, 0.5),
    }
    sizes = {
        "uniform": lambda depth: np.full(depth, depth**-0.5),
        "spike": lambda depth: 1.0 * (np.arange(depth) == depth // 2),
        "alternating": lambda depth: depth**-0.5 * (-1.0) ** np.arange(depth),
    }
    for name, of_depth in sizes.items():
        schemes[name] = Scheme(perturbation=perturbation(direction, of_depth))
    control = linear_control(small_fields())
    grid = lim.token_grid(6)
    depths = (32, 64, 128, 256)
    return lim.limits.trajectory_studies(control, smooth(grid.nodes), grid, depths, schemes)


@pytest.mark.slow
def test_residual_recursions_converge_to_the_depth_flow(trajectories):
    """Dear, with the other tests of `trajectories`: two schemes at every depth, to order 2.

    Those that are split are between these: see their defects, and their adjoints.
    """
    # `thm:resnet-ode`.
    for name, order in {"euler": 1, "heun": 2}.items():
        assert_order(trajectories[f"{name}: on layers"], order)
        # A state that stands for a layer's length is a step behind, whatever the scheme.
        assert_order(trajectories[f"{name}: between layers"], 1)


@pytest.mark.slow
def test_the_bounds_of_the_residual_limit_are_never_violated(trajectories):
    # `thm:resnet-ode`.
    sources = {
        "on layers": "eq:convergent-control-grid-bound",
        "between layers": "eq:resnet-ode-convergent-control-bound",
    }
    for name, study in trajectories.items():
        assert study.verdict == "holds" and study.source == sources[name.partition(": ")[2]]


@pytest.mark.slow
def test_the_bounds_of_eulers_recursion_are_the_proofs(trajectories):
    """With the field's constants, and the controls' distance: eps/2 times the control's length."""
    # `thm:resnet-ode`, `eq:control-l1-convergence`.
    fields = small_fields()
    regularity = field_regularity(fields)
    state, control, speed = (
        float(c) for c in (regularity.lipschitz, regularity.control, regularity.bound)
    )
    rows = np.concatenate([np.asarray(leaf).reshape(3, -1) for leaf in jax.tree.leaves(fields)], 1)
    step = 1 / np.array([32, 64, 128, 256])
    bracket = step + step / 2 * np.linalg.norm(np.diff(rows, axis=0), axis=1).sum()
    on_layers = np.exp(state) * max(state * speed / 2, control)
    for where, constant in {"on": on_layers, "between": on_layers + speed}.items():
        bounds = trajectories[f"euler: {where} layers"].bounds
        np.testing.assert_allclose(bounds, constant * bracket, rtol=1e-9)


class Waves(eqx.Module):
    """Two sublayers that do not commute."""

    rate: jax.Array

    @property
    def sublayers(self):
        return lambda x, *_: jnp.sin(self.rate * x), lambda x, *_: jnp.cos(self.rate + x)

    def __call__(self, x, context, grid):
        return sum(layer(x) for layer in self.sublayers)


def test_strang_is_of_second_order_between_nonlinear_sublayers():
    """Against `rk4`, which does not split them, in as many steps as make it exact here."""
    grid = lim.token_grid(2)
    depths = (8, 16, 32, 64)

    @jax.jit
    def ends(x):
        flows = [*((depth, strang) for depth in depths), (256, rk4)]
        return [
            lim.ResidualFlow(Waves(jnp.full(depth, 1.3)), step=step)(x, grid)[0, 0]
            for depth, step in flows
        ]

    *values, exact = map(float, ends(jnp.asarray(np.full((2, 1), 0.4))))
    errors = [abs(end - exact) for end in values]
    assert abs(fit_order(depths, errors).value - 2) < 0.15


def test_rk4_is_of_fourth_order_on_a_field_that_stays():
    """exp(-t) in closed form."""
    grid = lim.token_grid(2)
    depths = (4, 8, 16, 32)

    class Decay(eqx.Module):
        rate: jax.Array

        def __call__(self, x, context, grid):
            return -self.rate * x

    @jax.jit
    def ends(x):
        return [lim.ResidualFlow(Decay(jnp.ones(m)), step=rk4)(x, grid)[0, 0] for m in depths]

    errors = [abs(float(end) - math.exp(-1)) for end in ends(jnp.asarray(np.ones((2, 1))))]
    assert abs(fit_order(depths, errors).value - 4) < 0.15


@pytest.mark.slow
def test_perturbed_controls_converge_as_their_distance_does_or_better(trajectories):
    # `eq:control-l1-convergence`.
    for name, order in {"uniform": 0.5, "spike": 1, "alternating": 1}.items():
        assert_order(trajectories[f"{name}: on layers"], order)
        assert_order(trajectories[f"{name}: between layers"], order)
    assert abs(trajectories["uniform: on layers"].claimed - 0.5) < 0.1
    assert abs(trajectories["alternating: between layers"].claimed - 0.5) < 0.1
    assert trajectories["spike: on layers"].claimed == 1


@pytest.mark.slow
def test_layers_without_a_limit_shadow_their_own_flow():
    # `thm:resnet-ode`.
    two = light_layers(2, width=3)
    grid = lim.token_grid(6)
    study = lim.limits.shadowing_study(
        lambda depth: jax.tree.map(lambda leaf: leaf[jnp.arange(depth) % 2], two),
        smooth(grid.nodes),
        grid,
        DEPTHS,
    )
    assert_order(study, 1)


@pytest.mark.slow
def test_the_split_defect_is_of_second_order_and_its_sum_of_first():
    # `eq:discrete-residual-with-defect`.
    grid = lim.token_grid(6)
    one = layer_of(light_flow(depth=1, width=3))
    x = smooth(grid.nodes)
    assert_order(lim.limits.split_defect_study(one, x, grid, DEPTHS), 2)
    control = linear_control(light_layers(3, width=3))
    gap = split_gap_study(control, x, grid, DEPTHS)
    assert_order(gap, 1)
    assert gap.claimed is None


@pytest.mark.slow
def test_adjoint_density_and_cone_mass_converge_in_depth():
    """Dear: an adjoint and a cone mass of each depth and scheme, and two references to compare."""
    control = linear_control(light_layers(3, width=3))
    grid = lim.token_grid(6)
    _, flow = reference_flows(control)
    # Of the same solver, so that one program solves both.
    _, nearby = reference_flows(linear_control(light_layers(3, width=3, scale=0.999)))

    def studies(*references):
        return lim.limits.input_adjoint_depth_studies(
            control,
            lambda x, y: lim.inner(x, x, grid),
            (smooth(grid.nodes), None),
            grid,
            (64, 128, 256, 512),
            schemes={"split": Scheme(lim.split)},
            references=references,
        )

    def loss(x, y):
        return lim.inner(x, x, grid)

    @eqx.filter_jit
    def ends(flow):
        """The input adjoint, and the cone mass at the last states."""
        x = smooth(grid.nodes)
        covectors = continuous_adjoint(flow, loss, (x, None), grid, jnp.zeros(1)).covectors
        return covectors[0], lim.adjoint.cone_mass(
            control(jnp.array(1.0)).attention, flow(x, grid), grid
        )

    def in_numpy(flow):
        """Every quantity, on tokens, where the regions of a fifth have 1.2, 3.6 and 1.2 of six."""
        adjoint, mass = map(np.asarray, ends(flow))
        density = (adjoint**2).sum(axis=1)
        density /= density.mean()
        regions = np.array([[1, 0.2, 0, 0, 0, 0], [0, 0.8, 1, 1, 0.8, 0], [0, 0, 0, 0, 0.2, 1]])
        averages = regions @ density / regions.sum(axis=1)
        return adjoint, density, averages, mass

    (first, last), (near, far), (thirds, averages), (cones, cone) = zip(
        *map(in_numpy, (nearby, flow)), strict=True
    )
    apart = {
        "input adjoint": np.sqrt(((first - last) ** 2).sum(axis=1).mean()),
        "density": np.abs(near - far).mean(),
        "regional averages": np.abs(thirds - averages).max(),
        "cone mass": np.abs(cones / cone - 1).max(),
    }
    for name, study in studies(nearby, flow).items():
        assert abs(study.order.value - 1) < 0.15 and study.claimed is None
        # The first of one's own references tells the error of the last.
        expected = apart[name.removeprefix("split: ")]
        assert 1e-6 < expected < 1e-1
        np.testing.assert_allclose(study.reference_error, expected, rtol=1e-6)
    longer = linear_control(light_layers(3, width=3), 2.0)
    with pytest.raises(ValueError, match="references: got flows to 2, 1, expected two depth flows"):
        studies(dataclasses.replace(flow, control=longer, horizon=2.0), flow)


@pytest.mark.slow
@pytest.mark.parametrize("make_grid, order", [(lim.token_grid, 0.6), (lim.graded_grid, 2)])
def test_regional_influence_needs_the_graded_grid(make_grid, order):
    """At two layers P_0 grows like log(1/q)^2 at 0: dear by the reference that resolves it.

    On tokens 0.6 is the slope at these lengths: the order is 1 up to powers of log L.
    """
    layers = without_norm(gaussian_attention(0, 2))
    studies = input_adjoint_studies(
        lim.ResidualFlow(layers),
        lambda x, grid: lim.inner(smooth(grid.nodes) + 1, x, grid),
        smooth,
        (30, 60, 120, 240),
        make_grid,
    )
    assert_order(studies["regional averages"], order)
    assert {study.claimed for study in studies.values()} == {None}
    assert studies["inside"].source == studies["global"].source == "eq:adjoint"
    if make_grid is lim.token_grid:
        assert_order(studies["inside"], 1)


@pytest.mark.slow
def test_cone_mass_converges_to_that_of_the_references():
    """Of averaging it is 1/q - 1 on panels, and L times the sum over i >= j of 1/i^2 on tokens."""
    # `eq:cone-mass`.
    sizes = (8, 32)

    def mass(size):
        return size * (1.0 / np.arange(size // 4, size + 1) ** 2).sum()

    study = lim.limits.cone_mass_study(
        averaging(),
        lambda p: jnp.zeros((p.size, 1)),
        sizes,
        positions=(0.25,),
        references=(lim.gauss_grid(8, panels=4), lim.token_grid(160)),
    )
    expected = [abs(mass(size) / mass(160) - 1) for size in sizes]
    np.testing.assert_allclose(study.errors, expected, rtol=1e-9)
    np.testing.assert_allclose(study.reference_error, abs(3 / mass(160) - 1), rtol=1e-3)
    assert (study.source, study.claimed) == ("eq:cone-mass", None)


@pytest.mark.slow
def test_the_printed_cone_mass_vanishes_and_the_left_average_of_the_true_one_diverges():
    """Of averaging: C(q_j) = L sum over i >= j of 1/i^2, and the printed one 1/L^2 of it."""
    sizes = (40, 80)
    delta = 0.2

    def zeros(p):
        return jnp.zeros((p.size, 1))

    def masses(size):
        return size * np.cumsum(1.0 / np.arange(size, 0, -1) ** 2)[::-1]

    left = lim.limits.left_cone_mass_study(averaging(), zeros, sizes, delta=delta)
    averages = {n: masses(n)[: n // 5].mean() for n in (*sizes, 160)}
    expected = [averages[2 * n] - averages[n] for n in sizes]
    np.testing.assert_allclose(left.errors, expected, rtol=1e-9)
    assert left.claimed is None
    # The integral of 1/q gains log 2, whatever the size.
    np.testing.assert_allclose(left.errors, np.log(2) / delta, rtol=0.06)
    sizes = (20, 60)
    printed = printed_cone_mass_study(averaging(), zeros, sizes)
    expected = [masses(n)[n // 4 - 1] / n**2 for n in sizes]
    np.testing.assert_allclose(printed.errors, expected, rtol=1e-9)
    np.testing.assert_allclose(9 * printed.errors[1], printed.errors[0], rtol=0.1)
    assert (printed.source, printed.claimed) == ("eq:finite-cone-mass-estimator", None)


@pytest.mark.slow
def test_the_input_adjoint_grows_like_a_power_of_the_logarithm_at_zero():
    """Of M layers of averaging: the sum over m of binom(M, m) y^m / m!, y = log(1/q)."""
    one = jnp.ones((1, 1, 1))
    layer = lim.CausalAttention(eqx.nn.Identity(), 0 * one, 0 * one, one, one)
    layers = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), layer)
    study = singularity_study(
        lim.ResidualFlow(layers, horizon=2.0),
        lambda x, grid: lim.integral(x, grid).sum(),
        lambda p: jnp.zeros((p.size, 1)),
    )
    y = np.array(study.refinements)
    np.testing.assert_allclose(y, np.log(4 / 3 * 2.0 ** np.array([50, 75, 100, 150, 198])))
    np.testing.assert_allclose(study.errors, 1 + 2 * y + y**2 / 2, rtol=1e-5)
    assert_order(study, -2)


def test_averaging_converges_to_its_closed_form():
    study = cesaro_study(2.0, (200, 400, 800, 3200))
    assert abs(study.order.value - 1) < 0.15 and study.claimed is None
    # Measured once by an independent sum.
    np.testing.assert_allclose(study.errors, (1.4e-2, 7.3e-3, 3.6e-3, 9.1e-4), rtol=0.05)


@pytest.mark.parametrize("make_grid, order", [(lim.token_grid, 1), (lim.graded_grid, 2)])
def test_the_loss_converges_within_its_bound(make_grid, order):
    # `thm:loss-adjoint-continuum-error`, `eq:cross-entropy-discrete-continuum-error`,
    # `eq:continuum-cross-entropy`.
    study = lim.limits.loss_study(smooth, labels, SIZES, make_grid, lipschitz=True)
    assert_order(study, order)
    tokens = make_grid is lim.token_grid
    expected = (1.0, "measured", True) if tokens else (None, "no bound", None)
    assert (study.claimed, study.verdict, study._replace(sampled=False).holds) == expected


@pytest.mark.parametrize("make_grid", [lim.midpoint_grid, lim.graded_grid])
def test_the_bound_of_the_loss_is_stated_on_tokens_only(make_grid):
    """A constant loss density has a bound of zero, which the graded grid's total mass breaks."""

    def same(values):
        return lambda p: jnp.broadcast_to(jnp.array([values]), (p.size, 2))

    studies = [
        lim.limits.loss_study(same([1.0, -0.5]), same([0.3, 0.7]), TWO, grid, lipschitz=True)
        for grid in (make_grid, lim.token_grid)
    ]
    assert studies[0].bounds is None and studies[0].holds is None
    # Rounding is no breach: both sides are zero.
    assert studies[1].bounds == (0.0,) * 2 and studies[1]._replace(sampled=False).holds is True


def test_the_bound_of_the_loss_is_the_slope_of_its_density():
    """For a linear density of slope s the error is s/(2L), the bound s/L."""
    # `thm:loss-adjoint-continuum-error`, `eq:cross-entropy-discrete-continuum-error`,
    # `eq:continuum-cross-entropy`.
    study = lim.limits.loss_study(
        lambda p: jnp.broadcast_to(jnp.array([[1.0, -0.5]]), (p.size, 2)),
        lambda p: jnp.stack([p, 1 - p], axis=1),
        TWO,
        lipschitz=True,
    )
    assert study.bounds is not None
    np.testing.assert_allclose(study.errors, 1.5 / (2 * np.array(TWO)), rtol=1e-9)
    np.testing.assert_allclose(study.bounds, 1.5 / np.array(TWO), rtol=1e-12)


@pytest.mark.parametrize("make_grid, order", [(lim.token_grid, 1), (lim.midpoint_grid, 2)])
def test_a_query_density_weighs_the_loss(make_grid, order):
    """Of a constant loss density g: the sum of 2 p g dp, right of the integral by g/L on tokens."""
    # `eq:continuum-ar-loss`.

    def same(values):
        return lambda p: jnp.broadcast_to(jnp.array([values]), (p.size, 2))

    study = lim.limits.loss_study(
        same([1.0, -0.5]),
        same([0.3, 0.7]),
        SIZES,
        make_grid,
        query_density=lambda p: 3 * p**2,
        lipschitz=True,
    )
    g = -np.array([0.3, 0.7]) @ (np.array([1.0, -0.5]) - np.logaddexp(1.0, -0.5))
    sums = [np.mean(3 * np.asarray(make_grid(n).nodes) ** 2) for n in SIZES]
    np.testing.assert_allclose(study.errors, g * np.abs(np.array(sums) - 1), rtol=1e-9)
    assert_order(study, order)
    assert (study.source, study.claimed) == ("eq:continuum-ar-loss", None)
    if make_grid is lim.token_grid:
        assert study.bounds is not None
        np.testing.assert_allclose(study.bounds, 6 * g / np.array(SIZES), rtol=1e-9)
        assert study.verdict == "measured"


def test_a_query_density_weighs_the_terminal_adjoint():
    """Of chi = 1/2 + p and still logits and labels: P_T is chi times a constant covector."""
    # `eq:continuum-ar-terminal-adjoint`, `eq:terminal-adjoint-discrete-continuum-error`.
    linear = lim.LinearReadout(jnp.asarray(np.random.default_rng(1).standard_normal((3, 3))))

    def still(p):
        return jnp.broadcast_to(jnp.array([[0.3, -0.2, 0.5]]), (p.size, 3))

    study = lim.limits.terminal_adjoint_study(
        lambda size: linear,
        linear,
        still,
        still,
        TWO,
        query_density=lambda p: 0.5 + p,
        lipschitz=True,
    )
    logits = np.array([0.3, -0.2, 0.5]) @ np.asarray(linear.weight)
    mass = np.exp(logits) / np.exp(logits).sum()
    labels = np.array([0.3, -0.2, 0.5])
    covector = np.asarray(linear.weight) @ (labels.sum() * mass - labels)
    # Sampling p at the right ends of cells errs by 1/(sqrt(3) L) in the mean square.
    expected = np.linalg.norm(covector) / np.sqrt(3) / np.array(TWO)
    np.testing.assert_allclose(study.errors, expected, rtol=2e-3)
    assert study.bounds is not None
    np.testing.assert_allclose(study.bounds, expected * np.sqrt(3), rtol=1e-9)
    assert (study.source, study.claimed) == ("eq:continuum-ar-terminal-adjoint", None)


def test_a_readouts_adjoint_is_bounded_by_its_weights_norm():
    # `eq:readout-adjoint-boundedness`.
    generator = np.random.default_rng(1)
    weight = jnp.asarray(generator.standard_normal((3, 4)))
    largest = np.linalg.norm(weight, 2)
    bound = eqx.filter_jit(lim.limits.readout_bound)
    for grid in (lim.token_grid(12), lim.graded_grid(12)):
        x = smooth(grid.nodes)
        np.testing.assert_allclose(bound(lim.LinearReadout(weight), x, grid), largest, rtol=1e-12)
        network = lim.TokenwiseReadout(lambda z: jnp.tanh(z @ weight))
        slopes = 1 - np.tanh(np.asarray(x) @ np.asarray(weight)) ** 2
        expected = max(np.linalg.norm(np.asarray(weight) * slope, 2) for slope in slopes)
        np.testing.assert_allclose(bound(network, x, grid), expected, rtol=1e-12)
    # A band's rows and columns sum to one where its edges reflect, and to less at the others.
    bounds = {
        edges: float(bound(lim.BandReadout(weight, 0.4, edges), smooth(GRID.nodes), GRID))
        for edges in ("reflecting", "zero")
    }
    np.testing.assert_allclose(bounds["reflecting"], largest, rtol=1e-9)
    assert 0.8 * largest < bounds["zero"] < largest


@pytest.mark.slow
def test_terminal_adjoints_converge_within_their_bound():
    # `thm:loss-adjoint-continuum-error`, `eq:terminal-adjoint-discrete-continuum-error`,
    # `rem:linear-readout-consistency`, `eq:linear-readout-cellwise-consistency`,
    # `eq:linear-readout-first-order-bound`.
    linear = lim.LinearReadout(jnp.asarray(np.random.default_rng(1).standard_normal((3, 3))))
    tokenwise = lim.TokenwiseReadout(lambda z: jnp.tanh(z @ linear.weight))
    for readout in (linear, tokenwise):
        study = lim.limits.terminal_adjoint_study(
            lambda size, readout=readout: readout, readout, smooth, labels, SIZES, lipschitz=True
        )
        assert_order(study, 1)
        assert (study.claimed, study.verdict) == (1, "measured") and study.bounds is not None
        assert study._replace(sampled=False).holds
        # A cell's sample errs by 1/sqrt(3) of the slope in the mean square: not vacuous.
        assert study.bounds[0] < 10 * study.errors[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "edges, order",
    [
        ("reflecting", 1),
        pytest.param("zero", 0.5, marks=pytest.mark.slow),
        ("renormalised", 0.5),
    ],
)
def test_windows_keep_the_rate_only_if_their_edges_reflect(edges, order):
    # `eq:readout-adjoint-consistency`, `rem:linear-readout-consistency`.
    linear = lim.LinearReadout(jnp.asarray(np.random.default_rng(1).standard_normal((3, 3))))
    study = lim.limits.terminal_adjoint_study(
        lambda size: lim.BandReadout(linear.weight, 8 / size, edges),
        linear,
        smooth,
        labels,
        (200, 400, 800, 1600),
        lipschitz=edges == "zero",  # said or not, of a window nothing is
    )
    assert_order(study, order)
    assert study.holds is None and study.claimed is None


def test_a_linear_readout_is_consistent_at_any_residual():
    """Of Delta = p a: a cell's sample errs by |W a| / sqrt(3) L, and the bound is |W| |a| / L."""
    # `eq:readout-adjoint-consistency`, `rem:linear-readout-consistency`,
    # `eq:linear-readout-cellwise-consistency`, `eq:linear-readout-first-order-bound`.
    weight = np.random.default_rng(1).standard_normal((3, 3))
    slope = np.array([1.0, -2, 0.5])
    linear = lim.LinearReadout(jnp.asarray(weight))
    study = lim.limits.readout_consistency_study(
        lambda size: linear,
        linear,
        smooth,
        lambda p: jnp.outer(p, jnp.asarray(slope)),
        TWO,
        lipschitz=True,
    )
    each = 1 / np.array(TWO)
    expected = np.linalg.norm(weight @ slope) / np.sqrt(3) * each
    np.testing.assert_allclose(study.errors, expected, rtol=2e-3)
    bounds = np.linalg.norm(weight, 2) * np.linalg.norm(slope) * each
    np.testing.assert_allclose(np.array(study.bounds), bounds, rtol=1e-9)
    assert (study.claimed, study.verdict) == (1.0, "measured")


@pytest.mark.slow
def test_whether_a_window_is_consistent_depends_on_the_residuals():
    """Cut off at its ends it loses half an order where Delta is one there, and none where zero."""
    # `eq:readout-adjoint-consistency`, `rem:linear-readout-consistency`.
    weight = jnp.asarray(np.random.default_rng(1).standard_normal((3, 3)))

    def order(residual):
        study = lim.limits.readout_consistency_study(
            lambda size: lim.BandReadout(weight, 8 / size, "zero"),
            lim.LinearReadout(weight),
            smooth,
            lambda p: residual(p)[:, None] * jnp.ones((1, 3)),
            (100, 200, 400, 800),
            lipschitz=True,
        )
        assert (study.claimed, study.verdict) == (None, "no bound")
        return study.order.value

    assert abs(order(lambda p: 1 + 0 * p) - 0.5) < 0.05
    assert order(lambda p: p * (1 - p)) > 0.95


def test_richardson_cancels_the_leading_error():
    for order in (1, 2):
        values = richardson(lambda n, r=order: jnp.array(3 + n**-r + n ** -(r + 1)), order)
        errors = [abs(float(values(n)) - 3) for n in (10, 20, 40, 80)]
        assert abs(fit_order((10, 20, 40, 80), errors).value - order - 1) < 0.15


def test_orders_are_fitted_with_their_uncertainty():
    refinements = (10, 20, 40, 80, 160)
    noise = np.array([1.1, 0.9, 1.05, 0.95, 1.0])
    errors = 3.0 / np.array(refinements) ** 1.5 * noise
    order = fit_order(refinements, errors.tolist())
    assert abs(order.value - 1.5) < order.half_width < 0.1
    with pytest.raises(ValueError, match="at least four"):
        fit_order((1, 2, 4), (1.0, 0.5, 0.25))
    with pytest.raises(ValueError, match="leave errors of zero out"):
        fit_order((1, 2, 4, 8), (1.0, 0.5, 0.25, 0.0))


def test_the_table_prints_a_dash_for_what_the_paper_does_not_state():
    silent = refine("eq", None, (1, 2, 4, 8), (1.0, 0.5, 0.25, 0.125), 0.0)
    stated = refine("eq", 1.0, (1, 2, 4, 8), (1.0, 0.5, 0.25, 0.125), 0.0, lambda n: 1 / n)
    rows = [Row("a, b", study, 1) for study in (silent, stated)]
    table = rates_table(rows).splitlines()
    assert table[1].split()[2:4] == ["–", "1.00"] and table[1].split()[7] == "–"
    assert table[2].split()[2:4] == ["1.00", "1.00"] and table[2].split()[7] == "holds"
    assert rows[0].record()["claimed"] is None


def test_a_bound_is_judged_up_to_the_reference_and_to_rounding():
    four = (1.0, 2.0, 4.0, 8.0)
    study = Study("eq", 1.0, four, (1e-15, 1e-6, 1e-6, 1e-6), (0.0,) * 4, 1e-6)
    assert study.verdict == "unresolved" and study.holds is None
    assert study._replace(reference_error=0.0).holds is False
    assert study._replace(errors=(1.1e-6,) * 4).holds is False
    # Within the bound wherever the limit is, within its own error: resolved or not.
    assert study._replace(bounds=(2.1e-6,) * 4).holds
    assert study._replace(bounds=(1.9e-6,) * 4).holds is None
    exact = study._replace(errors=(1e-15,) * 4, reference_error=0.0)
    assert exact.holds is False and exact._replace(rounding=1e-14).holds
    table = rates_table([Row("limit", study, None)])
    assert "unresolved" in table and "COARSE REFERENCE" in table


def test_a_broken_bound_is_reported():
    study = Study("eq", 1.0, (1.0, 2.0), (1.0, 0.6), (1.0, 0.5), 0.0)
    assert study.holds is False
    four = (1.0, 2.0, 4.0, 8.0)
    broken = Study("eq", 1.0, four, (1.0, 0.5, 0.25, 0.125), (0.9,) * 4, 0.0)
    assert not Row("limit", broken, 1).agrees
    assert Row("limit", broken._replace(bounds=None), 1).agrees
    assert not Row("limit", broken._replace(bounds=None), 2).agrees
