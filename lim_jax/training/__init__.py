"""How influence changes in training, and how to change it."""

from lim_jax._public import opened

__getattr__, __dir__, __all__ = opened(__name__, __file__)
