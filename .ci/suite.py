"""Run a command, the README's that tests, and fail where one of its processes takes over 3 GiB.

``python .ci/suite.py COMMAND`` prints the memory of the largest.
"""

import resource
import subprocess
import sys

GIB = 3


def main() -> int:
    """Run it; the status is its own, or 1 where a process took too much."""
    status = subprocess.run(["bash", "-c", sys.argv[1]]).returncode
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"{memory:.2f} GiB, of {GIB}")
    return status or int(memory > GIB)


if __name__ == "__main__":
    sys.exit(main())
