from . import account as account
from . import certificates as certificates
from . import explanation as explanation
from . import influence_table as influence_table
from . import windows as windows
from .account import account_of_context as account_of_context
from .explanation import Explanation as Explanation
from .explanation import explain as explain
