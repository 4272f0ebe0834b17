"""Text as tokens: bytes, or pieces of text, found by the library `tokenizers` or listed in a `tokenizer.json`."""

import contextlib
import copy
import importlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, AnyStr, TypeAlias

import numpy as np
from jaxtyping import Int, Integer, UInt8

from transformer_jax.errors import InputError, in_one_line, shortened
from transformer_jax.outside_files import as_input_error, outside_file
from transformer_jax.tasks import byte_text

if TYPE_CHECKING:
    import tokenizers

BYTES = "bytes"
KINDS = (
    "bytes, characters, words, words:COUNT+, bpe:SIZE, unigram:SIZE, or the path of a"
    " tokenizer.json"
)
TRAINED = re.compile(r"characters|words(:[1-9]\d{0,8}\+)?|(bpe|unigram):(\d{1,9})")
SIZES = 300, 2**20  # fewest and most pieces of a trained tokenizer, including the 256 bytes
MAX_FILE_BYTES = 2**28
CHUNK = 2**16  # most characters that are tokenized together, up to the end of a line
CHUNKS = 64  # chunks that are tokenized in parallel

Ids: TypeAlias = Integer[np.ndarray, " _"]
TokenIds: TypeAlias = Sequence[int] | Ids
Counts: TypeAlias = Int[np.ndarray, " _"]


