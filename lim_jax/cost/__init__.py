"""What a job will take, in operations and memory, before it runs."""

from lim_jax._public import opened

__getattr__, __dir__, __all__ = opened(__name__, __file__)
