"""Label smoothing: the loss is PyTorch's; training uses it, evaluation does not."""

import flax.linen as nn
import jax
import numpy as np
import pytest
import torch

from transformer_jax import LanguageModelConfig
from transformer_jax.data import Batch
from transformer_jax.tasks import LanguageModelTrainer
from transformer_jax.tasks.translation.pairs import PairInputs
from transformer_jax.tasks.translation.task import TranslationConfig, TranslationTrainer
from transformer_jax.training.token_losses import cross_entropy

B, T, PAD = 3, 5, 256
TARGETS = np.array([[7, 11, 13, 258, PAD], [17, 258, PAD, PAD, PAD], [19, 23, 29, 31, 258]], np.int32)
REAL = TARGETS != PAD


def logits_of(vocabulary: int) -> np.ndarray:
    return 3 * np.random.default_rng(0).standard_normal((B, T, vocabulary), np.float32)


def of_torch(logits: torch.Tensor, smoothing: float, **options) -> torch.Tensor:
    loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing, ignore_index=PAD, **options)
    return loss(logits.flatten(0, 1), torch.tensor(TARGETS.ravel()).long())


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_losses_and_gradients_are_those_of_pytorch_with_padding(smoothing):
    logits = logits_of(259)
    inputs = torch.tensor(logits, requires_grad=True)
    expected = of_torch(inputs, smoothing)
    expected.backward()

    def mean_loss(logits: jax.Array) -> jax.Array:
        return (cross_entropy(logits, TARGETS, smoothing) * REAL).sum() / REAL.sum()

    found, gradient = jax.value_and_grad(mean_loss)(logits)
    assert float(found) == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(gradient, inputs.grad, atol=1e-6)


class Fixed(nn.Module):
    """A model that returns fixed logits."""

    vocabulary: int

    def __call__(self, *inputs, train):
        return jax.numpy.asarray(logits_of(self.vocabulary))


TRANSLATOR = TranslationTrainer(TranslationConfig(label_smoothing=0.1), model=Fixed(259))
LANGUAGE_MODEL = LanguageModelTrainer(LanguageModelConfig(label_smoothing=0.1), model=Fixed(259))


@pytest.mark.parametrize(
    ("trainer", "inputs", "targets"),
    [(TRANSLATOR, PairInputs(TARGETS, TARGETS), TARGETS), (LANGUAGE_MODEL, TARGETS, np.where(REAL, TARGETS, -1))],
)
def test_training_smooths_the_loss_and_evaluation_does_not(trainer, inputs, targets):
    batch = Batch(inputs, targets, np.ones(B, bool))
    trained = trainer.loss_function({}, batch, None, train=True)
    evaluated = trainer.loss_function({}, batch, None, train=False)
    logits = torch.tensor(logits_of(259))
    smoothed, plain = (of_torch(logits, smoothing, reduction="none").reshape(B, T) for smoothing in (0.1, 0.0))
    for elements, name, expected in [
        (trained, "loss", smoothed), (trained, "cross_entropy", plain), (evaluated, "loss", plain),
    ]:  # fmt: skip
        values, weights = elements[name]
        np.testing.assert_array_equal(weights, REAL)
        np.testing.assert_allclose(np.where(REAL, values, 0), expected, atol=2e-6)  # of values up to 15
    assert evaluated.keys() == trained.keys() - {"cross_entropy"}
    if "bits_per_byte" in trained:
        np.testing.assert_array_equal(trained["bits_per_byte"][0], evaluated["bits_per_byte"][0])
