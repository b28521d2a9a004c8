"""Draw the pictures of the page that one starts with, by its own programs: docs/start/*.png.

``python docs/pictures.py``, with the extra `plot`.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

import pages

HERE = Path(__file__).parent


def main() -> None:
    """Run the page in an empty folder, and keep what it draws."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for program, printed in pages.run(HERE / "start.md"):
            if program.prints not in (None, printed):
                print(f"The page says\n{program.prints}and the program\n{printed}")
        (HERE / "start").mkdir(exist_ok=True)
        for picture in sorted(Path(folder).glob("*.png")):
            shutil.copyfile(picture, HERE / "start" / picture.name)


if __name__ == "__main__":
    main()
