"""What comes out: the paper's section 4, its counterexamples, a network explained."""

from lim_jax._doors import opened

__getattr__, __dir__, __all__ = opened(__name__, __file__)
