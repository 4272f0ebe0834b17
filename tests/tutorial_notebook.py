"""Read and run the notebook `docs/tutorial.ipynb` and its exercises with solutions."""

import base64
import copy
import inspect
import re
import runpy

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from repository import REPOSITORY

NOTEBOOK = REPOSITORY / "docs/tutorial.ipynb"
SOLUTIONS = REPOSITORY / "docs/tutorial_solutions.py"
# Tags of cells: exercises, checks of the exercises, and cells that take seconds and print different numbers each time.
EXERCISE, CHECK, LONG = "exercise", "check", "long"


def read() -> NotebookNode:
    """Read the notebook as it is stored."""
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def has_tag(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def exercise_of(cell: NotebookNode) -> str:
    """Return the name of the function that an exercise defines or a check tests."""
    return re.search(r"^def (?:check_)?(\w+)\(\)" if has_tag(cell, CHECK) else r"^def (\w+)", cell.source, re.M)[1]


def solutions() -> dict[str, str]:
    """Return the solution of each exercise by the function's name."""
    names = runpy.run_path(str(SOLUTIONS), run_name="tutorial_solutions")
    functions = [entry for entry in names.values() if getattr(entry, "__module__", None) == "tutorial_solutions"]
    return {function.__name__: inspect.getsource(function) for function in functions}


def run(notebook: NotebookNode) -> NotebookNode:
    """Run all cells in a separate process, and return a copy with their outputs.

    Cells with the tag `raises-exception`, the checks, may fail.

    Raises:
        CellExecutionError: another cell fails.
    """
    notebook = copy.deepcopy(notebook)
    NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True).execute()
    return notebook


def printed(cell: NotebookNode) -> str:
    """Return the text that a cell printed."""
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def pictures(cell: NotebookNode) -> list[bytes]:
    """Return the files of the pictures that a cell shows, which must be PNGs.

    Raises:
        ValueError: the cell shows something else.
    """
    shown = [output.data for output in cell.outputs if "data" in output]
    files = [base64.b64decode(data.get("image/png", "")) for data in shown]
    if not all(file.startswith(b"\x89PNG\r\n\x1a\n") for file in files):
        raise ValueError(f"{cell.id} shows {[list(data) for data in shown]}: must be pictures, each a PNG")
    return files


def errors(cell: NotebookNode) -> list[str]:
    """Return the error messages of a cell: one or none."""
    return [f"{output.ename}: {output.evalue}" for output in cell.outputs if output.output_type == "error"]
