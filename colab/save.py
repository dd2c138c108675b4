"""Runs notebooks and saves them with their outputs, small: what went to standard error is left out, images have few colours.

python colab/save.py colab/*.ipynb
"""

import base64
import io
import sys
from pathlib import Path

import nbclient
import nbformat
from PIL import Image

COLOURS = 32


def small(png: str) -> str:
    """A base64 PNG with at most `COLOURS` colours."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(COLOURS)
    out = io.BytesIO()
    image.save(out, "png", optimize=True)
    return min(base64.b64encode(out.getvalue()).decode(), png, key=len)


def save(file: Path) -> None:
    """Runs a notebook in its folder, and writes it."""
    notebook = nbformat.read(file, as_version=4)
    nbclient.NotebookClient(notebook, timeout=3000, resources={"metadata": {"path": str(file.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = small(output.data["image/png"])
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    nbformat.write(notebook, file)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        save(Path(name))
        print(name)
