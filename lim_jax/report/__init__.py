"""A page to look at: one file of HTML that needs neither a server nor a network."""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
