"""Answers of a trained model: `python -m transformer_jax.predict --help`."""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.training.signals import end_at_signals

    end_at_signals()

import argparse
from pathlib import Path
from typing import Any

from transformer_jax.cli import answer_lines, run
from transformer_jax.errors import InputError
from transformer_jax.flags import Parser, check_output
from transformer_jax.outside_files import outside_file
from transformer_jax.runs.own_files import write_whole
from transformer_jax.tasks import LanguageModelTrainer, PretrainedText
from transformer_jax.tasks.registry import TRAINER, find_trainer
from transformer_jax.training.inspected_example import Answer, InspectedExample, prediction_table
from transformer_jax.training.trainer import TrainerModule

MAX_BYTES = 2**30  # of a file of inputs
CONTINUES = LanguageModelTrainer, PretrainedText  # models whose answer is a text of their own
PROGRAM = "python -m transformer_jax.predict"
EXAMPLES = f"""examples:
  {PROGRAM} reverse "3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 3"
  {PROGRAM} dates --input dates.txt --output answers.tsv
  {PROGRAM} digits 0 17
  {PROGRAM} checkpoints/LanguageModelTask --prompt "Return the" --temperature 0.5 --seed 3
"""


def read_command(arguments: list[str]) -> argparse.Namespace:
    """The `run`, its `inputs`, or the file of them, the `output` file, and the `draws` of a language model.

    Raises:
        InputError: no run or no input is given, or there is an unknown flag.
    """
    about = "Print a trained model's answers with their probabilities, as a table with tabs."
    parser = Parser(prog=PROGRAM, description=about, epilog=EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="a run's directory, a saved model, one that ships, or a tutorial's")
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="*",
        help="numbers (reverse), a text (translation, language model), or the number of a test set or the image files "
        "that make one set (sets of images)",
    )  # fmt: skip
    parser.add_argument("--trainer", **TRAINER)
    parser.add_argument("--input", type=Path, metavar="FILE", help="file with an input in each line")
    parser.add_argument("--output", type=Path, metavar="FILE", help="file of the table; none prints it")
    parser.add_argument("--interactive", action="store_true", help="answer each line of standard input as it comes")
    parser.add_argument("--prompt", metavar="TEXT", help="text that a language model continues, as INPUT")
    parser.add_argument("--max-new", type=int, metavar="INT", help="bytes of a language model's continuation")
    parser.add_argument("--temperature", type=float, metavar="FLOAT", help="of a language model's draws")
    parser.add_argument("--top-k", type=int, metavar="INT", help="most probable bytes that it draws from")
    parser.add_argument("--top-p", type=float, metavar="FLOAT", help="nucleus: share of probability that it draws from")
    parser.add_argument("--seed", type=int, metavar="INT", help="of its draws")
    chosen = parser.parse_intermixed_args(arguments)
    chosen.inputs += [] if chosen.prompt is None else [chosen.prompt]
    if not chosen.inputs and chosen.input is None and not chosen.interactive:
        raise InputError("there is no input: give INPUT, --input FILE or --interactive")
    if (output := chosen.output) is not None:
        if chosen.interactive:
            raise InputError(f"--output is {output}, but --interactive prints its answers")
        check_output(output, prediction_table([]))
        if chosen.input is not None and output.exists() and chosen.input.exists() and output.samefile(chosen.input):
            raise InputError(f"--output is {output}, the file of the inputs; choose another file")
    names = ("max_new", "temperature", "top_k", "top_p", "seed")
    chosen.draws = {name: getattr(chosen, name) for name in names if getattr(chosen, name) is not None}
    return chosen


def carry_out(command: argparse.Namespace) -> None:
    """Print the answers, or write them."""
    trainer = find_trainer(command.run, command.trainer)
    if command.draws and not isinstance(trainer, CONTINUES):
        flag = f"--{next(iter(command.draws)).replace('_', '-')}"
        raise InputError(f"{flag} is given, which a language model takes; {command.run} is a model of {trainer.name}")
    if command.inputs or command.input is not None:
        words = answered(trainer, command.inputs, command.draws, are_words=True)
        table = prediction_table([*words, *_answered_lines(trainer, command)])
        if command.output is None:
            print(table, end="")
        else:
            write_whole(command.output.resolve(), table.encode(errors="backslashreplace"))
            print(f"Written: {command.output}")
    if command.interactive:
        answer_lines(lambda line: answer_to(trainer, line, command.draws))


def answered(
    trainer: TrainerModule, inputs: list[str], draws: dict[str, Any], *, are_words: bool = False
) -> list[tuple[InspectedExample, Answer]]:
    """Inputs as examples with their answers; of a language model what follows each text.

    Args:
        trainer: with the model.
        inputs: a line for each; or `are_words` of a command line, which may make one input together.
        draws: of a language model.

    Raises:
        InputError: an input is none of the task's.
    """
    if not inputs:
        return []
    if isinstance(trainer, CONTINUES):
        texts = zip(inputs, trainer.predict(inputs, **draws), strict=True)
        return [(InspectedExample(inputs=None, title=text), Answer(more, None, ())) for text, more in texts]
    examples = trainer.read_examples(inputs) if are_words else trainer.read_lines(inputs)
    return [*zip(examples, trainer.answers(examples), strict=True)]


def answer_to(trainer: TrainerModule, line: str, draws: dict[str, Any]) -> str:
    """The answer to a line and its probability, with a tab between; those of several inputs follow each other."""
    rows = prediction_table(answered(trainer, [line], draws)).splitlines()[1:]
    return "\t".join(cell for row in rows for cell in row.split("\t")[2:4])


def _answered_lines(trainer: TrainerModule, command: argparse.Namespace) -> list[tuple[InspectedExample, Answer]]:
    """The example of each line of the file and its answer; both are empty for a blank line."""
    if (file := command.input) is None:
        return []
    with outside_file(file, "a text of UTF-8", MAX_BYTES) as checked:
        lines = checked.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    inputs = [line.rstrip("\r") for line in lines if line.strip()]
    if not inputs:
        raise InputError(f"{file} holds no input")
    rows = answered(trainer, inputs, command.draws)
    if len(rows) != len(inputs):
        raise InputError(f"{file} has a line of several inputs; there must be one in each line")
    found, blank = iter(rows), (InspectedExample(inputs=None), Answer("", None, ()))
    return [next(found) if line.strip() else blank for line in lines]


if __name__ == "__main__":
    run(read_command, carry_out)
