"""Linear regression in context (Garg et al. 2022, *What Can Transformers Learn In-Context?*, the toy of their code).

Each prompt x_1, y_1, x_2, y_2, … comes from a new random linear function. A causal Transformer predicts each y_i from
x_i and the earlier pairs. `results.json` contains `curve`, the squared error / d after 0, 1, … examples, and
`least_squares`, the same for a least-squares fit.

    python experiments/papers/in_context.py --seeds 0..2
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from presets import FreshConfig, PaperTrainer, fresh, main

from transformer_jax import BlockSettings, LearnedPositions, TaskData, setting
from transformer_jax.nn import CausalStack

QUICK = {"steps": 7, "test_size": 101, "num_layers": 1, "model_dim": 16, "num_heads": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class InContextConfig(FreshConfig):
    """Train a Transformer to learn linear functions from the examples of its prompt."""

    num_dims: int = setting(5, defines_model=True, least=1)  # numbers in each x
    num_points: int = setting(11, defines_model=True, least=1)  # pairs (x, y) in a prompt
    steps: int = setting(5001, least=1)  # of training, each with prompts of its own
    test_size: int = setting(6400, least=1)  # prompts of validation, and of test
    model_dim: int = 256  # width of the model
    num_heads: int = 8  # attention heads
    num_layers: int = 12  # blocks
    batch_size: int = 64  # prompts in one step
    lr: float = 1e-4  # learning rate


def prompts(config: InContextConfig) -> TaskData:
    """Prompts x `[N, P, d]`, y `[N, P]`: y = w x with x and w standard normal, redrawn for each step and split."""

    def draw(
        rng: np.random.Generator, size: int, _: bool
    ) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        x = rng.standard_normal((size, config.num_points, config.num_dims), np.float32)
        y = np.einsum("npd,nd->np", x, rng.standard_normal((size, config.num_dims), np.float32))
        return (x, y), y

    return fresh(config, draw)


class InContextModel(nn.Module):
    """GPT-2 over vectors: alternates x and zero-padded y, and predicts each y at the position of its x."""

    sizes: tuple[int, int, int]  # L, D, H

    @nn.compact
    def __call__(self, x, y, *, train: bool = False):
        depth, width, num_heads = self.sizes
        y = jnp.pad(y[..., None], ((0, 0), (0, 0), (0, x.shape[-1] - 1)))
        tokens = jnp.stack([x, y], 2).reshape(len(x), -1, x.shape[-1])  # [B 2P d]
        positions = LearnedPositions(tokens.shape[1]).encoding(width, tokens.shape[1])
        settings = BlockSettings(norm_first=True, activation=nn.gelu)
        stack = CausalStack(depth, width, num_heads, 4 * width, settings=settings)
        # [B P]
        return nn.Dense(1)(stack(positions(nn.Dense(width)(tokens)), train=train))[:, ::2, 0]


class InContextTrainer(PaperTrainer):
    name = "InContextRegression"
    config_class = InContextConfig
    load_data = staticmethod(prompts)

    def create_model(self):
        return InContextModel(
            (self.config.num_layers, self.config.model_dim, self.config.num_heads)
        )

    def model_inputs(self, inputs):
        return inputs

    def loss_function(self, params, batch, key, *, train):
        return {
            "loss": ((self.apply(params, batch.inputs, key, train=train) - batch.targets) ** 2, 1.0)
        }


def compare(trainer: InContextTrainer, data: TaskData) -> dict[str, dict[str, float]]:
    """Squared error / d by number of examples, for the model and for minimum-norm least squares."""
    x, y = data.test_loader.dataset.inputs
    answers = np.concatenate([trainer.forward(inputs) for inputs, _ in data.test_loader])
    solve = jax.jit(
        lambda x, y, x_new: jnp.einsum(
            "nd,nd->n", (jnp.linalg.pinv(x) @ y[..., None])[..., 0], x_new
        )
    )
    least = [
        np.zeros(len(y)),
        *(np.asarray(solve(x[:, :i], y[:, :i], x[:, i])) for i in range(1, y.shape[1])),
    ]
    curves = {"curve": answers, "least_squares": np.stack(least, 1)}
    curves = {name: ((found - y) ** 2).mean(0) / x.shape[-1] for name, found in curves.items()}
    return {
        name: {str(i): float(error) for i, error in enumerate(curve)}
        for name, curve in curves.items()
    }


if __name__ == "__main__":
    main(InContextTrainer, {"quick": QUICK}, compare)
