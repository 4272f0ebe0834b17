"""Tokens of byte-level BPE and of SentencePiece are shown as their text."""

import pytest
from inspection_pages import data_of
from tokenizers.pre_tokenizers import ByteLevel

from transformer_jax.inspection import show_tokens
from transformer_jax.inspection.page.token_text import BYTES, token_text


def test_the_letters_are_those_of_byte_level_tokenizers():
    assert sorted(BYTES) == sorted(ByteLevel.alphabet())
    text = " Paris été 日本 \n"
    pieces = ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    assert "".join(token_text(piece) for piece, _ in pieces) == " Paris été 日本 ↵"


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        ("▁Paris", " Paris"),
        ("ĊĊĠĠ", "↵↵  "),
        ("Âł", " "),  # that does not break
        ("ĠæĹ", " æĹ"),  # two of the three bytes of 日
        ("##ing", "##ing"),
        ("été", "été"),
        ("čas", "čas"),  # of a Czech vocabulary: č is also the letter of a carriage return
        ("日本", "日本"),
        ("<|im_start|>", "<|im_start|>"),
    ],
)
def test_a_token_is_its_text(piece, text):
    assert token_text(piece) == text


def test_views_show_tokens_as_text():
    assert data_of(show_tokens(["ĠParis", "Ċ"], [1.0, 2.0]))["tokens"] == [" Paris", "↵"]
