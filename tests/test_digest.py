"""What computes alike has one digest, what does not another; code of the user's own has none."""

import sys
from dataclasses import replace
from fractions import Fraction
from functools import partial, wraps
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from beartype import beartype
from reference.networks import byte_network

import lim_jax as lim
from lim_jax import _digest, weights
from lim_jax._digest import digest
from lim_jax.models.causal import LossOfLogits
from lim_jax.network import AttentionMask, CausalAttention, LayerNorm, ResidualFlow, Rotary
from lim_jax.network.frequencies import rotary_frequencies
from lim_jax.network.positions import Tempered


class Scaled(eqx.Module):
    """A loss with a static field."""

    by: float = eqx.field(static=True)

    def __call__(self, params, x, y):
        return self.by * x.sum()


class Other(Scaled):
    """Another module of the same fields."""


class Plain:
    """What no tree is, with a field of its own."""

    def __init__(self, by):
        self._by = by


class Slotted:
    """One without a dictionary."""

    __slots__ = ("by",)

    def __init__(self, by):
        self.by = by


class Pair(NamedTuple):
    """Data of two names."""

    left: int
    right: int


def doubled(x):
    return 2 * x


def with_a_default(x, by=1.0):
    return by * x


def total_weight(logits, y):
    return y.weights.sum()


def scaling(by):
    return lambda x: by * x


def decorated(by):
    return wraps(with_a_default)(lambda x: by(with_a_default(x)))


def checked(by):
    @beartype
    def scaled(x: float) -> float:
        return by * x

    return scaled


def custom(slope):
    @jax.custom_jvp
    def same(x):
        return x

    same.defjvps(lambda tangent, answer, x: slope * tangent)
    return same


def fetched(cap):
    layer = eqx.tree_at(lambda norm: norm.scale, LayerNorm.init(2, norm_eps=cap), np.ones((2,)))
    return weights.FetchedLayers(jnp.zeros(1), weights.LayerSource(lambda index: layer, 2))


def attention(**options):
    return replace(CausalAttention.init(4, heads=2, key=jax.random.key(0)), **options)


def turned(base):
    return AttentionMask(positions=Rotary(rotary_frequencies(4, base)))


MODEL = byte_network(5)
# Of each kind, two that differ in one thing.
OTHERS = {
    "logit scale": lambda: (MODEL, replace(MODEL, logit_scale=0.25)),
    "embedding scale": lambda: (MODEL, replace(MODEL, embedding_scale=2.0)),
    "cap of logits": lambda: (MODEL, replace(MODEL, logit_cap=30.0)),
    "horizon": lambda: [ResidualFlow(MODEL.flow.layers, horizon=by) for by in (1.0, 2.0)],
    "step": lambda: (MODEL.flow, replace(MODEL.flow, step=lim.euler)),
    "scale of scores": lambda: (attention(), attention(scale=0.5)),
    "cap of scores": lambda: (attention(), attention(cap=50.0)),
    "window": lambda: [attention(mask=AttentionMask(window=size)) for size in (None, 3)],
    "rope base": lambda: (turned(10_000.0), turned(500_000.0)),
    "tempered": lambda: [Tempered(tokens, 0.1) for tokens in (100.0, 200.0)],
    "epsilon of a norm": lambda: [LayerNorm.init(4, norm_eps=eta) for eta in (1e-5, 1e-6)],
    "activation": lambda: [eqx.nn.Lambda(fn) for fn in (jax.nn.gelu, jax.nn.relu)],
    "option of an activation": lambda: (
        partial(jax.nn.gelu, approximate=False), partial(jax.nn.gelu, approximate=True),
    ),
    "layers in their files": lambda: (fetched(1e-5), fetched(1e-6)),
    "method": lambda: (MODEL.loss, MODEL.margin_loss),
    "of which": lambda: (MODEL.loss, replace(MODEL, logit_scale=0.25).loss),
    "name of a loss": lambda: [LossOfLogits(name, total_weight) for name in ("a", "b")],
    "function of a library": lambda: (jnp.sin, jnp.cos),
    "compiled": lambda: (jax.jit(jnp.sin), jax.jit(jnp.cos)),
    "partial": lambda: (partial(jnp.sum, axis=0), partial(jnp.sum, axis=1)),
    "named tuple": lambda: (Pair(1, 2), Pair(2, 1)),
    "class": lambda: (Fraction, np.ndarray),
    "type": lambda: (1, 1.0),
    "truth": lambda: (True, 1),
    "nothing": lambda: (None, ()),
    "number": lambda: (Fraction(1, 5), Fraction(1, 4)),
    "word": lambda: ("1", 1),
    "precision": lambda: (np.zeros(2), np.zeros(2, np.float32)),
    "shape": lambda: (np.zeros((2, 1)), np.zeros((1, 2))),
    "half": lambda: [jnp.zeros(2, dtype) for dtype in ("float16", "bfloat16")],
    "dtype": lambda: (jnp.dtype("float32"), jnp.dtype("float64")),
    "key": lambda: (jax.random.key(0), jax.random.key(1)),
    "generator of keys": lambda: [jax.random.key(0, impl=name) for name in ("rbg", "unsafe_rbg")],
    "place": lambda: ([1, [2]], [[1], 2]),
    "name": lambda: ({"a": 1}, {"b": 1}),
    "mesh": lambda: [jax.make_mesh((1,), name) for name in ("a", "b")],
    "words in an array": lambda: [np.array(words, object) for words in (["a", None], ["a", "b"])],
    "bound to a table": lambda: [np.arange(size).__getitem__ for size in (2, 3)],
}  # fmt: skip


