"""Models of `transformers` with random sizes and weights; no layer is an identity."""

import functools
import tempfile
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import tokenizers
import torch
import transformers

from transformer_jax import Transformer, TransformerLM, from_transformers, padding_mask
from transformer_jax.nn import VisionTransformer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LINEAR, DEFAULT = (
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    {"rope_type": "default", "rope_theta": 13.0},
)
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
YARN_LATER = YARN | {"beta_fast": 8, "beta_slow": 2, "truncate": False, "attention_factor": 0.7}


class Sizes(NamedTuple):
    """Sizes that all families share."""

    vocabulary: int
    heads: int
    head_width: int  # even
    layers: int
    hidden: int

    @property
    def width(self) -> int:
        return self.heads * self.head_width

    def named(self) -> dict[str, Any]:
        """Return the sizes under the names that most configs use."""
        return {
            "vocab_size": self.vocabulary, "hidden_size": self.width, "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers, "intermediate_size": self.hidden,
        }  # fmt: skip


def gpt2(s: Sizes, pick: Random) -> tuple[Any, Any]:
    config = transformers.GPT2Config(
        vocab_size=s.vocabulary, n_embd=s.width, n_head=s.heads, n_layer=s.layers, n_positions=97,
        n_inner=pick.choice([None, s.hidden]), activation_function=pick.choice(["gelu_new", "relu"]),
        layer_norm_epsilon=pick.choice([1e-5, 1e-3]), bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel, config


def gpt_neox(s: Sizes, pick: Random) -> tuple[Any, Any]:
    config = transformers.GPTNeoXConfig(
        **s.named(), use_parallel_residual=pick.choice([False, True]), attention_bias=pick.choice([False, True]),
        hidden_act=pick.choice(["gelu", "gelu_new"]), tie_word_embeddings=pick.choice([False, True]), eos_token_id=None,
        rope_parameters={**DEFAULT, "partial_rotary_factor": pick.choice([2 / s.head_width, 1.0])},
    )  # fmt: skip
    return transformers.GPTNeoXForCausalLM, config


def of_llama(s: Sizes, pick: Random) -> dict[str, Any]:
    """Return the options that Llama and the decoders after it share."""
    scalings = [LLAMA3, DYNAMIC, YARN, YARN_LATER, LINEAR, DEFAULT]
    return {
        **s.named(), "num_key_value_heads": pick.choice([1, s.heads]), "max_position_embeddings": 17,
        "tie_word_embeddings": pick.choice([False, True]), "rms_norm_eps": pick.choice([1e-6, 1e-3]),
        "rope_parameters": dict(pick.choice(scalings)), "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip


def llama(s: Sizes, pick: Random) -> tuple[Any, Any]:
    kind = pick.choice(["Llama", "Qwen2", "Qwen3"])
    options = of_llama(s, pick)
    if kind == "Llama":
        options |= {"attention_bias": pick.choice([False, True]), "mlp_bias": pick.choice([False, True])}
    if kind != "Qwen2":
        options["head_dim"] = pick.choice([s.head_width, s.head_width + 2])
    if kind != "Llama":
        options |= {"use_sliding_window": pick.choice([False, True]), "sliding_window": 4, "max_window_layers": 1}
    return getattr(transformers, f"{kind}ForCausalLM"), getattr(transformers, f"{kind}Config")(**options)


def mistral(s: Sizes, pick: Random) -> tuple[Any, Any]:
    config = transformers.MistralConfig(**of_llama(s, pick), sliding_window=pick.choice([4, 7]))
    return transformers.MistralForCausalLM, config


def smollm3(s: Sizes, pick: Random) -> tuple[Any, Any]:
    config = transformers.SmolLM3Config(
        **of_llama(s, pick), no_rope_layers=[pick.choice([0, 1]) for _ in range(s.layers - 1)] + [0],
        use_sliding_window=pick.choice([True, False]), sliding_window=5, attention_bias=pick.choice([False, True]),
        mlp_bias=pick.choice([False, True]),
    )  # fmt: skip
    return transformers.SmolLM3ForCausalLM, config


def olmo2(s: Sizes, pick: Random) -> tuple[Any, Any]:
    config = transformers.Olmo2Config(**of_llama(s, pick), attention_bias=pick.choice([False, True]))
    return transformers.Olmo2ForCausalLM, config


def of_gemma(s: Sizes, pick: Random) -> dict[str, Any]:
    """Return the options of Gemma 2 and 3, of which Gemma ignores some."""
    return of_llama(s, pick) | {
        "head_dim": pick.choice([s.head_width, s.head_width + 2]), "attention_bias": pick.choice([False, True]),
        "sliding_window": 4, "query_pre_attn_scalar": pick.choice([5, 16]),
        "final_logit_softcapping": pick.choice([3.0, None]),
    }  # fmt: skip


def gemma2(s: Sizes, pick: Random) -> tuple[Any, Any]:
    kind = pick.choice(["Gemma2", "Gemma"])
    options = of_gemma(s, pick) | {"attn_logit_softcapping": pick.choice([0.5, None])}
    if kind == "Gemma":
        options["sliding_window"] = None
    return getattr(transformers, f"{kind}ForCausalLM"), getattr(transformers, f"{kind}Config")(**options)


def gemma3(s: Sizes, pick: Random) -> tuple[Any, Any]:
    options = of_gemma(s, pick)
    options |= {
        "layer_types": [pick.choice(["sliding_attention", "full_attention"]) for _ in range(s.layers)],
        "rope_parameters": {"full_attention": options["rope_parameters"], "sliding_attention": DEFAULT},
    }
    return transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(**options)


def bert(s: Sizes, pick: Random) -> tuple[Any, Any]:
    kind = pick.choice(["Bert", "Roberta"])
    head = pick.choice(["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model"])
    config = getattr(transformers, f"{kind}Config")(
        **s.named(), hidden_act="gelu" if kind == "Roberta" else pick.choice(["gelu", "relu"]),
        max_position_embeddings=29, type_vocab_size=pick.choice([1, 2]), layer_norm_eps=pick.choice([1e-12, 1e-3]),
        num_labels=5,
    )  # fmt: skip
    return getattr(transformers, kind + head), config


def albert(s: Sizes, pick: Random) -> tuple[Any, Any]:
    head = pick.choice(["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model"])
    config = transformers.AlbertConfig(
        **s.named(), embedding_size=pick.choice([5, s.width]), hidden_act=pick.choice(["gelu", "gelu_new"]),
        max_position_embeddings=29, type_vocab_size=pick.choice([1, 2]), layer_norm_eps=pick.choice([1e-12, 1e-3]),
        num_labels=5,
    )  # fmt: skip
    return getattr(transformers, "Albert" + head), config


def distilbert(s: Sizes, pick: Random) -> tuple[Any, Any]:
    head = pick.choice(["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model"])
    config = transformers.DistilBertConfig(
        vocab_size=s.vocabulary, dim=s.width, n_heads=s.heads, n_layers=s.layers, hidden_dim=s.hidden,
        activation=pick.choice(["gelu", "relu"]), max_position_embeddings=29, num_labels=5,
    )  # fmt: skip
    return getattr(transformers, "DistilBert" + head), config


def mpnet(s: Sizes, pick: Random) -> tuple[Any, Any]:
    head = pick.choice(["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model"])
    config = transformers.MPNetConfig(
        **s.named(), hidden_act="gelu", max_position_embeddings=29, layer_norm_eps=pick.choice([1e-12, 1e-3]),
        num_labels=5,
    )  # fmt: skip
    return getattr(transformers, "MPNet" + head), config


def vit(s: Sizes, pick: Random) -> tuple[Any, Any]:
    sizes = {name: size for name, size in s.named().items() if name != "vocab_size"}
    config = transformers.ViTConfig(
        **sizes, image_size=pick.choice([6, (4, 6)]), patch_size=2, num_channels=pick.choice([1, 3]), num_labels=5,
        qkv_bias=pick.choice([False, True]), hidden_act=pick.choice(["gelu", "gelu_new"]),
    )  # fmt: skip
    return pick.choice([transformers.ViTForImageClassification, transformers.ViTModel]), config


def t5(s: Sizes, pick: Random) -> tuple[Any, Any]:
    config = transformers.T5Config(
        vocab_size=s.vocabulary, d_model=s.width, d_kv=s.head_width + 1, num_heads=s.heads, num_layers=s.layers,
        num_decoder_layers=pick.choice([1, s.layers]), d_ff=s.hidden, relative_attention_num_buckets=8,
        relative_attention_max_distance=11, feed_forward_proj=pick.choice(["relu", "gated-gelu", "gated-silu"]),
        tie_word_embeddings=pick.choice([False, True]), decoder_start_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration, config


def mt5(s: Sizes, pick: Random) -> tuple[Any, Any]:
    return transformers.MT5ForConditionalGeneration, as_config(t5(s, pick)[1], transformers.MT5Config)


def bart(s: Sizes, pick: Random) -> tuple[Any, Any]:
    return transformers.BartForConditionalGeneration, as_config(marian(s, pick)[1], transformers.BartConfig)


def as_config(config: Any, kind: type[Any]) -> Any:
    """Return a config of another family with the same values of the keys that both families have."""
    names = kind().to_dict().keys() - {"architectures", "model_type", "transformers_version"}
    return kind(**{name: value for name, value in config.to_dict().items() if name in names})


def marian(s: Sizes, pick: Random) -> tuple[Any, Any]:
    config = transformers.MarianConfig(
        vocab_size=s.vocabulary, d_model=s.width, encoder_layers=s.layers, decoder_layers=pick.choice([1, s.layers]),
        encoder_attention_heads=s.heads, decoder_attention_heads=pick.choice([1, s.heads]), encoder_ffn_dim=s.hidden,
        decoder_ffn_dim=pick.choice([7, s.hidden]), activation_function=pick.choice(["swish", "gelu", "relu"]),
        pad_token_id=0, decoder_start_token_id=0, eos_token_id=1, forced_eos_token_id=None, max_position_embeddings=97,
        scale_embedding=pick.choice([False, True]),
    )  # fmt: skip
    return transformers.MarianMTModel, config


DECODERS = {each.__name__: each for each in (gpt2, gpt_neox, llama, mistral, smollm3, olmo2, gemma2, gemma3)}
FAMILIES = DECODERS | {each.__name__: each for each in (bert, albert, distilbert, mpnet, vit, t5, bart, marian)}


def drawn(family: str, pick: Random) -> Any:
    """Draw a model of a family: its sizes, options and weights, including norms and biases."""
    options = [13, 31], [1, 2, 3], [4, 6], [1, 2], [11, 17]
    kinds = FAMILIES | {"mt5": mt5}  # mT5 is T5 but for names and defaults
    model_class, config = kinds[family](Sizes(*map(pick.choice, options)), pick)
    torch.manual_seed(pick.randrange(1000))
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    is_t5 = family in ("t5", "mt5")
    if is_t5 and not getattr(config, "scale_decoder_outputs", False) and pick.choice([False, True]):  # as in T5 1.1
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    with torch.no_grad():
        for parameter in model.parameters():
            # T5's matrices start large. If they changed more, T5's own float32 maps would be 1e-5 off those in float64.
            if not is_t5 or parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
        if family in ("bart", "marian"):
            model.final_logits_bias.normal_()
        if family == "marian":
            for side in (model.model.encoder, model.model.decoder):
                side.embed_positions.weight.copy_(side.embed_positions.create_weight())  # which is no parameter
    return model


class Passed(NamedTuple):
    """Results of a forward pass of `transformers`."""

    output: np.ndarray
    blocks: list[np.ndarray]  # output of each, those of the encoder first
    attention: list[np.ndarray]  # weights of each layer: the encoder's, the decoder's, those of the cross-attention
    gradient: np.ndarray  # of the sum of output · weights, with respect to the embeddings or the patches' kernel


def passed(model: Any, weights: np.ndarray | None = None, **inputs: np.ndarray) -> Passed:
    """Run the forward pass of a model for named inputs."""
    blocks: list[np.ndarray] = []
    hooks = [
        module.register_forward_hook(
            lambda _, __, out: blocks.append((out[0] if isinstance(out, tuple) else out).detach().numpy())
        )
        for module in model.modules()
        if type(module).__name__.endswith(("Block", "Layer"))
    ]
    result = model(**{name: torch.tensor(value) for name, value in inputs.items()}, output_attentions=True)
    output = result.logits if "logits" in result else result.last_hidden_state
    weights = np.ones(output.shape, np.float32) if weights is None else weights
    model.zero_grad()
    (output * torch.tensor(weights)).sum().backward()
    kinds = ("encoder_attentions", "decoder_attentions", "cross_attentions", "attentions")
    attention = [each.detach().numpy() for kind in kinds for each in (result.get(kind) or ())]
    embedding = model.get_input_embeddings()
    leaf = embedding.projection.weight if hasattr(embedding, "projection") else embedding.weight
    for hook in hooks:
        hook.remove()
    return Passed(output.detach().numpy(), blocks, attention, leaf.grad.numpy())


def opened(theirs: Any) -> tuple[Any, Any]:
    """Load a model of `transformers` from its files as our model; return the model and its variables."""
    with tempfile.TemporaryDirectory() as directory:
        theirs.save_pretrained(directory)
        return from_transformers(directory)


def inputs_of(model: Any, pick: Random) -> tuple[tuple[Any, ...], dict[str, np.ndarray]]:
    """Return inputs of our model, and the same by name for `transformers`: 2 rows, one possibly padded at the end."""
    rng, length = np.random.default_rng(pick.randrange(1000)), pick.choice([11, 13])
    if isinstance(model, VisionTransformer):
        images = rng.normal(size=(2, *model.image_size, model.num_channels)).astype(np.float32)
        return (images,), {"pixel_values": images.transpose(0, 3, 1, 2)}
    valid = np.arange(length) < np.array([[length], [length - pick.choice([0, 3])]])
    theirs = {"attention_mask": valid.astype(int)}
    if isinstance(model, Transformer):
        source, target = (rng.integers(2, model.source_vocabulary_size, size=(2, size)) for size in (length, 7))
        return (source, target, padding_mask(valid)), theirs | {"input_ids": source, "decoder_input_ids": target}
    tokens = rng.integers(2, model.vocabulary_size, size=(2, length))
    if isinstance(model, TransformerLM):
        return (tokens, padding_mask(valid)), theirs | {"input_ids": tokens}
    tokens = np.where(valid, tokens, 1)  # RoBERTa's padding
    if not model.num_types:
        return (tokens, padding_mask(valid)), theirs | {"input_ids": tokens}
    types = rng.integers(model.num_types, size=tokens.shape)
    return (tokens, padding_mask(valid), types), theirs | {"input_ids": tokens, "token_type_ids": types}


@functools.cache
def ours(family: str, seed: int = 0) -> tuple[Any, Any, tuple[np.ndarray, ...]]:
    """Return our model of a drawn `transformers` model, its variables, and inputs without a mask."""
    model, variables = opened(drawn(family, Random(seed)))
    inputs, _ = inputs_of(model, Random(seed))
    return model, variables, inputs[: 2 if isinstance(model, Transformer) else 1]


WORDS = ["<pad>", "</s>", "[MASK]", *(f"w{number}" for number in range(3, 31))]


def drawn_of_31_tokens(family: str, head: str = "", least_layers: int = 1) -> Any:
    """Draw the first model of a family with 31 tokens, this end of its class's name, and at least so many layers."""
    for seed in range(99):
        model = drawn(family, Random(seed))
        is_deep = model.config.num_hidden_layers >= least_layers
        if model.config.vocab_size == 31 and type(model).__name__.endswith(head) and is_deep:
            return model
    raise AssertionError(family)


def saved_with_words(model: Any, directory: Path) -> Path:
    """Save a model with a tokenizer of `WORDS`, as many as it has tokens, and return the directory."""
    ids = {word: number for number, word in enumerate(WORDS[: model.config.vocab_size])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="</s>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(WORDS[:3])
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
