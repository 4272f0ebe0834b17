"""TransformerPredictor: features, encoder, one prediction per element."""

import flax.linen as nn
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Shaped

from transformer_jax.errors import check_probability
from transformer_jax.nn.attention import head_width
from transformer_jax.nn.blocks import Activation
from transformer_jax.nn.dense import Dense
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.encoder import TransformerEncoder
from transformer_jax.nn.positions import PositionalEncoding


class TransformerPredictor(nn.Module):
    """An encoder between an input layer and an output network that predicts for every element of a sequence or set.

    Features → dropout → Dense(D) → (+ positions) → encoder with F = 2 D → Dense(D) → LayerNorm → relu → dropout
    → Dense(C).

    Raises:
        InputError: at construction, if `num_heads` does not divide `model_dim`, or a probability is not in [0, 1).
    """

    model_dim: int  # D
    num_classes: int  # C, the predictions for each element
    num_heads: int  # H
    num_layers: int  # L
    dropout_prob: float = 0.0  # inside the encoder and the output network
    input_dropout_prob: float = 0.0  # of the input features
    norm_first: bool = False  # pre-norm instead of the paper's post-norm
    activation: Activation = nn.relu  # of the encoder's feed-forward
    layer_norm_epsilon: float = 1e-6  # added to the variance; PyTorch's default is 1e-5
    max_len: int = 5000  # longest sequence to which positions can be added

    def __post_init__(self) -> None:
        head_width(self.model_dim, self.num_heads)
        check_probability("dropout_prob", self.dropout_prob)
        check_probability("input_dropout_prob", self.input_dropout_prob)
        super().__post_init__()

    def setup(self) -> None:
        self.input_dropout = Dropout(self.input_dropout_prob)
        self.input_layer = Dense(self.model_dim)
        self.positional_encoding = PositionalEncoding(self.model_dim, self.max_len)
        self.encoder = TransformerEncoder(
            self.num_layers,
            self.model_dim,
            self.num_heads,
            2 * self.model_dim,
            self.dropout_prob,
            self.norm_first,
            self.activation,
            self.layer_norm_epsilon,
        )
        self.output_hidden = Dense(self.model_dim)
        self.output_norm = nn.LayerNorm(epsilon=self.layer_norm_epsilon)
        self.output_dropout = Dropout(self.dropout_prob)
        self.output_layer = Dense(self.num_classes)

    def __call__(
        self,
        x: Float[ArrayLike, "B T features"],
        mask: Shaped[ArrayLike, "..."] | None = None,
        add_positional_encoding: bool = True,
        *,
        train: bool = False,
        return_attention: bool = False,
    ) -> Float[Array, "B T C"] | tuple[Float[Array, "B T C"], list[Float[Array, "B H T T"]]]:
        """Predict.

        Args:
            x: features `[B, T, features]`.
            mask: True = may attend; see `transformer_jax.nn.masks` for the ranks.
            add_positional_encoding: False makes the model permutation-equivariant.
            train: apply dropout; needs the random key `dropout` where a probability is not zero.
            return_attention: also return the weights that this pass used.

        Returns:
            Logits `[B, T, C]`, with `return_attention` a pair of them and the list of the L layers' weights.

        Raises:
            InputError: the sequence is longer than `max_len`, or the mask does not fit.
        """
        x = self.input_layer(self.input_dropout(x, train=train))  # [B T D]
        if add_positional_encoding:
            x = self.positional_encoding(x)
        x, attention_maps = self.encoder(x, mask, train=train, return_attention=True)
        x = nn.relu(self.output_norm(self.output_hidden(x)))
        logits = self.output_layer(self.output_dropout(x, train=train))  # [B T C]
        return (logits, attention_maps) if return_attention else logits

    def get_attention_maps(
        self,
        x: Float[ArrayLike, "B T features"],
        mask: Shaped[ArrayLike, "..."] | None = None,
        add_positional_encoding: bool = True,
    ) -> list[Float[Array, "B H T T"]]:
        """Attention weights of every layer, as the forward pass without dropout uses them."""
        return self(x, mask, add_positional_encoding, return_attention=True)[1]
