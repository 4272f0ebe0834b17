"""Task: reverse a sequence of categories. The smallest problem that needs attention to positions."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PRNGKeyArray

from transformer_jax.argument_checks import as_array, check_arguments, check_scores, check_token_ids
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import ArrayDataset, Batch
from transformer_jax.errors import check_probability, check_sizes
from transformer_jax.fields import setting
from transformer_jax.fit.trainer import TrainerModule
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.outside_files import Json
from transformer_jax.tasks.block_settings import block_settings
from transformer_jax.tasks.task_data import TaskData, check_same_settings, task_loaders
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Params

if TYPE_CHECKING:
    from transformer_jax.training.inspected_example import InspectedExample

Numbers: TypeAlias = ArrayLike | Sequence[int] | Sequence[Sequence[int]]  # one sequence, or many


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverseConfig(TrainingConfig):
    """Train a Transformer to reverse sequences.

    The defaults reach 100 % on validation and on test, in about 12 seconds on two CPU cores: B = 128, T = 16, C = 10,
    D = 32, one head, one post-norm block.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    # numbers in a sequence
    seq_len: int = setting(16, defines_model=True, least=1, most=TransformerPredictor.max_len)
    # number of distinct values, from 0 up
    num_categories: int = setting(10, defines_model=True, least=2, most=2**20)
    train_size: int = setting(50_000, least=1)  # number of sequences in the training set
    val_size: int = setting(1_000, least=1)  # number of sequences in the validation set
    test_size: int = setting(10_000, least=1)  # number of sequences in the test set
    # dropout probability of the one-hot inputs
    input_dropout_prob: float = setting(0.0, defines_model=True, check=check_probability)

    def check_trained_on(self, trained: "ReverseConfig", what: str) -> None:
        check_same_settings(self, trained, what, "seq_len", "num_categories")


class ReverseDataset(ArrayDataset):
    """Sequences of numbers drawn uniformly, each with its reverse as the target.

    Args:
        num_categories: the numbers are 0 … num_categories - 1.
        seq_len: T, numbers in a sequence.
        size: number of sequences in the set.
        seed: seed of NumPy's default generator, which draws the whole set at once.

    Raises:
        InputError: the seed is negative, or another argument is below 1.
    """

    def __init__(
        self, num_categories: int = 10, seq_len: int = 16, size: int = 50_000, seed: int = 42
    ) -> None:
        check_sizes(num_categories=num_categories, seq_len=seq_len, size=size)
        check_sizes(0, seed=seed)
        draws = np.random.default_rng(seed).integers(num_categories, size=(size, seq_len))
        inputs = draws.astype(np.int32)  # [N T]
        # PyTorch, which hands the arrays to worker processes, does not support negative strides
        super().__init__(inputs, inputs[:, ::-1].copy())


def reverse_data(config: ReverseConfig) -> TaskData:
    """Training, validation and test set, with the seeds 42, 43 and 44; the run's seed orders the training set."""
    dataset = functools.partial(ReverseDataset, config.num_categories, config.seq_len)
    train = dataset(config.train_size, seed=42)
    val = dataset(config.val_size, seed=43)
    test = dataset(config.test_size, seed=44)
    return TaskData(*task_loaders(config, train, val, test))


class ReverseTrainer(TrainerModule):
    """Trains a `TransformerPredictor` with positions to predict, at each position, the number at the mirrored one."""

    name, counted = "ReverseTask", "numbers"
    config_class = ReverseConfig
    config: ReverseConfig

    load_data = staticmethod(reverse_data)

    def create_model(self) -> TransformerPredictor:
        config = self.config
        return TransformerPredictor(
            model_dim=config.model_dim,
            num_classes=config.num_categories,
            num_heads=config.num_heads,
            num_layers=config.num_layers,
            settings=block_settings(config, config.seq_len),
            input_dropout_prob=config.input_dropout_prob,
        )

    def model_inputs(self, inputs: Int[ArrayLike, "B T"]) -> tuple[Array]:
        check_token_ids("inputs", jnp.asarray(inputs), self.config.num_categories)
        return (jax.nn.one_hot(inputs, self.config.num_categories),)  # [B T C]

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        logits = self.apply(params, batch.inputs, key, train=train)  # [B T C], of `model_inputs`
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)  # [B T]
        return {"loss": (losses, 1.0), "accuracy": (logits.argmax(-1) == batch.targets, 1.0)}

    def predict(self, inputs: Numbers) -> Int[np.ndarray, "*B T"]:
        """Reverse one sequence `[T]` or many `[B, T]`, as far as the model has learned to.

        Raises:
            InputError: `inputs` are not integers `[T]` or `[B, T]`, or one is outside 0 … num_categories - 1; or the
                model's logits are not finite.
        """
        logits: Float[np.ndarray, "B T C"] = self.forward(self._sequences(inputs))
        check_scores(logits.max(-1), f"{self.name} returned logits")
        numbers = logits.argmax(-1)  # [B T]
        return numbers[0] if self.is_one(inputs) else numbers

    def is_one(self, inputs: Numbers) -> bool:
        return np.ndim(inputs) == 1

    def examples(self, inputs: Numbers) -> "list[InspectedExample]":
        """Examples of one sequence `[T]` or many `[B, T]`, with their reverses; raises the errors of `predict`."""
        return [
            dataclasses.replace(example, expected=" ".join(reversed(example.title.split())))
            for example in super().examples(self._sequences(inputs))
        ]

    def _sequences(self, inputs: object) -> Int[np.ndarray, "B T"]:
        """The inputs as a batch."""
        array = np.asarray(as_array("inputs", inputs))
        shape = "[T]" if array.ndim == 1 else "[B, T]"
        check_token_ids("inputs", array, self.config.num_categories, shape)
        return np.atleast_2d(array).astype(np.int32)


@check_arguments
def train_reverse(
    config: ReverseConfig | None = None, **settings: object
) -> tuple[ReverseTrainer, Json]:
    """Do and return the same as `train_and_test`; leave a run directory with checkpoints, results and attention maps.

    Args:
        config: the run's settings; the defaults of `ReverseConfig` if None.
        **settings: fields of the config to replace.
    """
    # imported late, so that a reader of this file need not read the protocol of experiments
    from transformer_jax.tasks.experiment import chosen_config, train_and_test

    config = chosen_config(config, ReverseConfig(), settings, ReverseTrainer.name)
    return train_and_test(ReverseTrainer, config, reverse_data)
