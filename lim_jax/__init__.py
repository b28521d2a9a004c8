"""Which positions of a long context a causal Transformer really uses, why, and how to change it.

The core names are here, and every room is reachable (`lim_jax.training.balanced_objective`,
`lim_jax.adjoint.criteria`, ...). What is not used is not loaded.
"""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
