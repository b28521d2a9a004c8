"""Run the notebooks and keep them as pages with what they print and draw: docs/notebooks/*.md.

``python docs/notebooks.py`` for all, or with names; with the extra `notebooks`. Each takes a minute
or two; real_model needs ``LIM_JAX_MODEL``, as it says itself.
"""

import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient
from nbconvert.exporters import MarkdownExporter
from nbformat import NotebookNode

HERE = Path(__file__).parent
SOURCES = HERE.parent / "notebooks"
PAGES = HERE / "notebooks"
PROGRAM = re.compile(r"(^```python\n.*?^```$)", re.MULTILINE | re.DOTALL)
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def run(source: Path) -> NotebookNode:
    """The notebook with its outputs; an exception ends it."""
    notebook = jupytext.read(source)
    notebook.metadata["kernelspec"] = KERNEL
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    for cell in notebook.cells:  # what libraries log is not for a page
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return notebook


def write_page(notebook: NotebookNode, name: str) -> None:
    """Prose, code, output and pictures, these as files beside the page."""
    exporter = MarkdownExporter()
    resources = {"unique_key": name, "output_files_dir": "."}
    text, files = exporter.from_notebook_node(notebook, resources)
    PAGES.mkdir(exist_ok=True)
    for picture in PAGES.glob(f"{name}_*.png"):
        picture.unlink()
    for file, content in files["outputs"].items():
        (PAGES / file).write_bytes(content)
    (PAGES / f"{name}.md").write_text(_with_words(text), encoding="utf-8")


def _with_words(text: str) -> str:
    """Pictures are told of by the heading above them; around programs empty lines come alone."""
    heading = ""
    parts = PROGRAM.split(text.strip())
    for index, prose in enumerate(parts[::2]):
        lines = []
        for line in re.sub(r"\n\s*\n+", "\n\n", prose).splitlines():
            heading = line.lstrip("# ") if re.match("#+ ", line) else heading
            lines.append(line.replace("![png](./", f"![{heading}]("))
        parts[2 * index] = "\n".join(lines)
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(file.stem for file in SOURCES.glob("*.py")):
        write_page(run(SOURCES / f"{name}.py"), name)
