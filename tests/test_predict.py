"""`python -m transformer_jax.predict`: a trained model's answers with their probabilities, as a table."""

import csv
import io
import json
from importlib import resources
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from commands import typed
from finished_runs import finished_run

from transformer_jax import InputError, load_run
from transformer_jax.inspection.__main__ import read_command as read_inspection
from transformer_jax.inspection.page.view import BEGINNING
from transformer_jax.predict import carry_out, read_command, without_empty_columns
from transformer_jax.training.inspected_example import Answer, InspectedExample, prediction_table

NUMBERS = "3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3"


def printed(capsys, *arguments: str) -> list[list[str]]:
    """Rows of the table that the command prints, but for the first."""
    carry_out(read_command(list(arguments)))
    header, *rows = (line.split("\t") for line in capsys.readouterr().out[:-1].split("\n"))
    assert all(any(column) for column in [*zip(*rows, strict=True)][1:])  # no other than the input is empty
    names = ["input", "expected", "answer", "probability", "right"]
    return [[dict(zip(header, row, strict=True)).get(name, "") for name in names] for row in rows]


def test_empty_columns_are_left_out_but_for_the_input():
    assert without_empty_columns("input\texpected\tanswer\n\t\ta\n") == "input\tanswer\n\ta\n"


def test_numbers_are_answered_with_the_probability_of_all_of_them(capsys):
    ((numbers, expected, answer, probability, right),) = printed(capsys, "reverse", NUMBERS)
    assert (numbers, expected, answer, right) == (NUMBERS, NUMBERS[::-1], NUMBERS[::-1], "1")
    logits = load_run("reverse").forward(np.array([NUMBERS.split()], np.int32))[0].astype(np.float64)
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert float(probability) == pytest.approx(softmax.max(-1).prod(), rel=1e-4)


@pytest.mark.slow
def test_a_file_has_an_input_in_each_line_and_the_table_goes_to_another(capsys, tmp_path):
    (tmp_path / "dates.txt").write_text("mardi 3 janvier 2017\n\nMarch 3, 2004\n")
    files = ["--input", str(tmp_path / "dates.txt"), "--output", str(tmp_path / "answers.tsv")]
    carry_out(read_command(["dates", "1.2.2003", *files]))
    assert capsys.readouterr().out == f"Written: {tmp_path / 'answers.tsv'}\n"
    rows = [line.split("\t") for line in (tmp_path / "answers.tsv").read_text().splitlines()[1:]]
    assert [row[2] for row in rows] == ["2003-02-01", "2017-01-03", "", "2004-03-03"]
    assert all(0.9 < float(row[3]) < 1 for row in rows if row[2])
    assert {(row[1], row[4]) for row in rows} == {("", "")}  # nobody knows


def test_words_make_one_sequence_and_lines_one_each(capsys, tmp_path):
    (tmp_path / "lines.txt").write_text(f"{NUMBERS[::-1]}\r\n \n{NUMBERS}\n")
    rows = printed(capsys, "reverse", *NUMBERS.split(), "--input", str(tmp_path / "lines.txt"))
    assert [row[0] for row in rows] == [NUMBERS, NUMBERS[::-1], "", NUMBERS]


def test_sets_of_the_test_set_have_numbers(capsys):
    rows = printed(capsys, "digits", "17", "0")
    assert [row[0] for row in rows] == ["test set 17", "test set 0"]
    assert all(row[1] == row[2] and row[4] == "1" for row in rows)


def test_each_line_is_answered_as_it_comes_and_a_wrong_one_does_not_end_it(monkeypatch, capsys):
    lines = f"{NUMBERS}\n3 12\n9999999999 1\n{NUMBERS[::-1]}\n"
    out, err = interactive("reverse", lines.encode(), monkeypatch, capsys)
    assert [line.split("\t")[0] for line in out] == [NUMBERS[::-1], "", "", NUMBERS]
    assert "12" in err
    assert err.count("\n") == 2
    out, _ = interactive("digits", b"0 17\n", monkeypatch, capsys)  # two sets
    assert out[0].split("\t")[::2] == ["image 1", "image 9"]


