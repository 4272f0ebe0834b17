"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017)."""

import math
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Shaped

from transformer_jax.errors import InputError, check_probability
from transformer_jax.nn.attention import head_width
from transformer_jax.nn.blocks import Activation
from transformer_jax.nn.decoder import BlockCache, TransformerDecoder
from transformer_jax.nn.dense import Dense
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.encoder import TransformerEncoder
from transformer_jax.nn.masks import expand_mask
from transformer_jax.nn.positions import PositionalEncoding

# Token ids, or features of the model's width, which are taken as they are.
Source = Int[ArrayLike, "B S"] | Float[ArrayLike, "B S D"]
Target = Int[ArrayLike, "B T"] | Float[ArrayLike, "B T D"]


class AttentionMaps(NamedTuple):
    """Attention weights of every layer, as one forward pass used them."""

    encoder: list[Float[Array, "B H S S"]]
    decoder: list[Float[Array, "B H T T"]]
    cross: list[Float[Array, "B H T S"]]


class DecodingCache(NamedTuple):
    """What the decoder keeps between the tokens that it decodes; every array begins with the batch's axis."""

    blocks: list[BlockCache]
    source_mask: Bool[Array, "B 1 1 S"]

    def grow(self, length: int) -> "DecodingCache":
        """The same, with room for `length` target positions: the `grow` of `token_by_token`."""
        return self._replace(blocks=[block.grow(length) for block in self.blocks])


