"""`--lora`: low-rank adapters are trained instead of the model, as in PyTorch; everything else gets the sum of both."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import draw
from finished_runs import REVERSE, finished_run
from flax import linen as nn
from flax.traverse_util import flatten_dict
from tiny_models import SETTINGS, language_model, predictor

from transformer_jax import InputError, TrainerModule, TrainingConfig, load_run, make_loader
from transformer_jax.data import ArrayDataset
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.tasks.reverse import reverse_data, train_reverse
from transformer_jax.training.low_rank import matrix_shape, with_adapters
from transformer_jax.trees import changes_in, merged, split_variables

B, D, C = 7, 5, 3
X, Y = draw(4 * B, D, seed=1), draw(4 * B, C, seed=2)


def adapted(params, lora, **settings):
    return with_adapters(params, TrainingConfig(lora=lora, **settings), jax.random.key(0))


def moved(state):
    """Parameters of a training with other numbers in what is trained."""
    trained, variables = split_variables(state)
    return jax.tree.map(lambda leaf: leaf + draw(*leaf.shape), trained) | {"variables": variables}


def paths(tree):
    return flatten_dict(tree, sep="/").keys()


class Heads(nn.Module):
    """Flax's attention, whose kernels are [D, H, d] and [H, d, D], and statistics of a batch."""

    @nn.compact
    def __call__(self, x, *, train=False):
        return nn.BatchNorm(use_running_average=not train)(nn.MultiHeadDotProductAttention(2)(x))


@pytest.mark.parametrize("settings", ["pre_rms_grouped", "scanned_alibi"])
def test_a_model_with_fresh_adapters_computes_the_same(settings):
    params = language_model(SETTINGS[settings]).variables["params"]
    state = adapted(params, "attention:2:6, feed_forward/expand:3, decoder/norm:full")
    jax.tree.map(np.testing.assert_array_equal, merged(state), params)
    whole = [path for path, change in changes_in(state).items() if path.startswith("decoder/norm")]
    assert whole == [f"decoder/norm/{name}" for name in params["decoder"]["norm"]]
    one, another = jax.tree.map(np.asarray, (merged(moved(state)), merged(unstack_layers(moved(state)))))
    jax.tree.map(np.testing.assert_array_equal, unstack_layers(one), another)
    before, after = (flatten_dict(tree, sep="/") for tree in (params, one))
    changed = {path for path in before if np.any(after[path] != before[path])}
    ends = ("_proj/kernel", "expand/kernel")
    assert changed == {path for path in paths(params) if path.endswith(ends) or path.startswith("decoder/norm")}


def test_merged_adapters_are_those_beside_a_kernel_of_heads():
    x = draw(2, 3, 6)
    params = dict(Heads().init(jax.random.key(0), x))
    params = params.pop("params") | {"variables": params}
    state = moved(adapted(params, "attention:2:6"))
    jax.tree.map(np.testing.assert_array_equal, merged(state)["variables"], params["variables"])
    changes = {path.split("/")[-2]: change for path, change in changes_in(state).items()}
    whole = merged(state)["MultiHeadDotProductAttention_0"]
    for name, equation in (("query", "btd,dhe->bthe"), ("out", "bthd,hde->bte")):
        kernel = params["MultiHeadDotProductAttention_0"][name]["kernel"]
        a, b, scale = changes[name]
        assert (a.shape, b.shape, scale) == ((6, 2), (2, 6), 3)
        given = x if name == "query" else x.reshape(2, 3, 2, 3)
        beside = np.einsum(equation, given, kernel) + 3 * (x @ a @ b).reshape(np.einsum(equation, given, kernel).shape)
        np.testing.assert_allclose(np.einsum(equation, given, whole[name]["kernel"]), beside, rtol=1e-5, atol=1e-5)


def test_kernels_of_heads_are_matrices():
    shapes = {(5, 7): (5, 7), (3, 3, 50, 70): (450, 70), (12, 3, 4): (12, 12), (3, 4, 12): (12, 12)}
    assert {shape: matrix_shape(shape) for shape in shapes} == shapes


