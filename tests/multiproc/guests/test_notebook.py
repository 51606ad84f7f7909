"""The tour of `examples/` as a notebook: each cell runs, with what it shows."""

import json
import os

import pytest
from support.harness import PATIENCE
from support.installed import ROOT
from support.programs import run_python

for name in ("nbformat", "nbclient", "ipykernel", "cloudpickle", "matplotlib"):
    pytest.importorskip(name)

TOUR = ROOT / "examples/tour.ipynb"

# In a process of its own, which ends with all that the client keeps open.
EXECUTE = f"""
import sys, nbclient, nbformat
notebook = nbformat.read({str(TOUR)!r}, as_version=4)
nbclient.NotebookClient(notebook, timeout={240 * PATIENCE}, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""


def test_the_tour_runs_and_shows_results_a_plot_and_a_timeline(tmp_path):
    assert not any(cell.get("outputs") for cell in json.loads(TOUR.read_text())["cells"])  # made where it is run
    # With this variable a kernel does not show what other processes print.
    environment = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
    environment |= {"IPYTHONDIR": str(tmp_path), "MPLCONFIGDIR": str(tmp_path)}
    run_python("-c", EXECUTE, tmp_path / "out.ipynb", env=environment, cwd=tmp_path, timeout=600 * PATIENCE)
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    printed = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    shown = [{kind: "".join(text) for kind, text in output["data"].items()} for output in outputs if "data" in output]
    assert all(f"rank {rank} of 3 is done" in printed for rank in range(3))  # printed by the ranks
    assert sum(data.get("text/plain", "").count("array([6., 6., 6., 6.])") for data in shown) == 3
    assert sum("image/png" in data for data in shown) == 2  # what the ranks computed, and their timeline
    assert "rank 1 was last in " in printed
    assert "caught: from rank 1" in printed
