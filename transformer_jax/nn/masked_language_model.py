"""Token encoder with BERT's heads, for the prediction of masked tokens and the classification of texts or tokens."""

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from transformer_jax.argument_checks import Count, Probability, Size, check_token_ids
from transformer_jax.attention.masks.symbolic import Masks, mask_array
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.nn.blocks import Block, BlockSettings, SettingsModule
from transformer_jax.nn.embeddings import TokenIds, rows_of, tied_logits, token_embedding
from transformer_jax.nn.encoder import EncoderBlock, TransformerEncoder
from transformer_jax.nn.layers import ActivationFunction, Dense, Dropout, Features, Tapped
from transformer_jax.nn.position_kinds import LearnedEncoding, LearnedPositions, RelativePositions

Head = Literal["tokens", "classes", "token_classes", "none"]
Pooling = Literal["mean", "first", "last", "max", "mean_sqrt"]


def pooled(x: Features, is_token: Bool[Array, "B T"], pooling: Pooling) -> Float[Array, "B D"]:
    """Pool the vectors at each text's tokens to one vector."""
    if pooling == "max":
        return jnp.max(jnp.where(is_token[..., None], x, -jnp.inf), axis=1)
    sizes = is_token.sum(1, keepdims=True)
    places = jnp.arange(x.shape[1])[None]
    weights = {
        "mean": is_token / sizes,
        "mean_sqrt": is_token / jnp.sqrt(sizes),
        "first": is_token & (places == 0),
        "last": places == sizes - 1,
    }
    return jnp.einsum("btd,bt->bd", x, weights[pooling])


class Pooler(Tapped):
    """Pooler `tanh(x_0 W + b)`, with x_0 the vector at the first position (Devlin et al. 2019, section 3)."""

    activation: ActivationFunction = nn.tanh

    @nn.compact
    def __call__(self, x: Features) -> Float[Array, "B D"]:
        """Pool each row to one vector, `[B, D]`."""
        hidden = Dense(x.shape[-1], name="dense")(x[:, 0])
        return self.tap("output", self.activation(hidden), "B D")


