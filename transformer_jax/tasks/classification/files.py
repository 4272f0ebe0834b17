"""Files of labelled texts: CSV and TSV, as spreadsheets write them, and JSON lines."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import InputError, shortened
from transformer_jax.outside_files import outside_file

MAX_FILE_BYTES = 2**31  # a text in memory takes about 300 bytes besides its characters
DELIMITERS = "\t,;"
SEPARATOR = "|"  # between the labels of a text, if it may have several


class Columns(NamedTuple):
    """Names of the columns of a file, or of the keys of JSON lines."""

    text: str = "text"
    label: str = "label"
    second_text: str | None = None  # None: single texts

    def of_texts(self) -> list[str]:
        """The columns of the text, or of both texts."""
        return [self.text] if self.second_text is None else [self.text, self.second_text]


class LabelledText(NamedTuple):
    """A text, or a pair of texts, with its label or labels."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    place: str  # for error messages: the file and the line


Row = Mapping[str, Any]  # cells by column


def read_labelled(path: Path, columns: Columns, *, has_several: bool = False) -> list[LabelledText]:
    """Read the labelled texts of a UTF-8 file: JSON lines, a table with a header, or text TAB label without a header.

    Args:
        path: file.
        columns: columns of texts and labels; the others are ignored.
        has_several: whether a text may have any number of labels, separated by `|` or in a JSON list.

    Raises:
        InputError: the file cannot be read or has no texts, the header lacks a column, or a line has no text or label.
    """
    with outside_file(path, "a file of labelled texts", MAX_FILE_BYTES) as file:
        content = file.read_bytes()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            raise InputError(
                f"{path}:{line} is not UTF-8: byte {content[error.start]:#x}; save the file as UTF-8"
            ) from None
        rows = _json_rows if text.lstrip().startswith("{") else _table_rows
        found = [
            _labelled(row, columns, place, has_several=has_several)
            for place, row in rows(text, path, columns)
        ]
    if not found:
        raise InputError(f"{path} has no labelled texts")
    return found


def _json_rows(text: str, path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise InputError(f"{path}:{number} is not a JSON object; each line must be one")
            yield f"{path}:{number}", row


def _table_rows(text: str, path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    first_line = text.partition("\n")[0]
    names, options = _header(first_line, columns), {}
    if names is not None:
        header, delimiter = names
        options = {"delimiter": delimiter, "strict": True}
    elif "\t" in first_line and columns == Columns():
        header = ["text", "label"]
        options = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    else:
        wanted = ", ".join([*columns.of_texts(), columns.label])
        raise InputError(
            f"{path}:1: the header is {shortened(first_line.strip())}; it must name the columns"
            f" {wanted}, which --text-column, --second-text-column and --label-column choose"
        )
    reader = csv.reader(io.StringIO(text, newline=""), **options)
    is_header, line = names is not None, 1
    try:
        for cells in reader:
            if cells and not is_header:
                yield f"{path}:{line}", dict(zip(header, cells, strict=False))
            is_header, line = False, reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}:{line} cannot be read: {error}; quotes in a quoted cell must be doubled"
        ) from None


def _header(line: str, columns: Columns) -> tuple[list[str], str] | None:
    """The names of the columns and their delimiter, if the line has all that are wanted."""
    for delimiter in DELIMITERS:
        names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
        if {*columns.of_texts(), columns.label} <= {*names}:
            return names, delimiter
    return None


def _labelled(row: Row, columns: Columns, place: str, *, has_several: bool) -> LabelledText:
    texts = []
    for name in columns.of_texts():
        text = row.get(name)
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{place}: the text is empty (column {name})")
        texts.append(text.strip())
    value = row.get(columns.label)
    if value is None or (value == "" and not has_several):
        raise InputError(f"{place}: the label is missing (column {columns.label})")
    given = value if isinstance(value, list) else [value]
    if has_several and isinstance(value, str):
        given = value.split(SEPARATOR)
    labels = [" ".join(_written(label).split()) for label in given]
    labels = [label for label in dict.fromkeys(labels) if label]
    if not has_several and len(labels) != 1:
        raise InputError(
            f"{place}: the label is {shortened(value)}; it must be one, unless --multi-label is given"
        )
    return LabelledText(tuple(texts), tuple(labels), place)


def _written(label: object) -> str:
    return label if isinstance(label, str) else json.dumps(label)
