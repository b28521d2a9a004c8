# pyright: reportArgumentType=false
"""Hostile arguments of public functions: a call is right, or raises our own error.

One argument of a right call is replaced. What can mean nothing there (a list, a string, complex
numbers, rows that are not the grid's, no rows, ...) must be refused by a `ValueError` that says
what was got and what was expected; a NaN must be refused or stay visible; and whatever else
hypothesis thinks of must give finite numbers or an error of ours.
"""

import importlib
import inspect
import re
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from reference.calls_of_networks import OF_NETWORKS
from reference.calls_of_results import OF_RESULTS
from reference.calls_of_training import OF_TRAINING

import lim_jax as lim

pytestmark = [
    pytest.mark.usefixtures("as_users_run", "as_promoted_by_users", "tracebacks_as_they_are"),
    # NumPy's and Equinox's own, on the way to the same answer.
    pytest.mark.filterwarnings("ignore"),
]

CALLS = OF_NETWORKS | OF_RESULTS | OF_TRAINING
# Public functions without a sample call, by the reason.
WITHOUT = {
    "Parts of the readers of checkpoints, whose files tests/checkpoints breaks.": """
        llama_like profile_memory read_decoder sizes_of
    """,
    "Parts of figures, pages and sentences, given numbers of the library's own.": """
        answer_page draw_densities influence_page legend_below line_style new_figure show
        simulation_convergence simulation_influence_profiles simulation_observability_profiles
        simulation_probe_errors
    """,
    "The studies that the paper's own tables run, on fields of the library's own.": """
        attention_studies fourth_moment_studies cone_mass_study
        input_adjoint_depth_studies left_cone_mass_study loss_study measure
        proved_constants readout_bound readout_consistency_study section4 shadowing_study
        split_defect_study terminal_adjoint_study time_slope_bounds trajectory_studies
    """,
    "Parts of a method of attribution, given an answer's parts and a context's.": """
        scores_by_token
    """,
    "Not refused in words yet: what is no network, ids or batch.": """
        models.contrast_loss generate_answers
    """,
}


def public_functions():
    """What the rooms' stubs name, but for types and for functions of no argument: room and name."""
    package = Path(lim.__file__).parent
    for stub in sorted(package.glob("*/__init__.pyi")):
        room = importlib.import_module(f"lim_jax.{stub.parent.name}")
        for name in re.findall(
            r"^from \.[\w.]+ import (\w+) as", stub.read_text(encoding="utf-8"), re.MULTILINE
        ):
            function = getattr(room, name)
            if not isinstance(function, type) and inspect.signature(function).parameters:
                yield stub.parent.name, name


def test_every_public_function_has_a_sample_call_or_a_reason_to_have_none():
    """A key of `CALLS` holds the function's name, after its room's where two rooms have it."""
    sampled = {word for key in CALLS for word in re.split(r"[ ']", key)}
    without = {name for names in WITHOUT.values() for name in names.split()}
    functions = list(public_functions())
    several = {name for _, name in functions if [one for _, one in functions].count(name) > 1}
    spelt = {f"{room}.{name}" if name in several else name for room, name in functions}
    assert sorted(spelt - sampled - without) == []
    assert sorted((without - spelt) | (without & sampled)) == []  # and none that is no more so


def test_every_path_may_be_a_string():
    for room, name in public_functions():
        function = getattr(getattr(lim, room), name)
        for parameter in inspect.signature(function).parameters.values():
            spelt = str(parameter.annotation)
            assert "pathlib." not in spelt or "str" in spelt, f"{room}.{name}: {parameter}"


def called(name, **hostile):
    """The finished result of a right call in which some arguments are replaced."""
    call = CALLS[name]
    return jax.block_until_ready(call.function(**call.right | hostile))


