from . import counting as counting
from . import job as job
from .counting import operations as operations
from .job import Cost as Cost
from .job import job_cost as job_cost
from .job import require_fits as require_fits
