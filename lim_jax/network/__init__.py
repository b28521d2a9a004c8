"""What the network is: attention on any grid, fields in two slots, flows in depth."""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
