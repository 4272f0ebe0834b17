"""A saved model: a directory of settings, parameters as safetensors, a card, and the digests of these files."""

from collections.abc import Mapping
from pathlib import Path

from flax.traverse_util import flatten_dict

from transformer_jax.flags import flag_of
from transformer_jax.outside_files import Content, Json, replacing, write_arrays, write_whole
from transformer_jax.runs.own_files import digest_of
from transformer_jax.runs.settings import CONFIG, RESULTS, WEIGHTS, write_json, write_settings
from transformer_jax.trees import Params

CARD, DIGESTS = "README.md", "SHA256SUMS"


def save_model(
    directory: Path,
    settings: Json,
    params: Params,
    card: str,
    results: Json,
    texts: Mapping[str, str],
) -> None:
    """Write a model into its own directory.

    Args:
        directory: created if it is missing; a model that was saved there before is replaced.
        settings: the run's settings, from `settings_of`.
        params: parameters; their paths, such as `encoder/norm/scale`, are the names in the file.
        card: description of the model, in Markdown.
        results: content of the run's `results.json`; empty if there is none.
        texts: contents of further files that the model needs, by name.

    Raises:
        InputError: the directory can't be written, or holds other files.
    """
    with replacing(directory, "nothing but a model that was saved", _names_of) as new:
        write_settings(new, settings)
        write_arrays(new / WEIGHTS, flatten_dict(params, sep="/"))
        write_json(new / RESULTS, results)
        for name, text in {CARD: card, **texts}.items():
            write_whole(new / name, text.encode())
        write_digests(new, (CONFIG, WEIGHTS, RESULTS, CARD, *texts))


def _names_of(directory: Path) -> set[str]:
    """Names of a saved model's files; none if the directory does not hold a model."""
    digests = directory / DIGESTS
    if not digests.is_file():
        return set()
    names = read_digests(digests)
    return {DIGESTS, *names} if CONFIG in names else set()


def write_digests(directory: Path, files: tuple[str, ...]) -> None:
    """Write the SHA-256 of these files of a directory, in the format of `sha256sum -c`."""
    lines = [f"{digest_of(directory / name)}  {name}\n" for name in files]
    write_whole(directory / DIGESTS, "".join(lines).encode())


def read_digests(file: Path) -> dict[str, str]:
    """Read what `write_digests` wrote, by file name."""
    digests = {}
    for line in file.read_text(errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        digests[name] = digest
    return digests


def card_of(settings: Json, changed: Content, results: Json, versions: Content) -> str:
    """Return the card of a saved model.

    Args:
        settings: the run's settings, from `settings_of`.
        changed: settings that differ from the task's defaults.
        results: content of the run's `results.json`; empty if there is none.
        versions: versions of Python and the libraries.
    """
    flags = " ".join(flag_of(name, value) for name, value in changed.items())
    trained = f"with `{flags}`" if flags else "with the defaults"
    rows = ""
    for split in ("val", "test"):
        for name, value in results.get(split, {}).items():
            rows += f"| {split} | {name} | {value:.6g} |\n"
    table = f"\n| set | metric | value |\n| --- | --- | --- |\n{rows}" if rows else ""
    used = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return f"""# {settings["task"]}

A model of transformer-jax, trained {trained}. Settings are in `{CONFIG}`, parameters in `{WEIGHTS}`;
`sha256sum -c {DIGESTS}` checks them.

```python
from transformer_jax import load_run

model = load_run("PATH OF THIS DIRECTORY")
```
{table}
Versions: {used}
"""
