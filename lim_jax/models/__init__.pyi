from . import language as language
from .language import LanguageModel as LanguageModel
from .language import batch_of_windows as batch_of_windows
from .language import sample_windows as sample_windows
from .language import standard_library_text as standard_library_text
from .language import train as train