class TransformerMLM(SettingsModule):
    """Token encoder that predicts every token from all tokens, or classifies the text or its tokens.

    The sum of token embeddings, learned positions and token types (if there are any) passes through a norm, dropout and
    the encoder (Devlin et al. 2019), which may have relative positions too (Song et al. 2020). Embeddings of another
    width are projected to the encoder's (Lan et al. 2020, section 3.1). The heads are

    - `tokens`: `Norm(activation(x W + b)) Eᵀ + c`, with the embedding matrix E;
    - `classes`: `Dropout(Pooler(x)) W + b`, for the text; with `pooling`, `Dropout(pooled(x)) W + b`;
    - `token_classes`: `Dropout(x) W + b`, for each token;
    - `none`: no head; the output of the encoder.

    Raises:
        InputError: at construction, if `num_heads` does not divide `model_dim`, a size is below 1, a setting is
            invalid, the positions are neither `LearnedPositions` nor `RelativePositions`, or the head classifies and
            `num_classes` is 0.
    """

    vocabulary_size: Size  # V
    model_dim: Size = 768  # D
    num_heads: Size = 12  # H
    num_layers: Count = 12  # L
    dim_feedforward: Size = 3072  # F
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    settings: BlockSettings = BlockSettings(dropout_prob=0.1, positions=LearnedPositions())
    # number of learned positions; with a pad token, the first `pad_token + 1` are not for tokens
    max_len: Size = 512
    num_types: Count = 0  # number of token types, e.g. 2 for a first and a second text
    head: Head = "tokens"
    num_classes: Count = 0  # C, number of classes of texts or tokens
    # compute the pooler also without classes, as the activation `pooler.output`
    has_pooler: bool = False
    # how `classes` pools the outputs at the positions that the first one may see; None: with BERT's pooler
    pooling: Pooling | None = None
    # Id of padding tokens; if given, positions count the other tokens only, from `pad_token + 1` on (Liu et al. 2019).
    pad_token: Count | None = None
    embedding_dim: Size | None = None  # width of the embeddings, which are projected to D; None: D
    block: type[Block] = EncoderBlock  # class of the blocks
    pooler_activation: ActivationFunction = nn.tanh

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.settings.positions, LearnedPositions | RelativePositions):
            raise InputError(
                f"settings.positions is {self.settings.positions}; it must be LearnedPositions(), or"
                " RelativePositions() for both"
            )
        if self.classifies and not self.num_classes:
            raise InputError(f"num_classes is 0; with head={self.head!r} it must be at least 1")

    @property
    def classifies(self) -> bool:
        """Whether the head gives logits of classes."""
        return self.head in ("classes", "token_classes")

    @property
    def uses_pooler(self) -> bool:
        """Whether the model computes BERT's pooler."""
        return self.has_pooler or (self.head == "classes" and self.pooling is None)

    @property
    def longest_text(self) -> int:
        """The most tokens that a text may have."""
        return self.max_len - (0 if self.pad_token is None else self.pad_token + 1)

    def setup(self) -> None:
        width = self.embedding_dim or self.model_dim
        self.embedding = token_embedding(self.vocabulary_size, width)
        # as large as the embeddings, which are not scaled
        self.positional_encoding = LearnedEncoding(width, self.max_len, width**-0.5)
        if self.num_types:
            self.type_embedding = token_embedding(self.num_types, width)
        self.embedding_norm = self.settings.make_norm()
        self.embedding_dropout = Dropout(self.settings.dropout_prob)
        if self.embedding_dim:
            self.embedding_projection = Dense(self.model_dim)
        sizes = self.num_layers, self.model_dim, self.num_heads, self.dim_feedforward
        self.encoder = TransformerEncoder(*sizes, settings=self.settings, block=self.block)
        if self.uses_pooler:
            self.pooler = Pooler(self.pooler_activation)
        if self.classifies:
            self.output_dropout = Dropout(self.settings.dropout_prob)
            self.output_layer = Dense(self.num_classes)
        elif self.head == "tokens":
            self.output_hidden = Dense(width)
            self.output_norm = self.settings.make_norm()
            self.output_bias = self.param(
                "output_bias", nn.initializers.zeros, (self.vocabulary_size,)
            )

    def __call__(
        self,
        tokens: TokenIds,
        mask: Masks | None = None,
        types: TokenIds | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "..."]:
        """Apply the model.

        Args:
            tokens: `[B, T]`.
            mask: which keys a query may see, as in `dot_product_attention`, e.g. `padding_mask(valid)`.
            types: token types `[B, T]`; None for type 0.
            train: apply dropout; needs the random key `dropout` if a probability is not zero.

        Returns:
            Logits `[B, T, V]`, `[B, C]` or `[B, T, C]`, or the encoder's output `[B, T, D]`.

        Raises:
            InputError: tokens or types have another dtype or shape, contain an unknown id, or are longer than the
                positions allow; or the mask does not broadcast.
        """
        x = self._embed(tokens, types, train=train)
        return self._output(self.encoder(x, mask, train=train), mask, train=train)

    def _embed(self, tokens: TokenIds, types: TokenIds | None, *, train: bool) -> Features:
        check_token_ids("tokens", tokens, self.vocabulary_size)
        tokens = jnp.asarray(tokens)
        x = rows_of(self.embedding.embedding, tokens)
        if self.num_types:
            types = jnp.zeros_like(tokens) if types is None else types
            check_token_ids("types", types, self.num_types)
            x = x + rows_of(self.type_embedding.embedding, jnp.asarray(types))
        elif types is not None:
            raise InputError(
                "types are given, but num_types is 0; it must be the number of token types"
            )
        if self.pad_token is None:
            x = self.positional_encoding(x)
        else:
            check_sizes(tokens.shape[1] + self.pad_token + 1, max_len=self.max_len)
            is_token = tokens != self.pad_token
            places = jnp.cumsum(is_token, axis=1) * is_token + self.pad_token
            x = self.positional_encoding(x, places, self.max_len)
        x = self.embedding_dropout(self.embedding_norm(x), train=train)
        if self.embedding_dim:
            x = self.embedding_projection(x)
        return self.tap("embeddings", x, "B T D")

    def _output(self, x: Features, mask: Masks | None, *, train: bool) -> Float[Array, "..."]:
        """Apply the head to the output of the encoder."""
        pooler_output = self.pooler(x) if self.uses_pooler else x
        if self.head == "none":
            return x
        if self.classifies:
            letters = "B C"
            if self.head == "token_classes":
                vectors = x
                letters = "B T C"
            elif self.pooling is None:
                vectors = pooler_output
            else:
                vectors = pooled(x, self._is_seen(x, mask), self.pooling)
            logits = self.output_layer(self.output_dropout(vectors, train=train))
            return self.tap("logits", logits, letters)
        hidden = self.output_norm(self.settings.activation(self.output_hidden(x)))
        logits = tied_logits(self.embedding, hidden, bias=self.output_bias)
        return self.tap("logits", logits, "B T V")

    def _is_seen(self, x: Features, mask: Masks | None) -> Bool[Array, "B T"]:
        """Which positions the first one may see: all but padding."""
        size, length, _ = x.shape
        if mask is None:
            return jnp.ones((size, length), bool)
        seen = mask_array(mask, (size, 1, length, length))[:, 0, 0]
        return jnp.broadcast_to(seen, (size, length))
