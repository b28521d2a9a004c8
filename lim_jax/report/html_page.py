"""A page of HTML: saved as one file, or shown in a notebook."""

import html
from pathlib import Path
from typing import NamedTuple

from lim_jax._atomic_files import write_file
from lim_jax._checks import AnyPath, as_path

HEIGHT = 760  # pixels of a notebook's frame


class Page(NamedTuple):
    """A page of HTML. A notebook shows it in a frame of its own: no style goes in or out."""

    html: str

    def __repr__(self) -> str:
        """Say how large the page is, and how to see it."""
        return f"a page of {len(self.html) / 1e6:.1f} MB: show it in a notebook, or save it"

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, for a notebook."""
        page = html.escape(self.html, quote=True)
        return (
            f'<iframe title="Influence" srcdoc="{page}" sandbox="allow-scripts" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
        )

    def save(self, path: AnyPath) -> Path:
        """Write the page to a file, and return the file's path."""
        path = as_path(path)
        write_file(path, self.html.encode())
        return path
