"""Programs that the library compiles itself: what XLA is asked for, and how checks raise."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from reference.as_users import run_python

from lim_jax import _jit
from lim_jax._checks import error_if, error_if_got
from lim_jax._errors import RefusedValue
from lim_jax._jit import cached_jit, filter_jit

pytestmark = pytest.mark.usefixtures("as_users_run")
UNKNOWN = {"xla_of_another_version": 1}


def ask(monkeypatch, options):
    """Have XLA asked for other options than ours, without knowing beforehand what it has."""
    monkeypatch.setattr(_jit, "WIDE_VECTORS", options)
    monkeypatch.setattr(_jit, "_compiler_options", cache(_jit._compiler_options.__wrapped__))


def test_xla_gets_our_options_of_a_program(monkeypatch, tmp_path):
    """By one whose effect is seen."""
    ask(monkeypatch, {"xla_dump_to": str(tmp_path)})
    assert filter_jit(lambda x: 3 * x)(jnp.array(2.0)) == 6
    assert any("lambda" in path.name for path in tmp_path.iterdir())


def test_an_xla_without_an_option_is_not_asked_for_it(monkeypatch):
    assert _jit._compiler_options() == {"xla_cpu_prefer_vector_width": 512}
    ask(monkeypatch, UNKNOWN)
    assert filter_jit(lambda x: 3 * x)(jnp.array(2.0)) == 6 and _jit._compiler_options() is None


@pytest.mark.slow
def test_a_check_within_an_operator_of_lineax_raises():
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


def test_a_kept_program_raises_our_checks_and_another_librarys():
    """Another library's is a callback still, which stops the program by itself."""

    @cached_jit
    def root(x, least):
        x = error_if(x, x < 0, "x: expected more, got less.")
        return eqx.error_if(jnp.sqrt(jnp.abs(x)), x < least, "by another library")

    assert root(jnp.array(4.0), 1.0) == 2
    with pytest.raises(eqx.EquinoxRuntimeError, match="^x: expected more, got less."):
        root(jnp.array(-4.0), -9.0)
    with pytest.raises(eqx.EquinoxRuntimeError, match="by another library"):
        root(jnp.array(0.5), 1.0)


def test_what_is_no_array_passes_through_a_program():
    """Into it and out of it, and differs from call to call."""

    @filter_jit
    def named(x, name, times=2):
        return {name: times * x, "name": name, "times": times}

    assert named(jnp.array(2.0), "a") == {"a": 4, "name": "a", "times": 2}
    assert named(jnp.array(2.0), "b", times=3) == {"b": 6, "name": "b", "times": 3}


def test_checks_are_values_of_programs_that_are_kept(monkeypatch):
    """So that no callback of Equinox's is in them: JAX keeps such a program in no cache."""
    calls = []
    monkeypatch.setattr(eqx, "branched_error_if", lambda *of: calls.append(of))
    positive = cached_jit(lambda x: 2 * error_if(x, x <= 0, "x: expected more, got less."))
    assert positive(jnp.array(2.0)) == 4
    with pytest.raises(RefusedValue, match=r"^x: expected more, got less\.$"):
        positive(jnp.array(-2.0))
    assert calls == []


def test_examples_that_pass_do_not_change_what_an_error_says():
    """Of a batch one example is refused, by the first of two checks that it fails."""

    @filter_jit
    @jax.vmap
    def halve(x):
        got = {"a number below zero": x < 0, "a number above 9": jnp.abs(x) > 9}
        return error_if_got(x, "x", got=got, expected="a digit", cure="Pass one.") / 2

    for number, got in ((-1.0, "below zero"), (10.0, "above 9"), (-10.0, "below zero")):
        with pytest.raises(eqx.EquinoxRuntimeError, match=f"^x: got a number {got}"):
            halve(jnp.array([number, 3.0]))


@pytest.mark.parametrize("compiled", [filter_jit, cached_jit])
def test_within_another_trace_a_function_is_traced_once(compiled):
    calls = []

    @compiled
    def double(x):
        calls.append(x)
        return 2 * error_if(x, x <= 0, "x: expected more, got less.")

    assert jax.jit(double)(jnp.array(2.0)) == 4 and len(calls) == 1
    with pytest.raises((RuntimeError, ValueError), match="x: expected more, got less."):
        jax.block_until_ready(jax.jit(double)(jnp.array(-2.0)))


def test_a_derivative_that_jax_does_not_have_is_refused_with_its_cure():
    @filter_jit
    def slope(x):
        return jax.grad(lambda v: jax.lax.while_loop(lambda s: s < 9, lambda s: 2 * s, v))(x)

    with pytest.raises(
        ValueError, match="derivative: got .*while_loop.* write a while_loop .* as a scan"
    ):
        slope(jnp.array(2.0))


FIRST_USE_WITHIN_A_TRACE = """
import jax

@jax.jit
def first(x):
    from lim_jax import _jit

    doubled = _jit.filter_jit(lambda x: 2 * x)(x)
    return doubled

print(first(2.0))
from lim_jax import _jit
print(_jit._is_outermost(), jax.jit(lambda x: x if _jit._is_outermost() else -x)(1.0))
"""


def test_the_first_use_of_the_library_may_be_within_a_trace(tmp_path):
    """What is imported there knows nevertheless which calls stand in no trace."""
    ran = run_python("-c", FIRST_USE_WITHIN_A_TRACE, folder=tmp_path)
    assert ran.stdout.split() == ["4.0", "True", "-1.0"], ran.stderr
