"""Transformer in PyTorch, exported from transformer-jax; it needs only PyTorch.

    model = load_model()  # with the trained weights, from weights.pt beside this file

A `TransformerPredictor` takes features, `model(x)`; a `Transformer` takes token ids, `model(source, target,
source_mask)`. Attributes have the same names as in the JAX modules.

B batch, T query or target length, S key or source length, D model width, H heads, d = D / H, F feed-forward width,
L layers, C classes, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

WEIGHTS = Path(__file__).with_name("weights.pt")
ACTIVATIONS = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(approximate="tanh"),
    "exact_gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "elu": nn.ELU(),
    "leaky_relu": nn.LeakyReLU(),
}


@dataclass(frozen=True)
class Settings:
    """Sizes and settings of both models."""

    model_dim: int  # D
    num_heads: int  # H
    dim_feedforward: int  # F
    dropout_prob: float
    attention_dropout_prob: float  # dropout probability of the attention weights
    norm_first: bool  # pre-norm instead of the original paper's post-norm
    activation: str  # of the feed-forward, a key of `ACTIVATIONS`
    layer_norm_epsilon: float
    final_norm: bool  # a LayerNorm after the last block
    max_len: int  # number of positions in the table


class PositionalEncoding(nn.Module):
    """Add `PE[pos, 2i] = sin(pos / 10000^(2i/D))` and `PE[pos, 2i+1] = cos(pos / 10000^(2i/D))` to `[B, T, D]`."""

    table: Tensor  # [max_len D]

    def __init__(self, model_dim: int, max_len: int) -> None:
        super().__init__()
        position = torch.arange(max_len, dtype=torch.float64)[:, None]  # [T 1]
        angle = position * 10000.0 ** (
            -torch.arange(0, model_dim, 2, dtype=torch.float64) / model_dim
        )
        table = torch.empty(max_len, model_dim)
        table[:, 0::2] = angle.sin()
        table[:, 1::2] = angle[:, : model_dim // 2].cos()
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length, max_len = x.shape[1], len(self.table)
        if length > max_len:
            raise ValueError(f"the sequence has {length} positions; max_len is {max_len}")
        return x + self.table[:length]


class MultiheadAttention(nn.Module):
    """Attend from `x` `[B, T, D]` to `memory` `[B, S, D]`; a query that sees no key gets zeros."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        model_dim = settings.model_dim
        self.num_heads = settings.num_heads
        self.dropout_prob = settings.attention_dropout_prob
        self.query_proj = nn.Linear(model_dim, model_dim)
        self.key_proj = nn.Linear(model_dim, model_dim)
        self.value_proj = nn.Linear(model_dim, model_dim)
        self.output_proj = nn.Linear(model_dim, model_dim)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        query = self.split_heads(self.query_proj(x))  # [B H T d]
        key = self.split_heads(self.key_proj(memory))  # [B H S d]
        value = self.split_heads(self.value_proj(memory))
        dropout = self.dropout_prob if self.training else 0.0
        if mask is None:
            values = functional.scaled_dot_product_attention(query, key, value, None, dropout)
        else:
            # Before PyTorch 2.5, a softmax over no key is NaN: a query without keys attends to all, then gets zeros.
            sees = mask.any(-1, keepdim=True)
            values = functional.scaled_dot_product_attention(
                query, key, value, mask | ~sees, dropout
            )
            values = values.masked_fill(~sees, 0.0)
        return self.output_proj(values.transpose(1, 2).flatten(2))  # [B T D]

    def split_heads(self, x: Tensor) -> Tensor:
        """`[B, T, D]` as `[B, H, T, d]`."""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers, applied to each position separately."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.expand = nn.Linear(settings.model_dim, settings.dim_feedforward)
        self.activation = ACTIVATIONS[settings.activation]
        self.dropout = nn.Dropout(settings.dropout_prob)
        self.contract = nn.Linear(settings.dim_feedforward, settings.model_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.dropout(self.activation(self.expand(x))))


