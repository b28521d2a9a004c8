"""Which positions matter to it? The positional influence density of any pure loss."""

from lim_jax._public import opened

__getattr__, __dir__, __all__ = opened(__name__, __file__)
