"""Figures of result objects, to save or show: each is a `matplotlib.figure.Figure`."""

from lim_jax._public import opened

__getattr__, __dir__, __all__ = opened(__name__, __file__)
