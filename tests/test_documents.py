"""The notebooks run and show their plots."""

from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("notebook", sorted((ROOT / "colab").glob("*.ipynb")), ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # Jupyter's own
def test_notebook_runs_and_shows_its_plots(notebook, data_folder, monkeypatch):
    """One with a part on real text runs it where there are such data, and the encoder."""
    if notebook.stem == "fedoa":
        monkeypatch.setenv("FEDJAX_DATA", str(data_folder))
    read = nbformat.read(notebook, as_version=4)
    client = nbclient.NotebookClient(read, timeout=300, resources={"metadata": {"path": str(notebook.parent)}})
    client.execute()
    shown = [output for cell in read.cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})]
    assert len(shown) >= 2
    assert not any(cell.get("outputs") for cell in nbformat.read(notebook, as_version=4).cells), "commit it without outputs"
