"""TensorBoard events of a run that goes on: no gaps, no doubles."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from events import read_scalars

from transformer_jax.runs.event_records import read_records, write_records
from transformer_jax.runs.loggers import Position
from transformer_jax.runs.tensorboard import PATTERN, TensorBoardLogger


def test_a_run_that_goes_on_replaces_what_it_does_again(tmp_path):
    log = TensorBoardLogger(tmp_path, Position(0, 0))
    for step in (10, 20, 30):
        log.log(step, {"train/loss": float(step), "val/accuracy": step / 100})
    log.close()
    # Saved at step 20, before its evaluation was: that one and step 30 are done again.
    log = TensorBoardLogger(tmp_path, Position(20, 10))
    log.log(20, {"val/accuracy": 0.5})
    log.log(30, {"train/loss": -1.0})
    log.close()
    assert read_scalars(tmp_path, as_pairs=True) == {
        "train/loss": [(10, 10.0), (20, 20.0), (30, -1.0)],
        "val/accuracy": [(10, 0.10000000149011612), (20, 0.5)],
    }


def test_a_record_that_a_kill_cut_off_ends_the_file(tmp_path):
    log = TensorBoardLogger(tmp_path, Position(0, 0))
    for step in (10, 20):
        log.log(step, {"train/loss": float(step)})
    log.close()
    (file,) = tmp_path.glob(PATTERN)
    file.write_bytes(file.read_bytes()[:-3])
    log = TensorBoardLogger(tmp_path, Position(20, 0))
    log.log(20, {"train/loss": 2.0})
    log.close()
    assert read_scalars(tmp_path, as_pairs=True) == {"train/loss": [(10, 10.0), (20, 2.0)]}


def written(directory: Path, steps: Sequence[int]) -> tuple[Path, bytes]:
    """An event file with a value for each step, and its content."""
    log = TensorBoardLogger(directory, Position(0, 0))
    for step in steps:
        log.log(step, {"train/loss": float(step)})
    log.close()
    (file,) = directory.glob(PATTERN)
    return file, file.read_bytes()


DAMAGES = {
    "flipped": lambda record: record[:20] + bytes([record[20] ^ 1]) + record[21:],
    "another length": lambda record: bytes([record[0] ^ 1]) + record[1:],
    "zeroed": lambda record: bytes(len(record)),
    "shortened": lambda record: record[:20] + record[23:],
    "grown": lambda record: record[:20] + b"grown" + record[20:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_damaged_file_the_readable_events_are_kept_and_the_file_is_set_aside(tmp_path, damage):
    file, content = written(tmp_path, (10, 20, 30, 40))
    *_, third, fourth = (len(data) + 16 for data in read_records(content).data)
    begin, end = len(content) - third - fourth, len(content) - fourth
    damaged = content[:begin] + DAMAGES[damage](content[begin:end]) + content[end:]
    file.write_bytes(damaged)
    with pytest.warns(UserWarning, match="is damaged; what can be read of its curves is kept"):
        log = TensorBoardLogger(tmp_path, Position(40, 40))
    log.log(50, {"train/loss": 50.0})
    log.close()
    assert sorted(read_scalars(tmp_path)["train/loss"]) == [10, 20, 40, 50]  # files of one second come in any order
    (aside,) = tmp_path.glob("*damaged*")
    assert aside.read_bytes() == damaged


def test_a_file_from_which_nothing_is_cut_is_not_written_again(tmp_path):
    file, content = written(tmp_path, (10, 20))
    before = file.stat()
    TensorBoardLogger(tmp_path, Position(20, 0)).close()
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert file.read_bytes() == content


def test_a_second_damage_does_not_replace_the_file_that_was_set_aside(tmp_path):
    file, _ = written(tmp_path, (10, 20, 30))
    for _ in range(2):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.warns(UserWarning, match="damaged"):
            TensorBoardLogger(tmp_path, Position(30, 0)).close()
    assert len(list(tmp_path.glob("*damaged*"))) == 2


def test_a_megabyte_of_zeros_in_the_middle_hides_nothing_behind_it(tmp_path):
    file, content = written(tmp_path, (10, 20))
    log_record = b"another record"
    write_records(file, [log_record])
    file.write_bytes(content + bytes(2**20) + file.read_bytes())
    records = read_records(file.read_bytes())
    assert records.num_damaged == 1
    assert records.data[-1] == log_record
    assert len(records.data) == len(read_records(content).data) + 1


def test_a_record_that_is_no_event_is_left_out(tmp_path):
    file, content = written(tmp_path, (10, 20))
    write_records(file, [*read_records(content).data, b"no event"])
    TensorBoardLogger(tmp_path, Position(20, 20)).close()
    assert list(read_scalars(tmp_path)["train/loss"]) == [10, 20]


@pytest.mark.parametrize("lose", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-20])])
def test_an_event_file_that_is_gone_or_shorter_than_before_is_named(tmp_path, lose):
    file, content = written(tmp_path, (10, 20))
    earlier = {file.name: len(content)}
    TensorBoardLogger(tmp_path, Position(20, 20, {"TensorBoardLogger": earlier})).close()
    lose(file)
    with pytest.warns(UserWarning, match=f"has lost a part of its curves: {file.name}"):
        TensorBoardLogger(tmp_path, Position(20, 20, {"TensorBoardLogger": earlier})).close()


def test_records_that_are_there_twice_are_kept_once(tmp_path):
    file, content = written(tmp_path, (10, 20))
    file.write_bytes(content + content[: len(content) // 2])
    with pytest.warns(UserWarning, match="is damaged"):
        TensorBoardLogger(tmp_path, Position(20, 20)).close()
    assert read_scalars(tmp_path, as_pairs=True) == {"train/loss": [(10, 10.0), (20, 20.0)]}
