"""Text as ids of its bytes, and back."""

import numpy as np
import pytest

from transformer_jax.errors import InputError, visible
from transformer_jax.tasks.byte_text import END, PAD, START, encode, labels, pad
from transformer_jax.tasks.tokenization import Tokenizer

decode = Tokenizer().decode


def test_ids_are_the_bytes_of_utf8():
    assert encode("3 é年").tolist() == [0x33, 0x20, 0xC3, 0xA9, 0xE5, 0xB9, 0xB4]
    assert Tokenizer().encode("3", delimited=True).tolist() == [START, 0x33, END]
    assert Tokenizer().encode("", delimited=True).tolist() == [START, END]
    assert (PAD, START, END, Tokenizer().vocabulary_size) == (256, 257, 258, 259)


def test_every_character_of_unicode_comes_back():
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))  # without surrogates
    assert decode(Tokenizer().encode(text, delimited=True)) == text


def test_decoding_stops_at_end_skips_padding_and_replaces_bytes_that_are_no_utf8():
    assert decode([START, 65, PAD, 66, END, 67, END]) == "AB"
    assert decode([END, 65]) == decode([]) == ""
    assert decode(np.array([START, 0xC3, 0xA9, END, PAD])) == "é"
    assert decode([65, 0xE5, 0xB9, END, 0xB4]) == "A\ufffd"


def test_half_a_surrogate_pair_is_an_error():
    with pytest.raises(
        InputError, match=r"'ab\\ud83d' has characters that cannot be written as UTF-8: .* position 2: surrogates"
    ):
        encode("ab\ud83d")


def test_sequences_are_padded_on_the_right():
    padded = pad([encode("ab"), encode(""), encode("cde")], 3)
    assert (padded.dtype, padded.tolist()) == (np.int32, [[97, 98, 256], [256, 256, 256], [99, 100, 101]])


def test_labels_of_ids_that_are_no_text_are_their_names():
    assert labels([0xC3, 0xA9, 65]) == ["é", "·", "A"]
    assert labels([0xC3, 65]) == ["C3", "A"]
    assert labels([65, PAD, START, END]) == ["A", "pad", "start", "end"]


def test_what_could_move_a_cursor_is_not_printed():
    assert visible("a\x1b[2J\ré\n\x00", keep="\n") == "a\\x1b[2J\\ré\n\\x00"