def interactive(run: str, content: bytes, monkeypatch, capsys) -> tuple[list[str], str]:
    """Lines that the command prints for this standard input, and its errors."""
    monkeypatch.setattr("sys.stdin", typed(content))
    carry_out(read_command([run, "--interactive"]))
    out, err = capsys.readouterr()
    return out.split("\n")[:-1], err


# What ends a line for some program or other, and what none of the tasks can read.
WORDS = "--5", "-", "9" * 5000, "'", '"', "\\", "\udcff", "é", "²", ""
ODD = [*"\v\f\x1c\x1d\x1e\x85\u2028\u2029\r\t\0\x1b\ufeff", *WORDS]


@pytest.mark.parametrize("run", ["reverse", "digits", pytest.param("dates", marks=pytest.mark.slow)])
def test_each_line_has_one_line_of_answers_whatever_is_in_it(run, monkeypatch, capsys):
    known = {"reverse": NUMBERS, "digits": "17", "dates": "March 3, 2004"}[run]
    lines = [f"{known}{odd}" for odd in ODD] + [f"{odd}{known}" for odd in ODD] + [*ODD, known]
    content = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
    out, err = interactive(run, b"\xef\xbb\xbf" + content, monkeypatch, capsys)
    assert len(out) == len(lines)
    assert sum(not line for line in out) >= err.count("\n") > 5
    right = out[-1]
    assert right.split("\t")[0] == {"reverse": NUMBERS[::-1], "digits": "image 9", "dates": "2004-03-03"}[run]
    # Behind a byte order mark, and with what is white space between numbers.
    assert run != "reverse" or out[0] == right
    assert run != "reverse" or [out[lines.index(f"{known}{odd}")] for odd in "\f\x85\u2028\r"] == [right] * 4


