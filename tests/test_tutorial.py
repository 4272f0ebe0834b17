"""The tutorial runs from top to bottom, and each exercise's check tells right answers from wrong ones."""

import re

import numpy as np
import pytest
import tutorial_notebook
from tutorial_notebook import CHECK, EXERCISE, LONG, code_cells, errors, exercise_of, has_tag, pictures, printed

NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
MAX_BYTES = 500_000  # of the notebook with its pictures
NOTEBOOK = tutorial_notebook.read()
ANSWERS = tutorial_notebook.solutions()
EXERCISES = [exercise_of(cell) for cell in code_cells(NOTEBOOK) if has_tag(cell, EXERCISE)]

# Exercise, what is changed in its solution, and what the check then says.
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


def assert_long_cells_show_what_the_text_says(notebook) -> None:
    """The model learns to reverse, and in 60 steps only with the bias that knows of the mirror."""
    training, biases = (printed(cell) for cell in code_cells(notebook) if has_tag(cell, LONG))
    on_test = re.search(r"([\d.]+)% on sequences that were used for nothing else", training)[1]
    assert float(on_test) > 99
    after = {name: float(percent) for name, percent in re.findall(r"^(\w+): +([\d.]+)% after 60 steps$", biases, re.M)}
    assert set(after) == {"MirrorPositions", "SinusoidalPositions"}
    assert after["MirrorPositions"] > 95 > 50 > after["SinusoidalPositions"]


def judge(exercise: tuple[dict, str], answer: str) -> None:
    """Run an answer and its check, which raises an `AssertionError` if it is wrong."""
    names, check = dict(exercise[0]), exercise[1]
    exec(answer, names)
    exec(check, names)


@pytest.fixture(scope="module")
def exercises() -> dict[str, tuple[dict, str]]:
    """By name what an exercise's cells find when the reader gets there, and its check; the other cells run here."""
    names, found = {"__name__": "__main__"}, {}
    for cell in code_cells(NOTEBOOK):
        if has_tag(cell, CHECK):
            found[exercise_of(cell)] = dict(names), cell.source
        elif not has_tag(cell, LONG):
            exec(re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE), names)
    return found


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
    assert_long_cells_show_what_the_text_says(NOTEBOOK)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXERCISES)
def test_an_open_exercise_is_named(exercises, name):
    cells = [cell for cell in code_cells(NOTEBOOK) if has_tag(cell, EXERCISE)]
    (skeleton,) = (cell.source for cell in cells if exercise_of(cell) == name)
    with pytest.raises(AssertionError, match=rf"^{name} still returns `\.\.\.`: write the function"):
        judge(exercises[name], skeleton)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "right", "wrong", "message"), WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(exercises, name, right, wrong, message):
    assert ANSWERS[name].count(right) == 1
    with pytest.raises(AssertionError, match=message):
        judge(exercises[name], ANSWERS[name].replace(right, wrong))


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom_and_stores_what_it_puts_out():
    stored = code_cells(NOTEBOOK)
    notebook = tutorial_notebook.run(tutorial_notebook.with_answers(NOTEBOOK, ANSWERS))
    cells = code_cells(notebook)
    assert [message for cell in cells for message in errors(cell)] == []
    for before, cell in zip(stored, cells, strict=True):
        if has_tag(cell, CHECK):
            assert printed(cell).endswith(f"Exercise {EXERCISES.index(exercise_of(cell)) + 1} is right.\n")
        elif not has_tag(cell, LONG):
            assert re.split(NUMBER, printed(before)) == re.split(NUMBER, printed(cell))
            numbers = [np.array(re.findall(NUMBER, printed(run)), float) for run in (before, cell)]
            np.testing.assert_allclose(*numbers, rtol=0.02, atol=0.02)  # another machine rounds in another way
        assert len(pictures(before)) == len(pictures(cell)), "run `make tutorial`"
    assert_long_cells_show_what_the_text_says(notebook)
