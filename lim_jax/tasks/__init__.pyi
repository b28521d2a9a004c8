from . import accuracy as accuracy
from . import prompts as prompts
from .accuracy import decodes_greedily as decodes_greedily
from .prompts import Prompt as Prompt
from .prompts import encode as encode
from .prompts import encode_text as encode_text
from .prompts import record_weights as record_weights
