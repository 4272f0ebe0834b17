"""Pairs of sentences with the same meaning."""

SENTENCES = [
    "The train was two hours late.",
    "We had to wait ages for the railway.",
    "She plays the violin beautifully.",
    "Her performance on the fiddle is lovely.",
    "The bank of the river is muddy.",
    "The soil beside the stream is wet.",
    "The bank raised its interest rates.",
    "Borrowing money became more expensive.",
]
