"""The tutorial runs from top to bottom, and the check of each exercise distinguishes right from wrong answers."""

import ast
import contextlib
import io
import re
from typing import NamedTuple

import numpy as np
import pytest
import tutorial_notebook
from matplotlib.figure import Figure
from memory import free_programs_if_full
from tutorial_notebook import CHECK, EXERCISE, LONG, code_cells, errors, exercise_of, has_tag, pictures, printed

NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
MAX_BYTES = 500_000  # of the notebook with its pictures
# Cells that take seconds are shortened as far as possible; results of the full training are in the stored outputs.
SHORT = {
    "max_epochs=5,": "max_epochs=1, train_size=256, test_size=256, warmup=0,",
    "accuracy_after(60,": "accuracy_after(1,",
}
NOTEBOOK = tutorial_notebook.read()
ANSWERS = tutorial_notebook.solutions()
EXERCISES = [exercise_of(cell) for cell in code_cells(NOTEBOOK) if has_tag(cell, EXERCISE)]

# Exercise, change of its solution, and message of the check.
WRONG = [
    ("attend", "/ exponentials.sum()", "", "read the mean of all values, 2.8, but read 14.00"),
    ("masked_attention", "np.where(sums == 0, 1, sums)", "sums", "nan where a query sees nothing"),
    ("masked_attention", "exponentials.sum(-1, keepdims=True)", "exponentials.sum(0)", "softmax along the keys"),
    ("multihead_attention", ' + params[name]["bias"]', "", "with 1 heads it differs"),
    ("logits_without", "(15 - i + offset)", "(i + offset)", "does query i lose key 15 - i"),
    ("importance", ", heads=head", "", "one head patched at a time"),
    ("permutation_error", "predict(sets[:, permutation])", "predict(sets)[:, permutation]", "0.5 to 1"),
    ("changes", "knock_out(None, s)", "knock_out(s, None)", "are keys hidden, or queries"),
    ("prefer_previous", "logit + 10", "10", "higher by 3"),
]


class Shown(NamedTuple):
    """Output of a cell."""

    printed: str
    pictures: int


class Run(NamedTuple):
    """The notebook, run with solutions instead of exercises."""

    shown: list[Shown]  # by each cell with code
    exercises: dict[str, tuple[dict, str]]  # by name what an exercise's check finds, and the check


def shown_by(source: str, names: dict) -> Shown:
    """Run a cell as Jupyter does, which shows a figure that is the value of the last line."""
    *statements, last = ast.parse(re.sub(r"^%.*$", "", source, flags=re.MULTILINE)).body
    value, printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        else:
            exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return Shown(printed.getvalue(), int(isinstance(value, Figure)))


@pytest.fixture(scope="module")
def run() -> Run:
    names, result = {"__name__": "__main__"}, Run([], {})
    for cell in code_cells(NOTEBOOK):
        if has_tag(cell, CHECK):
            result.exercises[exercise_of(cell)] = dict(names), cell.source
        source = ANSWERS[exercise_of(cell)] if has_tag(cell, EXERCISE) else cell.source
        for whole, short in SHORT.items():
            source = source.replace(whole, short)
        result.shown.append(shown_by(source, names))
        free_programs_if_full()
    return result


def judge(exercise: tuple[dict, str], answer: str) -> None:
    """Run an answer and its check, which raises an `AssertionError` if it is wrong."""
    names, check = dict(exercise[0]), exercise[1]
    exec(answer, names)
    exec(check, names)


def test_each_exercise_has_a_check_below_it_and_a_solution():
    tags = [next((tag for tag in (EXERCISE, CHECK) if has_tag(cell, tag)), None) for cell in code_cells(NOTEBOOK)]
    assert [tag for tag in tags if tag] == [EXERCISE, CHECK] * 8
    checked = [exercise_of(cell) for cell in code_cells(NOTEBOOK) if has_tag(cell, CHECK)]
    assert checked == EXERCISES == list(ANSWERS)
    assert {name for name, *_ in WRONG} == set(EXERCISES)


def test_the_notebook_is_small_and_has_no_output_of_checks():
    assert tutorial_notebook.NOTEBOOK.stat().st_size < MAX_BYTES
    for cell in code_cells(NOTEBOOK):
        assert not (has_tag(cell, CHECK) and cell.outputs)
        assert not errors(cell)


def test_the_stored_outputs_of_long_cells_show_what_the_text_says():
    training, biases = (printed(cell) for cell in code_cells(NOTEBOOK) if has_tag(cell, LONG))
    on_test = re.search(r"([\d.]+)% on sequences that were used for nothing else", training)[1]
    assert float(on_test) > 99
    after = {name: float(percent) for name, percent in re.findall(r"^(\w+): +([\d.]+)% after 60 steps$", biases, re.M)}
    assert set(after) == {"MirrorPositions", "SinusoidalPositions"}
    assert after["MirrorPositions"] > 95 > 50 > after["SinusoidalPositions"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXERCISES)
def test_an_open_exercise_is_named_and_is_no_error(run, name, capsys):
    cells = [cell for cell in code_cells(NOTEBOOK) if has_tag(cell, EXERCISE)]
    (skeleton,) = (cell.source for cell in cells if exercise_of(cell) == name)
    judge(run.exercises[name], skeleton)
    assert capsys.readouterr().out.startswith(f"Open: {name} still returns `...`; write the function in the cell above")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "right", "wrong", "message"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(run, name, right, wrong, message):
    assert ANSWERS[name].count(right) == 1
    with pytest.raises(AssertionError, match=message):
        judge(run.exercises[name], ANSWERS[name].replace(right, wrong))


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom_and_stores_what_it_puts_out(run):
    stored = code_cells(NOTEBOOK)
    for before, now in zip(stored, run.shown, strict=True):
        if has_tag(before, CHECK):
            assert now.printed.endswith(f"Exercise {EXERCISES.index(exercise_of(before)) + 1} is right.\n")
        elif not has_tag(before, LONG):
            assert re.split(NUMBER, printed(before)) == re.split(NUMBER, now.printed)
            numbers = [np.array(re.findall(NUMBER, text), float) for text in (printed(before), now.printed)]
            np.testing.assert_allclose(*numbers, rtol=0.02, atol=0.02)  # another machine rounds in another way
        assert len(pictures(before)) == now.pictures, "run `make tutorial`"
