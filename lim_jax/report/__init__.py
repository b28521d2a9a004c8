"""A page to look at: one file of HTML that needs neither a server nor a network."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
