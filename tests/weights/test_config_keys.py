"""Which keys of a `config.json` are honoured, ignored or refused."""

import dataclasses
import json
from random import Random

import pytest
from compiled_models import assert_close
from published_configs import (
    BART,
    BERT,
    DISTILBERT,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GOOGLE,
    GPT2,
    LLAMA,
    MISTRAL,
    MPNET,
    MT5,
    NEOX,
    OLMO2,
    OPUS,
    PUBLISHED,
    QWEN3,
    QWEN25,
    ROBERTA,
    SMOLLM3,
    T5,
    VIT,
)
from repository import REPOSITORY

from transformer_jax import InputError
from transformer_jax.nn import AttentionKind, NoPositions, RotaryPositions, TransformerLM
from transformer_jax.nn.causal import kinds_of
from transformer_jax.weights.huggingface.config_keys import UNSUPPORTED, ConfigKeys
from transformer_jax.weights.huggingface.pretrained import FAMILIES, is_of_transformers, model_of_config
from transformer_jax.weights.layouts import abstract_params


def opened(config, directory):
    (directory / "config.json").write_text(json.dumps(config))
    return model_of_config(directory / "config.json")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_opens_or_names_the_key_that_is_refused(name, tmp_path):
    config, expected = PUBLISHED[name]
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            opened(config, tmp_path)
    else:
        opened(config, tmp_path)
    assert is_of_transformers(tmp_path)


def test_the_table_of_the_docs_has_each_published_config_and_the_refused_keys():
    table = (REPOSITORY / "docs" / "pretrained.md").read_text().partition("## Published configs")[2].splitlines()
    for name, (_, expected) in PUBLISHED.items():
        (row,) = [line for line in table if line.startswith(f"| `{name}` |")]
        assert f"`{expected}`" in row if isinstance(expected, str) else "| yes |" in row


