"""What it all tends to: tokens to the continuum, layers to the depth flow."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
