"""TensorBoard events of a run that goes on: no gaps, no doubles."""

from events import read_scalars

from transformer_jax.runs.tensorboard import PATTERN, EventLog


def test_a_run_that_goes_on_replaces_what_it_does_again(tmp_path):
    log = EventLog(tmp_path, last_step=0, last_evaluation=0)
    for step in (10, 20, 30):
        log.log(step, {"train/loss": float(step), "val/accuracy": step / 100})
    log.close()
    # Saved at step 20, before its evaluation was: that one and step 30 are done again.
    log = EventLog(tmp_path, last_step=20, last_evaluation=10)
    log.log(20, {"val/accuracy": 0.5})
    log.log(30, {"train/loss": -1.0})
    log.close()
    assert read_scalars(tmp_path, as_pairs=True) == {
        "train/loss": [(10, 10.0), (20, 20.0), (30, -1.0)],
        "val/accuracy": [(10, 0.10000000149011612), (20, 0.5)],
    }


def test_a_record_that_a_kill_cut_off_ends_the_file(tmp_path):
    log = EventLog(tmp_path, last_step=0, last_evaluation=0)
    for step in (10, 20):
        log.log(step, {"train/loss": float(step)})
    log.close()
    (file,) = tmp_path.glob(PATTERN)
    file.write_bytes(file.read_bytes()[:-3])
    log = EventLog(tmp_path, last_step=20, last_evaluation=0)
    log.log(20, {"train/loss": 2.0})
    log.close()
    assert read_scalars(tmp_path, as_pairs=True) == {"train/loss": [(10, 10.0), (20, 2.0)]}
