"""`--init-from`: find the parameters that a training begins with."""

import os
from pathlib import Path

from transformer_jax.errors import InputError
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.runs.directory import run_path
from transformer_jax.runs.settings import CHECKPOINTS, read_settings
from transformer_jax.trained.load import load_run
from transformer_jax.trained.pretrained import directory_of, kinds_of_models
from transformer_jax.trained.published import PUBLISHED, load_pretrained
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Params


def find_initial(trainer: TrainerModule) -> Params | None:
    """The parameters that `config.init_from` names, for `fit`; None for None.

    A run that goes on from a checkpoint needs them no more: None also where it can't read them.

    Raises:
        InputError: there is no such model, it can't be read, it is the run itself, or its number of heads, which the
            shapes don't show, is another.
    """
    config = trainer.config
    if config.init_from is None:
        return None
    own, directory = run_path(config, trainer.name), directory_of(config.init_from)
    if directory is not None and directory.resolve() == own.resolve():
        raise InputError(f"init_from is {config.init_from}, this run itself; choose another checkpoint_dir or name")
    try:
        return _read(trainer, config.init_from, directory)
    except InputError as error:
        if not config.resume or not any((own / CHECKPOINTS).glob("[0-9]*")):
            raise
        print(f"The run in {own} goes on from its checkpoint, without init_from: {error}")
        return None


def _read(trainer: TrainerModule, what: str, directory: Path | None) -> Params:
    config = trainer.config
    is_predictor = isinstance(trainer.model, TransformerPredictor)  # which the tutorials' models are
    if directory is not None:
        made_by, _ = read_settings(directory)
        run = load_run(directory, type(trainer) if made_by == trainer.name else None)
        if run.config.num_heads != config.num_heads:
            heads = run.config.num_heads
            raise InputError(f"num_heads is {config.num_heads}; it must be {heads}, as in the training of {what}")
        return run.params
    if is_predictor and (what in PUBLISHED or os.path.isfile(what)):
        return load_pretrained(what, num_heads=config.num_heads)[1]
    raise InputError(f"init_from is {what}; it must be {kinds_of_models(is_predictor)}")
