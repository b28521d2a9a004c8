"""Two influences compared: paired differences and their errors, against NumPy and against draws."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lim_jax as lim
from lim_jax.density import Influence
from lim_jax.results import compare
from lim_jax.results.comparison import Comparison

GRID = lim.graded_grid(9)
REGIONS = lim.boundary_regions(GRID, "2/5").without([3, 8])
WEIGHTS = np.where(np.isin(np.arange(9), [3, 8]), 0, np.asarray(GRID.weights))
REGIONAL = np.asarray(REGIONS.weights)


def drawn(generator, *shape):
    """Energies of two networks on the same examples, which move both; their means are known.

    They are in the hundreds, so that energies cannot be taken for shares of influence.
    """
    common = np.exp(generator.standard_normal((*shape, 1)) / 2)
    own = np.exp(generator.standard_normal((2, *shape, 9)) / 4)
    means = 640 * np.array([np.linspace(2, 1, 9), 1 + np.cos(3 * np.asarray(GRID.nodes)) ** 2])
    expected = means * np.exp(1 / 8) * np.exp(1 / 32)  # of log-normal factors
    return means.reshape(2, *(1 for _ in shape), 9) * common * own, expected


def results(energy):
    """Density, total, averages, gap, LIM and contrast of mean energies, by NumPy alone."""
    total = WEIGHTS @ energy
    density = np.where(WEIGHTS > 0, energy, 0) / total
    left, middle, right = REGIONAL @ energy / REGIONAL.sum(axis=1) / total
    gap = min(left, right) - middle
    low = min(left, right)
    contrasts = [gap / (low + 1e-8), gap / (low + middle + 1e-8)]
    return np.concatenate([density, [total, left, middle, right, gap, *contrasts]])


def flat(density, total, indices):
    return np.concatenate([density, [total], np.asarray(list(indices))])


def differences(comparison):
    return flat(comparison.density, comparison.total, comparison.indices)


def errors(comparison):
    return flat(comparison.density_error, comparison.total_error, comparison.index_errors)


def influences(pair, keep_examples=True):
    return [
        Influence.from_energies(jax.device_put(e), REGIONS, keep_examples=keep_examples)
        for e in pair
    ]


def test_differences_are_those_of_the_results_and_errors_those_of_the_jackknife():
    """Leaving out one example after the other, in NumPy; at 200 examples it is linear to 2 %."""
    pair, _ = drawn(np.random.default_rng(0), 200)
    comparison = compare(*influences(pair))
    assert comparison.paired
    change = results(pair[1].mean(axis=0)) - results(pair[0].mean(axis=0))
    np.testing.assert_allclose(differences(comparison), change, rtol=1e-9, atol=1e-12)
    sums = pair.sum(axis=1)
    left_out = np.array(
        [
            results((sums[1] - pair[1, e]) / 199) - results((sums[0] - pair[0, e]) / 199)
            for e in range(200)
        ]
    )
    jackknife = np.sqrt(199 / 200 * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    np.testing.assert_allclose(errors(comparison), jackknife, rtol=0.02, atol=1e-12)
    exactly = ((pair[1] - pair[0]) @ WEIGHTS).std(ddof=1) / np.sqrt(200)  # the total is linear
    np.testing.assert_allclose(comparison.total_error, exactly, rtol=1e-10)


def test_pairs_cancel_what_the_examples_do_to_both_and_others_add_in_squares():
    pair, _ = drawn(np.random.default_rng(1), 200)
    comparisons = [compare(*influences(pair, keep)) for keep in (True, False)]
    alone = [flat(f.density_error, f.total_error, f.index_errors()) for f in influences(pair)]
    assert [f.paired for f in comparisons] == [True, False]
    np.testing.assert_allclose(errors(comparisons[1]), np.hypot(*alone), rtol=1e-10)
    np.testing.assert_allclose(differences(comparisons[0]), differences(comparisons[1]), rtol=1e-12)
    assert float(comparisons[0].total_error) < 0.6 * float(comparisons[1].total_error)
    shorter = influences(pair[:, :199])[1]
    assert not compare(influences(pair)[0], shorter).paired


def test_nothing_changes_between_equal_influences():
    pair, _ = drawn(np.random.default_rng(2), 200)
    one, _ = influences(pair)
    comparison = compare(one, one)
    # One program computes both and may round each in its own way, sums of 200 examples among them.
    rounding = 400 * np.finfo(float).eps * np.abs(results(pair[0].mean(axis=0))).max()
    np.testing.assert_allclose(differences(comparison), 0, atol=rounding)
    np.testing.assert_allclose(errors(comparison), 0, atol=rounding)
    nothing = Influence.from_energies(
        jax.device_put(np.zeros((200, 9))), REGIONS, keep_examples=True
    )
    assert np.isfinite(differences(compare(nothing, one))).all()
    assert np.isfinite(errors(compare(nothing, one))).all()


@pytest.mark.parametrize("keep_examples", [True, False])
def test_two_errors_to_either_side_hold_the_true_difference_in_95_of_100_draws(keep_examples):
    """Of pairs; and of unpaired data, whose networks have examples of their own."""
    repeats = 400
    examples = 80
    generator = np.random.default_rng(3)
    pairs, expected = drawn(generator, repeats, examples)
    if not keep_examples:
        pairs = np.stack([pairs[0], drawn(generator, repeats, examples)[0][1]])

    @jax.jit
    @jax.vmap
    def compared(first, second):
        comparison = compare(
            *(
                Influence.from_energies(e, REGIONS, keep_examples=keep_examples)
                for e in (first, second)
            )
        )
        return comparison._replace(paired=None, regions=None)

    found = compared(*jax.device_put(pairs))
    assert isinstance(found, Comparison)
    truth = results(expected[1]) - results(expected[0])
    every = [jax.tree.map(lambda leaf: leaf[r], jax.device_get(found)) for r in range(repeats)]  # noqa: B023
    off = np.array([np.abs(differences(f) - truth) - 1.96 * errors(f) for f in every])
    kept = np.append(WEIGHTS > 0, np.ones(7, bool))
    covered = (off <= 0).mean(axis=0)[kept]
    # Of 400 draws the share is known to 1.1 %; four of these, and what 80 examples are not normal.
    assert np.all(covered > 0.90) and np.all(covered < 0.99), covered


def test_one_example_leaves_the_error_unknown():
    pair, _ = drawn(np.random.default_rng(4), 1)
    for keep_examples in (True, False):
        assert np.isinf(errors(compare(*influences(pair, keep_examples)))[WEIGHTS.size :]).all()


def test_what_cannot_be_compared_is_refused():
    pair, _ = drawn(np.random.default_rng(5), 200)
    one, _ = influences(pair)
    other = Influence.from_energies(jax.device_put(pair[1]), lim.boundary_regions(GRID, "2/5"))
    with pytest.raises(ValueError, match=r"(?s)second: got influence over .* those of the first"):
        compare(one, other)


@pytest.mark.usefixtures("as_users_run")
def test_what_is_no_influence_is_refused():
    one, _ = influences(drawn(np.random.default_rng(5), 200)[0])
    with pytest.raises(
        ValueError, match="first: got an array of float64 .* an instance of Influence"
    ):
        compare(one.density, one)  # pyright: ignore[reportArgumentType]


def test_examples_are_kept_by_all_that_measures():
    """In a stream of ragged batches those that fill up are not; merged they stand in order."""
    rows = np.random.default_rng(6).standard_normal((11, 9, 2))

    def loss(scale, x, y):
        return scale * jnp.vdot(x, x)

    expected = ((2 * rows) ** 2).sum(axis=2) / np.asarray(GRID.weights) ** 2
    whole = lim.influence(
        loss, 1.0, (jax.device_put(rows), None), GRID, REGIONS, keep_examples=True
    )
    np.testing.assert_allclose(np.asarray(whole.example_energies), expected, rtol=1e-12)
    batches = [(jax.device_put(rows[a:b]), None) for a, b in ((0, 4), (4, 8), (8, 9), (9, 11))]
    streamed = lim.influence_stream(loss, 1.0, batches, GRID, REGIONS, keep_examples=True)
    chex.assert_trees_all_close(streamed, whole, rtol=1e-12)
    without = lim.influence_stream(loss, 1.0, batches, GRID, REGIONS)
    assert without.example_energies is None
    assert whole.merge(without).example_energies is None
    assert jax.jit(lambda a: a.merge(a).example_energies)(whole).shape == (22, 9)


def test_a_comparison_prints_its_numbers_and_says_of_what_kind_it_is():
    pair, _ = drawn(np.random.default_rng(7), 200)
    comparison = compare(*influences(pair))
    assert f"total {float(comparison.total):.3g} ± {float(comparison.total_error):.3g}" in str(
        comparison
    )
    assert "pair by pair" in str(comparison)
    assert "independent" in str(compare(*influences(pair, keep_examples=False)))
    jax.jit(lambda one, two: print(compare(one, two)) or 0)(*influences(pair))  # traced: no error
