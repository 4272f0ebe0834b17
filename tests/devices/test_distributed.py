"""Several real processes that train together, over the loopback interface."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from events import read_scalars
from processes import CLOSE, Way, environment, free_address, train
from repository import REPOSITORY

from transformer_jax import InputError
from transformer_jax.config import Criterion
from transformer_jax.devices import processes as processes_of_devices
from transformer_jax.devices.processes import check_same
from transformer_jax.runs.checkpoints import Checkpoints

PATIENCE = 120  # seconds that a process may take to end
EPOCHS, DATES, NORMALISED = {"max_epochs": 2}, {"task": "dates"}, {"task": "normalised"}


@pytest.fixture(scope="module")
def two_by_two(tmp_path_factory):
    """Directory of trainings by two processes with two devices each, and the results of each process."""
    directory = tmp_path_factory.mktemp("two")
    return directory, train(Way(2, 2), directory, EPOCHS, DATES | {"mesh": "fsdp=2,tensor=2"}, NORMALISED)


@pytest.mark.slow
def test_two_processes_train_like_one_that_resumes_on_fewer_devices_and_each_loads_its_rows(tmp_path, two_by_two):
    _interrupted(two_by_two, tmp_path)
    _, ((first, dates, normalised), (second, *_)) = two_by_two
    runs = EPOCHS | {"num_devices": 4, "name": "alone"}, EPOCHS | {"num_devices": 2}, DATES | {"num_devices": 1}
    ((alone, resumed, dates_alone, normalised_alone),) = train(
        Way(1, 4), tmp_path, *runs, NORMALISED | {"num_devices": 1}
    )
    assert len(first["losses"]) == 10
    assert second["losses"] == []  # the first one alone logs
    np.testing.assert_allclose(first["losses"], alone["losses"], **CLOSE)
    np.testing.assert_allclose(resumed["losses"], first["losses"][5:], **CLOSE)
    assert first["metrics"] == second["metrics"] == pytest.approx(alone["metrics"], abs=1e-12)
    assert first["params"] == second["params"]
    assert alone["rows"] == 2 * 640
    assert first["rows"] == second["rows"] == 640
    # Running averages over the rows of all processes.
    assert len(normalised["losses"]) == 5
    np.testing.assert_allclose(normalised["losses"], normalised_alone["losses"], rtol=1e-6)
    np.testing.assert_allclose(normalised["params"], normalised_alone["params"], rtol=1e-6, atol=1e-9)
    # On a mesh that spans processes, with batches that differ in shape.
    assert len(dates["losses"]) == 2
    np.testing.assert_allclose(dates["losses"], dates_alone["losses"], **CLOSE)
    assert max(dates["shares"]) < 0.5  # each device has half of the kernels' rows and half of their columns


@pytest.mark.slow
def test_a_run_goes_on_bitwise_with_as_many_devices_in_more_processes(tmp_path, two_by_two):
    _interrupted(two_by_two, tmp_path)
    losses = train(Way(4, 1), tmp_path, EPOCHS)[0][0]["losses"]
    assert losses == two_by_two[1][0][0]["losses"][5:]


def _interrupted(finished, parent: Path) -> None:
    """Copy the run, as if it had been killed after the first epoch."""
    shutil.rmtree(shutil.copytree(finished[0] / "ReverseTask", parent / "ReverseTask") / "checkpoints" / "10")


class Command:
    """`experiments/reverse.py`, started as several processes with two devices each."""

    def __init__(self, directory: Path, *flags: str, started: Sequence[int] = (0, 1)) -> None:
        self.run = directory / "together"
        common = [f"--checkpoint-dir={directory}", "--name=together", "--max-epochs=15", "--eval-every=1", *flags]
        common += ["--train-size=1280", "--val-size=128", "--test-size=128"]
        common += ["--distributed", f"--coordinator={free_address()}", "--num-processes=2"]
        script, pipes = REPOSITORY / "experiments/reverse.py", {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.processes = [
            subprocess.Popen(
                [sys.executable, script, *common, f"--process-id={number}"], env=environment(2), text=True, **pipes
            )
            for number in started
        ]

    def wait_for_a_checkpoint(self, after: int = 0) -> None:
        deadline = time.monotonic() + PATIENCE
        while all(int(path.name) <= after for path in (self.run / "checkpoints").glob("[0-9]*") if path.name.isdigit()):
            assert time.monotonic() < deadline
            assert self.processes[0].poll() is None
            time.sleep(0.05)

    def end(self) -> list[tuple[int, str, str]]:
        """Return status, output and errors of each process."""
        outputs = [process.communicate(timeout=PATIENCE) for process in self.processes]
        statuses = [process.returncode for process in self.processes]
        return [(status, *output) for status, output in zip(statuses, outputs, strict=True)]


@pytest.mark.slow
def test_a_signal_to_one_process_saves_all_a_crash_ends_all_and_the_same_commands_resume(tmp_path):
    command = Command(tmp_path)
    command.wait_for_a_checkpoint()
    command.processes[1].send_signal(signal.SIGTERM)
    ended = command.end()
    assert [status for status, *_ in ended] == [143, 143]
    lines = {errors for *_, errors in ended}
    step = Checkpoints(command.run / "checkpoints", Criterion("accuracy", "max"), create=False).steps[-1]
    assert lines == {f"SIGTERM: stopped and saved after step {step}; the same command resumes from there\n"}

    command = Command(tmp_path)
    command.wait_for_a_checkpoint(after=step)
    since = time.monotonic()
    command.processes[0].kill()
    status, _, errors = command.end()[1]
    assert time.monotonic() - since < 60
    assert status not in (0, -signal.SIGKILL)
    assert errors  # of JAX's runtime, as an error in Python or from a thread of its own

    (status, output, _), (other_status, other_output, _) = Command(tmp_path).end()
    assert (status, other_status) == (0, 0)
    assert int(re.search(r"Going on after step (\d+) of 150", output)[1]) > step
    assert "accuracy" not in other_output
    assert json.loads((command.run / "results.json").read_text())["num_devices"] == 4
    assert len(read_scalars(command.run)["val/accuracy"]) == 15  # one event file, without doubles


@pytest.mark.slow
def test_a_process_that_is_not_started_is_an_error_after_the_time_out(tmp_path):
    ((status, _, errors),) = Command(tmp_path, "--connect-timeout=1", started=[0]).end()
    assert status != 0
    assert "DEADLINE_EXCEEDED" in errors


PLACE = """
import sys
import jax, numpy as np
from jax.sharding import Mesh
from transformer_jax.devices.processes import from_first
from transformer_jax.devices.sharing import Devices
number, data, tensor, address = *map(int, sys.argv[1:4]), sys.argv[4]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, number)
mesh = Mesh(np.array(jax.devices()).reshape(data, 1, tensor), ("data", "fsdp", "tensor"))
devices = Devices(mesh, partitioned_by_xla=True)
rows, whole = devices.rows_of_process(2 * data), np.arange(5 * 2 * data * 3).reshape(5, 2 * data, 3)
placed = devices.place_rows({"inputs": whole[:, rows.start : rows.stop]}, rows_axis=1)["inputs"]
assert placed.shape == whole.shape
for shard in placed.addressable_shards:
    np.testing.assert_array_equal(shard.data, whole[shard.index])
try:
    from_first(lambda: {"a set is no": {"JSON"}})
except (TypeError, ValueError) as error:
    print(rows.start, rows.stop, error)
"""


@pytest.mark.slow
def test_a_row_lies_on_devices_of_two_processes_and_an_error_of_the_first_reaches_both():
    address = free_address()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PLACE, str(number), "3", "2", address],
            env=environment(3), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    for process, expected in zip(started, ("0 4", "2 6"), strict=True):
        output, errors = process.communicate(timeout=PATIENCE)
        assert output.splitlines()[-1:] == [f"{expected} Object of type set is not JSON serializable"], errors[-2000:]


def test_a_setting_that_differs_between_processes_is_named(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for first, second, message in (
        ({"lr": "1"}, {"lr": "1", "data": "a"}, "data is a in process 1 and unknown in process 0"),
        ({"lr": "1", "data": "a"}, {"lr": "1"}, "data is unknown in process 1 and a in process 0"),
        (
            {"lr": "1"},
            {"lr": "2"},
            "lr is 2 in process 1 and 1 in process 0; all processes must",
        ),
    ):
        monkeypatch.setattr(processes_of_devices, "_from_all", lambda _, both=[first, second]: both)
        with pytest.raises(InputError, match=message):
            check_same(first)
