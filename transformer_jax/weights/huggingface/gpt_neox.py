"""GPT-NeoX (Black et al. 2022), including Pythia (Biderman et al. 2023)."""

from transformer_jax.argument_checks import Shapes
from transformer_jax.errors import InputError
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.causal import CausalBlock, ParallelBlock
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import KEYS, SIZES, Family, config_of
from transformer_jax.weights.huggingface.rotary import rope_parameters, rotary_positions
from transformer_jax.weights.layouts import TORCH_ENDS, Layout

RENAMES = (
    ("^embedding", "gpt_neox/embed_in"),
    (r"^decoder/layers_(\d+)", r"gpt_neox/layers/\1"),
    ("^decoder/norm", "gpt_neox/final_layer_norm"),
    ("^output_layer", "embed_out"),
    ("self_attn/(query|key|value)_proj", "attention/query_key_value"),
    ("self_attn/output_proj", "attention/dense"),
    ("self_attn_residual/norm", "input_layernorm"),
    ("feed_forward/expand", "mlp/dense_h_to_4h"),
    ("feed_forward/contract", "mlp/dense_4h_to_h"),
    ("feed_forward_residual/norm", "post_attention_layernorm"),
    *TORCH_ENDS,
)
NEOX_KEYS = KEYS | {
    "settings.attention.input_bias": "attention_bias",
    "tie_embeddings": "tie_word_embeddings",
}


def build(keys: ConfigKeys, shapes: Shapes) -> TransformerLM:
    """The model of a `config.json`."""
    is_parallel = keys.take("use_parallel_residual", bool, True)
    has_bias = keys.take("attention_bias", bool, True)
    positions = rotary_positions(
        keys,
        keys.take("rotary_emb_base", int | float, 10_000.0),
        keys.take("rotary_pct", float, 0.25),
    )
    # `transformers` 4 writes the fraction twice
    fraction = keys.take("partial_rotary_factor", float | None, None)
    if fraction not in (None, positions.fraction):
        raise InputError(
            f"partial_rotary_factor in {keys.source} is {fraction}; it must be rotary_pct,"
            f" {positions.fraction}"
        )
    sizes = keys.sizes(SIZES)
    # affects only the rotated width
    keys.one_of("head_dim", sizes["model_dim"] // sizes["num_heads"], None)
    return TransformerLM(
        **sizes,
        settings=BlockSettings(
            norm_first=True,
            activation=keys.activation("hidden_act", "gelu"),
            layer_norm_epsilon=keys.take("layer_norm_eps", float, 1e-5),
            positions=positions,
            attention=AttentionSettings(input_bias=has_bias, output_bias=has_bias),
        ),
        tie_embeddings=keys.take("tie_word_embeddings", bool, False),
        embeddings=EmbeddingSettings(is_scaled=False, output_bias=False),
        block=ParallelBlock if is_parallel else CausalBlock,
    )


def configure(model: TransformerLM) -> Json:
    """The `config.json` of a model."""
    return config_of(model, "GPTNeoXForCausalLM", NEOX_KEYS) | {
        "rope_parameters": rope_parameters(model.settings.positions),
        "use_parallel_residual": issubclass(model.block, ParallelBlock),
    }


def layout(model: TransformerLM) -> Layout:
    """Names of the model's arrays; query, key and value of each head are adjacent."""
    return Layout(RENAMES, transposed=True, num_groups=model.num_heads)


GPT_NEOX = Family(
    ("gpt_neox",),
    build,
    configure,
    layout,
    prefix="gpt_neox.",
    copies={"embed_out.weight": "gpt_neox.embed_in.weight"},
    ignored=r"\.attention\.((masked_)?bias|rotary_emb\.inv_freq)$",
)
