"""Tokenizers trained on the texts of a task, using the `tokenizers` library."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.errors import InputError
from transformer_jax.tasks.tokenization import PieceTokenizer, import_extra, of_library

if TYPE_CHECKING:
    import tokenizers

MOST_WORDS = 30_000  # maximum number of words or characters in a vocabulary
# A word with the space before it, a number, other symbols, or white space. No piece crosses their boundaries.
WORD = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHARACTER = r"[\s\S]"
# for characters outside the vocabulary
BYTE_PIECES = [f"<0x{number:02X}>" for number in range(256)]


def train_tokenizer(setting: str, texts: Iterable[str]) -> PieceTokenizer:
    """Train a tokenizer on texts. Decoding restores every text exactly.

    Text outside the vocabulary is encoded as bytes. `bpe` merges the most frequent pairs of adjacent pieces, starting
    from bytes (Sennrich et al. 2016); `unigram` takes the pieces under which the texts are most probable (Kudo 2018),
    which may differ slightly each time; `characters` and `words` take the 30 000 most frequent characters or words in
    the texts; `words:2+` takes only words that occur at least twice.

    Args:
        setting: characters, words, words:COUNT+, bpe:SIZE or unigram:SIZE.
        texts: the training texts.

    Raises:
        InputError: the library is not installed, or cannot train such a tokenizer on these texts.
    """
    library = import_extra("tokenizers")
    kind, _, size = setting.partition(":")
    if kind == "bpe":
        return PieceTokenizer(_byte_pairs(library, texts, int(size)))
    split = library.pre_tokenizers.Split(
        library.Regex(CHARACTER if kind == "characters" else WORD), "isolated"
    )
    scores: Mapping[str, float]
    if kind == "unigram":
        with of_library(f"tokenizer is {setting}, which cannot be trained on these texts"):
            scores = _unigram_scores(library, texts, split, int(size) - len(BYTE_PIECES) - 1)
    else:
        least = int(size.removesuffix("+") or 1)
        scores = dict.fromkeys(_frequent_pieces(setting, texts, split, least), -1.0)
    low = min(scores.values(), default=0.0) - 10  # bytes are used only if no piece fits
    vocabulary = [("<unk>", 0.0), *((piece, low) for piece in BYTE_PIECES), *scores.items()]
    tokenizer = library.Tokenizer(library.models.Unigram(vocabulary, 0, True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = library.decoders.Sequence(
        [library.decoders.ByteFallback(), library.decoders.Fuse()]
    )
    # saving may round scores, so do it now
    return PieceTokenizer(library.Tokenizer.from_str(tokenizer.to_str()))


def _frequent_pieces(setting: str, texts: Iterable[str], split: Any, least: int) -> list[str]:
    """Return the most frequent pieces that occur at least `least` times, in the order of their characters."""
    counts = Counter[str]()
    for text in texts:
        counts.update(piece for piece, _ in split.pre_tokenize_str(text))
    pieces = [piece for piece, count in counts.most_common(MOST_WORDS) if count >= least]
    if counts and not pieces:
        raise InputError(
            f"tokenizer is {setting}; no word of these texts occurs more than"
            f" {max(counts.values())} times"
        )
    return sorted(pieces)


def _byte_pairs(library: Any, texts: Iterable[str], size: int) -> "tokenizers.Tokenizer":
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _unigram_scores(
    library: Any, texts: Iterable[str], split: Any, size: int
) -> Mapping[str, float]:
    """The logarithm of each piece's probability."""
    tokenizer = library.Tokenizer(library.models.Unigram())
    tokenizer.pre_tokenizer = split
    trainer = library.trainers.UnigramTrainer(
        vocab_size=size + 1, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    scores = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    del scores["<unk>"]
    return scores


def stamp(path: Path | None) -> int | None:
    """Modification time of a file, as a cache key for results made from it; None if there is no file."""
    return path.stat().st_mtime_ns if path is not None and os.path.exists(path) else None
