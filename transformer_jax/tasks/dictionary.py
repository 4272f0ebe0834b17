"""Task: learn a sparse dictionary of a model's activations, written by `inspection.ActivationStream`."""

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray

from transformer_jax.argument_checks import check_arguments
from transformer_jax.config import Criterion, TrainingConfig
from transformer_jax.data.batch import ArrayDataset, Batch, Samples
from transformer_jax.errors import InputError
from transformer_jax.fields import setting
from transformer_jax.fit.trainer import TrainerModule
from transformer_jax.inspection.features.dictionary import Reconstruction, SparseDictionary
from transformer_jax.outside_files import outside_file
from transformer_jax.setting_groups import MAX_WIDTH
from transformer_jax.tasks.experiment import Results, chosen_config, train_and_test
from transformer_jax.tasks.task_data import TaskData, task_loaders
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Arrays, Inputs, Params

FOR_MEAN = 2**16  # number of rows that are averaged


@dataclasses.dataclass(frozen=True, kw_only=True)
class DictionaryConfig(TrainingConfig):
    """Train a `SparseDictionary`: an autoencoder of an activation, or a transcoder between two activations.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    # .npy file of activations from ActivationStream: [N, model_dim]; for a transcoder [N, model_dim + output_dim],
    # inputs before outputs
    data: Path | None = None
    model_dim: int = 32  # width of the activation that the dictionary reads
    # width of the activation that a transcoder predicts; none: an autoencoder
    output_dim: int | None = setting(None, defines_model=True, least=1, most=MAX_WIDTH)
    # number of dictionary features
    num_features: int = setting(256, defines_model=True, least=1, most=MAX_WIDTH)
    # maximum number of active features per row; none: gated features, whose number is limited by sparsity
    k: int | None = setting(8, defines_model=True, least=1)
    # weight of the gates' L1 norm in the loss, if k is none; the squared error grows with the square of the activation
    sparsity: float = setting(0.3, least=0)
    held_out: int = setting(4096, least=1)  # number of rows for validation, and for test
    batch_size: int = 1024  # rows per step
    lr: float = 2e-3  # peak learning rate of the schedule

    @property
    def target_dim(self) -> int:
        """Width of the activation that is reconstructed."""
        return self.output_dim or self.model_dim

    @property
    def default_criterion(self) -> Criterion:
        """The largest explained part of the validation rows' variance."""
        return Criterion("explained_variance", "max")


def dictionary_data(config: DictionaryConfig) -> TaskData:
    """Load the rows of a file; the last ones are held out for validation and test.

    An `ActivationStream` shuffles the rows of each chunk. Unless the held-out rows fill whole chunks, an example may
    have some rows among them and others in the training set.

    Raises:
        InputError: there is no such file, or it has too few rows or rows of another width.
    """
    if config.data is None:
        raise InputError("data is None; it must be a file of rows from ActivationStream.write")
    with outside_file(config.data, "a NumPy array", sys.maxsize) as file:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    width = config.model_dim + (config.output_dim or 0)
    if rows.ndim != 2 or rows.shape[1] != width or rows.dtype.kind != "f":
        raise InputError(
            f"data is {config.data} with {rows.dtype} {rows.shape}; it must be an array of floats"
            f" [N, {width}]"
        )
    size = config.held_out
    if len(rows) <= 2 * size:
        raise InputError(f"held_out is {size}; it must be less than half of the {len(rows)} rows")
    train, val, test = np.split(rows, [-2 * size, -size])
    targets = train[:FOR_MEAN, -config.target_dim :]
    mean = targets.mean(0, dtype=np.float64).astype(np.float32)
    sets = [ArrayDataset(part, ()) for part in (train, val, test)]
    return TaskData(*task_loaders(config, *sets), constants=mean)


class DictionaryTrainer(TrainerModule):
    """Trains a `SparseDictionary`; `predict` returns reconstructions and features."""

    name = "DictionaryTask"
    config_class = DictionaryConfig
    config: DictionaryConfig
    model: SparseDictionary
    writes_predictions = False
    attention_picture = None
    dataset_metric_names = ("explained_variance", "dead")

    load_data = staticmethod(dictionary_data)

    def create_model(self) -> SparseDictionary:
        config = self.config
        return SparseDictionary(config.num_features, config.model_dim, config.output_dim, config.k)

    @property
    def dictionary(self) -> SparseDictionary:
        """The dictionary, bound to its best parameters: `trainer.dictionary.encode(x)`."""
        return self.model.bind(self.variables)

    def model_inputs(self, inputs: Float[ArrayLike, "B D"]) -> tuple[Array]:
        return (jnp.asarray(inputs)[..., : self.config.model_dim],)

    def target(self, inputs: Float[ArrayLike, "B D"]) -> Float[Array, "B E"]:
        """Part of each row to reconstruct: all of it for an autoencoder, the last columns for a transcoder."""
        return jnp.asarray(inputs)[..., -self.config.target_dim :]

    def initial_params(self, key: PRNGKeyArray, inputs: Inputs, constants: Arrays = None) -> Params:
        """Initialize the parameters; the decoder's bias is the mean of the training targets if `constants` has it."""
        params = super().initial_params(key, inputs, constants)
        return params if constants is None else {**params, "decoder_bias": constants}

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        target = self.target(batch.inputs)
        output, features = self.apply(params, batch.inputs, key, train=train)
        losses = jnp.square(target - output).sum(-1)  # [B]
        if self.config.k is None:
            losses += self.apply(
                params,
                batch.inputs,
                train=train,
                method="gate_loss",
                target=target,
                sparsity=self.config.sparsity,
            )
        return {"loss": (losses, 1.0), "active": ((features > 0).sum(-1), 1.0)}

    def predict(self, inputs: Float[ArrayLike, "B D"]) -> Reconstruction:
        """Reconstruct rows, in the format of the data; return reconstructions and features as NumPy arrays."""
        return self.forward(inputs)

    def dataset_metrics(self, params: Params, loader: Iterable[Samples]) -> dict[str, float]:
        """Explained part of the targets' variance, and number of features that are 0 for all rows."""
        error = 0.0
        square = 0.0
        number = 0
        total = np.zeros(self.config.target_dim)
        is_dead = np.ones(self.config.num_features, bool)
        for inputs, _ in loader:
            output, features = self.forward(inputs, params=params)
            target = np.asarray(self.target(inputs), np.float64)
            error += np.square(target - output).sum()
            square += np.square(target).sum()
            total += target.sum(0)
            number += len(target)
            is_dead &= (features <= 0).all(0)
        variance = square - np.square(total).sum() / number
        return {"explained_variance": float(1 - error / variance), "dead": float(is_dead.sum())}


@check_arguments
def train_dictionary(
    config: DictionaryConfig | None = None, **settings: object
) -> tuple[DictionaryTrainer, Results]:
    """Train and test; leave a run directory with checkpoints and results.

    Args:
        config: the run's settings; the defaults of `DictionaryConfig` if None.
        **settings: fields of the config to replace.

    Returns:
        As `train_and_test`.
    """
    config = chosen_config(config, DictionaryConfig(), settings, DictionaryTrainer.name)
    return train_and_test(DictionaryTrainer, config, dictionary_data)
