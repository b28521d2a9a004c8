"""Tokens times a matrix, and the two products that are its gradients."""

import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType
from jax.test_util import check_grads
from reference.networks import random_states

from lim_jax._linear import bind_at_precision
from lim_jax._products import _input_gradient, _weight_gradient, is_linear, linear, matmul
from lim_jax.cost.counting import operations

SHAPES = {"wider": (5, 3), "narrower": (3, 7), "square": (4, 4)}


def operands(out, width, tokens=(6,)):
    return random_states(1, out, width), random_states(2, *tokens, width)


def plain(matrix, tokens):
    return jnp.einsum("ow,...w->...o", matrix, tokens)


def bent(product):
    """A number that is linear in neither operand."""
    return lambda matrix, tokens: jnp.sum(jnp.sin(product(matrix, tokens)) ** 2)


def assert_is_product(found, left, right):
    """Up to the rounding of its up to seven terms, on either side, which may cancel."""
    rounding = 8 * np.finfo(float).eps * np.max(np.abs(left) @ np.abs(right))
    np.testing.assert_allclose(found, left @ right, rtol=0, atol=rounding)


assert_close = partial(chex.assert_trees_all_close, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("tokens", [(), (6,), (2, 3)])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_images_are_products(shape, tokens):
    matrix, rows = operands(*shape, tokens=tokens)
    assert_is_product(linear(matrix, rows), np.asarray(rows), np.asarray(matrix).T)


@pytest.mark.parametrize("shape", [(5, 3), (3, 7)], ids=["wider", "narrower"])
def test_derivatives_are_finite_differences_of_two_orders(shape):
    check_grads(jax.jit(bent(linear)), operands(*shape), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_each_product_is_the_others_transpose(shape):
    """By the inner product, which pairs any of the three with what it lacks."""
    matrix, tokens = operands(*shape)
    image, transposed = jax.vjp(linear, matrix, tokens)
    covectors = random_states(3, *image.shape)
    weight_gradient, input_gradient = transposed(covectors)
    assert_is_product(weight_gradient, np.asarray(covectors).T, np.asarray(tokens))
    assert_is_product(input_gradient, np.asarray(covectors), np.asarray(matrix))
    paired = np.vdot(covectors, image)
    sizes = np.vdot(np.abs(covectors), np.abs(tokens) @ np.abs(matrix).T)
    rounding = 64 * np.finfo(float).eps * sizes  # of up to 42 terms of up to 7
    assert np.vdot(weight_gradient, matrix) == pytest.approx(paired, rel=0, abs=rounding)
    assert np.vdot(input_gradient, tokens) == pytest.approx(paired, rel=0, abs=rounding)


NESTINGS = {
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(f, (0, 1)), (0, 1)),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f, (0, 1)), (0, 1)),
    "forward over reverse": lambda f: jax.jacfwd(jax.grad(f, (0, 1)), (0, 1)),
    "thrice": lambda f: jax.jacfwd(jax.jacrev(jax.grad(f, (0, 1)), (0, 1)), (0, 1)),
}


@pytest.mark.parametrize("nesting", NESTINGS.values(), ids=NESTINGS)
@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_derivatives_of_derivatives_are_those_of_jaxs_own_product(nesting, shape):
    ours, twin = (jax.jit(nesting(bent(product))) for product in (linear, plain))
    assert_close(ours(*operands(*shape, tokens=(4,))), twin(*operands(*shape, tokens=(4,))))


AXES = {
    "examples share a matrix": ((None, 1), [(5, 3), (6, 4, 3)]),
    "matrices share tokens": ((2, None), [(5, 3, 4), (6, 3)]),
    "each has its own": ((1, 2), [(5, 4, 3), (6, 3, 4)]),
}


@pytest.mark.parametrize("outside", [False, True], ids=["each derives", "all derive"])
@pytest.mark.parametrize(("axes", "shapes"), AXES.values(), ids=AXES)
def test_mapped_over_examples(axes, shapes, outside):
    both = [random_states(seed, *shape) for seed, shape in enumerate(shapes)]

    def derived(product):
        if not outside:
            return jax.vmap(jax.value_and_grad(bent(product), (0, 1)), axes)
        of_all = jax.vmap(bent(product), axes)
        return jax.value_and_grad(lambda *both: jnp.sum(of_all(*both) ** 2), (0, 1))

    assert_close(*(jax.jit(derived(product))(*both) for product in (linear, plain)))


