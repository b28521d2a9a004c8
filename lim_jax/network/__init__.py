"""What the network is: attention on any grid, fields in two slots, flows in depth."""

from lim_jax._public import opened

__getattr__, __dir__, __all__ = opened(__name__, __file__)