@pytest.mark.slow  # it counts 70 models
def test_a_published_config_opens_with_the_published_number_of_parameters(tmp_path):
    for name, (config, expected) in PUBLISHED.items():
        if isinstance(expected, int):
            model = opened(config, tmp_path)
            has_loop = not model.settings.share_layers  # which traces one layer
            looped = model.clone(settings=dataclasses.replace(model.settings, scan_layers=has_loop))
            if isinstance(model, TransformerLM):  # kinds of attention have no parameters
                looped = looped.clone(attention_kinds=(AttentionKind(),))
            assert sum(leaf.size for leaf in abstract_params(looped).values()) == expected, name


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        (LLAMA, {"sliding_window": 4096}, "has sliding_window = 4096, which is not supported"),
        (QWEN25, {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types in "),
        (QWEN25, {"layer_types": ["full_attention"]}, "layer_types in .* has 1 entries; it must have 24, one for each"),
        (QWEN25, {"use_sliding_window": True, "sliding_window": 0}, "sliding_window in .* is 0; it must be at least 1"),
        (MISTRAL, {"layer_types": ["sliding_attention"] * 32}, "has layer_types = "),
        (SMOLLM3, {"no_rope_layers": [1, 0]}, "no_rope_layers in .* has 2 entries; it must have 36"),
        (GEMMA, {"sliding_window": 7}, "has sliding_window = 7"),
        (GEMMA2, {"use_bidirectional_attention": True}, "use_bidirectional_attention in .* is True"),
        (
            GEMMA2,
            {"final_logit_softcapping": 0},
            "final_logit_softcapping in .* is 0; it must be a finite number above",
        ),
        (GEMMA3, {"rope_scaling": {"type": "linear", "factor": 8.0}}, "has factor, which is not supported"),
        (OLMO2, {"sliding_window": 7}, "has sliding_window = 7"),
        (LLAMA, {"rope_scaling": {"type": "longrope", "factor": 4.0}}, "rope_type in .* is 'longrope'"),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": None}}, "factor in .* is None; it must be float"),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7}}, "has mscale, which is not supported"),
        (
            LLAMA,
            {"rope_parameters": {"full_attention": {"rope_theta": 5e5}}},
            "has full_attention, which is not supporte",
        ),
        (LLAMA, {"is_causal": False}, "has is_causal = False"),
        (BERT, {"pruned_heads": {"0": [1]}}, "has pruned_heads = "),
        (BERT, {"is_decoder": True}, "is_decoder in .* is True"),
        (BERT, {"tie_word_embeddings": False}, "tie_word_embeddings in .* is False"),
        (
            LLAMA,
            {"architectures": ["LlamaForSequenceClassification"]},
            "ForSequenceClassification; it must end in one of For",
        ),
        (OPUS, {"architectures": ["MarianForCausalLM"]}, "is MarianForCausalLM; it must end in one of Model"),
        (NEOX, {"partial_rotary_factor": 0.5}, "partial_rotary_factor in .* is 0.5; it must be rotary_pct, 0.25"),
        (NEOX, {"head_dim": 32}, "head_dim in .* is 32; it must be one of 64, None"),
        (VIT, {"head_dim": 32}, "head_dim in .* is 32; it must be one of 64"),
        (GPT2, {"hidden_size": 64}, "hidden_size in .* is 64; it must be one of 768, None"),  # it wins there
        (T5, {"head_dim": 32}, "head_dim in .* is 32; it must be one of 64, None"),
        (OPUS, {"decoder_vocab_size": 7}, "decoder_vocab_size in .* is 7"),
        (OPUS, {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings in .* is False"),
        (DISTILBERT, {"tie_word_embeddings": False}, "tie_word_embeddings in .* is False"),
        (DISTILBERT, {"hidden_size": 64}, "hidden_size in .* is 64; it must be one of 768, None"),
        (DISTILBERT, {"activation": "maxout"}, "activation in .* is 'maxout'; it must be one of gelu, "),
        (MPNET, {"relative_attention_num_buckets": 16}, "_num_buckets in .* is 16; it must be one of 32"),
        (BART, {"architectures": ["BartForCausalLM"]}, "BartForCausalLM; it must end in one of BartForConditional"),
        (BART, {"decoder_layers": 0}, "decoder_layers in .* is 0; it must be at least 1"),
        (MT5, {"architectures": ["MT5EncoderModel"]}, "is MT5EncoderModel; it must end in one of ForConditional"),
        (MT5, {"feed_forward_proj": "geglu"}, "feed_forward_proj in .* is 'geglu'; it must be one of gated-gelu, "),
        (ROBERTA, {"model_type": None}, "model_type in .* is None; it must be one of gpt2, "),
        (GOOGLE, {"type_vocab_size": 1}, "model_type in .* is None"),  # a RoBERTa, by its keys
        (GOOGLE, {"architectures": ["AlbertForMaskedLM"]}, "model_type in .* is None"),
    ],
)
def test_a_key_that_would_change_the_result_is_an_error(config, more, message, tmp_path):
    with pytest.raises(InputError, match=message):
        opened(config | more, tmp_path)


@pytest.mark.parametrize(
    ("config", "more", "expected"),
    [
        (LLAMA, {}, [(None, None)] * 5),
        (MISTRAL, {}, [(4096, None)] * 5),
        (MISTRAL, {"sliding_window": None}, [(None, None)] * 5),
        (QWEN25, {"use_sliding_window": True, "max_window_layers": 2}, [(None, None)] * 2 + [(32768, None)] * 3),
        (QWEN3, {"use_sliding_window": True, "max_window_layers": 2}, [(None, None)] * 5),  # sliding_window is null
        (SMOLLM3, {"no_rope_layers": None}, [(None, None)] * 3 + [(None, "none"), (None, None)]),
        (
            SMOLLM3,
            {"no_rope_layers": [1, 0, 1, 1, 0], "use_sliding_window": True, "sliding_window": 7},
            [(None, None), (7, "none"), (None, None), (None, None), (7, "none")],
        ),
        (GEMMA2, {}, [(4096, None), (None, None)] * 2 + [(4096, None)]),
        (GEMMA3, {"sliding_window_pattern": 3}, [(512, 1e4), (512, 1e4), (None, None), (512, 1e4), (512, 1e4)]),
        (GEMMA3, {"layer_types": ["full_attention"] * 4 + ["sliding_attention"]}, [(None, None)] * 4 + [(512, 1e4)]),
    ],
)
def test_windows_and_positions_of_layers_are_those_of_the_config(config, more, expected, tmp_path):
    model = opened(config | {"layer_types": None, "num_hidden_layers": 5} | more, tmp_path)
    found = []
    for kind in kinds_of(model):
        position = {NoPositions: "none", RotaryPositions: getattr(kind.positions, "base", None)}
        found.append((kind.window, position.get(type(kind.positions))))
    assert found == expected


@pytest.mark.parametrize(
    ("config", "more"),
    [
        (NEOX, {"partial_rotary_factor": 0.25, "rope_theta": 10000, "rope_scaling": None}),  # of transformers 4
        (LLAMA, {"rope_scaling": {"type": "default", "finetuned": True}}),
    ],
)
def test_entries_that_transformers_ignores_change_nothing(config, more, tmp_path):
    assert repr(opened(config | more, tmp_path)) == repr(opened(config, tmp_path))


def test_the_first_berts_have_no_model_type_and_are_told_by_their_class_or_their_keys(tmp_path):
    named = opened(GOOGLE | {"model_type": "bert"}, tmp_path)
    assert repr(opened(GOOGLE, tmp_path)) == repr(named)
    assert repr(opened(GOOGLE | {"architectures": ["BertForMaskedLM"], "type_vocab_size": 2}, tmp_path)) == repr(named)
    assert is_of_transformers(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"task": "ReverseTask", "num_heads": 2}))
    assert not is_of_transformers(tmp_path)


