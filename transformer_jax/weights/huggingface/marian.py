"""Marian's translators (Junczys-Dowmunt et al. 2018), as the Opus-MT models are."""

from transformer_jax.nn.block_settings import BlockSettings
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.position_kinds import SinusoidalPositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys, activation_name
from transformer_jax.weights.huggingface.family import ENDS, TIED_HEAD, Family
from transformer_jax.weights.layouts import Layout, Shapes

RENAMES = (
    ("^source_embedding", "model/shared"),
    ("^output_bias", "final_logits_bias"),
    (r"^(encoder|decoder)/layers_(\d+)", r"model/\1/layers/\2"),
    ("(self|cross)_attn_residual/norm", r"\1_attn_layer_norm"),
    ("cross_attn", "encoder_attn"),
    ("(query|key|value|output)_proj", r"#\1_proj"),
    ("#query", "q"),
    ("#key", "k"),
    ("#value", "v"),
    ("#output", "out"),
    ("feed_forward/expand", "fc1"),
    ("feed_forward/contract", "fc2"),
    ("feed_forward_residual/norm", "final_layer_norm"),
    *ENDS,
)
SIDES = "encoder", "decoder"


def create(keys: ConfigKeys, shapes: Shapes) -> Transformer:
    """The model of a `config.json`."""
    vocabulary_size = keys.take("vocab_size", int, 58101)
    keys.one_of("decoder_vocab_size", vocabulary_size, None)
    for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings"):
        keys.one_of(name, True)
    for name in ("is_decoder", "normalize_before", "normalize_embedding", "add_final_layer_norm"):
        keys.one_of(name, False)
    for name in (
        "add_bias_logits",
        "static_position_embeddings",
        "extra_pos_embeddings",
        "num_beams",
        "num_hidden_layers",
    ):
        keys.without_effect(name)
    keys.without_effect("bad_words_ids", "max_length", "forced_bos_token_id", "scale_attn_weights", "classif_dropout")
    num_heads, width = keys.take("encoder_attention_heads", int, 16), keys.take("encoder_ffn_dim", int, 4096)
    keys.one_of("decoder_attention_heads", num_heads)
    keys.one_of("decoder_ffn_dim", width)
    return Transformer(
        source_vocabulary_size=vocabulary_size,
        target_vocabulary_size=vocabulary_size,
        model_dim=keys.take("d_model", int, 1024),
        num_heads=num_heads,
        num_encoder_layers=keys.take("encoder_layers", int, 12),
        num_decoder_layers=keys.take("decoder_layers", int, 12),
        dim_feedforward=width,
        settings=BlockSettings(
            activation=keys.activation("activation_function", "gelu"),
            layer_norm_epsilon=1e-5,
            positions=SinusoidalPositions(in_halves=True),
        ),
        tie_embeddings=True,
        max_len=keys.take("max_position_embeddings", int, 1024),
        embeddings=EmbeddingSettings(is_scaled=bool(keys.take("scale_embedding", bool, False)), output_bias=True),
    )


def configure(model: Transformer) -> Json:
    """The `config.json` of a model."""
    sides = {f"{side}_attention_heads": model.num_heads for side in SIDES}
    return {
        "architectures": ["MarianMTModel"],
        "vocab_size": model.source_vocabulary_size,
        "d_model": model.model_dim,
        "encoder_layers": model.num_encoder_layers,
        "decoder_layers": model.num_decoder_layers,
        **sides,
        **{f"{side}_ffn_dim": model.dim_feedforward for side in SIDES},
        "activation_function": activation_name(model.settings.activation),
        "max_position_embeddings": model.max_len,
        "scale_embedding": model.embeddings.is_scaled,
        "is_encoder_decoder": True,
        # Padding is the last token of these vocabularies, and with it a translation starts.
        **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), (model.source_vocabulary_size or 0) - 1),
    }


def layout(model: Transformer) -> Layout:
    """The names of its arrays."""
    return Layout(RENAMES, transposed=True, reshaped={"output_bias": (1, model.source_vocabulary_size or 0)})


MARIAN = Family(
    ("marian",),
    create,
    configure,
    layout,
    prefix="model.",
    copies={
        TIED_HEAD: "model.shared.weight",
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    },
    ignored=r"embed_positions\.weight$",
)
