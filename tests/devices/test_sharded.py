"""Sharded training: on any mesh it equals the training on one device, and each device holds its part."""

import dataclasses
import re
from collections import Counter

import numpy as np
import pytest
from compiled_models import needs_three
from jax.sharding import AbstractMesh, PartitionSpec
from processes import CLOSE, Way, train

from transformer_jax import InputError, ReverseConfig, make_loader
from transformer_jax.devices.mesh import choose_devices
from transformer_jax.devices.specs import default_spec
from transformer_jax.fit.programs import create_programs
from transformer_jax.tasks import ReverseDataset, ReverseTrainer

pytestmark = pytest.mark.cpu(reason="needs three devices")

# One head of keys for four of queries, fewer than the devices that share heads, and weights that drop.
PARTS = {"positions": "relative", "norm": "rms", "feed_forward": "swiglu", "num_kv_heads": 1, "qk_norm": True}
LOOP = {"scan_layers": True, "norm_first": True, "num_heads": 4}
RUN = LOOP | PARTS | {"attention_dropout": 0.25, "num_layers": 2, "max_epochs": 2}
TEXT = LOOP | {"task": "text", "num_kv_heads": 2, "name": "text"}
LEGS = {"mesh": "fsdp=8", "remat": "dots"}, {"mesh": "data=2,fsdp=2,tensor=2", "accumulate": 4, "remat": "all"}


@pytest.mark.slow
def test_a_run_that_moves_from_mesh_to_mesh_follows_the_losses_of_one_device_and_each_holds_its_part(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{number} squared is {number**2}.\n" for number in range(999)))
    text = TEXT | {"data": str(tmp_path / "text.txt")}
    moves = [RUN | leg | {"name": "moved", "stop_after": epoch} for epoch, leg in enumerate(LEGS, 1)]
    texts = text | {"num_devices": 1}, text | LEGS[1] | {"name": "text on a mesh"}
    ((one, *moved, text_one, text_shared),) = train(Way(1, 8), tmp_path, RUN | {"num_devices": 1}, *moves, *texts)
    assert len(one["losses"]) == 10
    np.testing.assert_allclose(np.concatenate([leg["losses"] for leg in moved]), one["losses"], **CLOSE)
    assert moved[-1]["metrics"] == pytest.approx(one["metrics"], abs=1e-12)
    # Of 20 106 parameters the blocks' large kernels have 16 384, and that of the output network 1 024, which no rule
    # names. The others are small, and stay whole.
    whole = 20106 - 16384 - 1024
    expected = [(whole + 16384 / 8 + 1024 / 8) / 20106, (whole + 16384 / 4 + 1024 / 2) / 20106]
    for leg, share in zip(moved, expected, strict=True):
        assert leg["shares"] == pytest.approx([share, share], rel=1e-3)  # as the leg began, and as it ended
    assert len(text_one["losses"]) == 5
    np.testing.assert_allclose(text_shared["losses"], text_one["losses"], **CLOSE)
    assert text_shared["metrics"] == pytest.approx(text_one["metrics"], abs=1e-12)


def collectives_on(mesh: str) -> Counter[str]:
    """Count collectives of non-scalars in the compiled step of a mesh, by operation and pass."""
    config = ReverseConfig(num_heads=3, num_layers=2, model_dim=96, batch_size=12, mesh=mesh, strategy="sharded")
    trainer, loader = ReverseTrainer(config), make_loader(ReverseDataset(10, 16, 12), 12)
    runner = create_programs(trainer.compiled, loader, 200).runner
    traced = runner.program.trace(*runner.arguments(loader.example()))
    found: Counter[str] = Counter()
    pattern = r' = (.*?) (all-[\w-]+|reduce-scatter|collective-permute)\((?:.*op_name="([^"]*)")?'
    for shape, operation, name in re.findall(pattern, traced.lower().compile().as_text()):
        if re.search(r"\[\d", shape):
            is_of = "backward" if "transpose" in name else "forward" if "jvp" in name else "update"
            found[f"{operation} {is_of}"] += 1
    return found


@pytest.mark.slow
@needs_three
def test_the_devices_exchange_what_their_strategy_needs_and_nothing_of_the_optimizers_state():
    """For a loop over layers see tests/benchmarks/test_scaling.py."""
    assert collectives_on("data=3") == {"all-reduce backward": 1}  # all gradients and sums in one
    # 2 layers have 6 kernels each, the output network one: each is gathered once, and its gradient summed once, the
    # small ones together with one of them. (CPUs gather once for both passes, and have no reduce-scatter.)
    assert collectives_on("fsdp=3") == {"all-gather forward": 13, "all-reduce backward": 13}
    # Tensor parallelism sums the outputs of attention and feed-forward of each layer, and as many gradients.
    tensor = collectives_on("tensor=3")
    assert (tensor["all-reduce forward"], tensor["all-reduce backward"]) == (4, 4)
    assert not [name for name in tensor if "update" in name]


def mesh(data: int, fsdp: int, tensor: int) -> AbstractMesh:
    return AbstractMesh((data, fsdp, tensor), ("data", "fsdp", "tensor"))


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("encoder/layers_0/self_attn/query_proj/kernel", (64, 64), ("fsdp", "tensor")),
        ("encoder/layers_0/feed_forward/contract/kernel", (62, 64), ("tensor", "fsdp")),
        ("encoder/layers_0/feed_forward/expand/kernel", (62, 64), (None, "tensor")),  # 4 does not divide 62
        ("source_embedding/embedding", (1000, 64), ("fsdp", None)),
        ("table", (33, 64), (None, "fsdp")),
        ("encoder/layers_0/self_attn/query_proj/bias", (64,), ()),
        ("v_row/encoder/layers_0/self_attn/query_proj/kernel", (4096,), ("fsdp",)),  # Adafactor's
        ("encoder/stacked_layers/self_attn/query_proj/kernel", (5, 64, 64), (None, "fsdp", "tensor")),
        ("mu/encoder/stacked_layers/self_attn/query_proj/bias", (48, 64), (None,)),  # of 64 elements each
    ],
)
def test_a_parameter_is_split_by_the_rule_of_its_path_or_along_its_largest_axis(path, shape, spec):
    assert default_spec(path, shape, mesh(2, 4, 2)) == PartitionSpec(*spec)


