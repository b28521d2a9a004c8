from . import prompts as prompts
from . import scores as scores
from .prompts import Prompt as Prompt
from .prompts import encode as encode
from .prompts import encode_text as encode_text
from .prompts import record_weights as record_weights
from .scores import decodes_greedily as decodes_greedily
