"""Models of HuggingFace Transformers: what our models compute with their weights, and what is written back."""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import shutil
import subprocess
import tempfile
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from array_forms import FORMS, assert_bitwise
from compiled_models import applied, assert_close, started
from flax.traverse_util import flatten_dict
from huggingface_models import DECODERS, DYNAMIC, FAMILIES, YARN, YARN_LATER, drawn, inputs_of, opened, ours, passed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from transformer_jax import InputError, attribute_logits, capture, from_transformers, greedy_decode, save_transformers
from transformer_jax.decoding import AfterPrefix, after_prefix, beam_search
from transformer_jax.nn import TransformerMLM
from transformer_jax.nn.layer_stacks import stack_layers
from transformer_jax.weights.huggingface.pretrained import model_of_config

pytestmark = pytest.mark.slow  # they compile

# Models per family and test (half as many for decoding). HUGGINGFACE_MODELS=20 draws 20, which takes ten minutes.
NUM_MODELS = int(os.environ.get("HUGGINGFACE_MODELS", "2"))
B, T = 2, 7
EMBEDDINGS = ("embedding/embedding", "source_embedding/embedding", "patch_layer/kernel")


def on_drawn_models(*families, number=NUM_MODELS):
    """Test models of each family that hypothesis draws; for a failure it finds the simplest model."""
    checks = list(HealthCheck)
    examples = settings(max_examples=number, derandomize=True, deadline=None, suppress_health_check=checks)
    drawing = given(pick=st.randoms(use_true_random=False))
    return lambda test: pytest.mark.parametrize("family", families)(examples(drawing(test)))