class Transformer(nn.Module):
    """Encoder and decoder, with embeddings and a projection to logits where there are vocabularies.

    Tokens are embedded, scaled by √D, and get positions and dropout; features go into the stacks as they are. The
    defaults are the paper's base model.

    Raises:
        InputError: at construction, if `num_heads` does not divide `model_dim`, the probability is not in [0, 1), or
            embeddings of different vocabularies should be tied.
    """

    source_vocabulary_size: int | None = None  # V of the source; None: the source is features
    target_vocabulary_size: int | None = None  # V of the target; None: features in, features out
    model_dim: int = 512  # D
    num_heads: int = 8  # H
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    dim_feedforward: int = 2048  # F
    dropout_prob: float = 0.1  # of embeddings, sub-layers' outputs and hidden units
    norm_first: bool = False  # pre-norm instead of the paper's post-norm
    activation: Activation = nn.relu  # of the feed-forward
    layer_norm_epsilon: float = 1e-6  # added to the variance; PyTorch's default is 1e-5
    final_norm: bool | None = None  # LayerNorm after each stack; None: with pre-norm alone, which needs it
    tie_embeddings: bool = False  # one matrix embeds source and target and projects to logits (section 3.4)
    max_len: int = 5000  # longest sequence of tokens

    def __post_init__(self) -> None:
        head_width(self.model_dim, self.num_heads)
        check_probability("dropout_prob", self.dropout_prob)
        sizes = self.source_vocabulary_size, self.target_vocabulary_size
        if self.tie_embeddings and (sizes[0] != sizes[1] or None in sizes):
            raise InputError(f"tie_embeddings needs one vocabulary; those of source and target have sizes {sizes}")
        super().__post_init__()

    def setup(self) -> None:
        stack = (
            self.model_dim,
            self.num_heads,
            self.dim_feedforward,
            self.dropout_prob,
            self.norm_first,
            self.activation,
            self.layer_norm_epsilon,
            self.final_norm,
        )
        self.encoder = TransformerEncoder(self.num_encoder_layers, *stack)
        self.decoder = TransformerDecoder(self.num_decoder_layers, *stack)
        self.positional_encoding = PositionalEncoding(self.model_dim, self.max_len)
        self.embedding_dropout = Dropout(self.dropout_prob)
        if self.source_vocabulary_size is not None:
            self.source_embedding = self._embedding(self.source_vocabulary_size)
        if self.target_vocabulary_size is not None and not self.tie_embeddings:
            self.target_embedding = self._embedding(self.target_vocabulary_size)
            self.output_layer = Dense(self.target_vocabulary_size)

    def _embedding(self, size: int) -> nn.Embed:
        # Scaled by √D when it is read, so that tokens start as large as the positions that are added to them.
        return nn.Embed(size, self.model_dim, embedding_init=nn.initializers.normal(1 / math.sqrt(self.model_dim)))

    def __call__(
        self,
        source: Source,
        target: Target,
        source_mask: Shaped[ArrayLike, "..."] | None = None,
        target_mask: Shaped[ArrayLike, "..."] | None = None,
        *,
        train: bool = False,
        return_attention: bool = False,
    ) -> Float[Array, "B T V_or_D"] | tuple[Float[Array, "B T V_or_D"], AttentionMaps]:
        """Predict what follows each target position, in one pass (teacher forcing).

        Args:
            source: tokens `[B, S]` or features `[B, S, D]`.
            target: tokens `[B, T]` or features `[B, T, D]`, of which position t sees those up to t.
            source_mask: `padding_mask` of the source's real tokens, for the encoder and the cross-attention.
            target_mask: of the decoder's self-attention, on top of the causal one.
            train: apply dropout; needs the random key `dropout` where its probability is not zero.
            return_attention: also return the weights that this pass used.

        Returns:
            Logits `[B, T, V]`, or `[B, T, D]` without a target vocabulary.

        Raises:
            InputError: a sequence is longer than `max_len`, or a mask does not fit.
        """
        memory, encoder_maps = self.encode(source, source_mask, train=train, return_attention=True)
        output, maps = self.decode(target, memory, target_mask, source_mask, train=train, return_attention=True)
        if not return_attention:
            return output
        return output, AttentionMaps(encoder_maps, [block.target for block in maps], [block.memory for block in maps])

    def encode(
        self,
        source: Source,
        source_mask: Shaped[ArrayLike, "..."] | None = None,
        *,
        train: bool = False,
        return_attention: bool = False,
    ) -> Float[Array, "B S D"] | tuple[Float[Array, "B S D"], list[Float[Array, "B H S S"]]]:
        """The encoder's output, the memory."""
        x = self._embed(source, "source_embedding", train=train)
        return self.encoder(x, source_mask, train=train, return_attention=return_attention)

    def decode(
        self,
        target: Target,
        memory: Float[ArrayLike, "B S D"],
        target_mask: Shaped[ArrayLike, "..."] | None = None,
        source_mask: Shaped[ArrayLike, "..."] | None = None,
        *,
        train: bool = False,
        return_attention: bool = False,
    ) -> Float[Array, "B T V_or_D"] | tuple:
        """Logits `[B, T, V]` for every target position, given the memory."""
        x = self._embed(target, "target_embedding", train=train)
        x, maps = self.decoder(x, memory, target_mask, source_mask, train=train, return_attention=True)
        return (self._project(x), maps) if return_attention else self._project(x)

    def start_decoding(
        self, source: Source, source_mask: Shaped[ArrayLike, "..."] | None = None, length: int = 0
    ) -> DecodingCache:
        """Encode the source, and make room for `length` target positions; `DecodingCache.grow` makes more."""
        memory = self.encode(source, source_mask)
        batch, source_length = memory.shape[:2]
        mask = expand_mask(jnp.ones((1, source_length), bool) if source_mask is None else source_mask)
        mask = jnp.broadcast_to(mask, (batch, 1, 1, source_length))
        return DecodingCache(self.decoder.empty_caches(memory, length), mask)

    def decode_step(
        self, tokens: Int[ArrayLike, " B"], position: Int[ArrayLike, ""], cache: DecodingCache
    ) -> tuple[Float[Array, "B V"], DecodingCache]:
        """Logits of what follows one more token: a step function for `transformer_jax.decoding.token_by_token`.

        It equals what `decode` gives at that position, at the cost of one position.
        """
        x = self._embedding_of("target_embedding")(tokens[:, None]) * math.sqrt(self.model_dim)  # [B 1 D]
        x = self.positional_encoding.at(x, position, length=cache.blocks[0].target.key.shape[2])
        x, blocks = self.decoder.step(x, cache.blocks, position, cache.source_mask)
        return self._project(x)[:, 0], DecodingCache(blocks, cache.source_mask)

    def get_attention_maps(
        self,
        source: Source,
        target: Target,
        source_mask: Shaped[ArrayLike, "..."] | None = None,
        target_mask: Shaped[ArrayLike, "..."] | None = None,
    ) -> AttentionMaps:
        """Attention weights of every layer, as the forward pass without dropout uses them."""
        return self(source, target, source_mask, target_mask, return_attention=True)[1]

    def _embed(self, sequence: Target, name: str, *, train: bool) -> Float[Array, "B T D"]:
        sequence = jnp.asarray(sequence)
        if not jnp.issubdtype(sequence.dtype, jnp.integer):
            return sequence
        x = self._embedding_of(name)(sequence) * math.sqrt(self.model_dim)
        return self.embedding_dropout(self.positional_encoding(x), train=train)

    def _embedding_of(self, name: str) -> nn.Embed:
        return self.source_embedding if self.tie_embeddings else getattr(self, name)

    def _project(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V_or_D"]:
        if self.target_vocabulary_size is None:
            return x
        return self.source_embedding.attend(x) if self.tie_embeddings else self.output_layer(x)
