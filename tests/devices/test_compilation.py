"""Compiled steps: one compilation per shape, even if it begins before the first call."""

import os
import platform
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.devices.compilation import BackgroundProgram
from transformer_jax.devices.stopwatch import Stopwatch


@pytest.fixture
def watch() -> Stopwatch:
    return Stopwatch("compile")


@pytest.fixture
def step(watch) -> BackgroundProgram:
    """A step that appends to `step.traces` each time it is traced."""

    def scale(state, batch):
        compiled.traces.append(batch.shape)
        return state * jnp.sum(batch)

    compiled = BackgroundProgram(scale, stopwatch=watch)
    compiled.traces = []
    return compiled


def test_a_step_is_compiled_once_for_each_shape_and_type(step, watch):
    batches = [np.arange(3.0), np.ones(3), np.arange(5.0), np.arange(3)]
    assert [float(step(jnp.float32(2), batch)) for batch in batches] == [6, 6, 20, 6]
    assert step.traces == [(3,), (5,), (3,)]
    assert watch.seconds["compile"] > 0


def test_a_call_uses_the_compilation_that_was_begun_for_it(step):
    begun = [step.begin_to_compile(jnp.float32(2), np.zeros(3)) for _ in range(2)]
    assert begun[0] is begun[1]
    assert float(step(jnp.float32(2), np.arange(3.0))) == 6
    assert step.traces == [(3,)]


def test_a_state_of_another_type_is_compiled_separately(step):
    states = [jnp.float32(2), jnp.bfloat16(2), jnp.bfloat16(3), jnp.float32(3)]
    results = [step(state, np.arange(3.0, dtype=np.float32)) for state in states]
    assert [float(result) for result in results] == [6, 6, 9, 9]
    assert step.traces == [(3,), (3,)]
    compiling = [step.begin_to_compile(state, np.ones(3, np.float32)) for state in states]
    assert compiling[0] is compiling[3] is not compiling[1] is compiling[2]
    assert step.traces == [(3,), (3,)]


@pytest.mark.slow
def test_devices_that_share_batches_take_any_number_of_calls_ahead():
    """With too many calls in flight XLA ends the process, here after 20 s of waiting."""
    program = """
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
from transformer_jax import TrainingConfig
from transformer_jax.devices.compilation import BackgroundProgram
from transformer_jax.devices.mesh import choose_devices
from transformer_jax.mesh_axis import sum_over_devices
devices = choose_devices(TrainingConfig(batch_size=256, num_devices=2))
step = BackgroundProgram(devices.share(lambda state, batch: sum_over_devices((batch @ state @ state).sum())))
state, batch = devices.place(np.eye(128)), devices.place_rows(np.ones((256, 128)))
sums = [step(state, batch) for _ in range(500)]
print({float(sum) for sum in sums})
"""
    flags = "--xla_cpu_collective_call_terminate_timeout_seconds=20"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    process = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert process.stdout == "{32768.0}\n", process.stderr


@pytest.mark.slow
def test_freed_memory_is_reused_by_the_main_thread_and_by_one_whose_heap_is_in_use():
    """40 MiB are 10 240 pages of 4 KiB, and do not fit beside 30 MiB into a thread's heap of 64 MiB."""
    program = """
import ctypes, resource, threading
from transformer_jax import prepare_jax
prepare_jax()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], [ctypes.c_void_p]

def touched_pages(number):
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    pieces = [libc.malloc(40 << 20) for _ in range(number)]
    for piece in pieces:
        libc.memset(piece, 1, 40 << 20)
    for piece in pieces:
        libc.free(piece)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

def calls():
    libc.malloc(30 << 20)
    print(touched_pages(1), touched_pages(1))

print(touched_pages(3), touched_pages(3))
thread = threading.Thread(target=calls)
thread.start()
thread.join()
"""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("it is a setting of glibc")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for line in process.stdout.splitlines():
        first, second = map(int, line.split())
        assert second < first / 10, process.stdout  # with huge pages both are smaller


def test_the_callers_settings_hold_for_what_is_compiled_in_the_background():
    step = BackgroundProgram(lambda state, batch: state + batch)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(step(np.float64(1), np.full(3, 1e-12)), np.full(3, 1 + 1e-12))
