"""A wheel holds the package, its data and its type marks, and nothing else."""

import sys
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

names = [PurePosixPath(name) for name in ZipFile(sys.argv[1]).namelist()]
package = Path(__file__).parents[1] / "lim_jax"
ours = {
    str(path.relative_to(package.parent))
    for path in package.rglob("*")
    if path.is_file() and path.suffix != ".pyc"
}
held = {str(name) for name in names if not name.parts[0].endswith(".dist-info")}
assert held == ours, f"missing: {sorted(ours - held)}, too much: {sorted(held - ours)}"
assert "lim_jax/py.typed" in held
print(f"{sys.argv[1]}: {len(held)} files")