class TwoLayers(nn.Module):
    """Two dense layers."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(C, name="last")(jnp.tanh(nn.Dense(D, name="first")(x)))


class Regression(TrainerModule):
    """Squared errors of two dense layers."""

    name, config_class = "Regression", TrainingConfig

    def create_model(self):
        return TwoLayers()

    def model_inputs(self, inputs):
        return (inputs,)

    def apply(self, params, inputs, key=None, *, train=False):
        return self.call_model(params, self.model_inputs(inputs))

    def loss_function(self, params, batch, key, *, train):
        return {"loss": (jnp.square(self.apply(params, batch.inputs) - batch.targets).mean(-1), 1.0)}


def regression(directory, **settings):
    config = TrainingConfig(
        batch_size=B, max_epochs=1, lr=0.1, warmup=0, schedule="constant", checkpoint_dir=directory, quiet=True,
        num_devices=1, weight_decay=0.5, init_only="first", lora="first:2:6",
    )  # fmt: skip
    return Regression(dataclasses.replace(config, **settings))


def test_training_is_that_of_pytorch_with_optimizer_state_for_adapters_and_fresh_arrays_alone(tmp_path):
    trainer = regression(tmp_path)
    loaders = make_loader(ArrayDataset(X, Y), B, drop_last=True), make_loader(ArrayDataset(X, Y), B)
    given = trainer.initial_params(jax.random.key(3), X[:1])
    batches = list(loaders[0].epoch(0, 0, lambda: 1, 4))
    with trainer, trainer.training(*loaders, given) as loop:
        start = changes_in(jax.device_get(loop.state.params))
        loop.train_until(4)
        state = jax.device_get(loop.state)
    trained, _ = split_variables(state.params)
    sizes = [leaf.size for leaf in jax.tree.leaves(trained)]
    assert sum(sizes) == D * 2 + 2 * D + D * C + C  # A, B and the fresh layer
    assert sum(leaf.size for leaf in jax.tree.leaves(state.opt_state)) == 2 * sum(sizes) + 1  # Adam's, and its step
    a, b = (torch.tensor(np.array(array), requires_grad=True) for array in start["first/kernel"][:2])
    kernel, bias = (torch.tensor(np.array(start[f"last/{name}"]), requires_grad=True) for name in ("kernel", "bias"))
    optimizer = torch.optim.AdamW(
        [{"params": [a, b, kernel], "weight_decay": 0.5}, {"params": [bias], "weight_decay": 0.0}], lr=0.1
    )
    first = {name: torch.tensor(np.array(array)) for name, array in given["first"].items()}
    for inputs, targets in batches:
        x, y = (torch.tensor(np.asarray(array).reshape(B, -1)) for array in (inputs, targets))
        hidden = torch.tanh(x @ first["kernel"] + 3 * (x @ a @ b) + first["bias"])
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(hidden @ kernel + bias, y).backward()
        torch.nn.utils.clip_grad_norm_([a, b, kernel, bias], 1.0)
        optimizer.step()
    found = changes_in(state.params)
    expected = [each.detach().numpy() for each in (a, b, kernel, bias)]
    ours = [*found["first/kernel"][:2], found["last/kernel"], found["last/bias"]]
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, state.params["variables"]["frozen"]["first"], given["first"])


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ("attention", r"^lora has 'attention'; it must be PATTERN:RANK with a rank of at least 1, PATTERN:RANK:ALPHA"),
        ("attention:0", "^lora has 'attention:0'; it must be PATTERN:RANK"),
        ("encoder:2,attention:-1", "^lora has 'attention:-1'; it must be"),
        ("attention:2:0.0", "^lora has 'attention:2:0.0'; it must be"),
        ("attention:full:2", "^lora has 'attention:full:2'; it must be"),
        ("", "^lora has ''; it must be"),
        (
            "encoder:2,attn:4",
            "^lora has 'attn', which selects no matrix of the model; modules: contract, expand, inp",
        ),
        ("encoder/norm:4", "^lora has 'encoder/norm', which selects no matrix of the model"),
    ],
)
def test_a_wrong_value_is_one_clear_line(lora, message):
    with pytest.raises(InputError, match=message) as caught:
        adapted(predictor()[1]["params"], lora)
    assert "\n" not in str(caught.value)


def test_later_patterns_decide_and_fresh_arrays_are_trained_unless_frozen():
    params = predictor()[1]["params"]
    lora = "encoder:2,*/query_proj:1,encoder/layers_0/*norm*:full"
    state = adapted(params, lora, init_only="encoder,input_layer", freeze="*/bias")
    changes = changes_in(state)
    ranks = {path: change.a.shape[1] for path, change in changes.items() if not hasattr(change, "shape")}
    assert set(ranks) == {path for path in paths(params) if path.startswith("encoder") and path.endswith("kernel")}
    assert all(rank == (1 if "query_proj" in path else 2) for path, rank in ranks.items())
    assert changes.keys() - ranks.keys() == {
        path
        for path in paths(params)
        if ("encoder/layers_0" in path and path.endswith("scale")) or (path.startswith("output") and "bias" not in path)
    }


def test_layers_of_a_loop_are_named_by_their_numbers_in_init_only():
    params = language_model(SETTINGS["scanned_alibi"]).variables["params"]
    for init_only, is_fresh in (("embedding,decoder/layers_*", False), ("embedding,decoder/layers_0", True)):
        changes = changes_in(adapted(params, "attention:2", init_only=init_only))
        whole = {path for path, change in changes.items() if hasattr(change, "shape")}
        expected = {path for path in paths(params) if is_fresh or "stacked_layers" not in path} - {
            "embedding/embedding"
        }
        assert whole == expected
        assert len(changes) == len(whole) + (0 if is_fresh else 4)


def test_frozen_layers_have_no_adapters():
    params = predictor()[1]["params"]
    state = adapted(params, "attention:2", freeze="encoder/layers_0")
    assert changes_in(state).keys() == {
        path for path in paths(params) if "layers_1" in path and "attn" in path and path.endswith("kernel")
    }
    with pytest.raises(InputError, match="freeze is encoder; it names all that lora selects"):
        adapted(params, "attention:2", freeze="encoder")


TUNED = REVERSE | {"lora": "attention:2:4,output_layer:full", "ema": 0.9, "best_by": "val/ema_loss:min"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return finished_run(tmp_path_factory, "ReverseTask")


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_run_is_resumed_opened_saved_and_tuned_further(base, tmp_path, capsys, scan_layers):
    settings = TUNED | {"checkpoint_dir": tmp_path, "init_from": str(base), "scan_layers": scan_layers}
    whole, results = train_reverse(**settings, name="whole")
    count = sum(map(np.size, jax.tree.leaves(whole.adapters))) - 8  # without the factors
    frozen = sum(map(np.size, jax.tree.leaves(whole.params))) - 12 * 7 - 7
    assert f"ReverseTask: {count:,} parameters to train and {frozen:,} frozen, 20 steps on" in capsys.readouterr().out
    before, after = (flatten_dict(params, sep="/") for params in (load_run(base).params, whole.params))
    kernels = {path for path in before if "self_attn" in path and path.endswith("kernel")}
    changed = {path for path in before if np.any(np.asarray(before[path]) != np.asarray(after[path]))}
    assert changed == kernels | {"output_layer/kernel", "output_layer/bias"}
    config = dataclasses.replace(whole.config, name="halved", checkpoint_dir=tmp_path)
    data = reverse_data(config)
    for stop in (13, 20):
        trainer = ReverseTrainer(config)
        with trainer, trainer.training(data.train_loader, data.val_loader, load_run(base).params) as loop:
            loop.train_until(stop)
            assert loop.step == stop
            if stop == 13:
                loop._journal.save(loop.state)
    with pytest.warns(UserWarning, match="halved is unfinished"):
        found = load_run(tmp_path / "halved")
    opened = load_run(tmp_path / "whole")
    for one in (found, opened):
        jax.tree.map(np.testing.assert_array_equal, dict(one.params), dict(whole.params))
        jax.tree.map(np.testing.assert_array_equal, dict(one.adapters), dict(whole.adapters))
    assert opened.evaluate(data.val_loader) == pytest.approx(results["val"], abs=1e-6)
    opened.save(tmp_path / "saved")
    saved = load_run(tmp_path / "saved")
    assert not saved.adapters
    np.testing.assert_array_equal(saved.predict(np.arange(5)), opened.predict(np.arange(5)))
    again, _ = train_reverse(**settings | {"init_from": str(tmp_path / "whole")}, name="again", lr=1e-30)
    jax.tree.map(lambda *both: np.testing.assert_allclose(*both, atol=1e-6), dict(again.params), dict(whole.params))
