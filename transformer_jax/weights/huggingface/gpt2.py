"""GPT-2 (Radford et al. 2019)."""

from transformer_jax.argument_checks import Shapes, Size
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.position_kinds import LearnedPositions
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import TIED_HEAD, Family, config_of
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

RENAMES = (
    ("^embedding", "transformer/wte"),
    ("^positional_encoding", "transformer/wpe"),
    (r"^decoder/layers_(\d+)", r"transformer/h/\1"),
    ("^decoder/norm", "transformer/ln_f"),
    ("^output_layer", "lm_head"),
    ("self_attn/(query|key|value)_proj", "attn/c_attn"),
    ("self_attn/output_proj", "attn/c_proj"),
    ("self_attn_residual/norm", "ln_1"),
    ("feed_forward/expand", "mlp/c_fc"),
    ("feed_forward/contract", "mlp/c_proj"),
    ("feed_forward_residual/norm", "ln_2"),
    *TORCH_ENDS,
)
GPT2_SIZES = {
    "vocabulary_size": "vocab_size",
    "model_dim": "n_embd",
    "num_heads": "n_head",
    "num_layers": "n_layer",
    "max_len": "n_positions",
}
GPT2_KEYS = GPT2_SIZES | {
    "dim_feedforward": "n_inner",
    "settings.activation": "activation_function",
    "settings.layer_norm_epsilon": "layer_norm_epsilon",
}


def build(keys: ConfigKeys, shapes: Shapes) -> TransformerLM:
    """The model of a `config.json`."""
    sizes = keys.sizes(GPT2_SIZES)
    return TransformerLM(
        **sizes,
        dim_feedforward=keys.take("n_inner", Size | None, None) or 4 * sizes["model_dim"],
        settings=BlockSettings(
            norm_first=True,
            activation=keys.activation("activation_function", "gelu_new"),
            layer_norm_epsilon=keys.take("layer_norm_epsilon", float, 1e-5),
            positions=LearnedPositions(),
        ),
        embeddings=EmbeddingSettings(is_scaled=False),
    )


def configure(model: TransformerLM) -> Json:
    """The `config.json` of a model."""
    return config_of(model, "GPT2LMHeadModel", GPT2_KEYS)


def layout(model: TransformerLM) -> Layout:
    """Names of the model's arrays; kernels are `[in, out]`, like ours."""
    return Layout(RENAMES, transposed=False)


GPT2 = Family(
    ("gpt2",),
    build,
    configure,
    layout,
    prefix="transformer.",
    copies={TIED_HEAD: "transformer.wte.weight"},
    ignored=r"\.attn\.(masked_)?bias$",
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
)
