"""What a ring of devices refuses; what it computes is in tests/devices.py, which has devices."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import lim_jax as lim
from lim_jax.network import RingAttention


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((1,), ("context",), axis_types=(kind,))


def test_the_context_has_an_axis_of_its_own():
    with pytest.raises(ValueError, match=r"axis: got 'data', expected one of \('context',\)"):
        RingAttention(mesh(), "data")
    with pytest.raises(ValueError, match="mesh: got an axis 'context' of type Explicit"):
        RingAttention(mesh(AxisType.Explicit), "context")


def test_panels_are_not_shared():
    grid = lim.gauss_grid(2, panels=2)
    ones = jnp.ones((grid.size, 3))
    with pytest.raises(ValueError, match="grid: got PanelGrid of 4 positions over 1 devices"):
        RingAttention(mesh(), "context")(ones, ones, ones, grid)


def test_rings_of_the_same_devices_are_the_same():
    """So that a field of another ring compiles nothing anew."""
    assert RingAttention(mesh(), "context") == RingAttention(mesh(), "context")
    assert hash(RingAttention(mesh(), "context")) == hash(RingAttention(mesh(), "context"))