# Of each kind, two that differ in what the user's own code does, which nothing here says.
OWN = {
    "closure": lambda: (scaling(2.0), scaling(3.0)),
    "lambda": lambda: (lambda x: x + 1, lambda x: x + 2),
    "function of a module": lambda: (doubled, with_a_default),
    "compiled": lambda: (jax.jit(scaling(2.0)), jax.jit(scaling(3.0))),
    "compiled by equinox": lambda: [eqx.filter_jit(scaling(by)) for by in (2.0, 3.0)],
    "gradient": lambda: (jax.grad(scaling(2.0)), jax.grad(scaling(3.0))),
    "gradient of a library's": lambda: (jax.grad(jnp.sin), jax.grad(jnp.cos)),
    "decorated": lambda: (decorated(jnp.sin), decorated(jnp.cos)),
    "wearing a library's name": lambda: (wraps(jnp.sin)(doubled), wraps(jnp.sin)(scaling(2.0))),
    "checked for types": lambda: (checked(2.0), checked(3.0)),
    "derivative": lambda: (custom(1.0), custom(2.0)),
    "made by a library": lambda: (optax.adam(1e-3), optax.adam(1e-4)),
    "partial": lambda: (partial(doubled), partial(with_a_default)),
    "static field": lambda: [replace(MODEL.flow, step=step) for step in (doubled, scaling(2.0))],
    "method": lambda: (Scaled(1.0).__call__, Other(1.0).__call__),
}
# Of each kind, two of one class of the user's that differ in their data.
DATA = {
    "module": lambda: (Scaled(1.0), Scaled(2.0)),
    "object": lambda: (Plain(1), Plain(2)),
    "slots": lambda: (Slotted(1), Slotted(2)),
    "arguments": lambda: (partial(with_a_default, by=2), partial(with_a_default, by=3)),
    "place of a function": lambda: ([doubled, 1], [1, doubled]),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_computes_otherwise_has_another_digest(kind):
    """Made anew each has its own again."""
    one, other = map(digest, OTHERS[kind]())
    assert one != other
    assert [one, other] == [digest(value) for value in OTHERS[kind]()]


def test_what_computes_alike_has_one_digest():
    array = np.arange(6.0).reshape(2, 3)
    assert digest(array) == digest(jnp.asarray(array)) == digest(np.asfortranarray(array))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"left", "right"}) == digest({"right", "left"})
    shared = partial(jnp.sum, axis=0)
    assert digest([shared, shared]) == digest([shared, partial(jnp.sum, axis=0)])


