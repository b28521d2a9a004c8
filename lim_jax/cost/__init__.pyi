from . import counting as counting
from . import job as job
from . import storage as storage
from .job import job_cost as job_cost
from .job import require_fits as require_fits
from .storage import sweep_storage as sweep_storage
