"""Throughput, memory and profiles of a training."""

import dataclasses
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import needs_three
from events import read_scalars
from tiny_reverse import CONFIG, fit, trainer_for

from transformer_jax import InputError, make_loader
from transformer_jax.attention.request import Explanation
from transformer_jax.devices import compilation, stopwatch
from transformer_jax.devices.compilation import (
    BackgroundProgram,
    Memory,
    host_device,
    known_options,
    prepare_jax,
)
from transformer_jax.devices.flops import flops_of, peak_of
from transformer_jax.devices.mesh import own_device
from transformer_jax.fit.profile import Profile, ShowProgram
from transformer_jax.fit.programs import create_programs
from transformer_jax.fit.standard_callbacks import LogThroughput
from transformer_jax.tasks import ReverseDataset, ReverseTrainer
from transformer_jax.training.callbacks import Step
from transformer_jax.training.checks import profiled_steps


@pytest.mark.usefixtures("without_type_checks")  # the runner is a simple one
def test_an_entry_holds_examples_flops_and_the_seconds_of_waiting_since_the_last_one():
    entries = []
    runner = SimpleNamespace(flops_per_step=1e6, devices=own_device(), rows_per_step=7)

    def throughput() -> LogThroughput:
        return LogThroughput(
            lambda step, scalars: entries.append((step, dict(scalars))), lambda step: step % 3 == 0, runner
        )

    before, after = throughput(), throughput()
    for number in range(1, 7):
        # The host was late after the first step, so that the second one seems to take no time.
        seconds = {1: 0.4, 2: 0.0}.get(number, 0.2)
        (before if number < 5 else after).on_step(Step(number, {}, seconds, waited=number / 8))
        if number == 4:
            after.restore(before.state())  # as a resumed run does
    assert [step for step, _ in entries] == [3, 6]
    first, second = (scalars for _, scalars in entries)
    for scalars in (first, second):
        assert scalars["throughput/steps_per_second"] == pytest.approx(5)
        assert scalars["throughput/examples_per_second"] == pytest.approx(35)
        assert scalars["throughput/flops_per_second"] == pytest.approx(5e6)
    assert first["throughput/seconds_waiting_for_data"] == 6 / 8
    assert second["throughput/seconds_waiting_for_data"] == 15 / 8


def test_the_flops_of_a_program_are_those_of_its_products_and_its_memory_is_that_of_its_arrays():
    compiled = BackgroundProgram(lambda state, batch: (batch @ state, state.sum()))
    compiled.begin_to_compile(np.ones((31, 17), np.float32), np.ones((64, 31), np.float32)).result()
    assert compiled.flops == pytest.approx(2 * 64 * 31 * 17, rel=0.05)  # and the sum's additions
    assert compiled.memory.held == 4 * (31 * 17 + 64 * 31)


def test_flops_are_counted_in_loops_branches_and_gradients_on_any_backend():
    weights, x = np.ones((31, 31), np.float32), np.ones((7, 31), np.float32)

    def loop(weights, x):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ weights), None), x, None, length=5)[0].sum()

    product = 2 * 7 * 31 * 31
    assert flops_of(jax.jit(loop).trace(weights, x).jaxpr) == 5 * product
    assert flops_of(jax.jit(jax.grad(loop)).trace(weights, x).jaxpr) == 15 * product
    checkpointed = jax.grad(jax.checkpoint(lambda weights, x: jnp.tanh(jnp.tanh(x @ weights) @ weights).sum()))
    assert flops_of(jax.jit(checkpointed).trace(weights, x).jaxpr) > 5 * product  # one of six is not needed


def test_the_peak_is_that_of_the_card():
    kinds = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA L40S", "NVIDIA L4", "TPU v5 lite", "cpu"
    assert [peak_of(kind) for kind in kinds] == [989e12, 756e12, 362e12, 121e12, 197e12, None]


