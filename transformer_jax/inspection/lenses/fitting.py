"""Fitting of a lens to a stream of texts: continued after an interruption, and stopped by convergence."""

import itertools
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
import safetensors.numpy
from jaxtyping import Int
from tqdm import tqdm

from transformer_jax.argument_checks import check_shapes, check_token_ids, shapes_of
from transformer_jax.devices.specs import path_name
from transformer_jax.errors import InputError, level_of_user
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.lenses.lens import Lens, check_length
from transformer_jax.outside_files import write_whole
from transformer_jax.weights.files import read_weights

SECONDS = 60  # between two writings of the state
Tokens: TypeAlias = Int[np.ndarray, " _T"]
Texts: TypeAlias = Iterable[Sequence[int] | Tokens]  # token ids of each text
State: TypeAlias = dict[str, Any]  # a tree of arrays: a lens's fields, and what its fit keeps
Update: TypeAlias = Callable[[State, Int[np.ndarray, "1 T"]], State]


def shuffled_texts(texts: Texts, seed: int = 0) -> Iterator[Tokens]:
    """Shuffle the tokens of each text: a null control, whose texts have words but no sentences."""
    for number, text in enumerate(texts):
        yield np.random.default_rng([seed, number]).permutation(np.asarray(text))


def begin_at_logit_lens(model: Inspected) -> State:
    """Return the fields of the logit lens after all blocks but the last."""
    num_maps = model.model.num_layers - 1
    width = model.model.model_dim
    if num_maps == 0:
        raise InputError("model has one block; a lens needs at least two")
    dtype = jax.dtypes.canonicalize_dtype(float)
    maps = np.tile(np.eye(width, dtype=dtype), (num_maps, 1, 1))
    bias = np.zeros((num_maps, width), dtype)
    return Lens(maps, bias, np.arange(num_maps), np.array(0))._asdict()


def fit_to_texts(
    model: Inspected,
    texts: Texts,
    length: int,
    file: str | Path,
    begin: State,
    update: Update,
    distance: Callable[[State], float],
    tolerance: float,
) -> Lens:
    """Read one text after another until the fit has converged, or the texts end, which warns.

    Args:
        model: the language model.
        texts: from the first one on.
        length: T, to which texts are cut; shorter ones are left out.
        file: `.safetensors` file of the state, which is continued if it exists.
        begin: the state before the first text.
        update: function of the state and a text to what changes in the state.
        distance: function of the state: how far it is from convergence.
        tolerance: distance at which the fit stops.

    Raises:
        InputError: the length is below 18, the file is of another lens, model or length or has another suffix, or a
            token is not in the vocabulary.
    """
    path = Path(file)
    check_length("length", length)
    if path.suffix != ".safetensors":
        raise InputError(f"file is {file}; its name must end in .safetensors")
    checksum = length  # of the length and the model's parameters
    for leaf in jax.tree.leaves(model.variables):
        checksum = zlib.crc32(np.asarray(leaf).tobytes(), checksum)
    state = {**begin, "checksum": np.array(checksum)}
    if path.exists():
        state = _read(path, state)
    num_read = int(state["num_texts"])
    rows = (np.asarray(text)[None, :length] for text in texts if len(text) >= length)  # [1 T]
    unread_rows = itertools.islice(rows, num_read, None)
    remaining = distance(state)
    written_at = time.monotonic()
    with tqdm(initial=num_read, unit="text", desc="Fitting a lens", disable=None) as bar:
        for row in unread_rows:
            if remaining <= tolerance or np.isnan(remaining):
                break
            check_token_ids("texts", row, model.model.vocabulary_size)
            # an array: a program is compiled for each value of a NumPy scalar
            count = np.asarray(state["num_texts"] + 1)
            state = {**state, **update(state, row), "num_texts": count}
            remaining = distance(state)
            bar.set_postfix(distance=remaining, tolerance=tolerance)
            bar.update()
            if time.monotonic() - written_at > SECONDS:
                _write(path, state)
                written_at = time.monotonic()
    if np.isnan(remaining):
        warnings.warn(
            f"the fit diverges after {state['num_texts']} texts", stacklevel=level_of_user()
        )
    else:
        _write(path, state)
    if remaining > tolerance:
        warnings.warn(
            f"the lens has not converged after {state['num_texts']} texts: its distance is"
            f" {remaining:.3g}, above the tolerance {tolerance:g}; give it more texts",
            stacklevel=level_of_user(),
        )
    return Lens(*(state[name] for name in Lens._fields))


def _by_name(state: State) -> dict[str, np.ndarray]:
    """The arrays of a state by their paths, as the file has them."""
    return {
        path_name(path): np.asarray(leaf, order="C")
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _write(file: Path, state: State) -> None:
    write_whole(file, safetensors.numpy.save(_by_name(state)))


def _read(file: Path, begin: State) -> State:
    """Read a state like `begin`; an `InputError` if it is of another lens, model or length."""
    arrays = read_weights(file).arrays
    expected = _by_name(begin)
    check_shapes(shapes_of(arrays), expected, str(file))
    if arrays["checksum"] != expected["checksum"]:
        raise InputError(f"{file} is a fit to another model or length; give another file")
    return jax.tree.unflatten(jax.tree.structure(begin), [arrays[name] for name in expected])
