"""Section 4's parts against a NumPy twin; `test_reproduction` holds it to the paper's digits."""

import jax.numpy as jnp
import numpy as np
import pytest

from lim_jax import cli
from lim_jax.grid import boundary_regions
from lim_jax.studies import paper


def cesaro_matrices():
    cesaro = np.tri(48) / np.arange(1, 49)[:, None]
    mixing = np.array(
        [[1, 0.25, 0, 0], [0.15, 0.8, 0.2, 0], [0, 0.15, 0.6, 0.2], [0, 0, 0.2, 0.45]]
    )
    return np.eye(192) + 2 / 12 * np.kron(cesaro, mixing)


def test_influence_is_that_of_the_kronecker_matrices():
    # `eq:simulation-causal-matrix`, `eq:simulation-feature-mixing`,
    # `eq:simulation-residual-propagator`, `eq:simulation-input-gate`,
    # `eq:simulation-terminal-covector`, `eq:simulation-influence-profile`.
    gates = np.sin(np.arange(48.0))
    propagator = np.linalg.matrix_power(cesaro_matrices(), 12)
    covector = np.kron(0.85 * np.eye(48)[-1] + 0.15 / 48, [1, 0.5, -0.3, 0.2])
    adjoint = np.repeat(np.exp(gates), 4) * (propagator.T @ covector)
    energy = (adjoint.reshape(48, 4) ** 2).sum(axis=1)
    result = paper.gate_influence(jnp.asarray(gates))
    np.testing.assert_allclose(result.density, 48 * energy / energy.sum(), rtol=1e-12)
    np.testing.assert_allclose(paper.table_row(result).Z, energy.sum(), rtol=1e-12)


def test_gramians_are_those_of_the_kronecker_matrices_and_scale_with_the_gates():
    # `eq:simulation-observability-gramian`, `eq:simulation-condition-number-invariance`.
    gates = np.cos(np.arange(48.0))
    step, power, expected = cesaro_matrices(), np.eye(192), np.zeros((48, 4, 4))
    for _ in range(12):
        last = power[-4:].reshape(4, 48, 4)
        expected += np.einsum("oia,oib->iab", last, last) / 12
        power = step @ power
    found = paper.gate_gramians(jnp.asarray(gates))
    scale = np.exp(2 * gates)[:, None, None]
    np.testing.assert_allclose(found, scale * expected, rtol=1e-11, atol=1e-13)


def test_the_influence_imbalance_ignores_a_common_gate():
    """Why the printed Z is the optimiser's: the controlled quantity does not see it."""
    gates = jnp.sin(jnp.arange(48.0))
    results = [paper.gate_influence(gates + shift) for shift in (0.0, 0.7)]
    imbalances = [paper.influence_imbalance(result.density) for result in results]
    np.testing.assert_allclose(*imbalances, rtol=1e-12)
    np.testing.assert_allclose(results[1].total / results[0].total, np.exp(1.4), rtol=1e-12)


def test_the_regions_of_both_conventions():
    points = boundary_regions(paper.GRID, paper.DELTA, "points")
    assert (np.asarray(points.weights) > 0).sum(axis=1).tolist() == [9, 29, 10]


def test_the_command_line_explains_itself(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "--help"])
    assert stop.value.code == 0
    assert "section 4" in capsys.readouterr().out.lower()
