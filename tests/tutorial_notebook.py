"""The notebook `docs/tutorial.ipynb`: its cells, its exercises with answers, and runs of it."""

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
# Tags of cells: what the reader writes, what checks it, what takes seconds and prints other numbers each time.
EXERCISE, CHECK, LONG = "exercise", "check", "long"


def read() -> NotebookNode:
    """The notebook as it is stored."""
    return nbformat.read(NOTEBOOK, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def has_tag(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def exercise_of(cell: NotebookNode) -> str:
    """The name of the function that an exercise's cell defines, or that a check's cell checks."""
    return re.search(r"^def (?:check_)?(\w+)\(\)" if has_tag(cell, CHECK) else r"^def (\w+)", cell.source, re.M)[1]


def solutions() -> dict[str, str]:
    """The text of each exercise's solution, by the function's name."""
    names = runpy.run_path(str(SOLUTIONS), run_name="tutorial_solutions")
    functions = [entry for entry in names.values() if getattr(entry, "__module__", None) == "tutorial_solutions"]
    return {function.__name__: inspect.getsource(function) for function in functions}


def run(notebook: NotebookNode) -> NotebookNode:
    """Run all cells in a process of their own, and return a copy with what they put out.

    Cells with the tag `raises-exception`, the checks, may fail.

    Raises:
        CellExecutionError: another cell fails.
    """
    notebook = copy.deepcopy(notebook)
    NotebookClient(notebook, timeout=600, kernel_name="python3", coalesce_streams=True).execute()
    return notebook


def printed(cell: NotebookNode) -> str:
    """The text that a cell printed."""
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def pictures(cell: NotebookNode) -> list[bytes]:
    """The files of the pictures that a cell shows; each must be a PNG.

    Raises:
        ValueError: the cell shows something else.
    """
    shown = [output.data for output in cell.outputs if "data" in output]
    files = [base64.b64decode(data.get("image/png", "")) for data in shown]
    if not all(file.startswith(b"\x89PNG\r\n\x1a\n") for file in files):
        raise ValueError(f"{cell.id} shows {[list(data) for data in shown]}: must be pictures, each a PNG")
    return files


def errors(cell: NotebookNode) -> list[str]:
    """The messages of the errors with which a cell ended: one or none."""
    return [f"{output.ename}: {output.evalue}" for output in cell.outputs if output.output_type == "error"]
