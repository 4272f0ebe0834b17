"""Decoder-only language model: causal blocks over tokens, without an encoder (Radford et al. 2018)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import Probability, Size, check_offset, check_token_ids
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.attention.rows import ReturnAttention, Weights
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.nn.attention import KeyValue
from transformer_jax.nn.blocks import Block, BlockSettings
from transformer_jax.nn.embeddings import EmbeddingSettings, TokenModel, token_embedding
from transformer_jax.nn.encoder import CausalBlock, CausalStack


class CausalCache(NamedTuple):
    """Keys and values of every block, kept while tokens are decoded; the first axis of every array is the batch."""

    blocks: list[KeyValue]

    def grow(self, length: int) -> "CausalCache":
        """Copy with room for `length` positions: the argument `grow` of `greedy_decode` and the others.

        After a prefix it is `grow_after_prefix(CausalCache.grow, position)`.
        """
        return CausalCache([block.grow(length) for block in self.blocks])


class TransformerLM(TokenModel):
    """Language model: predicts each token of a sequence from those before it.

    Tokens are embedded, scaled by √D (unless `embeddings` says otherwise), and get positions and dropout; then come
    causal blocks of self-attention and feed-forward, and the projection to logits, by the embedding's own matrix unless
    `tie_embeddings` is False.

    Raises:
        InputError: at construction, if `num_heads` does not divide `model_dim`, a size is below 1, or a setting is
            impossible.
    """

    vocabulary_size: Size  # V
    model_dim: Size = 512  # D
    num_heads: Size = 8  # H
    num_layers: Size = 6  # L
    dim_feedforward: Size = 2048  # F
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    settings: BlockSettings = BlockSettings(dropout_prob=0.1)  # others have the dropout that they say, 0 unless set
    final_norm: bool | None = None  # norm after the last block; None: with pre-norm alone, which needs it
    tie_embeddings: bool = True  # the embedding's matrix projects to logits, too
    max_len: Size = 5000  # longest sequence to which positions can be added
    block: type[Block] = CausalBlock  # class of the blocks: CausalBlock, or one with all that it has
    embeddings: EmbeddingSettings = EmbeddingSettings()

    def setup(self) -> None:
        self.embedding = token_embedding(self.vocabulary_size, self.model_dim)
        self.set_up_tokens(self.vocabulary_size)
        sizes = self.num_layers, self.model_dim, self.num_heads, self.dim_feedforward
        self.decoder = CausalStack(*sizes, None, self.settings, self.final_norm, self.block)

    def __call__(
        self,
        tokens: Int[ArrayLike, "B T"],
        mask: Masks | None = None,
        *,
        train: bool = False,
        return_attention: ReturnAttention = False,
    ) -> Float[Array, "B T V"] | tuple[Float[Array, "B T V"], list[Weights]]:
        """Predict the token after each position.

        Inside `jax.jit` an id outside the vocabulary is no error, and gives NaN or another token's embedding.

        Args:
            tokens: `[B, T]`, of which position t sees those up to t.
            mask: of the self-attention, combined with the causal mask: `Segments` for several texts in a row.
            train: apply dropout; needs the random key `dropout` where a probability is not zero.
            return_attention: also return the weights that this pass used, or those of an `AttentionRows(queries,
                heads)`.

        Returns:
            Logits `[B, T, V]`, with `return_attention` a pair of them and the list of the L layers' weights.

        Raises:
            InputError: the tokens are of another type or shape, hold an id outside the vocabulary, or are more than
                can get positions; or the mask does not broadcast.
        """
        x = self._embed("tokens", tokens, train=train)
        result: Any = self.decoder(x, mask, train=train, return_attention=return_attention)
        return (self.project(result[0]), result[1]) if return_attention else self.project(result)

    def start_decoding(
        self, batch_size: int | None = None, length: int = 0, *, prefix: Int[ArrayLike, "B P"] | None = None
    ) -> CausalCache:
        """Allocate a cache of `length` positions; `CausalCache.grow` extends it.

        Args:
            batch_size: B; None with a prefix, which has it.
            length: positions that the cache has room for; at least those of the prefix.
            prefix: tokens of the positions 0 … P - 1, which are run in one pass. The next `decode_step` is the one at
                position P.

        Raises:
            InputError: there is neither a batch size nor a prefix, or the two disagree; `length` is negative; or the
                prefix is as `__call__` accepts no tokens.
        """
        check_sizes(0, length=length)
        dtype = self.embedding.embedding.dtype
        if prefix is None:
            if batch_size is None:
                raise InputError("batch_size is None; without a prefix it must be the number of rows")
            check_sizes(batch_size=batch_size)
            return CausalCache(self.decoder.empty_caches(batch_size, length, dtype))
        x = self._embed("prefix", prefix)
        num_rows, num_given, _ = x.shape
        if batch_size not in (None, num_rows):
            raise InputError(f"prefix has {num_rows} rows and batch_size is {batch_size}; they must be equal")
        caches = self.decoder.empty_caches(num_rows, max(length, num_given), dtype)
        return CausalCache(self.decoder.step(x, caches, 0)[1])

    def decode_step(
        self, tokens: Int[ArrayLike, " B"], position: Int[ArrayLike, ""], cache: CausalCache
    ) -> tuple[Float[Array, "B V"], CausalCache]:
        """Logits of the token after `tokens`: a step function for `transformer_jax.decoding.token_by_token`.

        They equal those of `__call__` at that position, at the cost of one position.

        Raises:
            InputError: the tokens are not `[B]` ids of the vocabulary, or not as many as the cache has rows; or
                `position` is beyond the cache. Traced values are not checked.
        """
        check_token_ids("tokens", tokens, self.vocabulary_size, "[B]")
        num_rows, _, length, _ = cache.blocks[0].key.shape
        if (given := jnp.shape(tokens)[0]) != num_rows:  # they could broadcast
            raise InputError(f"tokens has {given} rows and the cache has {num_rows}; they must be equal")
        check_offset("position", position, 0, length - 1)
        x = self._embed("tokens", jnp.asarray(tokens)[:, None], first=position, length=length)
        x, blocks = self.decoder.step(x, cache.blocks, position)
        return self.project(x)[:, 0], CausalCache(blocks)

    def _embed(self, name: str, tokens: ArrayLike, *, train: bool = False, **at: Any) -> Float[Array, "B T D"]:
        check_token_ids(name, tokens, self.vocabulary_size)
        return self.tap("embeddings", self.embedded(self.embedding, tokens, train=train, **at), "B T D")

    def hidden_states(
        self, tokens: Int[ArrayLike, "B T"], mask: Masks | None = None, *, train: bool = False
    ) -> Float[Array, "B T D"]:
        """The vectors of which `project` makes the logits: for a loss that takes a few positions at a time."""
        result: Any = self.decoder(self._embed("tokens", tokens, train=train), mask, train=train)
        return result

    @property
    def output_params(self) -> tuple[str, ...]:
        """Names of the parameters that `project` reads."""
        if not self.has_tied_output:
            return ("output_layer",)
        return ("embedding", "output_bias") if self.embeddings.output_bias else ("embedding",)

    def project(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Logits of hidden states."""
        return self.logits(x, self.embedding)
