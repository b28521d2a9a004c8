"""What explains a network? Its density, channels and certificates; tokens; attributions."""

from lim_jax._public import opened

__getattr__, __dir__, __all__ = opened(__name__, __file__)
