"""Inspect a trained model: `python -m transformer_jax.inspection --help`."""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.fit.signals import end_at_signals

    end_at_signals()

import argparse
from pathlib import Path

from transformer_jax.cli import run
from transformer_jax.config import percent
from transformer_jax.fitted.viewer import drawable
from transformer_jax.flags import Parser, check_output
from transformer_jax.inspection.page.page import Page, inspection_page
from transformer_jax.inspection.page.view import BEGINNING
from transformer_jax.runs.settings import is_run
from transformer_jax.tasks.registry import TRAINER, find_trainer
from transformer_jax.trained.load import shipped_models

OUTPUT = Path("inspection.html")
PROGRAM = "python -m transformer_jax.inspection"
EXAMPLES = f"""examples:
  {PROGRAM} reverse 3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3
  {PROGRAM} dates "March 3, 2004" "mardi 3 janvier 2017"
  {PROGRAM} digits 0 17 --output digits.html
  {PROGRAM} checkpoints/ReverseTask
"""


def read_command(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line into the `run`, its inputs (`words`) and the `output` file.

    Raises:
        InputError: no run is given, a flag is unknown, or the output file exists and is not an earlier page.
    """
    about = "Print a trained model's answers, and write a page to explore its attention."
    parser = Parser(prog=PROGRAM, description=about, epilog=EXAMPLES)
    parser.add_argument(
        "run", metavar="RUN", help="directory of a run, an included model, or a HuggingFace model"
    )
    parser.add_argument(
        "words", metavar="INPUT", nargs="*", default=[],
        help="numbers (reverse), texts (translation, language model), or, for sets of images, numbers of test sets "
        "or image files that make one set (default: the first examples of the test set)",
    )  # fmt: skip
    parser.add_argument("--trainer", **TRAINER)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"page to write (default: {OUTPUT} in the directory of the run, if it is one)",
    )
    chosen = parser.parse_intermixed_args(arguments)
    if chosen.output is None:
        is_own = chosen.run not in shipped_models() and is_run(Path(chosen.run))
        chosen.output = Path(chosen.run) / OUTPUT if is_own else OUTPUT
    check_output(chosen.output, BEGINNING)
    return chosen


def carry_out(command: argparse.Namespace) -> None:
    """Print the answers and write the page."""
    trainer = find_trainer(command.run, command.trainer)
    examples = trainer.read_examples(command.words) if command.words else None
    page = inspection_page(trainer, examples, title=command.run)
    page.save(command.output)
    print(text_of(page))
    print(f"Written: {command.output}")


def text_of(page: Page) -> str:
    """Format the answers, with the probability of each part."""
    lines = []
    for example, answer in zip(page.examples, page.answers, strict=True):
        right = "" if example.expected is None else f" (expected: {example.expected})"
        parts = [
            f"{drawable(part.text or part.place)}{_shown(part.probability, ' ')}"
            for part in answer.parts
        ]
        said = f"  → {answer.text}{_shown(answer.probability, '  ')}{right}"
        lines += [example.title, said, f"    {'  '.join(parts)}"]
    return "\n".join(lines)


def _shown(probability: float | None, before: str) -> str:
    return "" if probability is None else f"{before}{percent(probability)}"


if __name__ == "__main__":
    run(read_command, carry_out, PROGRAM)