def test_a_file_has_a_row_for_each_line_and_one_input_in_a_line(capsys, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes("\ufeff17\n\n 0\r\n \f\n17\r\n".encode())
    rows = printed(capsys, "digits", "--input", str(file))
    assert [row[0] for row in rows] == ["test set 17", "", "test set 0", "", "test set 17"]
    assert rows[1] == rows[3] == [""] * 5
    file.write_text("0 17\n")
    with pytest.raises(InputError, match="has a line of several inputs"):
        printed(capsys, "digits", "--input", str(file))


@pytest.mark.slow
def test_a_language_model_continues_with_the_draws_that_are_asked_for(capsys, tmp_path_factory):
    run = finished_run(tmp_path_factory, "LanguageModelTask")
    capsys.readouterr()
    flags = ["--max-new", "5", "--temperature", "0.5", "--top-k", "3", "--top-p", "0.9", "--seed", "2"]
    ((text, _, answer, probability, _),) = printed(capsys, str(run), "--prompt", "ab", *flags)
    expected = load_run(run).predict(["ab"], max_new=5, temperature=0.5, top_k=3, top_p=0.9, seed=2)[0]
    shown = prediction_table([(InspectedExample(inputs=None, title="ab"), Answer(expected, None, ()))])
    assert shown.splitlines()[1].split("\t")[2] == answer
    assert (text, probability) == ("ab", "")
    for flag, value, message in (
        ("--max-new", "0", "^--max-new is 0; it must be at least 1"),
        ("--temperature", "-1", "^--temperature is -1.0; it must be a finite number above 0"),
        ("--top-k", "0", "^--top-k is 0; it must be at least 1"),
        ("--top-p", "2", "^--top-p is 2.0; it must be above 0 and at most 1"),
    ):
        with pytest.raises(InputError, match=message):
            carry_out(read_command([str(run), "ab", flag, value]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "metric"),
    [("ReverseTask", None), ("SetAnomalyTask_digits", "accuracy"), ("TranslationTask", "exact_match")],
)
def test_every_run_leaves_its_answers_to_the_test_set(task, metric, tmp_path_factory):
    directory = finished_run(tmp_path_factory, task)
    rows = [line.split("\t") for line in (directory / "predictions.tsv").read_text().split("\n")[1:-1]]
    assert len(rows) == len(load_run(directory).test_set)
    right = [row[1] == row[2] for row in rows]
    assert [row[4] == "1" for row in rows] == right
    if metric is not None:
        results = json.loads((directory / "results.json").read_text())
        assert np.mean(right) == pytest.approx(results["test"].get(metric, results.get(metric)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reverse"], "there is no input: give INPUT, --input FILE or --interactive"),
        ([], "the following arguments are required: RUN$"),
        (["dates", "1.2.2003", "--seed", "3"], "--seed is only for language models; dates is a model of "),
        (["reverse", "1", "--output", "."], "--output is .; it must be a file in an existing directory"),
        (["reverse", "1", "--output", "no/x.tsv"], "--output is no/x.tsv; it must be a file in an existing"),
        (["reverse", "--interactive", "--output", "a"], "--output is a, but --interactive prints its answers"),
    ],
)
def test_a_mistake_is_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        carry_out(read_command(arguments))
    assert "\n" not in str(caught.value)


def kept(parent: Path) -> dict[str, Path]:
    """Files and other things that are no earlier output of a command, by what they are."""
    found = {name: parent / name for name in ("inputs.txt", "config.json", "page.html", "longer.tsv", "hard", "soft")}
    for name in ("inputs.txt", "config.json", "page.html", "longer.tsv"):
        found[name].write_text("1 2 3\n" + "input\texpected\n<!doctype html>" * 99)
    found["hard"].hardlink_to(found["inputs.txt"])
    found["soft"].symlink_to(found["config.json"])
    return found | {"device": Path("/dev/null"), "directory": parent}


@pytest.mark.parametrize("read", [read_command, read_inspection])
def test_an_output_is_never_written_over_anything_but_an_earlier_one(read, tmp_path):
    names = kept(tmp_path)
    before = {name: path.read_bytes() for name, path in names.items() if path.is_file()}
    for path in names.values():
        with pytest.raises(InputError, match=r"^--output is .*(must be a file|something else; choose)"):
            read(["reverse", "1", "--output", str(path)])
    assert {name: path.read_bytes() for name, path in names.items() if path.is_file()} == before


def test_an_output_replaces_an_earlier_one_whole_or_not_at_all_and_goes_where_a_link_leads(tmp_path, monkeypatch):
    file, link = tmp_path / "answers.tsv", tmp_path / "link.tsv"
    file.touch()  # as `mktemp` does
    link.symlink_to(file)
    command = ["reverse", NUMBERS, "--output", str(link)]
    for _ in range(2):
        carry_out(read_command(command))
    whole = file.read_bytes()
    monkeypatch.setattr("os.fsync", mock.Mock(side_effect=OSError("the disk is full")))
    with pytest.raises(OSError, match="the disk is full"):
        carry_out(read_command(command))
    assert (file.read_bytes(), sorted(tmp_path.iterdir())) == (whole, [file, link])
    assert whole.startswith(b"input\texpected\tanswer")


@pytest.mark.parametrize("template", ["template.html", "features.html"])
def test_a_page_has_the_beginning_by_which_an_earlier_one_is_known(template):
    assert resources.files("transformer_jax.inspection.page").joinpath(template).read_text().startswith(BEGINNING)


def test_a_table_has_a_line_for_each_example_whatever_the_texts_hold():
    texts = ["", *(letter for letter in map(chr, range(1, 2**14)) if not letter.isalnum()), "a\tb", "a\r\nb\n", '"']
    examples = (InspectedExample(inputs=None, title=text, expected=text) for text in texts)
    table = prediction_table((example, Answer(example.expected, 0.5, ())) for example in examples)
    rows = [*csv.reader(io.StringIO(table, newline="\n"), delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
    assert len(rows) == len(table.splitlines()) - 1 == len(texts)
