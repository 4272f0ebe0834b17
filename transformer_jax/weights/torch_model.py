"""Transformer in PyTorch, exported from transformer-jax; it needs only PyTorch, 2.5 or newer.

    model = load_model()  # with the trained weights, from weights.pt beside this file

A `TransformerPredictor` takes features, `model(x)`; a `Transformer` takes token ids, `model(source, target,
source_mask)`. Attributes have the same names as in the JAX modules; blocks are PyTorch's own layers.

B batch, T query or target length, S key or source length, D model width, H heads, F feed-forward width, L layers,
C classes, V vocabulary.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Mask: TypeAlias = Tensor | None  # True = may attend
WEIGHTS = Path(__file__).with_name("weights.pt")
# Not `functional.relu` or `functional.gelu` themselves: PyTorch then calls its fast inference kernel, which returns NaN
# for a query that sees no key.
ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": functools.partial(functional.gelu, approximate="tanh"),
    "exact_gelu": functools.partial(functional.gelu, approximate="none"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "elu": functional.elu,
    "leaky_relu": functional.leaky_relu,
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
        frequencies = 10000.0 ** (-torch.arange(0, model_dim, 2, dtype=torch.float64) / model_dim)
        angles = torch.arange(max_len)[:, None] * frequencies
        table = torch.stack([angles.sin(), angles.cos()], dim=-1)  # [max_len, pairs, 2]
        table = table.flatten(1)[:, :model_dim].float()  # an odd D leaves the last cosine out
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        max_len = len(self.table)
        if length > max_len:
            raise ValueError(f"the sequence has {length} positions; max_len is {max_len}")
        return x + self.table[:length]


class Stack(nn.Module):
    """Blocks of an encoder or a decoder, with a LayerNorm after the last one if `final_norm` is set."""

    def __init__(self, settings: Settings, num_layers: int, is_decoder: bool = False) -> None:
        super().__init__()
        layer_class = nn.TransformerDecoderLayer if is_decoder else nn.TransformerEncoderLayer
        self.num_heads = settings.num_heads
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            layer = layer_class(
                settings.model_dim,
                settings.num_heads,
                settings.dim_feedforward,
                settings.dropout_prob,
                ACTIVATIONS[settings.activation],
                settings.layer_norm_epsilon,
                batch_first=True,
                norm_first=settings.norm_first,
            )
            self.layers.append(layer)
        self.norm = nn.Identity()
        if settings.final_norm:
            self.norm = nn.LayerNorm(settings.model_dim, settings.layer_norm_epsilon)
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = settings.attention_dropout_prob

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask = None,
    ) -> Tensor:
        """Run the blocks on `x` `[B, T, D]`; a decoder's also attend to `memory` `[B, S, D]`, the encoder's output."""
        inputs = [self.hidden_keys(mask, x, x)]
        if memory is not None:
            inputs = [memory, *inputs, self.hidden_keys(memory_mask, x, memory)]
        for layer in self.layers:
            x = layer(x, *inputs)
        return self.norm(x)

    def hidden_keys(self, mask: Mask, x: Tensor, memory: Tensor) -> Mask:
        """Convert a mask to PyTorch's `[B·H, T, S]`, where True hides a key; the attention of `x` is to `memory`."""
        if mask is None:
            return None
        shape = x.shape[0], self.num_heads, x.shape[1], memory.shape[1]
        return ~with_heads_axis(mask).expand(shape).flatten(0, 1)


def with_heads_axis(mask: Tensor) -> Tensor:
    """Convert a mask `[T, S]`, `[B, T, S]` or `[B, H, T, S]` to booleans that broadcast against `[B, H, T, S]`."""
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

    def forward(self, x: Tensor, mask: Mask = None, add_positional_encoding: bool = True) -> Tensor:
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
        x = self.encoder(x, mask)
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
        source_mask: Mask = None,
        target_mask: Mask = None,
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

    def encode(self, source: Tensor, source_mask: Mask = None) -> Tensor:
        """Output of the encoder `[B, S, D]`."""
        return self.encoder(self.embed(source, self.source_embedding), source_mask)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        target_mask: Mask = None,
        source_mask: Mask = None,
    ) -> Tensor:
        """Logits `[B, T, V]` of the token after each position, given the encoder's output."""
        embedding = self.source_embedding if self.tie_embeddings else self.target_embedding
        x = self.embed(target, embedding)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()  # [T T]
        if target_mask is not None:
            mask = mask & with_heads_axis(target_mask)
        x = self.decoder(x, mask, memory, source_mask)
        if self.tie_embeddings:
            return functional.linear(x, embedding.weight)
        return self.output_layer(x)

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
        source_mask: Mask = None,
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