@pytest.mark.parametrize("kind", OWN)
def test_code_of_the_users_own_is_refused_without_a_name(kind):
    """And with one it has the digest of any other, since the name tells it."""
    for value in OWN[kind]():
        with pytest.raises(ValueError, match="run: got no name for the (function|class) .*Pass a"):
            digest(value)
    assert len({digest(value, named=True) for value in OWN[kind]()}) == 1 + (kind == "method")


@pytest.mark.parametrize("kind", DATA)
def test_data_beside_code_of_the_users_own_count(kind):
    one, other = (digest(value, named=True) for value in DATA[kind]())
    assert one != other
    with pytest.raises(ValueError, match="run: got no name"):
        digest(DATA[kind]()[0])


@pytest.mark.parametrize("name", ["silu", "relu"])  # one compiled, one with a derivative of its own
def test_functions_of_libraries_are_told_by_their_names(name, monkeypatch):
    """So another version's has one digest with this one's: of other code, compiled otherwise."""
    here = getattr(jax.nn, name)
    told = {part: getattr(here, part) for part in ("__module__", "__qualname__")}
    before = digest((here, MODEL))

    def other(x):
        return x * 2

    for part, value in told.items():
        monkeypatch.setattr(other, part, value)
    with pytest.raises(ValueError, match="run: got no name for the function jax"):
        digest((other, MODEL))  # of the user's, that has taken its name
    monkeypatch.setattr(sys.modules[told["__module__"]], told["__qualname__"], other)
    assert digest((other, MODEL)) == before


def test_an_array_of_jax_is_hashed_once_as_long_as_it_lives(monkeypatch):
    hashed = []

    def count(array, hashes, named):
        hashed.append(array)
        return hash_of_array(array, hashes, named)

    hash_of_array = _digest._hash_of_array
    monkeypatch.setattr(_digest, "_hash_of_array", count)
    before = dict(_digest.HASHES_OF_ARRAYS)
    arrays = [jnp.arange(3.0), jnp.arange(4.0)]
    digests = [digest(arrays), digest(arrays), digest(arrays[::-1]), digest(arrays[0])]
    assert list(map(len, hashed)) == [3, 4]
    hashed.clear()
    copies = [np.asarray(array).copy() for array in arrays]
    assert digests == [digest(copies), digest(copies), digest(copies[::-1]), digest(copies[0])]
    assert list(map(len, hashed)) == [3, 4, 3, 4, 4, 3, 3]  # of NumPy's, which may have changed
    assert _digest.HASHES_OF_ARRAYS.keys() - before.keys() == set(map(id, arrays))
    hashed.clear()
    del arrays[1]
    assert _digest.HASHES_OF_ARRAYS.keys() - before.keys() == {id(arrays[0])}
    arrays.clear()
    assert not _digest.HASHES_OF_ARRAYS.keys() - before.keys()


def test_an_array_of_numpy_that_changed_has_another_digest():
    array = np.arange(3.0)
    before = digest(array)
    array[1] = 5
    assert digest(array) == digest(np.array([0.0, 5.0, 2.0])) != before


def test_a_digest_is_of_what_went_before_too():
    assert digest(1, after="a") != digest(1, after="b")


def test_an_estimator_is_told_by_both_of_its_steps():
    """Its name and documentation are those of the second, which others may share."""
    statistics = [partial(jnp.mean, axis=axis) for axis in (0, 1)]
    densities = [partial(jnp.multiply, scale) for scale in (1.0, 2.0)]
    estimators = [lim.training.Estimator(a, b) for a in statistics for b in densities]
    assert len({digest(estimator, named=True) for estimator in estimators}) == 4
    again = lim.training.Estimator(statistics[0], densities[0])
    assert digest(again, named=True) == digest(estimators[0], named=True)
