"""The models in PyTorch, and a function that loads one; an export has them behind the source of `torch_blocks`."""
# mypy: disable-error-code="no-any-return"
# As in `torch_blocks`.

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_jax.weights.torch_blocks import WEIGHTS, PositionalEncoding, Settings, Stack, expand_mask


class TransformerPredictor(nn.Module):
    """Encoder between an input layer and an output network that predicts for every element of a sequence or set."""

    def __init__(
        self, settings: Settings, num_features: int, num_classes: int, num_layers: int, input_dropout_prob: float
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

    def forward(self, x: Tensor, mask: Tensor | None = None, add_positional_encoding: bool = True) -> Tensor:
        """Predict each element's logits.

        Args:
            x: features `[B, T, num_features]`.
            mask: True = may attend, `[T, T]`, `[B, T, T]` or `[B, H, T, T]`, with 1 for any of them; `valid[:, None,
                None, :]` keeps padding out.
            add_positional_encoding: False for a set, whose order means nothing.

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
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """Predict the token after each target position, all in one pass.

        Args:
            source: token ids `[B, S]`.
            target: token ids `[B, T]`, of which position t sees those up to t.
            source_mask: True = may attend; `(source != PAD)[:, None, None, :]` keeps padding out.
            target_mask: of the decoder's self-attention, combined with the causal mask.

        Returns:
            Logits `[B, T, V]`.
        """
        return self.decode(target, self.encode(source, source_mask), target_mask, source_mask)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Output of the encoder `[B, S, D]`."""
        return self.encoder(self.embed(source, self.source_embedding), expand_mask(source_mask))

    def decode(
        self, target: Tensor, memory: Tensor, target_mask: Tensor | None = None, source_mask: Tensor | None = None
    ) -> Tensor:
        """Logits `[B, T, V]` of the token after each position, given the encoder's output."""
        x = self.embed(target, self.source_embedding if self.tie_embeddings else self.target_embedding)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()  # [T T]
        if (visible := expand_mask(target_mask)) is not None:
            mask = mask & visible
        x = self.decoder(x, mask, memory, expand_mask(source_mask))
        return functional.linear(x, self.source_embedding.weight) if self.tie_embeddings else self.output_layer(x)

    def embed(self, tokens: Tensor, embedding: nn.Embedding) -> Tensor:
        """Embeddings `[B, T, D]`, scaled, with positions."""
        x = embedding(tokens) * embedding.embedding_dim**0.5
        return self.embedding_dropout(self.positional_encoding(x))

    @torch.no_grad()
    def translate(
        self, source: Tensor, start_token: int, end_token: int, max_length: int, source_mask: Tensor | None = None
    ) -> Tensor:
        """The most likely token, one after the other (greedy decoding).

        Returns:
            Token ids `[B, at most max_length]`; after the first `end_token` of a row, `end_token` again.
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
    """The trained model in evaluation mode, on the CPU; its `train()` turns dropout on, for fine-tuning."""
    saved = torch.load(WEIGHTS, map_location="cpu", weights_only=True)
    model_class = Transformer if "num_decoder_layers" in saved["sizes"] else TransformerPredictor
    model = model_class(Settings(**saved["settings"]), **saved["sizes"])
    model.load_state_dict(saved["state_dict"])
    return model.eval()
