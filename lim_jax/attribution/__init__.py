"""Which parts of a context does a model use? Methods, the run, and shares of parts."""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