@pytest.mark.parametrize(
    ("around", "setting", "expected"),
    [
        (None, None, None),
        (None, "highest", "HIGHEST"),
        (None, "default", "DEFAULT"),
        ("highest", "default", "HIGHEST"),  # a comparison of numbers has full precision, whatever the run's
    ],
)
def test_products_of_a_model_have_the_precision_of_the_setting(around, setting, expected):
    trainer = ReverseTrainer(dataclasses.replace(CONFIG, matmul_precision=setting))
    inputs = np.zeros((2, 5), np.int32)

    def loss(params):
        return trainer.apply(params, inputs).sum()

    with jax.default_matmul_precision(around):
        params = jax.eval_shape(trainer.initial_params, jax.random.key(0), inputs)
        text = str(jax.make_jaxpr(jax.grad(loss))(params))
    precisions = set(re.findall(r"precision=\(?(?:Precision\.)?(\w+)", text))
    assert precisions == ({expected} if expected else set())


def test_the_line_on_memory_counts_mebibytes():
    line = "Memory of each device: 3.0 MiB for state and batches, 0.5 MiB inside a step"
    assert str(Memory(3 * 2**20, 2**19)) == line


@pytest.mark.usefixtures("without_type_checks")  # the runner is a simple one
def test_the_lines_on_attention_come_after_the_first_step():
    calls = [Explanation(name, "why", {}, (2, 3)) for name in ("plain", "plain", "blockwise")]
    lines, runner = [], SimpleNamespace(attention=calls, program=SimpleNamespace(memory=None))
    show = ShowProgram(lines.append, runner)
    for number in range(3):
        show.on_step(Step(number, {}, 1.0))
    assert lines == [f"{name} attention of 2 × 3 logits: why" for name in ("plain", "blockwise")]


def test_a_profile_that_is_not_two_steps_of_the_training_is_an_error_before_it(tmp_path):
    with pytest.raises(InputError, match="profile is '5'; it must be START:STOP"):
        fit(trainer_for(tmp_path / "runs", profile="5"))
    assert not (tmp_path / "runs").exists()
    for text in ("", "5", "5:", "7:5", "5:5", "-1:5", "a:b", "1.5:2"):
        with pytest.raises(InputError, match="it must be START:STOP"):
            profiled_steps(text)
    assert profiled_steps("8:20", 9) == (8, 20)
    with pytest.raises(InputError, match="profile is '9:20'; the first step must be below 9, the number of steps"):
        profiled_steps("9:20", 9)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [("2:7", [4, 8]), ("1:2", [4, 8]), ("4:8", [4, 8]), ("5:6", [8, 12]), ("3:100", [4, 12]), ("100:200", [])],
)
def test_a_trace_holds_whole_calls_and_at_least_one(tmp_path, monkeypatch, steps, expected):
    """Of three calls of four steps."""
    traced, lines, done = [], [], 0
    monkeypatch.setattr(jax.profiler, "start_trace", lambda directory: traced.append(done))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: traced.append(done))
    profile = Profile(tmp_path, steps, lines.append)
    for done in range(1, 13):
        profile.on_step(Step(done, {}, 1.0, ends_call=done % 4 == 0))
    profile.on_end(12)
    assert traced == expected
    said = f"Trace: {tmp_path}/plugins/profile" if traced else "No trace: no call has reached step 100"
    assert lines == [said]


@pytest.mark.slow
@needs_three
def test_the_flops_of_a_step_are_those_of_all_devices():
    def flops(**settings):
        trainer = ReverseTrainer(dataclasses.replace(CONFIG, batch_size=12, seq_len=16, model_dim=32, **settings))
        train = make_loader(ReverseDataset(3, 16, 48, seed=1), 12, drop_last=True)
        runner = create_programs(trainer.compiled, train, 8).runner
        runner.program.begin_to_compile(*runner.arguments(train.example()))
        return runner.flops_per_step

    shared = flops(num_devices=3)
    assert 6 < shared / (12 * 16 * 8192) < 10  # for each position and parameter of the kernels: 6, and the rest
    assert flops(mesh="fsdp=3") == pytest.approx(shared, rel=0.03)  # each of three has an update of its own


