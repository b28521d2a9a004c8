"""Which positions matter to it? The positional influence density of any pure loss."""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