class SplitMoments(ReverseTrainer):
    """Parameters whole on each device, the moments of Adam split over all (Rajbhandari et al. 2020, stage 1)."""

    @staticmethod
    def partition_spec(path, shape, mesh):
        return PartitionSpec("data") if path.startswith("opt_state") and len(shape) == 2 else PartitionSpec()


@pytest.mark.slow
def test_a_task_splits_the_state_by_a_rule_of_its_own(tmp_path):
    settings = {"num_heads": 1, "max_epochs": 1, "warmup": 1, "num_devices": 2, "checkpoint_dir": tmp_path}
    trainer = SplitMoments(dataclasses.replace(CONFIG, **settings))
    loaders = [make_loader(ReverseDataset(10, 16, size), CONFIG.batch_size) for size in (24, 12)]
    with trainer, trainer.training(*loaders) as loop:
        loop.train_until(1)
        state = loop.state
    moment, kernel = (
        tree["encoder"]["layers_0"]["self_attn"]["query_proj"]["kernel"]
        for tree in (state.opt_state[0].mu, state.params)
    )
    assert kernel.sharding.is_fully_replicated
    assert [shard.data.shape for shard in moment.addressable_shards] == [(3, 6), (3, 6)]  # of 6 × 6


CONFIG = ReverseConfig(batch_size=12, num_heads=3, model_dim=6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mesh": "data=99"}, r"mesh is data=99, which takes 99 devices; JAX has \d+ of kind .*, e.g. data="),
        ({"num_devices": 12}, r"num_devices is 12; JAX has \d of kind"),
        ({"mesh": "rows=2"}, "mesh is 'rows=2'; it must give sizes of the axes data, fsdp, tensor, e.g. data=4,fsdp=2"),
        ({"mesh": "data=2,data=2"}, "it must give sizes"),
        ({"mesh": "tensor=2"}, "tensor must divide num_heads, 3"),
        (
            {"mesh": "fsdp=2", "batch_size": 15},
            r"must divide batch_size, 15; the next larger batch size that works is 16",
        ),
        ({"mesh": "fsdp=2", "strategy": "replicated"}, "strategy is replicated, but mesh is fsdp=2"),
        ({"mesh": "data=2", "num_devices": 1}, "num_devices is 1, and mesh is data=2, which takes 2"),
    ],
)
def test_an_impossible_mesh_is_an_error_that_says_what_is_possible(settings, message):
    with pytest.raises(InputError, match=message):
        choose_devices(dataclasses.replace(CONFIG, **settings))


@pytest.mark.parametrize(
    ("settings", "partitioned_by_xla"),
    [
        ({}, False),
        ({"mesh": "data=3"}, False),
        ({"mesh": "data=3", "strategy": "sharded"}, True),
        ({"mesh": "fsdp=2"}, True),
        ({"strategy": "sharded"}, True),
    ],
)
def test_the_compiler_divides_the_step_where_the_mesh_splits_parameters_or_it_is_asked_for(
    settings, partitioned_by_xla
):
    assert choose_devices(dataclasses.replace(CONFIG, **settings)).partitioned_by_xla == partitioned_by_xla


def test_the_trainer_says_what_each_device_holds(tmp_path):
    trainer = ReverseTrainer(dataclasses.replace(CONFIG, mesh="fsdp=2,tensor=1", checkpoint_dir=tmp_path))
    assert str(trainer.devices) == "2 × cpu, sharded: data=1, fsdp=2, tensor=1"