@on_drawn_models(*FAMILIES)
def test_logits_residual_streams_attention_and_gradients_are_those_of_transformers(family, pick):
    theirs = drawn(family, pick)
    model, variables = opened(theirs)
    arguments, named = inputs_of(model, pick)
    weights = np.random.default_rng(0).normal(size=jax.eval_shape(model.apply, variables, *arguments).shape)
    expected = passed(theirs, weights.astype(np.float32), **named)

    def loss(params):
        names = ["*.layers.*.output", "*.weights"]
        output, seen = capture(model, {"params": params}, *arguments, names=names)
        return jnp.sum(output * weights), (output, seen)

    (_, (output, seen)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"])
    assert_close(output, expected.output, 1e-5)
    blocks = [value for name, value in seen.items() if name.endswith(".output") and name.split(".")[-2].isdigit()]
    assert len(blocks) == len(expected.blocks)
    for found, block in zip(blocks, expected.blocks, strict=True):
        assert_close(found, block, 1e-5)
    kinds = [name for name in seen if name.endswith(".weights")]
    order = sorted(kinds, key=lambda name: 2 if "cross" in name else int(name.startswith("decoder")))
    assert len(order) == len(expected.attention)
    for name, attention in zip(order, expected.attention, strict=True):
        assert_close(seen[name], attention, 1e-5)
    path = next(path for path in flatten_dict(gradient, sep="/") if path in EMBEDDINGS)
    found = np.asarray(flatten_dict(gradient, sep="/")[path])
    if path == "patch_layer/kernel":
        found = found.reshape(expected.gradient.T.shape).T
    is_counted = np.arange(len(found)) != getattr(model, "pad_token", None)  # PyTorch leaves out that of padding
    assert_close(found[is_counted], expected.gradient[is_counted], 1e-4)


@pytest.mark.parametrize("length", [13, 29])  # shorter and longer than in training
@pytest.mark.parametrize("rope", [DYNAMIC, YARN, YARN | {"factor": 1.0}, YARN_LATER, YARN | {"rope_theta": 3.0}])
def test_scaled_rotary_positions_are_those_of_transformers_in_a_pass_and_in_a_step(rope, length, tmp_path):
    config = transformers.LlamaConfig(head_dim=12, max_position_embeddings=17, rope_parameters=dict(rope))
    config.save_pretrained(tmp_path)
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    positions = model_of_config(tmp_path / "config.json").settings.positions
    for first, num in ((0, length), (length - 1, 1)):
        expected = [part[0, :, :6] for part in theirs(torch.ones(()), torch.arange(first, first + num)[None])]
        found = positions.turns(12, first, num, length)
        np.testing.assert_allclose(found, np.concatenate(expected, axis=-1), atol=3e-6)
        of_rows = positions.turns(12, np.full((2, 1), first) + np.arange(num), num, length)
        np.testing.assert_allclose(of_rows, np.stack([found, found]), atol=1e-6)


def step_and_cache(model, variables, *arguments, **options):
    """Return the model's step function for the decoding functions, and its first cache."""
    cache = started(model, variables, *arguments, **options)
    return functools.partial(model.apply, variables, method="decode_step"), cache


@on_drawn_models(*DECODERS, number=-(-NUM_MODELS // 2))
def test_64_tokens_continue_a_prompt_as_in_transformers(family, pick):
    theirs = drawn(family, pick)
    model, variables = opened(theirs)
    prompt = np.random.default_rng(0).integers(model.vocabulary_size, size=(B, T))
    with torch.no_grad():
        expected = theirs.generate(
            torch.tensor(prompt), attention_mask=torch.ones(B, T), do_sample=False, max_new_tokens=64, pad_token_id=0
        )
    step, cache = step_and_cache(model, variables, prefix=prompt[:, :-1], length=T + 64)
    tokens = {"start_token": 0, "end_token": (), "pad_token": 0, "max_length": 64}
    decode = jax.jit(lambda cache: greedy_decode(after_prefix(step, T - 1), cache, B, **tokens))
    found = decode(AfterPrefix(cache, prompt[:, -1]))
    np.testing.assert_array_equal(found.tokens, expected[:, T:])


@on_drawn_models("t5", "mt5", "bart", "marian", number=-(-NUM_MODELS // 2))
def test_translations_are_those_of_transformers_by_beam_search(family, pick):
    theirs = drawn(family, pick)
    model, variables = opened(theirs)
    (source, _, mask), named = inputs_of(model, pick)
    step, cache = step_and_cache(model, variables, source, mask, length=17)
    # Scores without a length penalty are log-probabilities in both.
    tokens = {"start_token": 0, "end_token": 1, "pad_token": 0, "max_length": 17}
    search = jax.jit(lambda cache: beam_search(step, cache, B, **tokens, beam_width=3, length_penalty=0, n_best=1))
    found = search(cache).tokens[:, 0]
    given = {name: torch.tensor(named[name]) for name in ("input_ids", "attention_mask")}
    options = {"do_sample": False, "num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"}
    with torch.no_grad():
        expected = theirs.generate(**given, max_new_tokens=17, **options)[:, 1:]
    np.testing.assert_array_equal(found[:, : expected.shape[1]], expected)


@on_drawn_models(*FAMILIES)
def test_what_is_written_back_is_opened_with_the_same_state(family, pick):
    theirs = drawn(family, pick)
    model, variables = opened(theirs)
    with tempfile.TemporaryDirectory() as directory:
        config = {"use_cache": False}
        if hasattr(theirs.config, "pad_token_id"):  # the default may be beyond a tiny vocabulary
            config["pad_token_id"] = theirs.config.pad_token_id
        save_transformers(directory, model, variables, config=config)
        again = type(theirs).from_pretrained(directory)
    assert again.config.architectures == [type(theirs).__name__]
    expected, found = theirs.state_dict(), again.state_dict()
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_arrays_of_any_form_are_written_element_by_element(form, tmp_path):
    model, variables, _ = ours("gpt2")
    given = jax.tree.map(lambda leaf: form(np.array(leaf)), variables)
    save_transformers(tmp_path, model, given)
    jax.tree.map(assert_bitwise, from_transformers(tmp_path)[1], given)


def test_a_model_of_no_family_is_not_written(tmp_path):
    model, variables, _ = ours("gpt2")
    with pytest.raises(InputError, match="model is not a model of gpt2, .*, marian$"):
        save_transformers(tmp_path, with_settings(model, norm_first=False), variables)
    with pytest.raises(InputError, match="variables has no 'params'"):
        save_transformers(tmp_path, model, variables["params"])


def test_a_model_replaces_one_of_transformers_and_nothing_else_and_goes_through_no_link(tmp_path):
    model, variables, _ = ours("gpt2")
    outside, directory = tmp_path / "outside.json", tmp_path / "model"
    outside.write_text('{"model_type": "bert"}')
    directory.mkdir()
    (directory / "config.json").symlink_to(outside)
    (directory / "tokenizer.json").write_text("theirs")
    (tmp_path / "link").symlink_to(directory)
    save_transformers(tmp_path / "link", model, variables)
    from_transformers(directory)
    assert outside.read_text() == '{"model_type": "bert"}'
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model", "outside.json"]
    for name, content in (("config.json", '{"task": "ReverseTask", "format": 5}'), ("notes.txt", "mine")):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(content)
        with pytest.raises(InputError, match=f"{name}, which holds {name}; it must be empty, or hold a config.json of"):
            save_transformers(tmp_path / name, model, variables)
        assert (tmp_path / name / name).read_text() == content


STALE = (
    "pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "tf_model.h5",
    "flax_model.msgpack", "adapter_model.safetensors", "adapter_config.json", "training_args.bin", "vocab.json",
    "merges.txt", "tokenizer.json", "source.spm", "spiece.model", "chat_template.jinja", "generation_config.json",
    "preprocessor_config.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json",
)  # fmt: skip
STAYING = ("README.md", "LICENSE", ".gitattributes", ".git/config")


def test_a_model_in_parts_is_replaced_with_all_that_belongs_to_it(tmp_path):
    theirs = drawn("gpt2", Random(3))
    theirs.save_pretrained(tmp_path, max_shard_size="3KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    for name in (*STALE, *STAYING):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("theirs")
    model, variables, _ = ours("gpt2")
    save_transformers(tmp_path, model, variables)
    written = {"config.json", "model.safetensors"}
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {*written, *STAYING}
    again = type(theirs).from_pretrained(tmp_path)
    kernel = variables["params"]["decoder"]["layers_0"]["feed_forward"]["expand"]["kernel"]
    assert np.array_equal(again.transformer.h[0].mlp.c_fc.weight.detach(), kernel)


def test_the_pooling_of_an_original_is_copied(tmp_path):
    model, variables, _ = ours("bert", 7)
    save_transformers(tmp_path / "original", model, variables)
    pooling = tmp_path / "original" / "1_Pooling" / "config.json"
    pooling.parent.mkdir()
    for path in (pooling, tmp_path / "original" / "modules.json"):
        path.write_text("theirs")
    for directory in (tmp_path / "tuned", tmp_path / "original"):
        save_transformers(directory, model, variables, original=tmp_path / "original")
        assert (directory / "1_Pooling" / "config.json").read_text() == "theirs"
        assert (directory / "modules.json").read_text() == "theirs"


def with_settings(model, **changes):
    return model.clone(settings=dataclasses.replace(model.settings, **changes))


@pytest.fixture(scope="module")
def gpt2_files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gpt2")
    drawn("gpt2", Random(0)).save_pretrained(directory)
    return directory


def damaged(directory, target, config=None):
    """Copy a model, with other entries in `config.json`."""
    shutil.copytree(directory, target, dirs_exist_ok=True)
    if config is not None:
        old = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(old | config))
    return target


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"attention_chunk_size": 3}, r"config.json has attention_chunk_size = 3, which is not supported"),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "_layer_idx in .* is True; it must be one of False",
        ),
        ({"model_type": "mamba"}, "model_type in .* is 'mamba'; it must be one of gpt2, "),
        ({"model_type": ["gpt2"]}, "model_type in .* is \\['gpt2'\\]"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "has auto_map = "),
        ({"n_layer": 10**9}, "n_layer in .* is 1000000000; it may be at most 1000"),
        ({"n_embd": 10**9}, "in .* has the shape"),
        ({"n_head": 7}, "num_heads"),
        ({"n_inner": 0}, "n_inner in .* is 0; it must be at least 1"),
        ({"layer_norm_epsilon": 1e300}, "layer_norm_epsilon is 1e.300; it must be a finite number above 0, in float32"),
        ({"n_embd": "12"}, "n_embd in .*config.json is '12'"),
        ({"activation_function": "maxout"}, "activation_function in .* is 'maxout'; it must be one of gelu_new, "),
    ],
)
def test_a_config_that_is_not_honoured_is_named(gpt2_files, tmp_path, config, message):
    with pytest.raises(InputError, match=message):
        from_transformers(damaged(gpt2_files, tmp_path, config))


