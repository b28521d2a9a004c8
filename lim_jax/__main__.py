"""``python -m lim_jax`` and the command ``lim-jax``."""

import sys

try:
    import matplotlib as matplotlib  # rooms load it when they draw, at the end of a long command

    from lim_jax.cli import main
except ModuleNotFoundError as error:
    if error.name not in ("matplotlib", "tqdm", "tyro"):
        raise
    sys.exit(f"lim-jax needs {error.name}: python -m pip install 'lim_jax[plot,cli]'")

if __name__ == "__main__":
    sys.exit(main())
