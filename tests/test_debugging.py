"""JAX's tools for debugging: every public function without jit, and where NaN is looked for.

The calls are the right ones of `tests/test_hostile_arguments.py`; derivatives stand in
`tests/test_transformations.py`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.calls_of_networks import OF_NETWORKS
from reference.calls_of_results import OF_RESULTS
from reference.calls_of_training import OF_TRAINING
from reference.networks import byte_network, layer_of, random_flow, random_states

import lim_jax as lim

pytestmark = [
    pytest.mark.usefixtures("as_users_run"),
    pytest.mark.filterwarnings("ignore"),  # of the calls, which tests of their own hold
]

CALLS = OF_NETWORKS | OF_RESULTS | OF_TRAINING
GRID = lim.token_grid(5)


def outcome(name):
    """The numbers of a right call, or the error's words where its arguments are made up."""
    call = CALLS[name]
    try:
        result = call.function(**call.right)
    except Exception as error:
        # What a solver of lineax says depends on how it is run.
        return "a solver's error" if "linear solver" in str(error) else f"{type(error)}: {error}"
    leaves = jax.tree.leaves(jax.block_until_ready(result))
    arrays = [np.asarray(leaf) for leaf in leaves if eqx.is_array_like(leaf)]
    return [array for array in arrays if np.issubdtype(array.dtype, np.number)]


def assert_same(found, expected):
    if isinstance(expected, str):
        assert found == expected
        return
    assert not isinstance(found, str), found
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_every_function_without_jit_gives_what_it_gives_with_it(name):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = outcome(name)
        with jax.debug_nans(True):
            assert_same(outcome(name), expected)
        with jax.disable_jit():
            assert_same(outcome(name), expected)


@pytest.mark.slow
def test_networks_run_without_jit():
    """As `jax.disable_jit` is what people debug with: each primitive of ours runs by itself."""
    field = layer_of(random_flow())
    x = random_states(0, 5, 6)
    model = byte_network(6)
    ids = jnp.arange(6)
    labels = jnp.zeros(5, int), jnp.ones(5) / 5

    def values():
        loss = model.loss(model.embed(ids[:5]), lim.models.causal.Targets(*labels))
        return [field(x, x, GRID), model.logits(ids), loss]

    expected = values()
    with jax.disable_jit():
        numbers = values()
    for one, other in zip(numbers, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_without_jit_a_users_loss_sees_numbers():
    """Python's ``if`` asks for one: it may stand in a loss while that is debugged."""

    def loss(x, y):
        return x.sum() if x[0, 0] > 0 else -x.sum()

    flow = random_flow()
    example = (1 + random_states(0, 5, 6) ** 2, None)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        lim.adjoint_trajectory(flow, loss, example, GRID)
    with jax.disable_jit():
        covectors = lim.adjoint_trajectory(flow, loss, example, GRID).covectors
    sign = jnp.sign(flow(example[0], GRID)[0, 0])
    expected = lim.adjoint_trajectory(flow, lambda x, y: sign * x.sum(), example, GRID).covectors
    np.testing.assert_allclose(covectors, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("jitted", [False, True])
def test_where_nan_is_looked_for_it_is_found(jitted):
    """JAX repeats the program that has one, operation by operation, and names the first."""
    field = layer_of(random_flow())
    x = random_states(0, 5, 6)
    call = jax.jit(field.__call__) if jitted else field
    with jax.debug_nans(True):
        np.testing.assert_allclose(call(x, x, GRID), field(x, x, GRID), rtol=1e-12)
        with pytest.raises(FloatingPointError, match="nan"):
            call(x.at[0, 0].set(jnp.nan), x, GRID)
    # A matrix's first NaN is in a product, which is a primitive of ours.
    matrix = field.feed_forward.outer.at[0, 0].set(jnp.nan)
    broken = eqx.tree_at(lambda field: field.feed_forward.outer, field, matrix)
    call = jax.jit(broken.__call__) if jitted else broken
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        call(x, x, GRID)
