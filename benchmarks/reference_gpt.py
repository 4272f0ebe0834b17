"""Reference: a character-level GPT and its training step in eager PyTorch, with the sizes of nanoGPT's CPU run.

Learned positions, pre-norm, GELU, no biases, tied embeddings, one fused projection for queries, keys and values; AdamW
without weight decay on vectors, gradients clipped at 1 (github.com/karpathy/nanoGPT, README and train.py). With biases
and ReLU it is the contestant of `gpt_contestants.py`.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Block(nn.Module):
    """Causal self-attention, then feed-forward, each after a norm and inside a residual connection."""

    def __init__(self, model_dim: int, num_heads: int, bias: bool, activation: nn.Module) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(model_dim, bias=bias)
        self.qkv_proj = nn.Linear(model_dim, 3 * model_dim, bias=bias)
        self.output_proj = nn.Linear(model_dim, model_dim, bias=bias)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(model_dim, bias=bias),
            nn.Linear(model_dim, 4 * model_dim, bias=bias),
            activation,
            nn.Linear(4 * model_dim, model_dim, bias=bias),
        )

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape  # noqa: N806
        qkv = self.qkv_proj(self.attention_norm(x)).view(B, T, 3, self.num_heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # [B H T d] each
        values = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output_proj(values.transpose(1, 2).reshape(B, T, D))
        return x + self.feed_forward(x)


class GPT(nn.Module):
    """Logits `[B, T, V]` of the next character."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        model_dim: int,
        num_heads: int,
        num_layers: int,
        *,
        bias: bool = False,
        activation: type[nn.Module] = nn.GELU,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, model_dim)
        self.positions = nn.Embedding(length, model_dim)
        blocks = [Block(model_dim, num_heads, bias, activation()) for _ in range(num_layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(model_dim, bias=bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.norm(self.blocks(x)) @ self.embedding.weight.T


class Training:
    """Steps of AdamW on batches of tokens `[B, T + 1]`."""

    def __init__(self, model: GPT) -> None:
        self.model = model
        kinds = [
            [p for p in model.parameters() if (p.ndim >= 2) == is_matrix]
            for is_matrix in (True, False)
        ]
        groups = [
            {"params": kinds[0], "weight_decay": 0.1},
            {"params": kinds[1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))

    def gradients(self, tokens: Tensor) -> Tensor:
        """Return the loss, and leave the gradients in the parameters' `grad`."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss

    def step(self, tokens: Tensor) -> None:
        self.gradients(tokens)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
