"""Draw the pictures of the pages whose programs draw, and of the study: docs/*/*.png.

``PYTHONPATH=. python docs/pictures.py``, with the extra `plot`. What the gallery draws of a network
is measured where docs/gallery/network.npz is missing, in a minute.
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import jax
import pages
from picture_numbers import carry_numbers

import lim_jax as lim
from benchmarks.byte_training import train
from benchmarks.validation.hybrids import hybrid_figure
from benchmarks.validation.judge_attributions import faithfulness_figures
from benchmarks.validation.runs import study_figures
from benchmarks.validation.train_published import tuning_figures
from lim_jax.explanations.explanation import average_cone_mass
from lim_jax.loss import last_token
from lim_jax.models import byte_model, sample_windows, standard_library_text

HERE = Path(__file__).parent
MEASURED = HERE / "gallery" / "network.npz"
LENGTH = 48
EXAMPLES = 96
PUBLISHED = "SmolLM2-135M-Instruct.Q4_1"


def measure() -> dict[str, dict]:
    """A byte-level network before and after it has learnt from Python's sources."""
    keys = jax.random.split(jax.random.key(0), 4)
    text = standard_library_text()
    before = byte_model(LENGTH, key=keys[0])
    after = train(before, text, LENGTH, keys[1])
    windows = sample_windows(text, LENGTH, EXAMPLES, key=keys[2])
    regions = lim.boundary_regions(lim.token_grid(LENGTH), 0.2)

    def explained(model):
        """Explain one network on the windows."""
        return lim.explanations.explain(
            model, windows, last_token(LENGTH), regions, key=keys[3], certificates="all"
        )

    models = {"random": before, "trained": after}
    return {
        "explanations": {name: explained(model) for name, model in models.items()},
        "cone masses": {
            name: average_cone_mass(model, windows[:8], regions) for name, model in models.items()
        },
    }


def draw(page: Path) -> None:
    """Run a page in an empty folder, and keep what it draws."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for program, printed in pages.run(page):
            if program.prints not in (None, printed):
                print(f"The page says\n{program.prints}and the program\n{printed}")
        for picture in sorted(Path(folder).glob("*.png")):
            shutil.copyfile(picture, HERE / page.stem / picture.name)


def draw_study(folder: Path) -> None:
    """The figures of the studies' results, as their commands draw them."""
    of_networks, of_training, of_answers, of_hybrids = (
        json.loads((HERE / "study" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("study", "tuning", "faithfulness", "hybrids")
    )
    with carry_numbers():
        figures = {
            **study_figures(of_networks),
            **tuning_figures(of_training, PUBLISHED),
            **faithfulness_figures(of_answers, PUBLISHED),
            "hybrids": hybrid_figure(of_hybrids),
        }
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png")


if __name__ == "__main__":
    MEASURED.parent.mkdir(exist_ok=True)
    if not MEASURED.exists():
        lim.results.save(measure(), MEASURED)
    for name in ("start", "gallery"):
        draw(HERE / f"{name}.md")
    draw_study(HERE / "study")
