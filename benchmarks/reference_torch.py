"""Reference loop: the same model and procedure in eager PyTorch, on CUDA if available, else on all CPU cores."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from reference_loop import ReferenceLoop
from reference_tasks import ReferenceTask, positions

LAYER_NORM_EPSILON = 1e-6  # Flax's default; PyTorch's is 1e-5


class SelfAttention(nn.Module):
    """Multi-head self-attention, its three input projections fused into one."""

    def __init__(self, model_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(model_dim, 3 * model_dim)
        self.output_proj = nn.Linear(model_dim, model_dim)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape  # noqa: N806
        qkv = self.qkv_proj(x).reshape(B, T, self.num_heads, -1).transpose(1, 2)  # [B H T 3d]
        query, key, value = qkv.chunk(3, dim=-1)  # [B H T d] each
        logits = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # [B H T T]
        values = logits.softmax(dim=-1) @ value  # [B H T d]
        return self.output_proj(values.transpose(1, 2).reshape(B, T, D))


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward network, each followed by dropout, residual connection and LayerNorm."""

    def __init__(self, model_dim: int, num_heads: int, dropout_prob: float) -> None:
        super().__init__()
        self.self_attn = SelfAttention(model_dim, num_heads)
        self.feed_forward = nn.Sequential(
            nn.Linear(model_dim, 2 * model_dim),
            nn.ReLU(),
            nn.Dropout(dropout_prob),
            nn.Linear(2 * model_dim, model_dim),
        )
        self.norm1 = nn.LayerNorm(model_dim, LAYER_NORM_EPSILON)
        self.norm2 = nn.LayerNorm(model_dim, LAYER_NORM_EPSILON)
        self.dropout = nn.Dropout(dropout_prob)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.self_attn(x)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


class Predictor(nn.Module):
    """Input layer, encoder, and an output network that predicts for every element."""

    def __init__(self, task: ReferenceTask) -> None:
        super().__init__()
        D = task.model_dim  # noqa: N806
        self.input_net = nn.Sequential(
            nn.Dropout(task.input_dropout_prob), nn.Linear(task.input_dim, D)
        )
        table = positions(task.seq_len, D) if task.is_sequence else np.zeros(1, np.float32)
        self.register_buffer("positions", torch.from_numpy(table), persistent=False)
        self.encoder = nn.Sequential(
            *[EncoderBlock(D, task.num_heads, task.dropout_prob) for _ in range(task.num_layers)]
        )
        self.output_net = nn.Sequential(
            nn.Linear(D, D),
            nn.LayerNorm(D, LAYER_NORM_EPSILON),
            nn.ReLU(),
            nn.Dropout(task.dropout_prob),
            nn.Linear(D, task.num_classes),
        )
        self.apply(initialize)

    def forward(self, x: Tensor) -> Tensor:
        return self.output_net(self.encoder(self.input_net(x) + self.positions))  # [B T C]


def initialize(module: nn.Module) -> None:
    """Initialize a module as Flax does: zero biases, LeCun-normal kernels; Xavier-uniform ones in attention."""
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
        # Truncation at two standard deviations leaves 0.8796 of the standard deviation.
        std = module.in_features**-0.5 / 0.87962566103423978
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, SelfAttention):  # its children were initialized before
        nn.init.xavier_uniform_(module.qkv_proj.weight)
        nn.init.xavier_uniform_(module.output_proj.weight)


def learning_rate_factor(step: int, warmup: int, num_steps: int) -> float:
    """Fraction of the peak rate: linear 0 → 1 over the warm-up, then a cosine to 0 that ends at `num_steps`."""
    if step < warmup:
        return step / warmup
    progress = min(1.0, (step - warmup) / (num_steps - warmup))
    return 0.5 * (1 + math.cos(math.pi * progress))


class ReferenceTorch(ReferenceLoop):
    """The loop in PyTorch."""

    pin_memory = torch.cuda.is_available()

    def __init__(self, task: ReferenceTask, seed: int) -> None:
        super().__init__(task, seed)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(seed)
        self.model = Predictor(task).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=task.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: learning_rate_factor(step, task.warmup, self.num_steps)
        )

    def train_step(self, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        self.model.train()
        self.optimizer.zero_grad()
        inputs, *_, labels = (field.to(self.device, non_blocking=True) for field in batch)
        if self.task.is_sequence:
            inputs = F.one_hot(inputs, self.task.input_dim).float()
        logits = self.model(inputs)  # [B T C]
        if not self.task.is_sequence:
            logits = logits[..., 0]  # [B T], the classes are the elements of the set
        loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.task.gradient_clip)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach(), (logits.argmax(-1) == labels).float().mean()

    def fetch(self, metrics: Sequence[tuple[Tensor, ...]]) -> np.ndarray:
        return torch.stack([torch.stack(step) for step in metrics]).cpu().numpy()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
