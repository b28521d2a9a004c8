"""Tracing in the processes of tests, without what takes long and says nothing."""

import functools
import gc

# It makes many objects and few cycles: collecting at the usual pace takes a fifth of the time.
gc.set_threshold(200_000, 20, 100)

from jax._src import traceback_util  # noqa: E402

# Equinox asks it of every frame of the stack where a check is traced: three looks at the disk each.
traceback_util.include_filename = functools.cache(traceback_util.include_filename)
