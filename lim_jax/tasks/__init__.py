"""On which work: prompts that ask for one of many records, as text and as ids."""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
