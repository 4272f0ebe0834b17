"""A feature table in host memory gives the same sets, training and run as a table on the device."""

import dataclasses
import pickle

import jax
import numpy as np
import pytest

from transformer_jax import InputError, load_run
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.tasks.anomaly import config as anomaly_config
from transformer_jax.tasks.anomaly.config import FilesConfig, anomaly_data
from transformer_jax.tasks.anomaly.task import AnomalyTrainer, train_anomaly

SMALL = {
    "set_size": 5,
    "warmup": 3,
    "batch_size": 13,
    "max_epochs": 1,
    "model_dim": 12,
    "num_heads": 3,
    "num_layers": 1,
}
LABELS = np.random.default_rng(0).permutation(np.repeat([3, 8, 5], [67, 61, 71]))
FEATURES = (np.random.default_rng(1).normal(size=(len(LABELS), 7)) + LABELS[:, None]).astype(np.float32)


@pytest.fixture
def config(tmp_path) -> FilesConfig:
    np.save(tmp_path / "features.npy", FEATURES)
    np.save(tmp_path / "labels.npy", LABELS)
    files = {name: tmp_path / f"{name}.npy" for name in ("features", "labels")}
    return FilesConfig(**files, checkpoint_dir=tmp_path / "runs", quiet=True, **SMALL)


def test_a_table_above_a_limit_stays_on_the_host_unless_the_settings_say_otherwise(config, monkeypatch):
    data = {name: anomaly_data(dataclasses.replace(config, features_on=name)) for name in ("auto", "device", "host")}
    assert {name: one.constants is None for name, one in data.items()} == {"auto": False, "device": False, "host": True}
    monkeypatch.setattr(anomaly_config, "MAX_TABLE_BYTES", FEATURES.nbytes - 1)
    assert anomaly_data(config).constants is None


def test_the_fingerprint_of_the_data_does_not_depend_on_where_the_table_lies(config):
    def of(data) -> str:
        return fingerprint([data.train_loader.dataset, data.val_loader.dataset], data.constants)

    device, host = (of(anomaly_data(dataclasses.replace(config, features_on=where))) for where in ("device", "host"))
    assert device == host
    changed = FEATURES.copy()
    changed[-1, -1] += 1
    np.save(config.features, changed)
    assert of(anomaly_data(dataclasses.replace(config, features_on="host"))) != host


@pytest.mark.slow
def test_a_run_from_the_host_ends_bitwise_as_one_from_the_device_and_has_no_pictures_of_images(config):
    host, results = train_anomaly(config, features_on="host")
    assert host.constants is None
    config = dataclasses.replace(config, features_on="device", name="device")
    data = anomaly_data(config)
    device = AnomalyTrainer(config, data.constants)
    device.fit(data.train_loader, data.val_loader)
    jax.tree.map(np.testing.assert_array_equal, host.params, device.params)
    assert results["test"] == device.evaluate(data.test_loader)
    assert (results["dataset"], results["steps"]) == ("files", 143 // 13)
    assert results["permutation_error"] <= 1e-5
    assert [path.name for path in host.run.path.glob("*.png")] == ["attention_maps.png"]
    run = load_run(host.run.path)
    assert run.predict(FEATURES[None, :5]).shape == (1, 5)
    with pytest.raises(InputError, match="inputs is a.png; for a model of features it must be the index of a test"):
        run.read_examples(["a.png", "b.png"])


def test_a_worker_gets_the_path_of_a_mapped_table(config):
    dataset = anomaly_data(dataclasses.replace(config, features_on="host")).train_loader.dataset
    pickled = pickle.dumps(dataset)
    sets = anomaly_data(dataclasses.replace(config, features_on="device")).train_loader.dataset
    assert len(pickled) < len(pickle.dumps(sets)) + 500
    np.testing.assert_array_equal(pickle.loads(pickled)[3][0], dataset[3][0])
