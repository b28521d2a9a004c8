"""What a job will take, in operations and memory, before it runs."""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