@pytest.mark.parametrize("family", FAMILIES)
def test_any_value_of_any_key_gives_a_model_or_one_line(family, tmp_path):
    file = tmp_path / "config.json"
    config = drawn(family, Random(0)).config.to_dict()
    more = "rope_parameters", "rope_scaling", "num_key_value_heads", "head_dim", "image_size", "layer_types"
    values = 0, -1, 2.5, 1e300, math.nan, "x", [], [1, 2, 3], {"rope_type": [1]}, {"factor": None}
    for name, value in itertools.product({*config, *more} - {"model_type"}, values):
        file.write_text(json.dumps(config | {name: value}))
        with contextlib.suppress(InputError):
            model_of_config(file)


ROPE = {"rope_type": "default", "rope_theta": 13.0}


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        (
            "llama",
            {"rope_scaling": ROPE | {"partial_rotary_factor": 0.5}},
            "factor in .* is 0.5; it must be one of 1.0",
        ),
        ("llama", {"partial_rotary_factor": 0.5}, "has partial_rotary_factor = 0.5, which is not supported"),
        ("t5", {"num_decoder_layers": 10**9}, "num_decoder_layers in .* is 1000000000; it may be at most 1000"),
        ("marian", {"num_hidden_layers": 7}, "num_hidden_layers in .* is 7; it must be one of 2, None"),
    ],
)
def test_a_key_that_transformers_takes_otherwise_in_a_family_is_named(family, config, message, tmp_path):
    model, variables, _ = ours(family)
    save_transformers(tmp_path, model, variables)
    with pytest.raises(InputError, match=message):
        from_transformers(damaged(tmp_path, tmp_path / "damaged", config))