# Keys that `transformers` reads for a family, each with a value that does not change what a model computes without
# dropout. Keys of generation are read from another file, by `tasks/pretrained.py`.
WITHOUT_EFFECT = {
    "activation_dropout": 0.5, "architectures": ["OtherModel"], "attention_dropout": 0.5,
    "attention_probs_dropout_prob": 0.5, "attn_logit_softcapping": 0.5, "attn_pdrop": 0.5, "bos_token_id": 3,
    "chunk_size_feed_forward": 1, "final_logit_softcapping": 0.5, "query_pre_attn_scalar": 7,
    "classifier_dropout": 0.5, "classifier_dropout_prob": 0.5, "decoder_layerdrop": 0.5, "decoder_start_token_id": 3,
    "distributed_config": {}, "dtype": "float32", "dropout": 0.5, "dropout_rate": 0.5, "embd_pdrop": 0.5,
    "encoder_layerdrop": 0.5, "encoder_stride": 3, "eos_token_id": 3, "ffn_dim": 3, "gradient_checkpointing": True,
    "head_dim": 3, "hidden_dropout": 0.5, "hidden_dropout_prob": 0.5, "init_std": 0.5, "initializer_factor": 0.5,
    "initializer_range": 0.5, "is_decoder": True, "is_encoder_decoder": False, "layerdrop": 0.5,
    "max_position_embeddings": 3, "max_window_layers": 0, "num_heads": 3, "output_cross_attentions": False,
    "output_hidden_states": False, "pad_token_id": 3, "pooler_output_size": 3, "problem_type": "regression",
    "qa_dropout": 0.5, "rope_parameters": {"partial_rotary_factor": 0.5}, "resid_pdrop": 0.5, "rope_theta": 3.0,
    "seq_classif_dropout": 0.5, "sinusoidal_pos_embds": True, "start_token_id": 3,
    "summary_activation": "tanh", "summary_first_dropout": 0.5, "summary_proj_to_labels": False,
    "summary_type": "last", "summary_use_proj": False, "tie_word_embeddings": True, "use_cache": False,
    "vision_aspect_ratio": "x", "vision_feature_layer": 3, "vocab_size": 3,
}  # fmt: skip
# Keys that are read, but concern Python classes, the format of a file, or the number of classes (known from the
# arrays), or that are only checked.
OF_PYTHON = {
    "gguf_file", "id2label", "label2id", "mlp_layer_types", "model_type", "mtp_layer_types", "num_labels",
    "return_dict", "sub_configs", "transformers_version", "vision_feature_select_strategy",
}  # fmt: skip
# Keys that no code of `transformers` reads for any family; those of the published configs are added.
UNREAD = {"output_attentions": False, "finetuning_task": "x", "rope_interleaved": True, "static_position_embeddings": 0}


def names_read(kind, run):
    """Record the names of the attributes of configs that are read during a call."""
    read, original = set(), kind.__getattribute__

    def reading(config, name):
        read.add(name)
        return original(config, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__getattribute__", reading)
        run()
    return {name for name in read if not (name.startswith("_") or hasattr(kind, name))}


DRAWN = [
    "gpt2", "gpt_neox", "llama", "mistral", "smollm3", "olmo2", "gemma2", "gemma3", "bert", "albert", "distilbert",
    "mpnet", "vit", "t5", "mt5", "bart", "marian",
]  # fmt: skip


@pytest.mark.slow  # it imports `transformers`
@pytest.mark.parametrize("family", DRAWN)
def test_every_key_that_transformers_reads_is_honoured_refused_or_changes_nothing_there(family):
    import torch
    import transformers
    from huggingface_models import drawn, inputs_of

    theirs = drawn(family, Random(0))
    kind, config = type(theirs.config), theirs.config.to_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}

    taken = set()

    class Recorded(ConfigKeys):
        def take(self, name, *arguments):
            taken.add(name)
            return super().take(name, *arguments)

    def ours(**more):
        keys = Recorded(config | more, "config.json")
        made = FAMILIES[config["model_type"]].create(keys, shapes)
        keys.finish()
        return made

    model = ours()
    inputs = {name: torch.tensor(value) for name, value in inputs_of(model, Random(0))[1].items()}

    def output(**more):
        made = type(theirs)(kind(**config | more, attn_implementation="eager")).eval()
        made.load_state_dict(theirs.state_dict())
        found = made(**inputs)
        return (found.logits if "logits" in found else found.last_hidden_state).detach().numpy()

    def run():
        output()
        if theirs.can_generate():
            given = {name: value for name, value in inputs.items() if "decoder" not in name}
            theirs.generate(**given, max_new_tokens=3, pad_token_id=0)

    read = names_read(transformers.PreTrainedConfig, run) | {field.name for field in dataclasses.fields(kind)}
    read |= set(kind.attribute_map)
    generation = set(transformers.GenerationConfig._get_default_generation_params())
    passed_over = read - taken - set(UNSUPPORTED) - generation - OF_PYTHON
    assert passed_over <= set(WITHOUT_EFFECT), passed_over - set(WITHOUT_EFFECT)
    changed = {name: WITHOUT_EFFECT[name] for name in passed_over} | UNREAD
    assert repr(ours(**changed)) == repr(model)
    assert_close(output(**changed), output(), 1e-6)  # feed-forwards in chunks are other sums
