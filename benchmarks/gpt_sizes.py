"""Sizes of the GPTs in `accelerator.py`, and their FLOPs."""

from typing import NamedTuple


class GPTSizes(NamedTuple):
    """Sizes of a GPT-2 and of a batch."""

    model_dim: int = 768
    num_heads: int = 12
    num_layers: int = 12
    dim_feedforward: int = 3072
    vocabulary: int = 50304
    length: int = 1024
    batch_size: int = 32

    @property
    def parameters(self) -> int:
        """Number of parameters, position embeddings excluded."""
        products = 4 * self.model_dim**2 + 2 * self.model_dim * self.dim_feedforward
        vectors = 9 * self.model_dim + self.dim_feedforward  # biases, and two norms
        return (
            self.num_layers * (products + vectors)
            + (self.vocabulary + 2) * self.model_dim  # tied embeddings, and the last norm
        )

    @property
    def flops_per_token(self) -> int:
        """6 per parameter, plus 6 L D T for causal attention; recomputed products count once."""
        return 6 * self.parameters + 6 * self.num_layers * self.model_dim * self.length


SIZES = {
    "124 M": GPTSizes(),
    "350 M": GPTSizes(1024, 16, 24, 4096, batch_size=16),
    "1.3 B": GPTSizes(2048, 16, 24, 8192, batch_size=8),
    "tiny": GPTSizes(16, 2, 1, 64, 307, 16, 8),
}
