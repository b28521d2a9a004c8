"""What stays visible of every position: Gramians and their traces."""

from lim_jax._public import opened

__getattr__, __dir__, __all__ = opened(__name__, __file__)