def test_of_two_entries_for_rotary_positions_the_older_one_wins_as_in_transformers(tmp_path):
    model, variables, _ = ours("llama")
    save_transformers(tmp_path, model, variables)
    found, _ = from_transformers(damaged(tmp_path, tmp_path / "both", {"rope_scaling": ROPE}))
    config = transformers.AutoConfig.from_pretrained(tmp_path / "both")
    assert found.settings.positions.base == config.rope_parameters["rope_theta"] == ROPE["rope_theta"]


def test_with_its_original_a_model_keeps_tokenizer_and_ids_and_the_names_of_its_classes(tmp_path):
    theirs = drawn("bert", Random(13))
    assert type(theirs).__name__ == "BertForSequenceClassification"
    names = {str(number): f"kind {number}" for number in range(5)}
    original, directory = tmp_path / "original", tmp_path / "written"
    theirs.save_pretrained(tmp_path / "theirs")
    damaged(
        tmp_path / "theirs",
        original,
        {"id2label": names, "eos_token_id": 3, "sep_token_id": 7, "torch_dtype": "float16"},
    )
    kept = {"tokenizer.json": "{}", "tokenizer_config.json": "{ }", "generation_config.json": "{  }", "vocab.txt": "x"}
    for name, content in (kept | {"notes.txt": "mine", "pytorch_model.bin": "old"}).items():
        (original / name).write_text(content)
    model, variables = from_transformers(original)
    save_transformers(directory, model, variables, original=original, config={"eos_token_id": 11})
    config = json.loads((directory / "config.json").read_text())
    assert {path.name for path in directory.iterdir()} == {*kept, "config.json", "model.safetensors"}
    assert all((directory / name).read_text() == content for name, content in kept.items())
    assert (config["id2label"], config["eos_token_id"], config["sep_token_id"]) == (names, 11, 7)
    assert config["dtype"] == "float32"
    assert "torch_dtype" not in config
    jax.tree.map(np.testing.assert_array_equal, from_transformers(directory)[1], variables)
    with pytest.raises(InputError, match="original, which holds notes.txt; it must be empty, or hold a config.json of"):
        save_transformers(original, model, variables, original=original)
    (original / "notes.txt").unlink()
    save_transformers(original, model, variables, original=original)  # in its own place
    assert {path.name for path in original.iterdir()} == {*kept, "config.json", "model.safetensors"}
    assert all((original / name).read_text() == content for name, content in kept.items())
    headless = model.clone(head="none", num_classes=0)
    parts = {name: part for name, part in variables["params"].items() if name != "output_layer"}
    save_transformers(directory, headless, {"params": parts}, original=original)
    assert "id2label" not in json.loads((directory / "config.json").read_text())
    with pytest.raises(InputError, match="original is .*, a model of another family; it must be a gpt2"):
        save_transformers(tmp_path / "other", *ours("gpt2")[:2], original=original)