def refused(error):
    """Whether an error names an argument and what was expected of it.

    Arrays of strings and objects are no arrays of JAX: where a compiled function begins, it is
    JAX's own error that says so.
    """
    text = str(error)
    ours = r"[\w\]]: (got .+, )?expected "
    by_jax = isinstance(error, TypeError) and "Error interpreting argument" in text
    return by_jax or isinstance(error, ValueError | RuntimeError) and re.search(ours, text, re.S)


def outcome(name, **hostile):
    """The floating-point numbers of a call, or None where one of our own errors was raised."""
    try:
        leaves = jax.tree.leaves(called(name, **hostile))
    except Exception as error:
        assert refused(error), f"foreign {type(error).__name__} at {hostile}: {error}"
        return None
    return [np.asarray(leaf) for leaf in leaves if eqx.is_inexact_array_like(leaf)]


def finite(numbers):
    return all(np.isfinite(number).all() for number in numbers)


@pytest.fixture
def as_promoted_by_users():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def tracebacks_as_they_are():
    """Leaving JAX's own frames out of thousands of tracebacks takes half of the time."""
    before = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


@pytest.mark.parametrize("name", CALLS)
def test_what_can_mean_nothing_is_refused(name):
    accepted = [
        f"{kind} for {argument}"
        for argument in CALLS[name].right
        for kind, value in CALLS[name].bad(argument).items()
        if outcome(name, **{argument: value}) is not None
    ]
    assert accepted == []


@pytest.mark.parametrize("name", CALLS)
def test_nan_and_infinity_are_refused_or_stay_visible(name):
    vanished = [
        f"{kind} for {argument}"
        for argument in CALLS[name].right
        for kind, value in CALLS[name].poisoned(argument).items()
        if (numbers := outcome(name, **{argument: value})) is not None and finite(numbers)
    ]
    assert vanished == []


# Dear calls, of which only what must be refused is tried.
DEAR = {"answer-tokens", "account_of_context-depth", "explain-depth"}
COUNTS = [
    pytest.param(name, argument, id=f"{name}-{argument}")
    for name, call in CALLS.items()
    for argument, right in call.right.items()
    if isinstance(right, int) and not call.accepts.get(argument, "").startswith(("any", "float"))
    if f"{name}-{argument}" not in DEAR
]


@pytest.mark.parametrize("name, argument", COUNTS)
def test_a_count_is_known_before_tracing(name, argument):
    """An integer of NumPy is as good as Python's, or refused; a traced one is refused."""
    right = CALLS[name].right[argument]
    numbers = outcome(name, **{argument: np.int32(right)})
    if numbers is not None:
        expected = outcome(name)
        assert all(map(np.array_equal, numbers, expected)) and len(numbers) == len(expected)
    with pytest.raises(ValueError, match="known before tracing|whole number"):
        jax.jit(lambda count: jax.tree.leaves(called(name, **{argument: count}))[:0])(right)


NUMBERS = st.one_of(st.integers(-2, 4), st.floats(width=32), st.booleans(), st.complex_numbers())
ARRAYS = st.sampled_from(["float16", "float32", "float64", "int32", "bool", "complex64"]).flatmap(
    lambda dtype: arrays(dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
# All of Unicode but surrogates, as text is by default, which tries a codec on every character.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
ANYTHING = st.one_of(st.none(), NUMBERS, ARRAYS, TEXT, st.lists(NUMBERS, max_size=3))
PLACES = [
    (name, argument)
    for name, call in OF_NETWORKS.items()
    for argument in call.right
    if call.accepts.get(argument) not in ("anything", "array")  # which are the caller's own affair
]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.sampled_from(PLACES), hostile=ANYTHING)
def test_anything_else_gives_numbers_or_is_refused(place, hostile):
    """Finite where it is finite itself, and well inside the range of its precision."""
    name, argument = place
    numbers = outcome(name, **{argument: hostile})
    moderate = isinstance(hostile, float | int) and abs(hostile) < 100
    if numbers is not None and moderate:
        assert finite(numbers), f"{hostile} for {argument} gives {numbers}"
