"""The paper's counterexamples to unconditional shape claims, by the numbers that show them."""

import numpy as np

from lim_jax import paper


def test_the_counterexamples_show_what_they_say():
    # `subsec:counterexamples`.
    masking, residual, observed, crossed = (one.numbers for one in paper.counterexamples())
    np.testing.assert_allclose(masking["influence density"], np.ones(8), rtol=1e-12)
    # The mask itself is there: with values the profile leans.
    leaning = np.asarray(masking["influence density with values"])
    np.testing.assert_allclose(leaning.mean(), 1, rtol=1e-12)
    assert np.abs(leaning - 1).max() > 0.1
    np.testing.assert_allclose(residual["influence density"], np.ones(4), rtol=1e-12)
    np.testing.assert_allclose(observed["traces of the Gramians"], [2, 2], rtol=1e-12)
    np.testing.assert_allclose(observed["influence energies"], [4, 1], rtol=1e-12)
    for channel in ("residual", "cone"):
        energies = crossed[f"{channel} energies by region"]
        np.testing.assert_allclose(energies, [1, 0.25, 1], atol=1e-14)
    np.testing.assert_allclose(crossed["influence by region"], [0, 1, 0], atol=1e-14)
