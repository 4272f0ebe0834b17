"""Marian's tokenizer: two SentencePiece files, and a list of the pieces' ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file, read_json
from transformer_jax.tasks.tokenization import import_extra

SOURCE, TARGET, IDS = "source.spm", "target.spm", "vocab.json"
MAX_FILE_BYTES = 2**28
UNKNOWN, END, PAD = "<unk>", "</s>", "<pad>"


class Encoded(NamedTuple):
    """A text as tokens."""

    ids: list[int]


class SentencePieces:
    """Encodes source texts and decodes target texts, with separate SentencePiece models.

    It has the methods of `tokenizers.Tokenizer` that a `PretrainedText` calls. Punctuation is not normalized first (by
    Moses' rules, which `transformers` applies if `sacremoses` is installed).

    Args:
        directory: directory with `source.spm`, `target.spm` and `vocab.json`.

    Raises:
        InputError: a file cannot be read or is of another kind, or the library `sentencepiece` is not installed.
    """

    def __init__(self, directory: Path) -> None:
        self._source = _pieces(directory / SOURCE)
        self._target = _pieces(directory / TARGET)
        self._ids: dict[str, int] = read_json(directory / IDS, "a list of the pieces' ids")
        if UNKNOWN not in self._ids:
            raise InputError(f"{directory / IDS} has no {UNKNOWN}")
        self._names = {number: name for name, number in self._ids.items()}

    def encode(self, text: str) -> Encoded:
        """Ids of a text and its end token; a prefix such as `>>fr<<`, which chooses the language, is one token."""
        pieces: list[str] = []
        code, mark, rest = text.partition("<<")
        if mark and code.startswith(">>"):
            pieces = [code + mark]
            text = rest
        pieces += [*self._source.encode(text, out_type=str), END]
        unknown = self._ids[UNKNOWN]
        return Encoded([self._ids.get(piece, unknown) for piece in pieces])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without end and padding tokens."""
        names = [self._names.get(number, UNKNOWN) for number in ids]
        pieces = [name for name in names if name not in (UNKNOWN, END, PAD)]
        text: str = self._target.decode_pieces(pieces)
        return text.replace("\u2581", " ").strip()

    def id_to_token(self, number: int) -> str | None:
        """The piece of an id."""
        return self._names.get(number)

    def token_to_id(self, piece: str) -> int | None:
        """The id of a piece."""
        return self._ids.get(piece)


def _pieces(path: Path) -> Any:  # of a library without types
    library = import_extra("sentencepiece")
    with outside_file(path, "a SentencePiece file", MAX_FILE_BYTES) as checked:
        return library.SentencePieceProcessor(model_proto=checked.read_bytes())
