"""Attention between sets: the blocks of the Set Transformer (Lee et al. 2019, section 3).

A stack of `SAB` or `ISAB` is permutation-equivariant, and `PMA` after it makes it invariant. The paper's version
without norms has `BlockSettings(norm=NoNorm)`.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import Size, check_sequence
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.nn.blocks import Block
from transformer_jax.nn.layers import Features, FeaturesLike


class MAB(Block):
    """Attention block `MAB(X, Y) = Norm(H + rFF(H))`, `H = Norm(X + Multihead(X, Y, Y))` (equations 6 and 7).

    Its fields and errors are those of `Block`. It ignores `settings.positions`, since a set has no order.
    """

    def setup(self) -> None:
        self.attn = self.attention()
        self.attn_residual = self.residual()
        self.feed_forward = self.position_wise()
        self.feed_forward_residual = self.residual()

    def __call__(
        self,
        x: FeaturesLike,
        memory: Float[ArrayLike, "B S D"],
        mask: Masks | None = None,
        *,
        train: bool = False,
    ) -> Features:
        """Attend from the set `x` to the set `memory`.

        Args:
            x: `[B, T, D]`.
            memory: `[B, S, D]`.
            mask: which elements of `memory` an element of `x` may see, as in `dot_product_attention`.
            train: apply dropout; needs the random key `dropout` if its probability is not zero.
        """
        check_sequence("x", x, self.input_dim)
        x = self.attn_residual(x, lambda h: self.attn(h, memory, mask, train=train), train=train)
        return self.feed_forward_residual(
            x, lambda h: self.feed_forward(h, train=train), train=train
        )


class SAB(MAB):
    """Self-attention block `SAB(X) = MAB(X, X)` (equation 8), a possible `block` of a `TransformerEncoder`."""

    def __call__(  # type: ignore[override]  # takes one set
        self,
        x: FeaturesLike,
        mask: Masks | None = None,
        *,
        train: bool = False,
    ) -> Features:
        """Attend within the set `x`; the arguments are those of `MAB`."""
        return super().__call__(x, x, mask, train=train)


class ISAB(Block):
    """Block `ISAB(X) = MAB(X, MAB(I, X))` with m learned inducing points I (equations 9 and 10), at a cost of m T.

    Its other fields and errors are those of `Block`.
    """

    num_inducing: Size = 16  # m

    def setup(self) -> None:
        self.inducing = self.param(
            "inducing", nn.initializers.xavier_uniform(), (self.num_inducing, self.input_dim)
        )
        sizes = self.input_dim, self.num_heads, self.dim_feedforward
        self.to_inducing = MAB(*sizes, settings=self.settings)
        self.from_inducing = MAB(*sizes, settings=self.settings)

    def __call__(
        self,
        x: FeaturesLike,
        mask: Masks | None = None,
        *,
        train: bool = False,
    ) -> Features:
        """Transform the set `x`.

        Args:
            x: `[B, T, D]`.
            mask: which elements the inducing points may see, `[B, 1, 1, T]`, e.g. from `padding_mask`.
            train: apply dropout.
        """
        hidden = self.to_inducing(_for_each_row(self.inducing, x), x, mask, train=train)
        return self.from_inducing(x, hidden, train=train)


class PMA(Block):
    """Pooling block `PMA(Z) = MAB(S, rFF(Z))` with k learned seeds S (equation 11), which pools a set to k vectors.

    Its other fields and errors are those of `Block`.
    """

    num_seeds: Size = 1  # k

    def setup(self) -> None:
        self.seeds = self.param(
            "seeds", nn.initializers.xavier_uniform(), (self.num_seeds, self.input_dim)
        )
        self.feed_forward = self.position_wise()
        self.pool = MAB(
            self.input_dim, self.num_heads, self.dim_feedforward, settings=self.settings
        )

    def __call__(
        self,
        x: FeaturesLike,
        mask: Masks | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "B k D"]:
        """Pool the set `x`.

        Args:
            x: `[B, T, D]`.
            mask: which elements the seeds may see, `[B, 1, 1, T]`, e.g. from `padding_mask`.
            train: apply dropout.
        """
        memory = self.feed_forward(x, train=train)
        return self.pool(_for_each_row(self.seeds, x), memory, mask, train=train)


def _for_each_row(points: Float[Array, "m D"], x: ArrayLike) -> Float[Array, "B m D"]:
    return jnp.broadcast_to(points, (jnp.shape(x)[0], *points.shape))
