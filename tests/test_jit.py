"""Programs that the library compiles itself: what XLA is asked for, and how checks raise."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from jax.extend.core import get_opaque_trace_state

from lim_jax import _jit
from lim_jax._checks import error_if
from lim_jax._jit import filter_jit

pytestmark = pytest.mark.usefixtures("as_users_run")
UNKNOWN = {"xla_of_another_version": 1}


def ask(monkeypatch, options):
    """Have XLA asked for other options than ours, without knowing beforehand what it has."""
    monkeypatch.setattr(_jit, "WIDE_VECTORS", options)
    monkeypatch.setattr(_jit, "_options", cache(_jit._options.__wrapped__))


def test_xla_gets_our_options_of_a_program(monkeypatch, tmp_path):
    """By one whose effect is seen."""
    ask(monkeypatch, {"xla_dump_to": str(tmp_path)})
    assert filter_jit(lambda x: 3 * x)(jnp.array(2.0)) == 6
    assert any("lambda" in path.name for path in tmp_path.iterdir())


def test_an_xla_without_an_option_is_not_asked_for_it(monkeypatch):
    assert _jit._options() == {"xla_cpu_prefer_vector_width": 512}
    ask(monkeypatch, UNKNOWN)
    assert filter_jit(lambda x: 3 * x)(jnp.array(2.0)) == 6 and _jit._options() is None


@pytest.mark.slow
def test_a_check_within_an_operator_of_lineax_is_one_too():
    """Where nothing traces the call checks are values, which lineax's operators do not hand out."""

    @filter_jit
    def half(x, at_least):
        def double(v):
            return error_if(2 * v, v < at_least, "v: expected more, got less.")

        operator = lx.FunctionLinearOperator(double, jax.eval_shape(lambda: x))
        return lx.linear_solve(operator, x, lx.GMRES(1e-9, 1e-9)).value

    x = jnp.array([3.0, 5.0])
    np.testing.assert_allclose(half(x, -1e9), x / 2)
    with pytest.raises(eqx.EquinoxRuntimeError, match="^v: expected more, got less."):
        half(x, 1e9)


def test_of_two_checks_that_fail_ours_is_said_before_another_librarys():
    """Theirs stops the program before ours are read, and is raised only where it is the first."""

    @filter_jit
    def root(x, least):
        x = error_if(x, x < 0, "x: expected more, got less.")
        return eqx.error_if(jnp.sqrt(jnp.abs(x)), x < least, "by another library")

    assert root(jnp.array(4.0), 1.0) == 2
    with pytest.raises(eqx.EquinoxRuntimeError, match="^x: expected more, got less."):
        root(jnp.array(-4.0), 1.0)
    with pytest.raises(eqx.EquinoxRuntimeError, match="by another library"):
        root(jnp.array(0.5), 1.0)


def test_what_is_no_array_passes_through_a_program():
    """Into it and out of it, and differs from call to call."""

    @filter_jit
    def named(x, name, times=2):
        return {name: times * x, "name": name, "times": times}

    assert named(jnp.array(2.0), "a") == {"a": 4, "name": "a", "times": 2}
    assert named(jnp.array(2.0), "b", times=3) == {"b": 6, "name": "b", "times": 3}


def test_checks_are_values_of_programs_of_our_own(monkeypatch):
    """So that no callback of Equinox's is in them: JAX keeps such a program in no cache."""
    asked = []
    monkeypatch.setattr(eqx, "branched_error_if", lambda *of: asked.append(of))
    positive = filter_jit(lambda x: 2 * error_if(x, x <= 0, "x: expected more, got less."))
    assert positive(jnp.array(2.0)) == 4
    with pytest.raises(eqx.EquinoxRuntimeError, match=r"^x: expected more, got less\.$"):
        positive(jnp.array(-2.0))
    assert asked == []


def test_within_another_trace_a_function_is_traced_once():
    calls = []

    @filter_jit
    def double(x):
        calls.append(x)
        return 2 * x

    assert jax.jit(double)(jnp.array(2.0)) == 4 and len(calls) == 1


def test_a_derivative_that_jax_does_not_have_is_refused_with_its_cure():
    @filter_jit
    def slope(x):
        return jax.grad(lambda v: jax.lax.while_loop(lambda s: s < 9, lambda s: 2 * s, v))(x)

    with pytest.raises(ValueError, match="derivative: got .*while_loop.* has to be a scan"):
        slope(jnp.array(2.0))


@pytest.mark.parametrize("options", [_jit.WIDE_VECTORS, UNKNOWN], ids=str)
def test_the_first_use_of_the_library_may_be_within_a_trace(options, monkeypatch):
    ask(monkeypatch, options)
    positive = filter_jit(lambda x: error_if(x, x <= 0, "x: expected more, got less."))

    @jax.jit
    def first(x):
        monkeypatch.setattr(_jit, "NOT_TRACING", get_opaque_trace_state())
        return positive(x)

    assert first(jnp.array(2.0)) == 2
    with pytest.raises((RuntimeError, ValueError), match="x: expected more, got less."):
        jax.block_until_ready(first(jnp.array(-2.0)))