@contextlib.contextmanager
def of_library(sentence: str) -> Iterator[None]:
    """Turn errors of the library `tokenizers`, which are bare exceptions and Rust panics, into an `InputError`."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{sentence}: {in_one_line(error)}") from error


def text_after(decode: Callable[[Ids], AnyStr], before: Ids, new: Ids) -> AnyStr:
    """Continuation of a text by new tokens, with what separates the two, such as the space between words.

    All tokens are decoded together, and the text of the earlier ones is removed from the beginning. If the text of all
    tokens does not begin with it (e.g. because the earlier tokens end inside a character), the new tokens are decoded
    alone.

    Args:
        decode: returns the text, or the bytes, of tokens.
        before: ids of the earlier tokens.
        new: ids of the new tokens.
    """
    whole = decode(np.concatenate([before, new]))
    beginning = decode(before)
    return whole.removeprefix(beginning) if whole.startswith(beginning) else decode(new)


class Tokenizer:
    """Tokenizer whose tokens are the bytes of a text. `PieceTokenizer` has longer tokens.

    Attributes:
        size: V, the number of different tokens in texts.
        pad, start, end: ids of the special tokens around texts, which by default follow those of the texts.
        vocabulary_size: number of different tokens, including the special ones.
        num_bytes: bytes of text that each token stands for, `[V]`; None if each token is one byte.
        file: the content of the `tokenizer.json`; None for bytes.
    """

    def __init__(self, size: int = byte_text.PAD) -> None:
        self.size = size
        self.pad = size
        self.start = size + 1
        self.end = size + 2
        self.vocabulary_size = size + 3
        self.num_bytes: Counts | None = None
        self.file: str | None = None

    def encode(self, text: str | bytes, *, delimited: bool = False) -> Ids:
        """Encode text or bytes as ids; with `delimited`, `start` comes before them and `end` after them.

        Raises:
            InputError: the text has a lone surrogate.
        """
        ids = self._ids(text)
        if not delimited:
            return ids
        return np.concatenate([[self.start], ids, [self.end]], dtype=np.int32)

    def lengths(self, texts: Sequence[str]) -> Counts:
        """The number of tokens of each text."""
        return np.array([len(text.encode()) for text in texts], int)

    def encode_file(
        self, content: UInt8[np.ndarray, " N"], name: str, *, by_lines: bool = False
    ) -> Ids:
        """Encode a long text as ids of the smallest integer type; bytes stay memory-mapped.

        Args:
            content: memory-mapped bytes of the text.
            name: name of the text, for messages.
            by_lines: encode each line on its own, and each line feed.

        Raises:
            InputError: the text is not UTF-8, which pieces require; or decoding does not restore it.
        """
        return content

    def decode(self, ids: TokenIds) -> str:
        """Decode the ids before the first `end`, without `pad` and `start`; invalid UTF-8 becomes U+FFFD."""
        return self.to_bytes(ids).decode(errors="replace")

    def to_bytes(self, ids: TokenIds) -> bytes:
        """Decode to bytes like `decode`, as far as the tokenizer preserves them."""
        array = np.asarray(ids, np.int64)
        before_end = ~np.logical_or.accumulate(array == self.end)
        is_special = np.isin(array, (self.pad, self.start)) | (array >= self.size)
        return self._joined(array[before_end & ~is_special])

    def labels(self, ids: TokenIds) -> list[str]:
        """A label for each id."""
        return byte_text.labels(ids)

    def _ids(self, text: str | bytes) -> Ids:
        return byte_text.encode(text)

    def _joined(self, ids: Ids) -> bytes:
        return ids.astype(np.uint8).tobytes()


class PieceTokenizer(Tokenizer):
    """Tokenizer whose tokens are pieces of text.

    Args:
        pieces: a tokenizer of the library `tokenizers`.
    """

    num_bytes: Counts

    def __init__(self, pieces: "tokenizers.Tokenizer") -> None:
        vocabulary = pieces.get_vocab()
        super().__init__(max(vocabulary.values()) + 1)
        self._pieces = pieces
        self.file = pieces.to_str()
        self._adds_special_tokens = False
        decoder = json.loads(self.file)["decoder"]
        has_byte_letters = '"ByteLevel"' in json.dumps(decoder)  # perhaps inside a sequence
        self.num_bytes = np.zeros(self.size, np.int32)
        for piece, number in vocabulary.items():
            self.num_bytes[number] = _num_bytes(piece, has_byte_letters)

    def with_own_tokens(
        self, pad: int, start: int, end: int, *, adds_them: bool
    ) -> "PieceTokenizer":
        """A copy of this tokenizer with special tokens from its vocabulary.

        Args:
            pad, start, end: ids of the special tokens.
            adds_them: whether `encode` adds the special tokens of the file, e.g. `</s>` at the end of sources.
        """
        changed = copy.copy(self)
        changed.pad = pad
        changed.start = start
        changed.end = end
        changed._adds_special_tokens = adds_them
        changed.vocabulary_size = max(self.size, pad + 1, start + 1, end + 1)
        return changed

    def lengths(self, texts: Sequence[str]) -> Counts:
        return np.array([len(encoding.ids) for encoding in self._encoded(texts)], int)

    def encode_file(
        self, content: UInt8[np.ndarray, " N"], name: str, *, by_lines: bool = False
    ) -> Ids:
        try:
            text = content.tobytes().decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name} is not UTF-8 at byte {error.start + 1}; use the tokenizer bytes for such a"
                " text"
            ) from None
        dtype = np.uint16 if self.size <= 2**16 else np.uint32
        encoded = [np.zeros(0, dtype)]
        parts = re.findall("[^\n]+|\n", text) if by_lines else list(chunks(text))
        for start in range(0, len(parts), CHUNKS):
            batch = parts[start : start + CHUNKS]
            for part, encoding in zip(batch, self._encoded(batch), strict=True):
                ids = np.array(encoding.ids, dtype)
                original = part.encode()
                if self._joined(ids) != original or self.num_bytes[ids].sum() != len(original):
                    raise InputError(
                        f"the tokenizer changes {name}; its bits per byte would be those of another"
                        " text"
                    )
                encoded.append(ids)
        return np.concatenate(encoded)

    def labels(self, ids: TokenIds) -> list[str]:
        names = {self.start: "start", self.pad: "pad", self.end: "end"}  # two ids may be the same
        return [names.get(number) or self._label(number) for number in np.asarray(ids).tolist()]

    @of_library("the tokenizer cannot decode a token")
    def _label(self, number: int) -> str:
        text = self._pieces.decode([number], skip_special_tokens=False)
        if text and "\ufffd" not in text:
            return text
        return self._pieces.id_to_token(number) or f"#{number}"

    @of_library("the tokenizer cannot encode a text")
    def _ids(self, text: str | bytes) -> Ids:
        content = byte_text.encode(text).astype(np.uint8).tobytes()
        encoding = self._pieces.encode(
            content.decode(errors="replace"), add_special_tokens=self._adds_special_tokens
        )
        return np.array(encoding.ids, np.int32)

    @of_library("the tokenizer cannot decode tokens")
    def _joined(self, ids: Ids) -> bytes:
        return self._pieces.decode(ids.tolist(), skip_special_tokens=False).encode()

    @of_library("the tokenizer cannot encode a text")
    def _encoded(self, texts: Sequence[str]) -> list[Any]:  # of the library's own class
        return self._pieces.encode_batch(texts, add_special_tokens=self._adds_special_tokens)


def check_tokenizer(name: str, value: str) -> None:
    """Raise an `InputError` unless a field is one of `KINDS`."""
    match = TRAINED.fullmatch(value)
    if value != BYTES and match is None and not value.endswith(".json"):
        raise InputError(f"{name} is {shortened(value)}; it must be {KINDS}")
    if match and match[3] and not SIZES[0] <= int(match[3]) <= SIZES[1]:
        raise InputError(
            f"{name} is {value}; the number of pieces must be from {SIZES[0]} to {SIZES[1]}"
        )


def name_of_tokens(setting: str) -> str:
    """Name of a tokenizer's tokens in reports, by a setting in `KINDS`: bytes, characters, words or pieces."""
    kind = setting.partition(":")[0]
    return kind if kind in (BYTES, "characters", "words") else "pieces"


