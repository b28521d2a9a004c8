from . import prompts as prompts
from .prompts import Bucket as Bucket
from .prompts import EncodedText as EncodedText
from .prompts import Example as Example
from .prompts import Prompt as Prompt
from .prompts import buckets as buckets
from .prompts import encode as encode
from .prompts import encode_text as encode_text
