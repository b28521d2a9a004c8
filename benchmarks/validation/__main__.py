"""``python -m benchmarks.validation [--quick|--full|--model MODEL ...]``, from a clone."""

import sys

import tyro

from benchmarks.validation.runs import study
from lim_jax._argument_error import refusal

if __name__ == "__main__":
    try:
        sys.exit(tyro.cli(study, prog="python -m benchmarks.validation"))
    except (ValueError, ImportError, RuntimeError) as error:
        words = refusal(error)
        if words is None:
            raise
        sys.exit(words)