class Residual(nn.Module):
    """Residual connection around a sub-layer, with its dropout and its LayerNorm."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.norm_first = settings.norm_first
        self.norm = nn.LayerNorm(settings.model_dim, eps=settings.layer_norm_epsilon)
        self.dropout = nn.Dropout(settings.dropout_prob)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class Block(nn.Module):
    """Self-attention, attention to the encoder's output (decoder only), then feed-forward."""

    def __init__(self, settings: Settings, is_decoder: bool) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(settings)
        self.self_attn_residual = Residual(settings)
        if is_decoder:
            self.cross_attn = MultiheadAttention(settings)
            self.cross_attn_residual = Residual(settings)
        self.feed_forward = FeedForward(settings)
        self.feed_forward_residual = Residual(settings)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        x = self.self_attn_residual(x, lambda h: self.self_attn(h, h, mask))
        if memory is not None:
            x = self.cross_attn_residual(x, lambda h: self.cross_attn(h, memory, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward)


class Stack(nn.Module):
    """Blocks of an encoder or a decoder, with a LayerNorm after the last one if `final_norm` is set."""

    def __init__(self, settings: Settings, num_layers: int, is_decoder: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(settings, is_decoder) for _ in range(num_layers))
        norm = nn.LayerNorm(settings.model_dim, eps=settings.layer_norm_epsilon)
        self.norm = norm if settings.final_norm else nn.Identity()

    def forward(self, x: Tensor, *inputs: Tensor | None) -> Tensor:
        for layer in self.layers:
            x = layer(x, *inputs)
        return self.norm(x)


def expand_mask(mask: Tensor | None) -> Tensor | None:
    """Convert a mask `[T, S]`, `[B, T, S]` or `[B, H, T, S]` to booleans that broadcast against `[B, H, T, S]`."""
    if mask is None:
        return None
    return mask.bool().unsqueeze(1) if mask.dim() == 3 else mask.bool()


class TransformerPredictor(nn.Module):
    """Encoder between an input layer and an output network that predicts for every element of a sequence or set."""

    def __init__(
        self,
        settings: Settings,
        num_features: int,
        num_classes: int,
        num_layers: int,
        input_dropout_prob: float,
    ) -> None:
        super().__init__()
        model_dim = settings.model_dim
        self.input_dropout = nn.Dropout(input_dropout_prob)
        self.input_layer = nn.Linear(num_features, model_dim)
        self.positional_encoding = PositionalEncoding(model_dim, settings.max_len)
        self.encoder = Stack(settings, num_layers)
        self.output_hidden = nn.Linear(model_dim, model_dim)
        self.output_norm = nn.LayerNorm(model_dim, eps=settings.layer_norm_epsilon)
        self.output_dropout = nn.Dropout(settings.dropout_prob)
        self.output_layer = nn.Linear(model_dim, num_classes)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, add_positional_encoding: bool = True
    ) -> Tensor:
        """Predict each element's logits.

        Args:
            x: features `[B, T, num_features]`.
            mask: True = may attend; `[T, T]`, `[B, T, T]` or `[B, H, T, T]`, where any size may be 1; `valid[:, None,
                None, :]` hides padding.
            add_positional_encoding: False for a set, whose elements have no order.

        Returns:
            Logits `[B, T, C]`.
        """
        x = self.input_layer(self.input_dropout(x))  # [B T D]
        if add_positional_encoding:
            x = self.positional_encoding(x)
        x = self.encoder(x, expand_mask(mask))
        x = functional.relu(self.output_norm(self.output_hidden(x)))
        return self.output_layer(self.output_dropout(x))


class Transformer(nn.Module):
    """Encoder and decoder over tokens (Vaswani et al. 2017)."""

    def __init__(
        self,
        settings: Settings,
        source_vocabulary_size: int,
        target_vocabulary_size: int,  # V
        num_encoder_layers: int,
        num_decoder_layers: int,
        tie_embeddings: bool,  # one matrix embeds source and target and projects to logits
    ) -> None:
        super().__init__()
        self.tie_embeddings = tie_embeddings
        self.source_embedding = nn.Embedding(source_vocabulary_size, settings.model_dim)
        if not tie_embeddings:
            self.target_embedding = nn.Embedding(target_vocabulary_size, settings.model_dim)
            self.output_layer = nn.Linear(settings.model_dim, target_vocabulary_size)
        self.positional_encoding = PositionalEncoding(settings.model_dim, settings.max_len)
        self.embedding_dropout = nn.Dropout(settings.dropout_prob)
        self.encoder = Stack(settings, num_encoder_layers)
        self.decoder = Stack(settings, num_decoder_layers, is_decoder=True)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Predict the token after each target position, all in one pass.

        Args:
            source: token ids `[B, S]`.
            target: token ids `[B, T]`; position t sees the ids up to t.
            source_mask: True = may attend; `(source != PAD)[:, None, None, :]` hides padding.
            target_mask: mask of the decoder's self-attention, combined with the causal mask.

        Returns:
            Logits `[B, T, V]`.
        """
        return self.decode(target, self.encode(source, source_mask), target_mask, source_mask)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Output of the encoder `[B, S, D]`."""
        return self.encoder(self.embed(source, self.source_embedding), expand_mask(source_mask))

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        target_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits `[B, T, V]` of the token after each position, given the encoder's output."""
        x = self.embed(
            target, self.source_embedding if self.tie_embeddings else self.target_embedding
        )
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()  # [T T]
        if (visible := expand_mask(target_mask)) is not None:
            mask = mask & visible
        x = self.decoder(x, mask, memory, expand_mask(source_mask))
        return (
            functional.linear(x, self.source_embedding.weight)
            if self.tie_embeddings
            else self.output_layer(x)
        )

    def embed(self, tokens: Tensor, embedding: nn.Embedding) -> Tensor:
        """Embeddings `[B, T, D]`, scaled, with positions."""
        x = embedding(tokens) * embedding.embedding_dim**0.5
        return self.embedding_dropout(self.positional_encoding(x))

    @torch.no_grad()
    def translate(
        self,
        source: Tensor,
        start_token: int,
        end_token: int,
        max_length: int,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        """Translate by greedy decoding: append the most likely token, one at a time.

        Returns:
            Token ids `[B, at most max_length]`; a row is filled with `end_token` after its first one.
        """
        memory = self.encode(source, source_mask)
        tokens = source.new_full((len(source), 1), start_token)
        ended = torch.zeros_like(tokens, dtype=torch.bool)  # [B 1]
        while tokens.shape[1] <= max_length and not ended.all():
            logits = self.decode(tokens, memory, source_mask=source_mask)[:, -1:]  # [B 1 V]
            token = logits.argmax(-1).masked_fill(ended, end_token)
            tokens = torch.cat([tokens, token], dim=1)
            ended = ended | (token == end_token)
        return tokens[:, 1:]


def load_model() -> TransformerPredictor | Transformer:
    """Load the trained model in evaluation mode, on the CPU; `model.train()` turns dropout on for fine-tuning."""
    saved = torch.load(WEIGHTS, map_location="cpu", weights_only=True)
    model_class = Transformer if "num_decoder_layers" in saved["sizes"] else TransformerPredictor
    model = model_class(Settings(**saved["settings"]), **saved["sizes"])
    model.load_state_dict(saved["state_dict"])
    return model.eval()
