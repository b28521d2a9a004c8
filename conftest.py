"""Tests run in float64 with strict promotion; single-precision tests say so."""

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Each holds some of the process's memory maps, of which Linux allows 65,530."""
    yield
    jax.clear_caches()


@pytest.fixture
def as_users_run():
    """Switch the shape checker off, so that our own errors are seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
