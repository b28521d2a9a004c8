"""The convergence benchmark: ``python benchmarks/convergence.py [--quick] [--out DIR]``.

The same as ``lim-jax rates``, which installs with the package.
"""

import sys

from lim_jax.cli.commands import main

if __name__ == "__main__":
    sys.exit(main(["rates", *sys.argv[1:]]))
