"""Vision Transformer, which encodes the patches of an image (Dosovitskiy et al. 2021)."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import Count, Probability, Size, as_array
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import Block, BlockSettings, SettingsModule
from transformer_jax.nn.encoder import EncoderBlock, TransformerEncoder
from transformer_jax.nn.layers import Dense, Dropout
from transformer_jax.nn.masked_language_model import Pooler
from transformer_jax.nn.position_kinds import LearnedPositions


class VisionTransformer(SettingsModule):
    """Encoder of image patches and a class token, whose output vector is classified (Dosovitskiy et al. 2021).

    Raises:
        InputError: at construction, if `num_heads` does not divide `model_dim`, `patch_size` does not divide the height
            and width of the images, a size is below 1, or a setting is invalid.
    """

    image_size: tuple[Size, Size]  # height and width
    patch_size: Size
    model_dim: Size = 768  # D
    num_heads: Size = 12  # H
    num_layers: Count = 12  # L
    dim_feedforward: Size = 3072  # F
    num_classes: Count = 0  # C; 0: return the output of the encoder
    num_channels: Size = 3
    dropout_prob: Probability | None = None  # shorthand for settings.dropout_prob
    settings: BlockSettings = BlockSettings(norm_first=True, positions=LearnedPositions())
    has_pooler: bool = False  # compute the pooler, as the activation `pooler.output`
    block: type[Block] = EncoderBlock  # class of the blocks

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(side % self.patch_size for side in self.image_size):
            raise InputError(
                f"patch_size is {self.patch_size}; it must divide both sides of image_size,"
                f" {self.image_size}"
            )

    @nn.nowrap
    def num_patches(self) -> int:
        """Number of patches of an image."""
        height, width = self.image_size
        return (height // self.patch_size) * (width // self.patch_size)

    def setup(self) -> None:
        self.patch_layer = Dense(self.model_dim)
        self.class_token = self.param(
            "class_token", nn.initializers.normal(0.02), (self.model_dim,)
        )
        self.positional_encoding = self.settings.positions.encoding(
            self.model_dim, self.num_patches() + 1
        )
        self.embedding_dropout = Dropout(self.settings.dropout_prob)
        sizes = self.num_layers, self.model_dim, self.num_heads, self.dim_feedforward
        self.encoder = TransformerEncoder(*sizes, settings=self.settings, block=self.block)
        if self.has_pooler:
            self.pooler = Pooler()
        if self.num_classes:
            self.output_layer = Dense(self.num_classes)

    def __call__(
        self,
        images: Float[ArrayLike, "B height width channels"],
        *,
        train: bool = False,
    ) -> Float[Array, "..."]:
        """Classify images.

        Args:
            images: `[B, height, width, channels]`, normalized as in training.
            train: apply dropout; needs the random key `dropout` if a probability is not zero.

        Returns:
            Logits `[B, C]`, or the encoder's output `[B, 1 + patches, D]`.

        Raises:
            InputError: the images have another shape.
        """
        shape = as_array("images", images).shape
        if len(shape) != 4 or shape[1:] != (*self.image_size, self.num_channels):
            raise InputError(
                f"images has shape {shape}; it must be [B, {self.image_size}, {self.num_channels}]"
            )
        patches = self.patch_layer(self._patches(jnp.asarray(images)))
        first = jnp.broadcast_to(self.class_token, (len(patches), 1, self.model_dim)).astype(
            patches.dtype
        )
        x = jnp.concatenate([first, patches], axis=1)
        if self.positional_encoding is not None:
            x = self.positional_encoding(x)
        x = self.tap("embeddings", self.embedding_dropout(x, train=train), "B T D")
        x = self.encoder(x, train=train)
        if self.has_pooler:
            self.pooler(x)
        return self.tap("logits", self.output_layer(x[:, 0]), "B C") if self.num_classes else x

    @nn.nowrap
    def _patches(
        self, images: Float[Array, "B height width channels"]
    ) -> Float[Array, "B T features"]:
        """Split images into patches, row by row; the pixels of each patch are flattened column by column."""
        batch, height, width, channels = images.shape
        size = self.patch_size
        tiles = images.reshape(batch, height // size, size, width // size, size, channels)
        return tiles.transpose(0, 1, 3, 4, 2, 5).reshape(
            batch, self.num_patches(), size * size * channels
        )
