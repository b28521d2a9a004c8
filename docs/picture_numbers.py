"""Pictures of the documentation that carry the numbers they draw, so that a stale one is seen."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

KEY = "Description"  # PNG's own name for a text about the picture


@contextlib.contextmanager
def carry_numbers() -> Iterator[None]:
    """In here every PNG that is saved carries its numbers."""
    save = Figure.savefig

    def saved(figure: Figure, file: Any, **options: Any) -> None:
        """Save a figure, with its numbers where it is a PNG."""
        carried = {"metadata": {KEY: json.dumps(numbers(figure))}}
        save(figure, file, **(carried if Path(file).suffix == ".png" else {}), **options)

    with mock.patch.object(Figure, "savefig", saved):
        yield


def numbers(figure: Figure) -> list[dict[str, Any]]:
    """What each pair of axes says and draws: lines, areas, markers, images, to four digits."""
    return [_of_axes(axes) for axes in figure.axes]


def carried_numbers(file: Path) -> list[dict[str, Any]]:
    """The numbers that a picture carries."""
    with Image.open(file) as image:
        return json.loads(image.info[KEY])


def _of_axes(axes: Axes) -> dict[str, Any]:
    legend = axes.get_legend()
    labels = [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
    labels += [text.get_text() for text in (*axes.texts, *(legend.get_texts() if legend else ()))]
    patches = [patch.get_patch_transform().transform_path(patch.get_path()).vertices
               for patch in axes.patches]  # fmt: skip
    areas = [path.vertices for collection in axes.collections for path in collection.get_paths()]
    points = [np.ma.filled(each.get_offsets(), np.nan) for each in axes.collections]
    images = [np.asarray(image.get_array()) for image in axes.images]
    drawn = [line.get_xydata() for line in axes.lines] + patches + areas + points + images
    # Each coordinate by itself: they are compared on scales of their own.
    columns = [column for one in drawn for column in np.atleast_2d(np.asarray(one, float).T)]
    return {"said": labels, "drawn": [[float(f"{v:.4g}") for v in column] for column in columns]}
