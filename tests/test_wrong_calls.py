"""Wrong calls of the public functions and models: each is an `InputError` that names the argument and its value."""

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import transformer_jax as tj
from transformer_jax import InputError, inspection
from transformer_jax.attention import SoftCap
from transformer_jax.cli import parse
from transformer_jax.data.batch import num_rows, pad_batch
from transformer_jax.decoding import grow_after_prefix
from transformer_jax.nn.layers import Dense, Dropout, FeedForward
from transformer_jax.nn.positions import sinusoidal_table
from transformer_jax.plots import (
    plot_attention_maps,
    plot_curves,
    plot_image_sets,
    plot_positional_encoding,
    plot_set_prediction,
)
from transformer_jax.runs import CsvLogger, TensorBoardLogger
from transformer_jax.training import cosine_warmup_schedule, noam_schedule, warmup_then_cosine_schedule
from transformer_jax.training.metrics import means, weighted_sums

B, T, S, D, H, C, V, F = 2, 3, 5, 6, 2, 4, 7, 11
NAN, INF = float("nan"), float("inf")


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


X, MEMORY = zeros(B, T, D), zeros(B, S, D)
TOKENS, MASK = zeros(B, T, dtype=np.int32), np.ones((T, T), bool)
LABELS, TABLE, IMAGES, MAPS = np.array([0, 0, 1, 1]), zeros(4, 3), zeros(B, S, 2, 2), [zeros(B, H, T, T)]
TEXT = ("x", None, [])
TENSORS = (torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, device="meta"))
NOT_NUMBERS = (np.array(["x", "y"]), np.array([None, {}]), np.array([1j, 2]), np.array(["2026-11-25"] * 2, "M8[D]"))
COUNTS = (0, -1, 1.5, NAN, "x", None, 10**12)  # where at least 1 is meant
LAYERS = (-1, 1.5, NAN, "x", None)
QUERIES = (zeros(3), zeros(0, 4), zeros(3, 0), np.ones((3, 4), bool), "text", None, *TENSORS)  # where [..., T, d]
FEATURES = (X[0], X[None], X[:, :0], X.astype(int), X.astype(bool), "text")  # where [B, T, D] is meant
MASKS = (np.ones((S, S), bool), np.ones(3, bool), np.ones((B, T + 2), bool), X, "x", 2 * MASK.astype(int))
IDS = (TOKENS + V, TOKENS - 1, TOKENS[0], TOKENS[None], TOKENS[:, :0], "text", None)  # where token ids are meant
# By name of the argument: values that are wrong unless a row of the table gives others.
WRONG = {
    **dict.fromkeys(
        ("features", "model_dim", "embed_dim", "d_model", "dim_feedforward", "length", "max_length"), COUNTS
    ),
    **dict.fromkeys(("num_classes", "vocabulary_size", "num_categories", "seq_len", "size", "batch_size"), COUNTS),
    **dict.fromkeys(("max_bytes", "max_new", "max_epochs", "beam_width", "num_steps"), COUNTS),
    **dict.fromkeys(("source_vocabulary_size", "target_vocabulary_size", "num_kv_heads"), COUNTS[:5]),
    **dict.fromkeys(("num_layers", "num_encoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("rate", "dropout_prob", "input_dropout_prob", "adam_b1"), (1.0, 1.5, -0.1, NAN, "x")),
    **dict.fromkeys(("lr", "layer_norm_epsilon", "temperature", "base_lr"), (0, -1.0, NAN, INF, "x")),
    **dict.fromkeys(("mask", "memory_mask", "source_mask"), MASKS),
    **dict.fromkeys(("start_token", "end_token"), (-1, 1.5, "x", None, C)),
    "length_penalty": (-1.0, NAN, INF, "x", None),
    "early_stopping": ("always", 1, None),
    "processors": (3, "x", [3], None),
    "prompt": (TOKENS[0], TOKENS[:1], X[0]),
    "num_heads": (*COUNTS, D + 1),
    "num_decoder_heads": (*COUNTS[:5], D + 1),
    "max_len": (*COUNTS, 2),
    "settings": ("pre-norm", None, {"norm_first": True}),
    "x": FEATURES,
    "memory": (*FEATURES[:-1], MEMORY[:1], MASK),
    "tokens": (*IDS, X),
    "top_k": (0, -1, 1.5, "x"),
    "top_p": (0.0, 1.5, -0.1, NAN, "x"),
    "seed": (-1, 1.5, "x"),
    "warmup": (-1, 9, 10, 0.5, NAN, "x", None),
    "max_iters": (0, -3, NAN, INF, "x", None),
    "logits": (zeros(B, C) * NAN, zeros(B, C) + INF, zeros(C), zeros(B, C, dtype=int)),
    "pad_token": (-1, 1.5, "x", None),
    "cache": (zeros(3, 1), {"a": zeros(3)}, {"a": np.float32(0)}),
    "step": (None, lambda tokens, position, cache: zeros(B, C)),
    "input_data": ("abc", np.arange(T), zeros(B, T + 1), 3),
    "attention_maps": ([], [zeros(3)], zeros(T, T), [*MAPS, zeros(B, 1, T, T)], [zeros(B, 0, T, T)], None, "x"),
    "idx": (2, -9, -1, 0.5, "x", None),
    "labels": (LABELS[None], "x", None, 3),
    "fraction": (0, 1, -0.5, 2, NAN, "x", None),
    "subset": (np.array([0, -1]), np.array([99]), np.array([], int), np.array([0.5]), "x"),
    "probabilities": (zeros(T), zeros(3, 3), None, "x"),
    "anomalies": (
        np.full((9, 9), NAN),
        np.array([0]),
        np.array([0, S]),
        np.array([-1, 0]),
        np.array([0.5, 1]),
        None,
        "x",
    ),
    "images": (zeros(S, 2), zeros(0, S, 2, 2), zeros(B, S, 2, 2, 2), None, "x"),
    "dataset": (None, 3, [], ""),
    "num_workers": (-1, 1.5, "x", None),
    "samples": ([], [np.ones(2), np.ones(3)], [1, "x"], ["x", "y"], None, 3),
    "activation": ("relu", 3, None),
    **dict.fromkeys(("positions", "attention", "block", "grow"), ("some", 3)),
    **dict.fromkeys(("norm", "feed_forward"), ("some", 3, nn.LayerNorm())),  # no class
    # an array has no truth value
    **dict.fromkeys(("implementation", "remat"), ("some", 3, zeros(2))),
    **dict.fromkeys(("qk_norm", "logit_change"), ("some", 3, zeros(2), nn.LayerNorm())),
    **dict.fromkeys(
        ("norm_first", "scan_layers", "share_layers", "final_norm", "tie_embeddings", "looks_ahead"), ("False", 1)
    ),
    "key": (3, None, "x", zeros(2), TENSORS[1]),
    "model": (None, 3, tj.TransformerEncoder),
    "variables": (None, 3, [zeros(3)]),
}


pytestmark = pytest.mark.usefixtures("without_type_checks")


def call(model, *arguments, **options):
    """Trace a model on known arguments."""
    return jax.eval_shape(lambda: model.init(jax.random.key(0), *arguments, **options))


def built(model_class, *inputs):
    """Return a function of a model's fields that traces the model."""
    return lambda **fields: call(model_class(**fields), *inputs)


def called(model, **options):
    """Return a function of a model's inputs, in order."""
    return lambda **inputs: call(model, *inputs.values(), **options)


def decoding(function, **more):
    def decode(logits=None, **settings):
        def step(tokens, position, cache):
            rows = len(tokens) // 2  # of each of the two, in beam search
            return jnp.zeros((len(tokens), C)) if logits is None else jnp.repeat(jnp.asarray(logits), rows, 0), cache

        return function(**{"step": step, **settings, **more})

    return decode


REVERSE = tj.tasks.ReverseTrainer
PREDICTOR, LANGUAGE_MODEL = tj.TransformerPredictor(D, C, H, 1, max_len=S), tj.TransformerLM(V, D, H, 1, F, max_len=S)
STACKED_MODEL = LANGUAGE_MODEL.clone(settings=tj.BlockSettings(scan_layers=True))
TRANSFORMER = tj.Transformer(V, V, D, H, 1, 1, F, max_len=S)
SIZES = {"model_dim": D, "num_heads": H, "num_layers": 1}
TRANSFORMER_SIZES = {"model_dim": D, "num_heads": H, "dim_feedforward": F, "num_encoder_layers": 1}
VOCABULARIES = {"source_vocabulary_size": V, "target_vocabulary_size": V}
BLOCK = {"input_dim": D, "num_heads": H, "dim_feedforward": F}
DECODING = {"cache": {}, "batch_size": B, "start_token": 0, "end_token": 1, "pad_token": 0, "max_length": 3}


class Call(NamedTuple):
    """A function, valid arguments, and wrong values for each argument."""

    function: Callable[..., object]
    good: dict[str, object]
    wrong: dict[str, tuple[object, ...]]

    @classmethod
    def of(cls, function, good, names="", /, **wrong):
        """Return the values in `WRONG` for arguments with these names."""
        return cls(function, good, {name: WRONG[name] for name in names.split()} | wrong)


def of_pass(function, model, variables, **options):
    return function(model, variables, X, **options)


PASS = {"model": tj.TransformerEncoder(1, D, H, F), "variables": {}}
HEAD = ("layers.0.attention", 0)
PATH = {**PASS, "clean": (X,), "corrupted": (X,), "sender": HEAD, "receiver": HEAD, "reads": "keys", "metric": jnp.sum}
PROBE = {"features": TABLE, "labels": LABELS, "types": LABELS, "is_train": LABELS == 0}


def of_decoding(function, names="", **more):
    shared = "batch_size max_length start_token end_token pad_token cache step logits grow processors prompt"
    every = f"{shared} {names}"
    return Call.of(decoding(function, **more), DECODING, every)


TABLE_OF_CALLS = [
    Call.of(
        tj.scaled_dot_product,
        {"q": zeros(3, 4), "k": zeros(5, 4), "v": zeros(5, 4), "mask": None},
        q=(*QUERIES, zeros(3, 6)),
        k=(*QUERIES, zeros(6, 4), zeros(1, 4)),
        v=(*QUERIES, zeros(6, 4)),
        mask=(zeros(3, 5), np.ones(5, bool), MASK, "x", np.full((3, 5), 2)),
    ),
    Call.of(tj.causal_mask, {"length": 3}, length=(*COUNTS, True)),
    Call.of(tj.padding_mask, {"valid": MASK}, valid=(X[0], np.ones(S, bool), np.array([[3, -1]]), *TEXT)),
    Call.of(
        tj.expand_mask,
        {"mask": MASK},
        mask=(X, True, np.ones(S, bool), np.ones((1, 1, 1, T, S), bool), MASK * 1j, np.array([[-1, 0]]), *TEXT),
    ),
    Call.of(
        lambda masks: tj.combine_masks(MASK, masks),
        {"masks": MASK},
        masks=(np.ones((T, S), bool), np.ones(3, bool), zeros(T, T), "x"),
    ),
    Call.of(lambda **sizes: sinusoidal_table(**sizes), {"length": 3, "d_model": 6}, "length d_model"),
    Call.of(Dense, {"features": 3}, "features"),
    Call.of(Dropout, {"rate": 0.5}, "rate"),
    Call.of(
        tj.BlockSettings,
        {},
        "dropout_prob layer_norm_epsilon activation positions norm feed_forward attention remat norm_first scan_layers "
        "share_layers",
    ),
    Call.of(tj.BlockSettings, {}, layer_norm_epsilon=(1e300, 1e-300)),  # in float32 they are inf and 0
    Call.of(SoftCap, {"cap": 30.0}, cap=(0, -1.0, NAN, INF, 1e300, 1e-300, "x")),
    Call.of(tj.AttentionSettings, {}, "num_kv_heads qk_norm logit_change implementation"),
    Call.of(
        built(tj.MultiheadAttention, X),
        {"embed_dim": D, "num_heads": H},
        "embed_dim num_heads dropout_prob settings positions looks_ahead",
    ),
    Call.of(FeedForward, {"dim_feedforward": F}, "dim_feedforward dropout_prob activation"),
    Call.of(called(tj.MultiheadAttention(D, H)), {"x": X, "memory": None, "mask": None}, "x memory mask"),
    Call.of(built(tj.PositionalEncoding, X), {"d_model": D}, "max_len", d_model=(*COUNTS, D + 1)),
    Call.of(called(tj.PositionalEncoding(D, S)), {"x": X}, x=(*FEATURES, zeros(D))),
    Call.of(built(tj.EncoderBlock, X), BLOCK, "num_heads dim_feedforward settings", input_dim=COUNTS[:2]),
    Call.of(called(tj.TransformerEncoder(1, D, H, F)), {"x": X, "mask": None}, "mask", x=(*FEATURES, X[..., :1])),
    Call.of(
        called(tj.TransformerDecoder(1, D, H, F)),
        {"x": X, "memory": MEMORY, "mask": None, "memory_mask": None},
        "x memory mask",
        memory_mask=MASKS[:2],
    ),
    Call.of(
        built(tj.TransformerPredictor, X),
        {**SIZES, "num_classes": C},
        "model_dim num_classes num_heads num_layers dropout_prob input_dropout_prob max_len settings",
    ),
    Call.of(called(PREDICTOR), {"x": X, "mask": None}, "x mask"),
    Call.of(
        built(tj.TransformerLM, TOKENS),
        {**SIZES, "vocabulary_size": V, "dim_feedforward": F},
        "vocabulary_size dim_feedforward tie_embeddings block",
    ),
    Call.of(
        called(LANGUAGE_MODEL),
        {"tokens": TOKENS, "mask": None, "positions": 0},
        "tokens mask",
        positions=(TOKENS[0], TOKENS[:1], TOKENS[:, :2], zeros(B, T), 0.5),
    ),
    Call.of(
        built(tj.Transformer, TOKENS, TOKENS),
        TRANSFORMER_SIZES | VOCABULARIES | {"num_decoder_layers": 1},
        "source_vocabulary_size target_vocabulary_size num_encoder_layers num_decoder_layers num_decoder_heads",
    ),
    Call.of(
        called(TRANSFORMER),
        {"source": TOKENS, "target": TOKENS, "source_mask": None},
        "source_mask",
        source=(*IDS, TOKENS.astype(bool), zeros(B, S, D + 1)),
        target=(*IDS, np.int32(3)),
    ),
    of_decoding(tj.greedy_decode),
    of_decoding(tj.sample, "temperature top_k top_p", key=jax.random.key(0)),
    Call.of(decoding(tj.sample), {**DECODING, "key": jax.random.key(0)}, "key"),
    of_decoding(tj.beam_search, "beam_width length_penalty early_stopping"),
    *(
        Call.of(schedule, {"base_lr": 1e-3, "warmup": 2, "max_iters": 9}, "base_lr warmup max_iters")
        for schedule in (cosine_warmup_schedule, warmup_then_cosine_schedule)
    ),
    Call.of(noam_schedule, {"d_model": 8, "warmup": 4}, **dict.fromkeys(("d_model", "warmup"), (0, -1, NAN, "x"))),
    Call.of(
        plot_attention_maps, {"input_data": None, "attention_maps": MAPS, "idx": 0}, "input_data attention_maps idx"
    ),
    Call.of(plot_positional_encoding, {"d_model": D, "length": 5}, "d_model length"),
    Call.of(plot_curves, {"curves": {"loss": zeros(3, 2)}}, curves=({}, 3, {"loss": zeros(0, 2)}, {"loss": zeros(2)})),
    Call.of(plot_image_sets, {"images": IMAGES, "anomalies": np.array([0, 1])}, "images anomalies"),
    Call.of(
        plot_set_prediction,
        {"images": IMAGES[0], "probabilities": zeros(S), "anomaly": 0, "attention_maps": [zeros(H, S, S)]},
        "probabilities attention_maps",
        images=(IMAGES[0, 0], zeros(0, 4, 4), None, "x"),
        anomaly=(S, -5, 0.5, None, "x"),
    ),
    Call.of(
        tj.make_loader,
        {"dataset": tj.tasks.ReverseDataset(3, 4, 5, 0), "batch_size": 2},
        "dataset seed num_workers",
        batch_size=COUNTS[:6],
    ),
    Call.of(tj.numpy_collate, {"samples": [np.ones(2), np.ones(2)]}, "samples"),
    Call.of(
        tj.numpy_collate,
        {"samples": [torch.ones(2)] * 2},
        samples=([np.array([None, 3], object)] * 2, *([tensor] * 2 for tensor in TENSORS)),
    ),
    Call.of(
        tj.tasks.ReverseDataset,
        {"num_categories": 3, "seq_len": 4, "size": 5, "seed": 0},
        "num_categories seq_len size seed",
    ),
    Call.of(
        tj.tasks.SetAnomalyDataset,
        {"features": TABLE, "labels": LABELS, "set_size": 2, "seed": 0},
        "seed subset",
        features=(TABLE[0], TABLE * NAN, TABLE[:3], "x", None),
        labels=(LABELS[None], LABELS[:3], LABELS * 1.0, LABELS * 0, "x", None),
        set_size=(0, 1, -1, 50, 2.5, NAN, *TEXT),
    ),
    Call.of(tj.tasks.stratified_split, {"labels": LABELS, "fraction": 0.5}, "labels fraction"),
    Call.of(tj.TrainingConfig, {}, "model_dim num_heads max_epochs batch_size lr dropout_prob adam_b1"),
    Call.of(tj.ReverseConfig, {}, "seq_len num_categories input_dropout_prob"),
    Call.of(tj.TranslationConfig, {}, "max_bytes beam_width dim_feedforward length_penalty"),
    Call.of(tj.LanguageModelConfig, {}, "seq_len top_k top_p", stride=(0, 257, "x"), prompt=("", 3, [])),
    Call.of(tj.DigitsConfig, {}, "input_dropout_prob", set_size=(0, 1, -1, 1.5, NAN, "x"), num_layers=COUNTS),
    Call.of(
        tj.params_from_torch,
        {"model": tj.MultiheadAttention(8, 2), "weights": torch.nn.MultiheadAttention(8, 2).state_dict()},
        weights=({}, {"x": np.ones(3)}, "missing", 3, None, "/dev/null", {"in_proj_weight": 3}),
        model=(None, 3, "x"),
    ),
]
# Functions that other tests call correctly.
MORE_CALLS = [
    Call.of(
        partial(of_pass, tj.patch),
        {**PASS, "patches": {}},
        "model variables",
        patches=(None, "logits", 3, [zeros(3)]),
        names=("logits", 3),
    ),
    Call.of(partial(of_pass, tj.capture), {**PASS, "names": ["logits"]}, "model variables", names=("logits", None, 3)),
    Call.of(partial(of_pass, tj.attribute_logits), PASS, "model variables", of=("x", 3)),
    Call.of(partial(of_pass, inspection.logit_lens), PASS, "model variables"),
    *(
        Call.of(partial(of_pass, function), {**PASS, "metric": jnp.sum}, "model variables", metric=(None, 3))
        for function in (inspection.gradient_attention, inspection.ablate_heads)
    ),
    Call.of(inspection.patch_path, PATH, "model variables", metric=(None, 3), sender=(3, ("x",)), clean=(3, "x")),
    Call.of(inspection.inspection_page, {"trainer": None}, trainer=(None, 3)),
    Call.of(inspection.ActivationStream, {"model": None, "loader": None, "names": []}, model=(None, 3)),
    Call.of(
        inspection.SparseDictionary, {"num_features": 3, "input_dim": 2}, num_features=COUNTS, input_dim=COUNTS[:6]
    ),
    Call.of(inspection.splice, {"dictionary": None}, dictionary=(None, 3)),
    Call.of(inspection.load_dictionary, {"directory": "x"}, directory=(None, 3), scale=(0, "x")),
    Call.of(inspection.load_transcoders, {"directory": "x"}, directory=(None, 3)),
    Call.of(partial(of_pass, inspection.attribution_graph), {**PASS, "transcoders": None}, transcoders=(None, 3)),
    Call.of(inspection.graph_page, {"graph": None, "positions": "ab", "logits": "ab"}, graph=(None, 3)),
    Call.of(inspection.feature_page, {"trainer": None, "dictionary": None, "name": "x"}, trainer=(None, 3)),
    Call.of(partial(of_pass, inspection.inspect_model), PASS, "model variables", vocabulary=(3,), position=("x", None)),
    Call.of(inspection.show_heads, {"weights": MAPS[0][0], "tokens": "abc"}, tokens=("abc", 3), weights=("x", None)),
    Call.of(inspection.show_tokens, {"tokens": list("ab"), "values": zeros(2)}, tokens=("ab", 3), values=("x", None)),
    Call.of(inspection.show_grid, {"grid": zeros(2, 3)}, grid=("x", None, zeros(3)), tokens=("abc", 3)),
    Call.of(inspection.show_tokens, {"tokens": list("ab"), "values": zeros(2)}, values=NOT_NUMBERS),
    Call.of(inspection.show_grid, {"grid": zeros(1, 2)}, grid=tuple(array[None] for array in NOT_NUMBERS)),
    Call.of(tj.from_transformers, {"directory": "x"}, dtype=("foo", "int32", object, 3)),
    Call.of(
        inspection.linear_probe, PROBE, features=(None, "x", zeros(3), [[1], [1, 2]]), labels=(None, "x", zeros(2))
    ),
    Call.of(inspection.linear_cka, {"x": TABLE, "y": TABLE}, x=(None, "text", zeros(3, 2)), y=("text", zeros(3, 2))),
    Call.of(inspection.attention_rollout, {}, weights=(None, 3, [], MAPS[0], [zeros(T, T)])),
    Call.of(tj.dot_product_attention, {"q": X, "k": X, "v": X}, return_attention=("no", zeros(2)), tap=("x", 3)),
    Call.of(CsvLogger, {"directory": "x"}, directory=(None, 3), position=(None, 3)),
    Call.of(TensorBoardLogger, {"directory": "x"}, directory=(None, 3), position=(None, 3)),
    Call.of(parse, {"config_class": tj.ReverseConfig, "arguments": []}, arguments=("--lr", None), default=(3, "x")),
    Call.of(tj.export_torch, {"model": None, "params": {}, "directory": "x"}, model=(None, 3)),
]
# Other names by which a message may refer to an argument.
ALSO_NAMED = {
    "input_dim": "embed_dim", "memory_mask": "mask", "source_mask": "mask", "weights": "state dict",
    "prefix": "tokens?", "target": "memory has 2 rows",
    "logits": "NaN", "masks": "mask", "input_data": "labels", "length": "max_len|position",
    "d_model": "x has shape",
}  # fmt: skip


def shown(value) -> list[str]:
    """Return texts of which a message must contain one."""
    kind = f"is a {type(value).__name__}"
    if isinstance(value, np.ndarray | np.generic | dict | list):
        of_arrays = ["shape", "type", "hold", "rows", "labels", "lacks", "finite", "NaN", "bytes"]
        return [kind, *of_arrays, repr(value)[:20]]
    return [kind, "type", "shape", "returned", repr(value)[:50], str(value)[:50]]


CASES = [
    pytest.param(function, good, name, values, id=f"{index}-{getattr(function, '__name__', 'call')}-{name}")
    for index, (function, good, wrong) in enumerate(TABLE_OF_CALLS + MORE_CALLS)
    for name, values in wrong.items()
]


@pytest.mark.parametrize(("function", "good", "name", "values"), CASES)
def test_a_wrong_argument_is_an_error_that_names_it_and_shows_it(function, good, name, values):
    for value in values:
        try:
            function(**{**good, name: value})
        except InputError as error:
            message = str(error)
        else:
            raise AssertionError(f"{name} = {value!r} was accepted")
        is_named = re.search(rf"\b({name}|{ALSO_NAMED.get(name, name)})\b", message)
        assert is_named or (isinstance(value, str) and message.startswith(value)), (value, message)  # a path
        assert any(text in message for text in shown(value)), (value, message)


def step_of(tokens, position, model=TRANSFORMER, *begin):
    """A decoding step with a cache of four positions."""
    call(model, np.array(tokens), position, empty_cache(model, *(begin or (TOKENS, None))), method="decode_step")


def empty_cache(model, *begin):
    start = partial(model.init_with_output, method="start_decoding")
    shapes, _ = jax.eval_shape(lambda: start(jax.random.key(0), *begin, 4))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


WITHOUT_TOKENS = partial(call, tj.Transformer(None, None, D, H, 1, 1, F))
# Calls with two inconsistent arguments, and other wrong calls.
OTHERS = [
    (lambda: Dense(2).apply({"params": {"kernel": zeros(7, 2), "bias": zeros(2)}}, X), "must be 7 wide"),
    (lambda: tj.Transformer(V, V + 1, D, H, tie_embeddings=True), "tie_embeddings"),
    (lambda: tj.train_reverse("x"), "config is 'x'; it must be ReverseConfig or None"),
    (lambda: tj.train_and_test(tj.TrainerModule, 3, None), "config is 3; it must be TrainingConfig"),
    (lambda: tj.train_and_test(tj.TrainerModule, tj.ReverseConfig(), 3), "load_data is 3; it must be Callable"),
    (lambda: tj.load_run("reverse", "x"), "trainer_class is 'x'; it must be a class or None"),
    (lambda: tj.train_reverse(tj.ReverseConfig), "; it must be ReverseConfig or None, not a class"),
    (lambda: tj.load_run("reverse", dict), "trainer_class is dict; it must be a subclass of TrainerModule"),
    (lambda: REVERSE(tj.TranslationConfig()), "config is TranslationConfig("),
    (lambda: tj.train_and_test(REVERSE, tj.ReverseConfig(), print), "the result of load_data is None; it must be Task"),
    (
        lambda: tj.TaskData([TOKENS], [TOKENS], [TOKENS]),
        "train_loader is [array([[0, 0, 0], [0, 0, 0]], dtype=int32)]; ",
    ),
    (lambda: REVERSE(tj.ReverseConfig()).fit(3, 3), "train_loader is 3; it must be a loader: make_loader(dataset, ba"),
    (lambda: REVERSE(tj.ReverseConfig()).evaluate("test"), "loader is 'test'; it must be Iterable"),
    (
        lambda: tj.load_run("dates", REVERSE),
        "is a trainer of ReverseTask, and dates is a run of TranslationTask; give its trainer: load_run(directory, ",
    ),
    (lambda: decoding(tj.beam_search)(**DECODING, length_penalty=1e3), "length_penalty is 1000.0"),
    (lambda: decoding(tj.greedy_decode)(**DECODING | {"end_token": (1, C)}), f"end_token is {C}"),
    (lambda: decoding(tj.greedy_decode)(**DECODING | {"end_token": [1, "x"]}), "end_token is 'x'"),
    (lambda: WITHOUT_TOKENS(TOKENS, X), "source holds integers; without source_vocabulary_size"),
    (lambda: WITHOUT_TOKENS(X, TOKENS), "target holds integers; without target_vocabulary_size"),
    (lambda: WITHOUT_TOKENS(X, zeros(B, T, D + 1)), "target has shape (2, 3, 7)"),
    (lambda: call(TRANSFORMER, TOKENS, X[0], method="decode"), "memory has shape (3, 6)"),
    (lambda: call(TRANSFORMER, TOKENS, None, -1, method="start_decoding"), "length is -1"),
    (lambda: call(LANGUAGE_MODEL, 3, S, prefix=TOKENS, method="start_decoding"), "the batch has 3"),
    (
        lambda: call(TRANSFORMER, TOKENS, prefix=TOKENS[:1], method="start_decoding"),
        "prefix has 1 rows and the batch has 2; they must be equal",
    ),
    (lambda: call(TRANSFORMER, TOKENS, MASK, 4, method="start_decoding"), "mask of shape (3, 3)"),
    (lambda: call(LANGUAGE_MODEL, TOKENS, None, TOKENS + T), f"positions is {T + TOKENS.max()}; it must be a whole"),
    (lambda: call(LANGUAGE_MODEL, TOKENS, None, TOKENS - V), "positions is -"),
    (lambda: call(LANGUAGE_MODEL, method="start_decoding"), "batch_size is None; without a prefix"),
    (lambda: call(LANGUAGE_MODEL, prefix=TOKENS + V, method="start_decoding"), "prefix holds the token id 7"),
    (
        lambda: call(LANGUAGE_MODEL, prefix=TOKENS.repeat(2, 1), method="start_decoding"),
        "6 positions; it may have at most",
    ),
    (lambda: empty_cache(STACKED_MODEL, B), "layers are stacked; a model decodes with unstack_layers(variables)"),
    (lambda: step_of([0], 0, LANGUAGE_MODEL, B), "tokens has 1 rows and the cache has 2; they must be equal"),
    (lambda: step_of([V, 0], 0), "target holds the token id 7"),
    (lambda: step_of([[0], [0]], 0), "target has shape (2, 1)"),
    (lambda: step_of([0, 0], 4), "position is 4"),
    (lambda: empty_cache(TRANSFORMER, TOKENS, None).grow(2), "length is 2"),
    (lambda: grow_after_prefix(None, -1), "position is -1; it must be at least 0"),
    (lambda: num_rows([zeros(3), zeros(2)]), "have shapes [(3,), (2,)]"),
    (lambda: pad_batch((zeros(3),) * 3, 3), "a data set must return (inputs, targets); got (array"),
    (lambda: means([]), "no batches to average over"),
    (lambda: weighted_sums({"loss": (zeros(3), zeros(3, 1))}, np.ones(3, bool)), "weights of shape (3, 1)"),
]


@pytest.mark.parametrize(("wrong_call", "fragment"), OTHERS)
def test_a_call_that_does_not_fit_is_an_error_that_says_so(wrong_call, fragment):
    with pytest.raises(InputError, match=re.escape(fragment)):
        wrong_call()


@pytest.mark.parametrize(("function", "good"), [call[:2] for call in TABLE_OF_CALLS])
def test_the_calls_are_valid_before_their_arguments_are_changed(function, good):
    assert function(**good) is not None