def test_the_flops_of_steps_whose_batches_differ_in_shape_are_not_known():
    train = make_loader(ReverseDataset(3, 5, 14, seed=1), 7, groups=np.arange(14) // 7)
    runner = create_programs(ReverseTrainer(CONFIG).compiled, train, 8).runner
    runner.program.begin_to_compile(*runner.arguments(train.example()))
    assert runner.program.flops is not None  # of the first shape
    assert runner.flops_per_step is None


def test_an_option_that_the_compiler_does_not_know_is_left_out():
    known = {"xla_backend_optimization_level": 0}
    assert known_options({"xla_no_such_option": 3} | known) == known


def test_a_program_for_a_device_runs_there():
    last = jax.local_devices()[-1]
    assert last != jax.local_devices()[0]
    program = BackgroundProgram(lambda x: x + 1, device=last)
    assert program(np.ones(3)).devices() == {last}


def test_on_an_accelerator_the_host_computes_the_initial_state(monkeypatch):
    assert host_device() is None
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert host_device() == jax.local_devices(backend="cpu")[0]
    monkeypatch.setattr(jax, "local_devices", mock.Mock(side_effect=RuntimeError("Unknown backend cpu")))
    assert host_device() is None  # with JAX_PLATFORMS=cuda


def test_on_an_accelerator_programs_are_kept_unless_a_directory_is_given(monkeypatch, tmp_path):
    updates = {}
    config = SimpleNamespace(values={compilation.CACHE_DIR: None}, update=updates.__setitem__)
    monkeypatch.setattr(compilation, "jax", SimpleNamespace(config=config, default_backend=lambda: "gpu"))
    monkeypatch.setattr(compilation, "provide_cpu_devices", lambda: None)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    prepare_jax(CONFIG)
    assert updates[compilation.CACHE_DIR] == str(tmp_path / ".cache" / "transformer-jax")
    assert updates["jax_compilation_cache_max_size"] == 2**30
    updates.clear()
    prepare_jax(dataclasses.replace(CONFIG, compilation_cache=tmp_path / "own"))
    assert updates[compilation.CACHE_DIR] == str(tmp_path / "own")
    assert "jax_compilation_cache_max_size" not in updates
    updates.clear()
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("Could not determine home directory.")))
    prepare_jax(CONFIG)
    assert compilation.CACHE_DIR not in updates


@pytest.mark.slow
def test_a_run_says_its_memory_logs_its_throughput_and_writes_the_trace_that_is_asked_for(
    tmp_path, capsys, monkeypatch
):
    ticks = itertools.count()  # a clock that goes on by one second whenever it is read
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    trainer = fit(trainer_for(tmp_path, log_every=3, profile="2:7", steps_per_call=5, verbose=True))
    printed = capsys.readouterr().out
    assert printed.count("Memory of each device: ") == 1
    assert printed.count("plain attention of 5 × 5 logits: there are few logits; not blockwise: ") == 1
    curves = read_scalars(trainer.run.path)
    for name in ("steps_per_second", "examples_per_second", "flops_per_second", "seconds_waiting_for_data"):
        assert list(curves[f"throughput/{name}"]) == [3, 5, 6, 9, 10, 12, 15]
    # Each entry is about the time since the last one, so that all entries together are about the whole training.
    rates = curves["throughput/steps_per_second"]
    seconds = sum((step - last) / rates[step] for last, step in itertools.pairwise([0, *rates]))
    assert seconds == pytest.approx(trainer.stopwatch.seconds["train"], abs=2)  # the ends of the epochs
    flops = curves["throughput/flops_per_second"][6] / curves["throughput/examples_per_second"][6]
    assert 1e3 < flops < 1e6  # of a sequence of 5: 6 for each position and each of 453 parameters, and attention's
    assert f"Trace: {trainer.run.path / 'plugins' / 'profile'}" in printed
    traces = [*(trainer.run.path / "plugins" / "profile").glob("*/*.xplane.pb")]
    assert len(traces) == 1
