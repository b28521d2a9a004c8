"""How influence changes in training, and how to change it."""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
