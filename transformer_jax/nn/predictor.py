"""Encoder model with a prediction for each element of a sequence or set."""

import flax.linen as nn
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import Count, Probability, Size, check_sequence
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import Block, BlockSettings, SettingsModule
from transformer_jax.nn.encoder import EncoderBlock, TransformerEncoder
from transformer_jax.nn.layers import Dense, Dropout


class TransformerPredictor(SettingsModule):
    """Encoder with an input layer and an output network, which predicts every element of a sequence or set.

    Features → dropout → Dense(D) → (+ positions) → encoder with F = 2 D → Dense(D) → norm → relu → dropout
    → Dense(C).

    Raises:
        InputError: at construction, if `num_heads` does not divide `model_dim`, a size is below 1, or a setting is
            invalid.
    """

    model_dim: Size  # D
    num_classes: Size  # C, number of logits per element
    num_heads: Size  # H
    num_layers: Count  # L
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    input_dropout_prob: Probability = 0.0  # of the input features
    # of the blocks; dropout and norm apply to the output network too
    settings: BlockSettings = BlockSettings()
    max_len: Size = 5000  # longest sequence to which positions can be added
    block: type[Block] = EncoderBlock  # class of the encoder's blocks
    # add a vector pooled from all elements (PMA) to each element of the encoder's output
    pools: bool = False

    def setup(self) -> None:
        self.input_dropout = Dropout(self.input_dropout_prob)
        self.input_layer = Dense(self.model_dim)
        self.positional_encoding = self.settings.positions.encoding(self.model_dim, self.max_len)
        sizes = self.num_layers, self.model_dim, self.num_heads, 2 * self.model_dim
        self.encoder = TransformerEncoder(*sizes, settings=self.settings, block=self.block)
        if self.pools:
            from transformer_jax.nn.set_transformer import PMA  # loaded only with `pools`

            self.pool = PMA(*sizes[1:], settings=self.settings)
        self.output_hidden = Dense(self.model_dim)
        self.output_norm = self.settings.make_norm()
        self.output_dropout = Dropout(self.settings.dropout_prob)
        self.output_layer = Dense(self.num_classes)

    def __call__(
        self,
        x: Float[ArrayLike, "B T features"],
        mask: Masks | None = None,
        add_positional_encoding: bool = True,
        *,
        train: bool = False,
    ) -> Float[Array, "B T C"]:
        """Predict the logits `[B, T, C]` of each element.

        Args:
            x: features `[B, T, features]`.
            mask: which keys a query may see, as in `dot_product_attention`; with `pools`, the same for all queries.
            add_positional_encoding: False omits the positions that are added to the input, so that the model is
                permutation-equivariant; not allowed with positions inside attention.
            train: apply dropout; needs the random key `dropout` if a probability is not zero.

        Raises:
            InputError: `x` is not a floating-point array `[B, T, features]`, the sequence is longer than `max_len`, the
                mask does not broadcast, or `add_positional_encoding` is not allowed to be False.
        """
        check_sequence("x", x)
        if self.settings.positions.is_in_attention and not add_positional_encoding:
            raise InputError(
                f"add_positional_encoding is False, but {self.settings.positions} act inside"
                " attention; for a model without positions, set positions=NoPositions()"
            )
        x = self.input_layer(self.input_dropout(x, train=train))  # [B T D]
        if add_positional_encoding and self.positional_encoding is not None:
            x = self.positional_encoding(x)
        x = self.tap("embeddings", x, "B T D")
        x = self.encoder(x, mask, train=train)
        if self.pools:
            x = x + self.pool(x, mask, train=train)
        x = nn.relu(self.output_norm(self.output_hidden(x)))
        logits = self.output_layer(self.output_dropout(x, train=train))
        return self.tap("logits", logits, "B T C")
