"""What is asked: documents and a question, a chat, a line of a file; and its contexts of ids."""

from lim_jax._public import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