def test_an_entry_that_would_change_the_result_is_not_written(tmp_path):
    model, variables, _ = ours("gpt2")
    with pytest.raises(InputError, match="config.json has sliding_window = 3, which is not supported"):
        save_transformers(tmp_path, model, variables, config={"sliding_window": 3})


def test_an_mt5_stays_one_beside_its_original(tmp_path):
    theirs = drawn("mt5", Random(0))
    theirs.save_pretrained(tmp_path / "original")
    model, variables = from_transformers(tmp_path / "original")
    for original, kind in ((None, "t5"), (tmp_path / "original", "mt5")):  # T5 1.1 computes the same
        save_transformers(tmp_path / kind, model, variables, original=original)
        again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / kind)
        assert again.config.model_type == kind
        assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in theirs.state_dict().items())


def test_the_embeddings_of_an_mt5_may_have_any_of_their_names(tmp_path):
    drawn("mt5", Random(0)).save_pretrained(tmp_path)
    _, variables = from_transformers(tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    arrays["decoder.embed_tokens.weight"] = arrays.pop("shared.weight")
    save_file(arrays, tmp_path / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, from_transformers(tmp_path)[1], variables)


def test_a_bare_bart_predicts_tokens_without_a_bias(tmp_path):
    theirs = drawn("bart", Random(0))
    theirs.final_logits_bias.zero_()
    theirs.model.save_pretrained(tmp_path)  # as facebook/bart-base
    model, variables = from_transformers(tmp_path)
    assert repr(model_of_config(tmp_path / "config.json")) == repr(model)
    inputs, named = inputs_of(model, Random(0))
    assert_close(applied(model, variables, *inputs), passed(theirs, **named).output, 1e-5)


def test_distances_of_an_mpnet_beyond_the_exact_buckets_are_those_of_transformers():
    theirs = tiny("MPNetModel")
    torch.nn.init.normal_(theirs.encoder.relative_attention_bias.weight)
    model, variables = opened(theirs)
    tokens = np.random.default_rng(0).integers(2, 13, (1, 151))
    assert_close(applied(model, variables, tokens), passed(theirs, input_ids=tokens).output, 1e-5)


KINDS = "Bert", "Roberta", "XLMRoberta", "Albert", "DistilBert", "MPNet"


OWN_SIZES = {"Albert": {"embedding_size": 5}, "DistilBert": {"hidden_dim": 7, "num_labels": 2}}


def tiny(name):
    """Make a model of `transformers` of the class that is named."""
    kind = next(kind for kind in KINDS if name.startswith(kind))
    sizes = {"vocab_size": 13, "hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 1}
    sizes |= {"intermediate_size": 7, "num_labels": 3} | OWN_SIZES.get(kind, {})
    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**sizes)).eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["ForTokenClassification", "ForSequenceClassification", "ForMaskedLM", "Model"])
