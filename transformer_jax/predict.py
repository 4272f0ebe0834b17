"""Print a trained model's answers: `python -m transformer_jax.predict --help`."""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.fit.signals import end_at_signals

    end_at_signals()

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from transformer_jax.cli import answer_lines, run
from transformer_jax.errors import InputError, check_whole
from transformer_jax.fields import Values
from transformer_jax.fitted.fitted import fitted_of
from transformer_jax.flags import Parser, check_output, flag_named, naming_flags
from transformer_jax.outside_files import outside_file, write_whole
from transformer_jax.tasks import LanguageModelTrainer, PretrainedText
from transformer_jax.tasks.pretrained_classifier import PretrainedClassifier
from transformer_jax.tasks.registry import TRAINER, find_trainer
from transformer_jax.training.inspected_example import Answer, InspectedExample, prediction_table
from transformer_jax.training.task import Task

MAX_BYTES = 2**30  # of a file of inputs
PROGRAM = "python -m transformer_jax.predict"
EXAMPLES = f"""examples:
  {PROGRAM} reverse "3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3"
  {PROGRAM} dates --input dates.txt --output answers.tsv
  {PROGRAM} digits 0 17
  {PROGRAM} checkpoints/LanguageModelTask --prompt "Return the" --temperature 0.5 --seed 3
"""


Answered: TypeAlias = list[tuple[InspectedExample, Answer]]
# options of a language model's continuation
DRAWS: Mapping[str, tuple[type, str]] = {
    "max_new": (int, "number of tokens that a language model generates"),
    "temperature": (float, "sampling temperature of a language model"),
    "top_k": (int, "number of most probable tokens to sample from"),
    "top_p": (float, "total probability of tokens in nucleus sampling"),
    "seed": (int, "random seed for sampling"),
}


def read_command(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments; `draws` has the sampling options of a language model.

    Raises:
        InputError: no run or no input is given, or there is an unknown flag.
    """
    parser = Parser(
        prog=PROGRAM,
        description="Print a trained model's answers with their probabilities, as a tab-separated"
        " table.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "run", metavar="RUN", help="run directory, or saved, included or HuggingFace model"
    )
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="*", default=[],
        help="numbers (reverse), text (translation, language model), or, for sets of images, the index of a test set "
        "or the image files of one set",
    )  # fmt: skip
    parser.add_argument("--trainer", **TRAINER)
    parser.add_argument("--input", type=Path, metavar="FILE", help="file with one input per line")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="output file of the table; none: standard output",
    )
    parser.add_argument(
        "--interactive",
        action="store_true",
        help="interactive mode: an answer to each line of input",
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", help="text for a language model to continue, like INPUT"
    )
    parser.add_argument(
        "--top", type=int, metavar="INT", help="number of labels that a classifier of texts shows"
    )
    for name, (kind, words) in DRAWS.items():
        metavar = kind.__name__.upper()
        parser.add_argument(flag_named(name), type=kind, metavar=metavar, help=words)
    chosen = parser.parse_intermixed_args(arguments)
    chosen.inputs += [] if chosen.prompt is None else [chosen.prompt]
    if not chosen.inputs and chosen.input is None and not chosen.interactive:
        raise InputError("there is no input: give INPUT, --input FILE or --interactive")
    if chosen.output is not None:
        if chosen.interactive:
            raise InputError(f"--output is {chosen.output}, but --interactive prints its answers")
        check_output(chosen.output, prediction_table([]))
        both_exist = chosen.input is not None and chosen.output.exists() and chosen.input.exists()
        if both_exist and chosen.output.samefile(chosen.input):
            raise InputError(
                f"--output is {chosen.output}, the file of the inputs; choose another file"
            )
    chosen.draws = {name: vars(chosen)[name] for name in DRAWS if vars(chosen)[name] is not None}
    return chosen


def carry_out(command: argparse.Namespace) -> None:
    """Print the answers, or write them."""
    trainer = find_trainer(command.run, command.trainer)
    if command.draws and not continues(trainer):
        flag = flag_named(next(iter(command.draws)))
        raise InputError(
            f"{flag} is only for language models; {command.run} is a model of {trainer.name}"
        )
    if command.top is not None:
        if not (isinstance(trainer, PretrainedClassifier) and trainer.ranks_labels):
            raise InputError(f"--top is {command.top}; only classifiers of whole texts rank labels")
        check_whole("--top", command.top, 1)
        trainer.top = command.top
    if command.inputs or command.input is not None:
        words = answered(trainer, command.inputs, command.draws, are_words=True)
        table = prediction_table([*words, *_answered_lines(trainer, command)])
        if command.output is None:
            print(without_empty_columns(table), end="")
        else:
            write_whole(command.output.resolve(), table.encode(errors="backslashreplace"))
            print(f"Written: {command.output}")
    if command.interactive:
        answer_lines(lambda line: answer_to(trainer, line, command.draws))


def continues(trainer: Task) -> bool:
    """Whether a model answers with a generated text, or with the text itself and its masks filled in."""
    is_classifier = isinstance(trainer, PretrainedClassifier)
    return isinstance(trainer, LanguageModelTrainer | PretrainedText) and not is_classifier


def answered(
    trainer: Task, inputs: list[str], draws: Values, *, are_words: bool = False
) -> Answered:
    """Answer inputs: return examples with their answers, or with a language model's continuations.

    Args:
        trainer: trainer with the model.
        inputs: one line per input; with `are_words`, words of a command line, which may form one input together.
        draws: sampling options of a language model.

    Raises:
        InputError: an input is not valid for the task.
    """
    if not inputs:
        return []
    if continues(trainer):
        with naming_flags(argparse.Namespace(**draws)):
            texts = zip(inputs, trainer.predict(inputs, **draws), strict=True)
        return [
            (InspectedExample(inputs=None, title=text), Answer(more, None, ()))
            for text, more in texts
        ]
    examples = trainer.read_examples(inputs) if are_words else trainer.read_lines(inputs)
    return [*zip(examples, fitted_of(trainer).answers(examples), strict=True)]


def without_empty_columns(table: str) -> str:
    """Leave out columns of a tab-separated table that are empty below the heading, but not the first."""
    first, *others = zip(*[line.split("\t") for line in table.splitlines()], strict=True)
    rows = zip(first, *[column for column in others if any(column[1:])], strict=True)
    return "".join("\t".join(row) + "\n" for row in rows)


def answer_to(trainer: Task, line: str, draws: Values) -> str:
    """Answer to a line and its probability, separated by a tab; several inputs on a line give several pairs."""
    rows = prediction_table(answered(trainer, [line], draws)).splitlines()[1:]
    return "\t".join(cell for row in rows for cell in row.split("\t")[2:4])


def _answered_lines(trainer: Task, command: argparse.Namespace) -> Answered:
    """The example of each line of the file and its answer; both are empty for a blank line."""
    if command.input is None:
        return []
    with outside_file(command.input, "a UTF-8 text", MAX_BYTES) as checked:
        lines = checked.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    inputs = [line.rstrip("\r") for line in lines if line.strip()]
    if not inputs:
        raise InputError(f"{command.input} has no input")
    rows = answered(trainer, inputs, command.draws)
    if len(rows) != len(inputs):
        raise InputError(f"{command.input} has a line of several inputs; each must have one")
    found = iter(rows)
    blank = InspectedExample(inputs=None), Answer("", None, ())
    return [next(found) if line.strip() else blank for line in lines]


if __name__ == "__main__":
    run(read_command, carry_out, PROGRAM)