def test_mapped_twice_and_over_covectors():
    matrix = random_states(1, 2, 5, 3)
    tokens = random_states(2, 4, 6, 3)

    def jacobians(product):
        jacobian = jax.jacrev(lambda *both: jnp.sin(product(*both)), (0, 1))
        return jax.jit(jax.vmap(jax.vmap(jacobian, (None, 0)), (0, None)))(matrix, tokens)

    assert_close(jacobians(linear), jacobians(plain))


def test_examples_that_share_a_matrix_are_one_product():
    def losses(matrix, tokens):
        return jnp.sum(jax.vmap(bent(linear), (None, 0))(matrix, tokens))

    program = jax.make_jaxpr(jax.grad(losses))(*operands(5, 3, (4, 6)))
    (weight_gradient,) = (e for e in program.eqns if e.primitive.name == "weight_gradient")
    assert [variable.aval.shape for variable in weight_gradient.invars] == [(4, 6, 5), (4, 6, 3)]
    assert operations(program) == 2 * 2 * 4 * 6 * 5 * 3  # the image, and the weight_gradient


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_cpu_turns_the_narrower_operand_for_a_slope(shape, platform):
    out, width = shape
    matrix, tokens = operands(out, width)
    job = jax.jit(jax.grad(bent(linear)))
    written = job.trace(matrix, tokens).lower(lowering_platforms=(platform,)).as_text()
    products = re.findall(r"dot_general.*-> tensor<(\w+)>", written)
    turned = platform == "cpu" and out >= width
    assert products == [f"6x{out}xf64", f"{width}x{out}xf64" if turned else f"{out}x{width}xf64"]
    assert ("optimization_barrier" in written) == turned


def test_dtypes_are_promoted_and_precision_is_asked_for():
    matrix, tokens = operands(5, 3)
    mixed = matrix.astype(jnp.bfloat16), tokens.astype(jnp.float32)
    with jax.numpy_dtype_promotion("standard"):
        assert linear(*mixed).dtype == jnp.float32
        gradients = jax.grad(bent(linear), (0, 1))(*mixed)
    assert [x.dtype for x in gradients] == [jnp.bfloat16, jnp.float32]  # each as its operand
    assert linear(*(x.astype(jnp.bfloat16) for x in (matrix, tokens))).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="promotion"):
        linear(matrix, tokens.astype(jnp.float32))
    with jax.default_matmul_precision("highest"):
        traced = jax.jit(jax.grad(bent(linear))).trace(matrix, tokens)
    # Lowered where nothing is asked for.
    assert traced.lower().as_text().count("precision = [HIGHEST, HIGHEST]") == 2


def test_examples_spread_over_explicit_axes_keep_their_derivatives():
    """A sum over them is spread as the matrix is, which only JAX's own product is told."""
    matrix, tokens = operands(5, 3, (4, 6))

    def losses(matrix, tokens):
        return jnp.sum(jax.vmap(bent(linear), (None, 0))(matrix, tokens))

    expected = jax.jit(jax.grad(losses))(matrix, tokens)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        spread = jax.device_put(tokens, jax.NamedSharding(mesh, jax.P("data")))
        gradient = jax.jit(jax.grad(losses))(matrix, spread)
    assert "data" not in str(jax.typeof(gradient))
    assert_close(gradient, expected)


