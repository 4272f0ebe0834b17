"""Save a trained model on its own: `python -m transformer_jax.trained export RUN DIRECTORY`."""

import argparse

from transformer_jax.cli import run
from transformer_jax.flags import Parser
from transformer_jax.tasks.registry import TRAINER, load_run, own_trainer

PROGRAM = "python -m transformer_jax.trained"


def read_command(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments `run`, `directory` and `trainer`.

    Raises:
        InputError: an argument is missing or unknown.
    """
    parser = Parser(prog=PROGRAM, description=__doc__)
    parser.add_argument(
        "command",
        choices=["export"],
        metavar="export",
        help="export: settings, parameters (safetensors), digests, model card",
    )
    parser.add_argument(
        "run", metavar="RUN", help="directory of a run, or name of an included model"
    )
    parser.add_argument(
        "directory", metavar="DIRECTORY", help="directory to write; an earlier export is replaced"
    )
    parser.add_argument("--trainer", **TRAINER)
    return parser.parse_args(arguments)


def carry_out(command: argparse.Namespace) -> None:
    """Save the model."""
    trainer_class = own_trainer(command.trainer) if command.trainer else None
    load_run(command.run, trainer_class).save(command.directory)
    print(f"Written: {command.directory}")


if __name__ == "__main__":
    run(read_command, carry_out, PROGRAM)
