from . import answers as answers
from . import measuring as measuring
from . import orders as orders
from . import parts as parts
from . import time_budget as time_budget
from . import tokens as tokens
