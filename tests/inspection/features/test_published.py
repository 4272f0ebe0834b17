"""Dictionaries in the files of SAELens and circuit-tracer: features and outputs are PyTorch's."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import draw
from safetensors.torch import save_file
from tiny_models import language_model

from transformer_jax.errors import InputError
from transformer_jax.inspection import (
    Inspected,
    load_dictionary,
    load_transcoders,
)

WIDTH, FEATURES, OUTPUT = 12, 23, 5
X = draw(2, 7, WIDTH)
NAMES = "W_enc", "b_enc", "W_dec", "b_dec"


def tensors(width: int = WIDTH, output: int = WIDTH, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"W_enc": (width, FEATURES), "b_enc": (FEATURES,), "W_dec": (FEATURES, output), "b_dec": (output,)}
    return {name: torch.randn(shape, generator=generator) / 3 for name, shape in shapes.items()}


def sae_lens(directory, weights, architecture="standard", **config):
    directory.mkdir(exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, directory / "sae_weights.safetensors")
    written = {"architecture": architecture, "d_in": WIDTH, "d_sae": FEATURES, "dtype": "float32"} | config
    (directory / "cfg.json").write_text(json.dumps(written))
    return directory


def autoencoder(x, w, activation=torch.relu, *, subtracts=True, norms=False, standardizes=False, factor=1.0):
    """Outputs and features by the formulas of SAELens 6."""
    mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    read = (x - mean) / (deviation + 1e-5) if standardizes else x * factor
    before = (read - w["b_dec"] * subtracts) @ w["W_enc"] + w["b_enc"]
    if norms:
        before = before * w["W_dec"].norm(dim=-1)
    features = activation(before)
    scaled = features / w["W_dec"].norm(dim=-1) if norms else features
    output = scaled @ w["W_dec"] + w["b_dec"]
    return (output * deviation + mean if standardizes else output / factor), features


def top_k(before, k=3):
    values, places = before.topk(k)
    return torch.zeros_like(before).scatter(-1, places, values.relu())


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert 0.1 < (np.asarray(found[-1]) > 0).mean() < 0.9


@pytest.mark.parametrize(
    ("architecture", "config", "options"),
    [
        ("standard", {}, {}),
        ("standard", {"apply_b_dec_to_input": False}, {"subtracts": False}),
        ("standard", {"normalize_activations": "layer_norm"}, {"standardizes": True}),
        ("standard", {"normalize_activations": "expected_average_only_in"}, {"factor": 1.7}),
        ("standard", {"activation_fn_str": "relu", "finetuning_scaling_factor": False, "prepend_bos": True}, {}),
        ("topk", {"k": 3}, {"activation": top_k}),
        ("topk", {"k": 3, "rescale_acts_by_decoder_norm": True}, {"activation": top_k, "norms": True}),
        ("jumprelu", {"metadata": {"hook_name": "blocks.0.hook_resid_pre"}}, {}),
    ],
)
def test_an_autoencoder_of_sae_lens(tmp_path, architecture, config, options):
    weights = tensors()
    if "prepend_bos" in config:  # of version 5
        weights["scaling_factor"] = torch.ones(FEATURES)
    if architecture == "jumprelu":
        weights["threshold"] = torch.linspace(-0.2, 0.8, FEATURES)
        options = {"activation": lambda before: before.relu() * (before > weights["threshold"])}
    scale = options.get("factor")
    found = load_dictionary(sae_lens(tmp_path, weights, architecture, **config), scale=scale)
    assert_same(found(X), autoencoder(torch.tensor(X), weights, **options))


@pytest.mark.parametrize("has_skip", [False, True])
@pytest.mark.parametrize("has_threshold", [False, True])
def test_a_transcoder_of_sae_lens(tmp_path, has_skip, has_threshold):
    weights, x = tensors(output=OUTPUT), torch.tensor(X)
    features = (x @ weights["W_enc"] + weights["b_enc"]).relu()
    if has_threshold:
        weights["threshold"] = torch.linspace(0, 0.8, FEATURES)
        features *= features > weights["threshold"]
    output = features @ weights["W_dec"] + weights["b_dec"]
    if has_skip:
        weights["W_skip"] = torch.randn(OUTPUT, WIDTH, generator=torch.Generator().manual_seed(3))
        output += x @ weights["W_skip"].T
    name = f"{'jumprelu_' * has_threshold}{'skip_' * has_skip}transcoder"
    found = load_dictionary(sae_lens(tmp_path, weights, name, d_out=OUTPUT, apply_b_dec_to_input=False))
    assert_same(found(X), (output, features))


def tracer(directory, layers, ending="", **config):
    directory.mkdir(exist_ok=True)
    for layer, weights in enumerate(layers):
        stored = {name: weight.contiguous() for name, weight in weights.items()}
        if ending:  # two files a layer, with numbered names
            stored = {f"{name}_{layer}": weight for name, weight in stored.items()}
            save_file({f"W_dec_{layer}": stored.pop(f"W_dec_{layer}")}, directory / f"W_dec_{layer}.safetensors")
        save_file(stored, directory / f"{ending or 'layer'}_{layer}.safetensors")
    hooks = {"feature_input_hook": "hook_resid_mid", "feature_output_hook": "hook_mlp_out"}
    kind = "cross_layer_transcoder" if ending else "transcoder_set"
    written = {"model_name": "own", "model_kind": kind, "scan": "own"} | hooks | config
    (directory / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in written.items()))
    return directory


def tracer_layer(seed, number=None, **more):
    weights = tensors(seed=seed)
    weights["W_enc"] = weights["W_enc"].T
    if number is not None:
        generator = torch.Generator().manual_seed(seed + 9)
        weights["W_dec"] = torch.randn(FEATURES, number, WIDTH, generator=generator) / 3
    return weights | more


def activated(x, w):
    before = x @ w["W_enc"].T + w["b_enc"]
    threshold = w.get("activation_function.threshold", w.get("threshold"))
    return before.relu() if threshold is None else before * (before > threshold)


READS, WRITES = ([f"decoder.layers.{i}.{name}" for i in (0, 1)] for name in ("after_attention", "feed_forward.output"))


@pytest.mark.parametrize("kind", ["relu", "jump_relu", "topk", "skip"])
def test_per_layer_transcoders_of_circuit_tracer(tmp_path, kind):
    more = {
        "jump_relu": {"activation_function.threshold": torch.linspace(-0.3, 0.8, FEATURES)},
        "skip": {"W_skip": torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(5))},
    }.get(kind, {})
    layers = [tracer_layer(seed, **more) for seed in (0, 1)]
    config = {"activation": "topk", "k": 3} if kind == "topk" else {"activation": "relu"} if kind == "relu" else {}
    found = load_transcoders(tracer(tmp_path, layers, **config))
    assert (list(found.reads), list(found.writes)) == (READS, WRITES)
    x = torch.tensor(X)
    for layer, weights in zip(found.layers, layers, strict=True):
        features = activated(x, weights)
        if kind == "topk":
            features = top_k(x @ weights["W_enc"].T + weights["b_enc"])
        skip = x @ weights["W_skip"].T if kind == "skip" else 0
        assert_same(layer(X), (features @ weights["W_dec"] + weights["b_dec"] + skip, features))


def test_a_cross_layer_transcoder_writes_its_layer_and_those_after_it(tmp_path):
    layers = [tracer_layer(layer, 2 - layer, threshold=torch.linspace(0, 0.5, FEATURES)) for layer in (0, 1)]
    found = load_transcoders(tracer(tmp_path, layers, "W_enc"))
    x = [torch.tensor(X), torch.tensor(draw(2, 7, WIDTH, seed=4))]
    theirs = [activated(*pair) for pair in zip(x, layers, strict=True)]
    outputs = [
        theirs[0] @ layers[0]["W_dec"][:, 0] + layers[0]["b_dec"],
        theirs[0] @ layers[0]["W_dec"][:, 1] + theirs[1] @ layers[1]["W_dec"][:, 0] + layers[1]["b_dec"],
    ]
    activations = dict(zip(READS, map(jnp.asarray, x), strict=True))
    features = found.encode(activations)
    assert_same(features, theirs)
    decoded = found.decode(features, activations)
    np.testing.assert_allclose([decoded[name] for name in WRITES], torch.stack(outputs), atol=2e-5)

    model, variables, (tokens,) = language_model()[:3]
    inspected = Inspected(model, variables)
    _, seen = inspected.patch(tokens, found.patches(), [*READS, *WRITES])
    features = [activated(torch.tensor(np.asarray(seen[name])), w) for name, w in zip(READS, layers, strict=True)]
    np.testing.assert_allclose(
        seen[WRITES[1]],
        features[0] @ layers[0]["W_dec"][:, 1] + features[1] @ layers[1]["W_dec"][:, 0] + layers[1]["b_dec"],
        atol=2e-5,
    )


@pytest.mark.parametrize(
    ("config", "changed", "message"),
    [
        ({"l1_coefficient": 3}, {}, r"cfg.json has unknown keys: l1_coefficient; remove those that"),
        ({"architecture": "temporal"}, {}, "architecture of .* is 'temporal'; it must be one of 'standard', "),
        (
            {"normalize_activations": "covariance_whitening"},
            {},
            "is 'covariance_whitening'; it must be one of 'none', ",
        ),
        ({"activation_fn_str": "tanh-relu"}, {}, "activation_fn_str of .* is 'tanh-relu'; it must be one of 'relu'"),
        ({"normalize_activations": "expected_average_only_in"}, {}, "scale is None; normalize_activations of "),
        ({"architecture": "topk"}, {}, "k of the config is None; with topk it must be 1 … 23"),
        ({"architecture": "topk", "k": 24}, {}, "k of the config is 24; with topk it must be 1 … 23"),
        (
            {},
            {"scaling_factor": torch.full((FEATURES,), 2.0)},
            "has the arrays .*scaling_factor.*; it must have W_dec, W_enc, ",
        ),
        ({"architecture": "transcoder"}, {}, "apply_b_dec_to_input of .* is true; a transcoder cannot have it"),
        ({"architecture": "jumprelu"}, {}, "it must have W_dec, W_enc, b_dec, b_enc, threshold"),
        ({}, {"b_enc": torch.ones(24)}, "b_enc .24,.; it must have .*, of one number of features"),
        ({}, {"W_dec": torch.ones(12, 23), "b_dec": torch.ones(23)}, "W_dec .12, 23.*, of one number of features"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, config, changed, message):
    with pytest.raises(InputError, match=message):
        load_dictionary(sae_lens(tmp_path, tensors() | changed, **config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"colour": "blue"}, "config.yaml has unknown keys: colour; remove those that"),
        ({"model_kind": "other"}, "model_kind of .* is 'other'; it must be one of 'transcoder_set', "),
        ({"activation": "gelu"}, "activation of .* is 'gelu'; it must be one of None, 'relu', "),
        ({"model_kind": "cross_layer_transcoder"}, "have 0, 0 and 0 entries; they must have the same number, at least"),
        ({"activation": "relu"}, "has the arrays .*threshold.*; it must have"),
    ],
)
def test_what_is_not_computed_of_circuit_tracer_is_refused(tmp_path, config, message):
    layers = [tracer_layer(0, threshold=torch.zeros(FEATURES))]
    with pytest.raises(InputError, match=message):
        load_transcoders(tracer(tmp_path, layers, **config))
