"""Encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import (
    Count,
    Probability,
    Size,
    as_array,
    check_sequence,
    check_token_ids,
)
from transformer_jax.attention.masks.symbolic import Masks, mask_array
from transformer_jax.attention.score_block import Chosen
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.nn.blocks import Block, BlockSettings
from transformer_jax.nn.cached_decoding import (
    DecodingCache,
    LogitsAndCache,
    NewTokens,
    Position,
    Prefix,
    run_cached,
    start_cache,
)
from transformer_jax.nn.decoder import DecoderBlock, TransformerDecoder
from transformer_jax.nn.embeddings import EmbeddingSettings, TokenModel, token_embedding
from transformer_jax.nn.encoder import EncoderBlock, TransformerEncoder
from transformer_jax.nn.layers import Features, FeaturesLike

# Token ids, or features of width D, which are not embedded.
Source = Int[ArrayLike, "B S"] | Float[ArrayLike, "B S D"]
Target = Int[ArrayLike, "B T"] | FeaturesLike


class AttentionMaps(NamedTuple):
    """Attention weights of every layer, for the selected queries and heads."""

    encoder: list[Float[Array, "B heads queries S"]]
    decoder: list[Float[Array, "B heads queries T"]]
    cross: list[Float[Array, "B heads queries S"]]


class Transformer(TokenModel):
    """Encoder-decoder Transformer, with embeddings and a projection to logits if vocabularies are given.

    Token embeddings are scaled by √D (unless `embeddings` says otherwise), followed by positions and dropout; features
    enter the stacks unchanged. Source and target share learned positions, too, unless `embeddings` says otherwise;
    positions inside attention act in self-attention only. The defaults are the paper's base model. Dropout, 0.1 by
    default, also applies to the embeddings.

    Raises:
        InputError: at construction, if a number of heads does not divide `model_dim`, a size is below 1, a setting is
            invalid, or `tie_embeddings` is True without two vocabularies of equal size.
    """

    source_vocabulary_size: Size | None = None  # V of the source; None: the source is features
    target_vocabulary_size: Size | None = None  # V of the target; None: features in, features out
    model_dim: Size = 512  # D
    num_heads: Size = 8  # H
    num_encoder_layers: Count = 6
    num_decoder_layers: Count = 6
    dim_feedforward: Size = 2048  # F
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    # settings of your own have dropout 0 unless set
    settings: BlockSettings = BlockSettings(dropout_prob=0.1)
    # norm after each stack; None: only with pre-norm, which needs it
    final_norm: bool | None = None
    # one matrix embeds source and target and projects to logits (section 3.4)
    tie_embeddings: bool = False
    max_len: Size = 5000  # longest sequence of tokens
    encoder_block: type[Block] = EncoderBlock  # class of the encoder's blocks
    decoder_block: type[Block] = DecoderBlock  # class of the decoder's blocks
    embeddings: EmbeddingSettings = EmbeddingSettings()
    num_decoder_heads: Size | None = None  # H of the decoder; None: num_heads
    decoder_dim_feedforward: Size | None = None  # F of the decoder; None: dim_feedforward

    def __post_init__(self) -> None:
        if self.num_decoder_heads == self.num_heads:
            self.num_decoder_heads = None
        if self.decoder_dim_feedforward == self.dim_feedforward:
            self.decoder_dim_feedforward = None
        super().__post_init__()
        if self.num_decoder_heads is not None:
            self.settings.check(self.model_dim, self.num_decoder_heads, "num_decoder_heads")
        sizes = self.source_vocabulary_size, self.target_vocabulary_size
        if self.tie_embeddings and (sizes[0] != sizes[1] or None in sizes):
            raise InputError(
                f"tie_embeddings is True, but the vocabulary sizes are {sizes}; they must be given,"
                " and equal"
            )

    def setup(self) -> None:
        self.encoder = TransformerEncoder(
            self.num_encoder_layers,
            self.model_dim,
            self.num_heads,
            self.dim_feedforward,
            settings=self.settings,
            final_norm=self.final_norm,
            block=self.encoder_block,
        )
        self.decoder = TransformerDecoder(
            self.num_decoder_layers,
            self.model_dim,
            self.num_decoder_heads or self.num_heads,
            self.decoder_dim_feedforward or self.dim_feedforward,
            settings=self.settings,
            final_norm=self.final_norm,
            block=self.decoder_block,
        )
        self.set_up_tokens(self.target_vocabulary_size)
        if not self.embeddings.shares_positions:
            positions = self.settings.positions.encoding(self.model_dim, self.max_len)
            self.target_positional_encoding = positions
            self.target_embedding_norm = self.settings.make_norm()
        if self.source_vocabulary_size is not None:
            self.source_embedding = token_embedding(self.source_vocabulary_size, self.model_dim)
        if self.target_vocabulary_size is not None and not self.tie_embeddings:
            self.target_embedding = token_embedding(self.target_vocabulary_size, self.model_dim)

    def __call__(
        self,
        source: Source,
        target: Target,
        source_mask: Masks | None = None,
        target_mask: Masks | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "B T V_or_D"]:
        """Predict the token after each target position, all in one pass (teacher forcing).

        Inside `jax.jit`, an id outside the vocabulary raises no error; it gives NaN or another token's
        embedding. `transformer_jax.argument_checks.check_token_ids` checks ids before a compiled function is called.

        Args:
            source: tokens `[B, S]` or features `[B, S, D]`.
            target: tokens `[B, T]` or features `[B, T, D]`; position t sees positions up to t.
            source_mask: `padding_mask` of the source's real tokens, for the encoder and the cross-attention.
            target_mask: mask of the decoder's self-attention, combined with the causal mask.
            train: apply dropout; needs the random key `dropout` if its probability is not zero.

        Returns:
            Logits `[B, T, V]`, or `[B, T, D]` without a target vocabulary.

        Raises:
            InputError: a sequence has another dtype or shape, contains an id outside the vocabulary, or is longer than
                `max_len`; or a mask does not broadcast.
        """
        memory = self.encode(source, source_mask, train=train)
        return self.decode(target, memory, target_mask, source_mask, train=train)

    def encode(
        self, source: Source, source_mask: Masks | None = None, *, train: bool = False
    ) -> Float[Array, "B S D"]:
        """Run the encoder; its output `[B, S, D]` is the `memory` that `decode` attends to."""
        return self.encoder(self._embed(source, "source", train=train), source_mask, train=train)

    def decode(
        self,
        target: Target,
        memory: Float[ArrayLike, "B S D"],
        target_mask: Masks | None = None,
        source_mask: Masks | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "B T V_or_D"]:
        """Compute the logits `[B, T, V]` of the token after each position, given the encoder's output."""
        check_sequence("memory", memory, self.model_dim)
        x = self._embed(target, "target", train=train)
        x = self.decoder(x, memory, target_mask, source_mask, train=train)
        if self.target_vocabulary_size is None:
            return x
        return self.logits(x, self.source_embedding if self.tie_embeddings else None)

    def start_decoding(
        self,
        source: Source,
        source_mask: Masks | None = None,
        length: int = 0,
        *,
        prefix: Prefix = None,
    ) -> DecodingCache:
        """Encode the source, and allocate a cache of `length` target positions; `DecodingCache.grow` extends it.

        Args:
            source, source_mask: as in `__call__`.
            length: capacity of the cache in target positions; it is raised to P if it is smaller.
            prefix: tokens at target positions 0 … P - 1, which are run in one pass. The next `decode_step` is at
                position P.

        Raises:
            InputError: as in `__call__`; or `length` is negative.
        """
        check_sizes(0, length=length)
        memory = self.encode(source, source_mask)
        shape = memory.shape[0], 1, 1, memory.shape[1]
        is_seen = True if source_mask is None else mask_array(source_mask, shape)
        mask = jnp.broadcast_to(is_seen, shape)
        if prefix is not None:
            self._check_tokens("target", prefix, "[B, P]", "prefix")
        cache = start_cache(
            lambda tokens: self.decode(tokens, memory, None, mask), prefix, len(memory), length
        )
        return cache._replace(encoded=memory, source_mask=mask)

    def decode_step(
        self, tokens: NewTokens, position: Position, cache: DecodingCache
    ) -> LogitsAndCache:
        """Compute logits of the token after `tokens`: a step function for `transformer_jax.decoding.token_by_token`.

        They equal the logits of `decode` at this position, at the cost of one position.

        Raises:
            InputError: `tokens` are not ids `[B]` of the target vocabulary, with B the rows of the cache; or `position`
                is beyond the cache. Traced values are not checked.
        """
        self._check_tokens("target", tokens, "[B]", "target")
        cache.check(tokens, position)
        memory: Any = cache.encoded
        target = jnp.asarray(tokens)[:, None]
        logits, cache = run_cached(
            lambda: self.decode(target, memory, None, cache.source_mask), cache, position
        )
        return logits[:, 0], cache

    def get_attention_maps(  # type: ignore[override]  # it has two sequences
        self,
        source: Source,
        target: Target,
        source_mask: Masks | None = None,
        target_mask: Masks | None = None,
        *,
        queries: Chosen | None = None,
        heads: Chosen | None = None,
        source_queries: Chosen | None = None,
    ) -> AttentionMaps:
        """Return the attention weights of every layer in a forward pass without dropout.

        Args:
            source, target, source_mask, target_mask: as in `__call__`.
            queries: indices of the queries: target positions for the decoder and the cross-attention, source positions
                for the encoder; None for all.
            heads: indices of the heads; None for all.
            source_queries: indices of the queries for the encoder; None for those in `queries`.

        Returns:
            For each kind of attention and each layer `[B, heads, queries, keys]`.

        Raises:
            InputError: as in `__call__`; or an index of a query (in source or target) or of a head is out of range.
        """
        from transformer_jax.nn.attention_maps import attention_maps, of_layers

        queries_of = {
            "encoder": queries if source_queries is None else source_queries,
            "decoder": queries,
        }
        inputs = source, target, source_mask, target_mask
        maps = attention_maps(self, *inputs, queries=queries_of, heads=heads)
        # A layer of the decoder has self-attention first, and cross-attention last.
        first = list(of_layers(maps, last=False).values())
        last = list(of_layers(maps).values())
        number = self.num_encoder_layers
        return AttentionMaps(encoder=last[:number], decoder=first[number:], cross=last[number:])

    def _embed(self, sequence: Target, side: str, *, train: bool = False) -> Features:
        if jnp.issubdtype(as_array(side, sequence).dtype, jnp.integer):
            self._check_tokens(side, sequence, "[B, T]", side)
            embedding_side = "source" if self.tie_embeddings else side
            embedding = getattr(self, f"{embedding_side}_embedding")
            has_own = side == "target" and not self.embeddings.shares_positions
            prefix = "target_" if has_own else ""
            x = self.embedded(embedding, sequence, train=train, prefix=prefix)
        else:
            check_sequence(side, sequence, self.model_dim)
            x = jnp.asarray(sequence)
        return self.tap(f"{side}_embeddings", x, "B T D")

    def _check_tokens(self, side: str, tokens: ArrayLike, shape: str, name: str) -> None:
        size: int | None = getattr(self, f"{side}_vocabulary_size")
        if size is None:
            raise InputError(
                f"{name} holds integers; without {side}_vocabulary_size it must hold features [B,"
                " T, D]"
            )
        check_token_ids(name, tokens, size, shape)