def chosen_tokenizer(
    setting: str, kept: Path | None, train: Callable[[str], Tokenizer]
) -> Tokenizer:
    """Load or train the tokenizer that a setting selects.

    Args:
        setting: one of `KINDS`.
        kept: the `tokenizer.json` in the directory of a resumed run, which is used instead of training a new one, or
            if the setting's file is gone; None if there is no such run.
        train: trains a tokenizer on the task's data.

    Raises:
        InputError: a file cannot be read or is not a tokenizer's; or the library is not installed.
    """
    if setting == BYTES:
        return Tokenizer()
    is_file = TRAINED.fullmatch(setting) is None
    if is_file and (kept is None or os.path.lexists(setting)):
        return PieceTokenizer(read_pieces(Path(setting)))
    return train(setting) if kept is None else PieceTokenizer(read_pieces(kept))


def read_pieces(path: Path) -> "tokenizers.Tokenizer":
    """Read a tokenizer of the library `tokenizers` from a `tokenizer.json`.

    Raises:
        InputError: the file cannot be read, is of another kind, or has an id far above the number of its pieces (the
            largest id determines the size of arrays); or the library is not installed.
    """
    library = import_extra("tokenizers")
    with (
        of_library(f"{path} cannot be used"),
        outside_file(path, "a tokenizer.json", MAX_FILE_BYTES) as checked,
    ):
        pieces = library.Tokenizer.from_file(str(checked))
    ids = pieces.get_vocab().values()
    largest = max(ids, default=-1)
    limit = 2 * len(ids) + 1000  # ids may have gaps
    if not 0 <= largest < limit:
        raise InputError(
            f"{path} has {len(ids)} pieces, and the largest id is {largest}; it must be below"
            f" {limit}"
        )
    pieces.no_truncation()  # some files truncate or pad every text
    pieces.no_padding()
    # with BPE dropout, a text is encoded differently each time
    if hasattr(pieces.model, "dropout"):
        pieces.model.dropout = None
    return pieces


def _num_bytes(piece: str, has_byte_letters: bool) -> int:
    """Number of bytes of text that a piece of the vocabulary stands for."""
    if has_byte_letters:  # a letter for each byte
        return len(piece)
    if re.fullmatch("<0x[0-9A-F]{2}>", piece):
        return 1
    return len(piece.replace("\u2581", " ").encode())


def chunks(text: str) -> Iterator[str]:
    """Split a long text into parts of at most 65 536 characters, at the ends of lines if possible."""
    start = 0
    while start < len(text):
        end = start + CHUNK
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end


def import_extra(name: str) -> Any:  # a module
    """Import a library that the extra `pretrained` installs.

    Raises:
        InputError: the library is not installed.
    """
    with as_input_error(
        f"the library {name} is missing; pip install transformer-jax[pretrained]", ImportError
    ):
        return importlib.import_module(name)
