"""ViT (Dosovitskiy et al. 2021): the encoder, and classifiers of images."""

from transformer_jax.argument_checks import Shapes
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.position_kinds import LearnedPositions
from transformer_jax.nn.vision import VisionTransformer
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import Family, config_of
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

RENAMES = (
    ("^class_token", "embeddings/cls_token"),
    ("^patch_layer", "embeddings/patch_embeddings/projection"),
    ("^positional_encoding/embedding", "embeddings/position_embeddings"),
    (r"encoder/layers_(\d+)", r"encoder/layer/\1"),
    ("^encoder/norm", "layernorm"),
    (r"self_attn/(query|key|value)_proj", r"attention/attention/\1"),
    ("self_attn/output_proj", "attention/output/dense"),
    ("self_attn_residual/norm", "layernorm_before"),
    ("feed_forward/expand", "intermediate/dense"),
    ("feed_forward/contract", "output/dense"),
    ("feed_forward_residual/norm", "layernorm_after"),
    ("^output_layer", "classifier"),
    ("^(embeddings|encoder|layernorm|pooler)/", r"vit/\1/"),
    *TORCH_ENDS,
)
VIT_SIZES = {
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "dim_feedforward": "intermediate_size",
    "patch_size": "patch_size",
    "num_channels": "num_channels",
}
VIT_KEYS = VIT_SIZES | {
    "settings.activation": "hidden_act",
    "settings.layer_norm_epsilon": "layer_norm_eps",
    "settings.attention.input_bias": "qkv_bias",
}


def build(keys: ConfigKeys, shapes: Shapes) -> VisionTransformer:
    """The model of a `config.json`, with the heads whose arrays exist."""
    image = keys.take("image_size", int | tuple[int, int], 224)
    height, width = image if isinstance(image, tuple) else (image, image)
    sizes = keys.sizes(VIT_SIZES)
    keys.one_of("head_dim", sizes["model_dim"] // sizes["num_heads"])
    return VisionTransformer(
        **sizes,
        image_size=(height, width),
        num_classes=shapes.get("classifier.weight", (0,))[0],
        settings=BlockSettings(
            norm_first=True,
            activation=keys.activation("hidden_act", "gelu"),
            layer_norm_epsilon=keys.take("layer_norm_eps", float, 1e-12),
            positions=LearnedPositions(),
            attention=AttentionSettings(input_bias=keys.take("qkv_bias", bool, True)),
        ),
        has_pooler="vit.pooler.dense.weight" in shapes,
    )


def configure(model: VisionTransformer) -> Json:
    """The `config.json` of a model."""
    name = "ViTForImageClassification" if model.num_classes else "ViTModel"
    height, width = model.image_size
    image = height if height == width else [height, width]
    return config_of(model, name, VIT_KEYS) | {"image_size": image}


def layout(model: VisionTransformer) -> Layout:
    """Names of the model's arrays; the patch layer is a convolution with kernel `[D, channels, height, width]`."""
    size = model.patch_size
    width = model.model_dim
    reshaped = {
        "class_token": (1, 1, width),
        "positional_encoding/embedding": (1, model.num_patches() + 1, width),
        "patch_layer/kernel": (size, size, model.num_channels, width),
    }
    return Layout(RENAMES, transposed=True, reshaped=reshaped)


VIT = Family(("vit",), build, configure, layout, prefix="vit.", fixed={"pooler_act": "tanh"})
