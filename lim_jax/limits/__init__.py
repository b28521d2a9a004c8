"""What it all tends to: tokens to the continuum, layers to the depth flow."""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
