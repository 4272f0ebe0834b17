"""Marian translation models (Junczys-Dowmunt et al. 2018), such as Opus-MT."""

from transformer_jax.argument_checks import Shapes
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.position_kinds import SinusoidalPositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import LETTERS, TIED_HEAD, Family, config_of
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

RENAMES = (
    ("^source_embedding", "model/shared"),
    ("^output_bias", "final_logits_bias"),
    (r"^(encoder|decoder)/layers_(\d+)", r"model/\1/layers/\2"),
    ("(self|cross)_attn_residual/norm", r"\1_attn_layer_norm"),
    ("cross_attn", "encoder_attn"),
    *LETTERS,
    ("output_proj", "out_proj"),
    ("feed_forward/expand", "fc1"),
    ("feed_forward/contract", "fc2"),
    ("feed_forward_residual/norm", "final_layer_norm"),
    *TORCH_ENDS,
)
MARIAN_SIZES = {
    "source_vocabulary_size": "vocab_size",
    "target_vocabulary_size": "vocab_size",
    "model_dim": "d_model",
    "num_heads": "encoder_attention_heads",
    "num_encoder_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "dim_feedforward": "encoder_ffn_dim",
    "max_len": "max_position_embeddings",
    "num_decoder_heads": "decoder_attention_heads",
    "decoder_dim_feedforward": "decoder_ffn_dim",
}
MARIAN_KEYS = MARIAN_SIZES | {
    "settings.activation": "activation_function",
    "embeddings.is_scaled": "scale_embedding",
}


def build(keys: ConfigKeys, shapes: Shapes) -> Transformer:
    """The model of a `config.json`."""
    return Transformer(
        **keys.sizes(MARIAN_SIZES),
        settings=BlockSettings(
            activation=keys.activation("activation_function", "gelu"),
            layer_norm_epsilon=1e-5,
            positions=SinusoidalPositions(in_halves=True),
        ),
        tie_embeddings=True,
        embeddings=EmbeddingSettings(
            is_scaled=keys.take("scale_embedding", bool, False), output_bias=True
        ),
    )


def configure(model: Transformer) -> Json:
    """The `config.json` of a model."""
    # Padding is the last token of these vocabularies, and the first token of every translation.
    padding = (model.source_vocabulary_size or 0) - 1
    return config_of(model, "MarianMTModel", MARIAN_KEYS) | {
        "decoder_attention_heads": model.num_decoder_heads or model.num_heads,
        "decoder_ffn_dim": model.decoder_dim_feedforward or model.dim_feedforward,
        "is_encoder_decoder": True,
        "pad_token_id": padding,
        "decoder_start_token_id": padding,
    }


def layout(model: Transformer) -> Layout:
    """Names of the model's arrays."""
    return Layout(
        RENAMES, transposed=True, reshaped={"output_bias": (1, model.source_vocabulary_size or 0)}
    )


MARIAN = Family(
    ("marian",),
    build,
    configure,
    layout,
    prefix="model.",
    copies=dict.fromkeys(
        (TIED_HEAD, "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
        "model.shared.weight",
    ),
    heads=("Model",),
    ignored=r"embed_positions\.weight$",
    fixed={
        "is_encoder_decoder": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    },
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
        "decoder_vocab_size": "vocab_size",
    },
)
