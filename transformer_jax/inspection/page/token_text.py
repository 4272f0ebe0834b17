"""Decode tokens to text: vocabularies write spaces, line breaks and the bytes of other alphabets as letters."""

LINE_BREAK = "↵"
PRINTABLE = [
    *range(0x21, 0x7F),
    *range(0xA1, 0xAD),
    *range(0xAE, 0x100),
]  # bytes that stand for themselves
# The byte of each letter; the remaining bytes have the letters from U+0100 on.
BYTES = {chr(byte): byte for byte in PRINTABLE} | {
    chr(0x100 + number): byte
    for number, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)
}
SPACE, NEWLINE = (
    next(letter for letter, byte in BYTES.items() if byte == ord(text)) for text in " \n"
)


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
        text = (
            bytes(BYTES[letter] for letter in piece)
            .decode()
            .replace("\n", LINE_BREAK)
            .replace("\xa0", " ")
        )
    except UnicodeDecodeError:
        return plain
    return text if text.isprintable() else plain  # else the č of a word would be a carriage return
