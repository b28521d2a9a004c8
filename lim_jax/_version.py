"""Which version this is, as the installed package says."""

from importlib.metadata import version

__version__ = version("lim_jax")