ROUNDED = {
    "linear": (linear, "ow,tw->to", (3, 5), (4, 5)),
    "input gradient": (partial(bind_at_precision, _input_gradient), "ow,to->tw", (3, 5), (4, 3)),
    "weight gradient": (partial(bind_at_precision, _weight_gradient), "to,tw->ow", (4, 3), (4, 5)),
    "matmul": (matmul, "bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
}


def rounded_einsum(terms, *operands):
    """What NumPy makes of operands that are rounded to bfloat16, in float64."""
    rounded = (np.asarray(x).astype(ml_dtypes.bfloat16).astype(float) for x in operands)
    return np.einsum(terms, *rounded)


@pytest.mark.parametrize("mapped", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("name", ROUNDED)
def test_operands_are_rounded_and_sums_are_not_in_every_derivative(name, mapped):
    """Traced where bfloat16 is asked for, derived and lowered where nothing is."""
    product, terms, *shapes = ROUNDED[name]
    ours, theirs, result = re.split(",|->", terms)
    if mapped:
        ours, result, shapes[0] = "n" + ours, "n" + result, (6, *shapes[0])
        product = jax.vmap(product, (0, None))
    left, right, *slopes = (
        random_states(seed, *shape).astype(jnp.float32) for seed, shape in enumerate(shapes * 2)
    )
    sizes = {
        axis: size
        for axes, x in ((ours, left), (theirs, right))
        for axis, size in zip(axes, x.shape, strict=True)
    }
    covector = random_states(5, *(sizes[axis] for axis in result)).astype(jnp.float32)
    with jax.default_matmul_precision("bfloat16"):
        program = jax.make_jaxpr(product)(left, right)

    @jax.jit
    def derived(operands, slopes, covector):
        def value(*operands):
            return jaxpr_as_fun(program)(*operands)[0]

        return jax.jvp(value, operands, slopes), jax.vjp(value, *operands)[1](covector)

    (rounded_product, pushed), pulled = derived((left, right), tuple(slopes), covector)
    terms = f"{ours},{theirs}->{result}"
    of_slopes = (slopes[0], right), (left, slopes[1])
    expected = [
        rounded_einsum(terms, left, right),
        sum(rounded_einsum(terms, *both) for both in of_slopes),
        rounded_einsum(f"{result},{theirs}->{ours}", covector, right),
        rounded_einsum(f"{ours},{result}->{theirs}", left, covector),
    ]
    for array, twin in zip((rounded_product, pushed, *pulled), expected, strict=True):
        assert array.dtype == jnp.float32
        np.testing.assert_allclose(array, twin, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("product", [linear, lambda left, right: matmul(right, left.T)])
@pytest.mark.parametrize("halves", [(True, False), (False, True)])
def test_where_operands_are_rounded_each_receives_its_own_precision(product, halves):
    """One of them is in bfloat16 already, which its derivative is, too."""
    dtypes = [jnp.dtype("bfloat16" if half else "float32") for half in halves]
    both = [x.astype(dtype) for x, dtype in zip(operands(5, 3), dtypes, strict=True)]
    with jax.default_matmul_precision("bfloat16"):
        gradients = jax.grad(lambda *both: jnp.sum(product(*both) ** 2), (0, 1))(*both)
        assert product(*both).dtype == jnp.float32
    assert [x.dtype for x in gradients] == dtypes


def test_a_policy_may_keep_images_under_matrices_alone():
    """Without it they are made a second time on the way back, and so are sines either way."""

    def operations_of(policy):
        loss = jax.checkpoint(bent(linear), policy=policy)
        program = str(jax.make_jaxpr(jax.grad(loss))(*operands(5, 3)))
        return [len(re.findall(rf"= {name}\b", program)) for name in ("linear", "sin")]

    assert operations_of(is_linear) == [1, 2]
    assert operations_of(jax.checkpoint_policies.nothing_saveable) == [2, 2]


def test_a_product_of_half_precision_is_in_the_precision_of_its_sums():
    left, right = (x.astype(jnp.bfloat16) for x in (random_states(1, 2, 3), random_states(2, 3, 4)))
    product = matmul(left, right)
    assert product.dtype == jnp.float32
    expected = np.asarray(left).astype(float) @ np.asarray(right).astype(float)
    np.testing.assert_allclose(product, expected, rtol=1e-6, atol=1e-6)


def test_double_precision_is_not_rounded():
    matrix, tokens = operands(5, 3)
    with jax.default_matmul_precision("bfloat16"):
        np.testing.assert_array_equal(linear(matrix, tokens), jax.jit(linear)(matrix, tokens))
        np.testing.assert_allclose(linear(matrix, tokens), plain(matrix, tokens), rtol=1e-14)
