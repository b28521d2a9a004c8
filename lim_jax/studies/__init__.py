"""What comes out: the paper's section 4, its counterexamples, a network explained."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
