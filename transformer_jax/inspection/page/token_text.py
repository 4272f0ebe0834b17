"""Decode tokens to text: vocabularies write spaces, line breaks and the bytes of other alphabets as letters."""

LINE_BREAK = "↵"
SPACE, NEWLINE = "Ġ", "Ċ"
# Bytes that stand for themselves.
PRINTABLE = [byte for byte in range(0x21, 0x100) if chr(byte).isprintable()]
# The byte of each letter; the remaining bytes have the letters from U+0100 on.
BYTES = {chr(byte): byte for byte in PRINTABLE}
for byte in range(256):
    if byte not in PRINTABLE:
        BYTES[chr(0x100 + len(BYTES) - len(PRINTABLE))] = byte


def token_text(piece: str) -> str:
    """Return the text of a token of byte-level BPE (`ĠParis`) or SentencePiece (`▁Paris`).

    A line break is shown as ↵. Incomplete characters, tokens of other vocabularies, and the `##` of WordPiece are
    unchanged.
    """
    if "▁" in piece:
        return piece.replace("▁", " ")
    plain = piece.replace(SPACE, " ").replace(NEWLINE, LINE_BREAK)
    if not all(letter in BYTES for letter in piece):
        return plain
    try:
        text = bytes(BYTES[letter] for letter in piece).decode()
    except UnicodeDecodeError:
        return plain
    text = text.replace("\n", LINE_BREAK).replace("\xa0", " ")
    return text if text.isprintable() else plain  # else the č of a word would be a carriage return