def test_the_head_is_that_of_the_architecture_whatever_other_arrays_there_are(kind, end, tmp_path):
    theirs, tokens = tiny(f"{kind}{end}"), np.random.default_rng(0).integers(2, 13, (1, 11))
    theirs.save_pretrained(tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    if end == "Model":
        arrays = {f"{type(theirs).base_model_prefix}.{name}": array for name, array in arrays.items()}
    others = [
        tiny(f"{kind}{other}") for other in ("ForMaskedLM", "ForTokenClassification", "ForSequenceClassification")
    ]
    pooler = {name: array for name, array in tiny(f"{kind}Model").state_dict().items() if name.startswith("pooler")}
    more = [{f"{theirs.base_model_prefix}.{name}": array for name, array in pooler.items()}]
    more += [other.state_dict() for other in others if type(other) is not type(theirs)]
    for state in more:  # an array of a head may not have the name of another of another shape
        arrays |= {name: array.numpy() for name, array in state.items() if name not in arrays and "decoder" not in name}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, tmp_path / "model.safetensors")
    model, variables = from_transformers(tmp_path)
    assert_close(applied(model, variables, tokens), passed(theirs, input_ids=tokens).output, 1e-5)


@pytest.mark.parametrize("end", ["ForQuestionAnswering", "ForMultipleChoice"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_architecture_whose_head_is_not_supported_is_named(kind, end, tmp_path):
    tiny(f"{kind}{end}").save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=f"architectures in .*config.json is {kind}{end}; it must end in one of ForMask"
    ):
        from_transformers(tmp_path)
    drawn("gpt2", Random(0)).save_pretrained(tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    save_file({**arrays, "score.weight": np.zeros((2, 3), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="^GPT2LMHeadModel in .* has score.weight, for which the model"):
        from_transformers(damaged(tmp_path, tmp_path / "other", {"architectures": ["GPT2LMHeadModel"]}))


def test_a_model_is_written_only_for_a_family_that_honours_its_rotary_positions(tmp_path):
    model, variables, _ = ours("llama")
    half = with_settings(model, positions=dataclasses.replace(model.settings.positions, fraction=0.5))
    with pytest.raises(InputError, match="model is not a model of gpt2, .*, marian$"):
        save_transformers(tmp_path, half, variables)
    model, variables, _ = ours("gpt_neox")
    half = with_settings(model, positions=dataclasses.replace(model.settings.positions, fraction=0.5))
    save_transformers(tmp_path, half, variables)
    assert from_transformers(tmp_path)[0].settings.positions.fraction == 0.5


def test_arrays_that_are_left_over_or_other_than_their_copy_are_named(gpt2_files, tmp_path):
    arrays = load_file(gpt2_files / "model.safetensors")
    damaged(gpt2_files, tmp_path)
    bias, embedding = "transformer.ln_f.bias", arrays["transformer.wte.weight"]
    for more, message in (
        ({"transformer.h.9.ln_1.bias": np.zeros(3, np.float32)}, r"has transformer\.h\.9\.ln_1\.bias, for which"),
        ({"a\x1b[2J": np.zeros(3, np.float32)}, r"has an array named 'a\\x1b\[2J'; a name must be a text of at most"),
        ({"lm_head.weight": embedding + 1}, r"lm_head.weight in .* differs from transformer\.wte"),
        ({bias: np.full_like(arrays[bias], np.nan)}, "holds NaN or infinity"),
        ({bias: np.full(arrays[bias].shape, 1e300)}, "holds NaN or infinity in float32"),
        ({bias: arrays[bias].astype(np.int32)}, "has the type int32"),
    ):
        save_file({**arrays, **more}, tmp_path / "model.safetensors")
        with pytest.raises(InputError, match=message):
            from_transformers(tmp_path)
    save_file({**arrays, bias: np.full_like(arrays[bias], 1e5)}, tmp_path / "model.safetensors")
    from_transformers(tmp_path)
    with pytest.raises(InputError, match="holds NaN or infinity"):
        from_transformers(tmp_path, dtype="float16")


def test_files_in_parts_and_names_of_older_versions_are_read(tmp_path):
    theirs = drawn("bert", Random(0))
    theirs.save_pretrained(tmp_path, max_shard_size="3KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    _, whole = from_transformers(tmp_path)
    for path in tmp_path.glob("model-*.safetensors"):
        older = {name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): array
                 for name, array in load_file(path).items()}  # fmt: skip
        save_file(older, path)
    jax.tree.map(np.testing.assert_array_equal, from_transformers(tmp_path)[1], whole)
    parts = sorted(tmp_path.glob("model-*.safetensors"))
    first, second = (load_file(path) for path in parts[:2])
    name = min(first)
    save_file({**second, name: first[name] + 1}, parts[1])
    with pytest.raises(InputError, match=rf"both have '{name}'"):
        from_transformers(tmp_path)
    save_file(second, parts[1])
    old = next(name for name in first if name.endswith("Norm.gamma"))
    save_file({**first, old.replace("gamma", "weight"): first[old] + 1}, parts[0])
    with pytest.raises(InputError, match="are the same array of the model"):
        from_transformers(tmp_path)


def test_buffers_of_older_files_are_passed_over_whatever_their_type(gpt2_files, tmp_path):
    arrays = load_file(damaged(gpt2_files, tmp_path) / "model.safetensors")
    older = {"transformer.h.0.attn.bias": np.ones((1, 1, 3, 3), bool), "transformer.h.0.attn.masked_bias": np.ones(1)}
    save_file({**arrays, **older}, tmp_path / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, from_transformers(tmp_path)[1], from_transformers(gpt2_files)[1])
    theirs = drawn("bert", Random(13))  # a classifier
    theirs.save_pretrained(tmp_path / "bert")
    path = tmp_path / "bert" / "model.safetensors"
    name = f"{theirs.base_model_prefix}.embeddings.position_ids"
    save_file({**load_file(path), name: np.arange(29)[None]}, path)
    assert from_transformers(tmp_path / "bert")[0].head == "classes"
    drawn("t5", Random(0)).save_pretrained(tmp_path / "t5")
    _, whole = from_transformers(tmp_path / "t5")
    path = tmp_path / "t5" / "model.safetensors"
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    save_file({**load_file(path), name: np.ones((8, 2), np.float32)}, path)
    jax.tree.map(np.testing.assert_array_equal, from_transformers(tmp_path / "t5")[1], whole)


def test_the_line_in_the_refusal_of_pickled_files_converts_them_as_it_is_printed(tmp_path):
    directory = tmp_path / 'it\'s "$HOME"'
    theirs = drawn("albert", Random(4))  # a classifier
    theirs.save_pretrained(directory)
    _, expected = from_transformers(directory)
    (directory / "model.safetensors").unlink()
    state = theirs.state_dict()
    name = "albert.pooler.weight"
    state[name] = state[name].T.contiguous().T  # as files that were made of TensorFlow's
    torch.save(state, directory / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickled files are not supported. Convert them with: /") as caught:
        from_transformers(directory)
    subprocess.run(str(caught.value).partition("them with: ")[2], shell=True, check=True, capture_output=True)
    jax.tree.map(np.testing.assert_array_equal, from_transformers(directory)[1], expected)


def test_shared_layers_may_outnumber_the_arrays(tmp_path):
    drawn("albert", Random(0)).save_pretrained(tmp_path)
    assert from_transformers(damaged(tmp_path, tmp_path / "deep", {"num_hidden_layers": 97}))[0].num_layers == 97
    with pytest.raises(InputError, match="num_hidden_groups in .* is 2; it must be one of 1"):
        from_transformers(damaged(tmp_path, tmp_path / "groups", {"num_hidden_groups": 2}))


def test_more_tokens_than_positions_are_an_error_where_padding_counts_none():
    model = TransformerMLM(13, 8, 2, 1, 11, max_len=9, pad_token=1)
    tokens = np.full((1, 7), 5)
    variables = jax.eval_shape(model.init, jax.random.key(0), tokens)  # of the positions 0 and 1 none is a token's
    with pytest.raises(InputError, match="max_len is 9; it must be at least 10"):
        jax.eval_shape(model.apply, variables, np.full((1, 8), 5))


@pytest.mark.parametrize("family", FAMILIES)
def test_contributions_sum_to_the_logits_of_a_loop_over_the_layers_which_is_saved(family, tmp_path):
    model, variables, inputs = ours(family, 13 if family in ("bert", "albert") else 1)
    if family.startswith("gemma"):  # contributions sum to the logits before their soft cap
        model = model.clone(embeddings=dataclasses.replace(model.embeddings, soft_cap=None))
    is_scanned = not model.settings.share_layers and len(set(getattr(model, "attention_kinds", ()))) < 2
    looped = with_settings(model, scan_layers=is_scanned, remat="all")
    stacked = stack_layers(variables["params"], jax.eval_shape(looped.init, jax.random.key(0), *inputs)["params"])
    has_head = getattr(model, "head", "none") != "none"  # beside the stream

    @jax.jit
    def run(variables, stacked):
        passed = model.apply if has_head else functools.partial(attribute_logits, model)
        return looped.apply({"params": stacked}, *inputs, train=True), passed(variables, *inputs)

    output, found = run(variables, stacked)
    save_transformers(tmp_path, looped, {"params": stacked})
    jax.tree.map(np.testing.assert_array_equal, from_transformers(tmp_path)[1], variables)
    if has_head:
        with pytest.raises(InputError, match="head of the TransformerMLM is 'classes'"):
            attribute_logits(model, variables, *inputs)
    else:
        found = sum(part.sum(0) if name.endswith("head_outputs") else part for name, part in found.items())
    assert_close(found, output, 1e-5)


def test_variables_have_the_type_that_is_stored_or_asked_for(gpt2_files, tmp_path):
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(from_transformers(gpt2_files)[1])} == {"float32"}
    model, variables = from_transformers(gpt2_files, dtype=jnp.bfloat16)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(variables)} == {"bfloat16"}
    save_transformers(tmp_path, model, variables)
    jax.tree.map(np.testing.assert_array_equal, from_transformers(tmp_path)[1], variables)


def halves(axis, path, shape):
    """Split over two devices if the axis has an even size."""
    names = [None] * len(shape)
    names[axis] = "fsdp" if shape[axis] % 2 == 0 else None
    return NamedSharding(Mesh(np.array(jax.devices()[:2]), "fsdp"), PartitionSpec(*names))


@pytest.mark.parametrize("family", FAMILIES)
def test_arrays_are_split_over_devices(family, tmp_path):
    drawn(family, Random(1)).save_pretrained(tmp_path)
    _, whole = from_transformers(tmp_path)
    for axis in (0, -1):
        _, split = from_transformers(tmp_path, sharding=functools.partial(halves, axis))
        jax.tree.map(np.testing.assert_array_equal, split, whole)
        assert sum(not leaf.is_fully_replicated for leaf in jax.tree.leaves(split)) > 8


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_pass_with_split_arrays_is_that_of_transformers(family, tmp_path):
    theirs = drawn(family, Random(1))
    theirs.save_pretrained(tmp_path)
    model, split = from_transformers(tmp_path, sharding=functools.partial(halves, -1))
    inputs, named = inputs_of(model, Random(1))
    assert_close(jax.jit(model.apply)(split, *inputs), passed(theirs, **named).output, 1e-5)


def test_in_bfloat16_ours_is_as_near_to_float32_as_transformers_own(gpt2_files):
    theirs = drawn("gpt2", Random(0))
    tokens = np.random.default_rng(0).integers(theirs.config.vocab_size, size=(5, 89))
    model, variables = from_transformers(gpt2_files, dtype="bfloat16")
    found = applied(model, variables, tokens)
    assert found.dtype == jnp.bfloat16
    with torch.no_grad():
        exact = theirs(torch.tensor(tokens)).logits.numpy()
        rounded = theirs.to(torch.bfloat16)(torch.tensor(tokens)).logits.float().numpy()
    ours, others = (np.square(each - exact).mean() ** 0.5 for each in (found.astype(np.float32), rounded))
    assert 0 < ours < 2 * others
