"""``python -m lim_jax`` and the command ``lim-jax``."""

import sys

try:
    import matplotlib as matplotlib  # rooms load it when they draw, at the end of a long command

    from lim_jax._checks import refusal
    from lim_jax.cli import keep_programs
    from lim_jax.cli import main as run
except ModuleNotFoundError as error:
    if error.name not in ("matplotlib", "platformdirs", "tqdm", "tyro"):
        raise
    sys.exit(f"lim-jax needs {error.name}: python -m pip install 'lim_jax[plot,cli]'")


def main() -> int:
    """Run the command; what it refuses is said in a line, and the status is 2."""
    try:
        return run(keep_programs(sys.argv[1:]))
    except (ValueError, ImportError, RuntimeError) as error:
        words = refusal(error)
        if words is None:
            raise
        print(f"lim-jax: {words}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
