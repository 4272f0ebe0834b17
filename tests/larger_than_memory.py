"""Read a data set in a process that may not take more memory than an allowance; started by a test.

Pages of a mapped file count as resident memory although the system can drop them at any time, so resident memory says
nothing here. `RLIMIT_DATA` limits what cannot be dropped, the private memory that a process may write to, and a part of
it that is taken for a moment is refused too.
"""

import resource
import sys
from pathlib import Path

from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.loader import import_pytorch
from transformer_jax.tasks.anomaly.config import FilesConfig, anomaly_data


def features(directory: Path) -> None:
    """A fingerprint, and an epoch of batches, of features in a file."""
    config = FilesConfig(features=directory / "features.npy", labels=directory / "labels.npy", features_on="host")
    data = anomaly_data(config)
    print(fingerprint([data.train_loader.dataset, data.val_loader.dataset], data.constants))
    print(sum(1 for _ in data.train_loader))


def taken() -> int:
    """Bytes that count for the limit now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))


if __name__ == "__main__":
    import_pytorch()
    limit = taken() + int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    features(Path(sys.argv[1]))
