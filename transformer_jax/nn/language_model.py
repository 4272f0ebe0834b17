"""Decoder-only language model: causal blocks over tokens, without an encoder (Radford et al. 2018)."""

import jax.numpy as jnp

from transformer_jax.argument_checks import (
    Probability,
    Size,
    as_array,
    check_offset,
    check_token_ids,
    known_values,
)
from transformer_jax.attention.masks.symbolic import Masks
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
from transformer_jax.nn.causal import AttentionKind, CausalBlock, CausalStack
from transformer_jax.nn.embeddings import (
    EmbeddingSettings,
    Logits,
    TokenIds,
    TokenModel,
    token_embedding,
)
from transformer_jax.nn.layers import Features
from transformer_jax.nn.positions import FIRST_OF_PASS, First
from transformer_jax.trees import shown

CausalCache = DecodingCache  # name for a model without an encoder


class TransformerLM(TokenModel):
    """Language model, which predicts each token of a sequence from the tokens before it.

    Token embeddings are scaled by √D (unless `embeddings` says otherwise), followed by positions and dropout, causal
    blocks of self-attention and feed-forward, and a projection to logits with the embedding matrix (unless
    `tie_embeddings` is False).

    Raises:
        InputError: at construction, if `num_heads` does not divide `model_dim`, a size is below 1, or a setting is
            invalid.
    """

    vocabulary_size: Size  # V
    model_dim: Size = 512  # D
    num_heads: Size = 8  # H
    num_layers: Size = 6  # L
    dim_feedforward: Size = 2048  # F
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    # settings of your own have dropout 0 unless set
    settings: BlockSettings = BlockSettings(dropout_prob=0.1)
    # norm after the last block; None: only with pre-norm, which needs it
    final_norm: bool | None = None
    tie_embeddings: bool = True  # the embedding matrix also projects to logits
    max_len: Size = 5000  # longest sequence to which positions can be added
    # class of the blocks: CausalBlock, or one with the same attributes
    block: type[Block] = CausalBlock
    embeddings: EmbeddingSettings = EmbeddingSettings()
    # kinds of attention of the layers in order, repeated: with two kinds, they alternate
    attention_kinds: tuple[AttentionKind, ...] = (AttentionKind(),)

    def setup(self) -> None:
        self.embedding = token_embedding(self.vocabulary_size, self.model_dim)
        self.set_up_tokens(self.vocabulary_size)
        sizes = self.num_layers, self.model_dim, self.num_heads, self.dim_feedforward
        parts = self.settings, self.final_norm, self.block, self.attention_kinds
        self.decoder = CausalStack(*sizes, None, *parts)

    def __call__(
        self,
        tokens: TokenIds,
        mask: Masks | None = None,
        positions: First = FIRST_OF_PASS,
        *,
        train: bool = False,
    ) -> Logits:
        """Predict the token after each position.

        Inside `jax.jit`, an id outside the vocabulary raises no error; it gives NaN or another token's embedding.

        Args:
            tokens: `[B, T]`; position t sees positions up to t.
            mask: mask of the self-attention, combined with the causal mask, e.g. `Segments` for several texts in a row.
            positions: position of each token, `[B, T]`, from 0 to T - 1, which begins at 0 in each of several texts in
                a row. Only positions that are added to the embeddings use it: rotary and relative positions and ALiBi
                depend on distances within a text.
            train: apply dropout; needs the random key `dropout` if a probability is not zero.

        Returns:
            Logits `[B, T, V]`.

        Raises:
            InputError: the tokens have another dtype or shape, contain an id outside the vocabulary, or are longer than
                the positions allow; the mask does not broadcast; or `positions` is not integers `[B, T]` from 0 to
                T - 1 (the values of a traced array are not checked).
        """
        return self.project(self.hidden_states(tokens, mask, positions, train=train))

    def start_decoding(
        self,
        batch_size: int | None = None,
        length: int = 0,
        *,
        prefix: Prefix = None,
        padding: NewTokens | None = None,
    ) -> DecodingCache:
        """Allocate a cache of `length` positions; `DecodingCache.grow` extends it.

        Args:
            batch_size: B; None if there is a prefix.
            length: capacity of the cache in positions; it is raised to P if it is smaller.
            prefix: tokens at positions 0 … P - 1, which are run in one pass. The next `decode_step` is at position P.
            padding: number of padding tokens at the left of each prefix, for texts of different lengths. Padding is
                masked, and the positions of each text begin at its first token.

        Raises:
            InputError: neither a batch size nor a prefix is given, or they disagree; `length` is negative; `__call__`
                would reject the prefix; or the padding is not integers `[B]` from 0 to P - 1.
        """
        check_sizes(0, length=length)
        if prefix is not None:
            check_token_ids("prefix", prefix, self.vocabulary_size)
            batch_size = jnp.shape(prefix)[0] if batch_size is None else batch_size
        if batch_size is None:
            raise InputError("batch_size is None; without a prefix it must be at least 1")
        check_sizes(batch_size=batch_size)
        return start_cache(self.hidden_states, prefix, batch_size, length, padding)

    def decode_step(
        self, tokens: NewTokens, position: Position, cache: DecodingCache
    ) -> LogitsAndCache:
        """Compute logits of the token after `tokens`: a step function for `transformer_jax.decoding.token_by_token`.

        They equal the logits of `__call__` at this position, at the cost of one position.

        Raises:
            InputError: `tokens` are not ids `[B]` of the vocabulary, with B the rows of the cache; or `position` is
                beyond the cache. Traced values are not checked.
        """
        check_token_ids("tokens", tokens, self.vocabulary_size, "[B]")
        cache.check(tokens, position)
        logits, cache = run_cached(lambda: self(jnp.asarray(tokens)[:, None]), cache, position)
        return logits[:, 0], cache

    def hidden_states(
        self,
        tokens: TokenIds,
        mask: Masks | None = None,
        positions: First = FIRST_OF_PASS,
        *,
        train: bool = False,
    ) -> Features:
        """Compute the vectors that `project` maps to logits, for a loss that projects a few positions at a time."""
        check_token_ids("tokens", tokens, self.vocabulary_size)
        shape = jnp.shape(tokens)  # B T
        places = as_array("positions", positions)
        is_integer = jnp.issubdtype(places.dtype, jnp.integer)
        if not is_integer or places.shape not in ((), shape):
            raise InputError(
                f"positions is {shown(positions)}; it must be integers of shape {shape}"
            )
        known = known_values(places)
        if known is not None:
            for position in known.min(), known.max():
                check_offset("positions", position, 0, shape[1] - 1)
        x = self.embedded(self.embedding, tokens, train=train, positions=positions)
        x = self.tap("embeddings", x, "B T D")
        return self.decoder(x, mask, train=train)

    @property
    def output_params(self) -> tuple[str, ...]:
        """Names of the parameters that `project` uses."""
        if not self.has_tied_output:
            return ("output_layer",)
        return ("embedding", "output_bias") if self.embeddings.output_bias else ("embedding",)

    def project(self, x: Features) -> Logits:
        """Project hidden states to logits."""
        return self.logits(x, self.embedding)
