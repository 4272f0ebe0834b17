"""Files of labelled texts: CSV and TSV, as spreadsheets write them, and JSON lines."""

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import InputError, shortened
from transformer_jax.outside_files import as_input_error, outside_file, read_text

MAX_FILE_BYTES = 2**31  # a text in memory takes about 300 bytes besides its characters
SEPARATOR = "|"  # between the labels of a text, if it may have several


class LabelledText(NamedTuple):
    """A text, or a pair of texts, with its label or labels."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    place: str  # for error messages: the file and the line


def read_labelled(
    path: Path, text_columns: list[str], label_column: str, *, has_several: bool
) -> list[LabelledText]:
    """Read the labelled texts of a UTF-8 file: JSON lines, a table with a header, or text TAB label without a header.

    Args:
        path: file.
        text_columns: column of the text, or columns of both texts.
        label_column: column of the label; other columns are ignored.
        has_several: whether a text may have any number of labels, separated by `|` or in a JSON list.

    Raises:
        InputError: the file cannot be read or has no texts, the header lacks a column, or a line has no text or label.
    """
    with outside_file(path, "a file of labelled texts", MAX_FILE_BYTES) as file:
        text = read_text(file)
        found = []
        for line, row in _rows(text, path, [*text_columns, label_column]):
            place = f"{path}:{line}"
            texts = tuple(_filled(row, name, place) for name in text_columns)
            labels = _labels(row, label_column, place, has_several=has_several)
            found.append(LabelledText(texts, labels, place))
    if not found:
        raise InputError(f"{path} has no labelled texts")
    return found


def _rows(text: str, path: Path, columns: list[str]) -> Iterable[tuple[int, dict[str, Any]]]:
    """Rows with the numbers of their last lines."""
    first_line = io.StringIO(text, "").readline()
    if first_line.startswith("{"):
        for number, content in enumerate(text.split("\n"), 1):
            if content.strip():
                with as_input_error(f"{path}:{number} is not a JSON object", ValueError, TypeError):
                    yield number, dict(json.loads(content))
        return
    reader = None
    for delimiter in "\t,;":
        names = next(csv.reader([first_line], delimiter=delimiter), [])
        if set(columns) <= set(names):
            reader = csv.DictReader(io.StringIO(text, ""), delimiter=delimiter, strict=True)
    cells = first_line.strip().lower().split("\t")
    is_header = not set(columns).isdisjoint(cells)  # another column has another name
    if reader is None and len(cells) > 1 and columns == ["text", "label"] and not is_header:
        lines = io.StringIO(text, "")
        reader = csv.DictReader(lines, columns, delimiter="\t", quoting=csv.QUOTE_NONE)
    if reader is None:
        raise InputError(
            f"{path}:1: the header is {shortened(first_line.strip())}; it must name the columns"
            f" {', '.join(columns)}, or text_column and label_column must name others"
        )
    line = 1
    try:
        for row in reader:
            line = reader.line_num
            if None in row:  # more cells than columns
                raise InputError(
                    f"{path}:{line} has more cells than the header; a text that holds the separator"
                    " must be in quotes"
                )
            yield line, row
    except csv.Error as error:
        raise InputError(f"{path}:{line + 1} has an unpaired quote: {error}") from None


def _filled(row: dict[str, Any], column: str, place: str) -> str:
    value = row.get(column)
    if isinstance(value, list | dict):
        raise InputError(
            f"{place}: the {column} is {shortened(value)}; it must be a text, or a number"
        )
    text = "" if value is None else str(value).strip()
    if not text:
        lack = "empty" if column in row else "missing"
        raise InputError(f"{place}: the {column} is {lack}")
    with as_input_error(f"{place}: the {column} is not Unicode", UnicodeError):
        text.encode()  # JSON can name half a character
    return text


def _labels(row: dict[str, Any], column: str, place: str, *, has_several: bool) -> tuple[str, ...]:
    value = row.get(column)
    if not has_several:
        return (" ".join(_filled(row, column, place).split()),)
    if value is None:
        raise InputError(f"{place}: the {column} is missing")
    labels = value if isinstance(value, list) else str(value).split(SEPARATOR)
    stripped = [" ".join(str(label).split()) for label in labels]
    return tuple(dict.fromkeys(label for label in stripped if label))
