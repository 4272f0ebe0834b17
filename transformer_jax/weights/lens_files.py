"""The published form of Jacobian lenses: PyTorch's file of a dictionary `J, n_prompts, source_layers, d_model`."""

import io
from pathlib import Path

import numpy as np
from jax import Array
from jaxtyping import Float, Int

from transformer_jax.outside_files import outside_file
from transformer_jax.weights.files import MAX_BYTES, array_of, check_stored, load_torch

Maps = Float[Array | np.ndarray, "N D D"]
Bias = Float[np.ndarray, "N D"]
Layers = Int[Array | np.ndarray, " N"]
Number = Int[Array | np.ndarray, ""]


def read_jacobians(path: str | Path) -> tuple[Maps, Bias, Layers, Number]:
    """Read Jacobians in float32, biases of 0, the numbers of the blocks, and the number of texts.

    Raises:
        InputError: the file cannot be read, is damaged, or holds anything else.
    """
    with outside_file(path, "a Jacobian lens (J, n_prompts)", MAX_BYTES) as file:
        saved, stored_bytes = load_torch(file)
        jacobians = dict(sorted(saved["J"].items()))
        check_stored(jacobians.values(), stored_bytes, file)
        maps = np.stack([array_of(jacobian) for jacobian in jacobians.values()]).astype(np.float32)
        return (
            maps,
            np.zeros_like(maps[..., 0]),
            np.array([*jacobians]),
            np.array(saved["n_prompts"]),
        )


def jacobian_file(maps: Maps, layers: Layers, num_texts: Number) -> bytes:
    """Return the content of the file of a lens with biases of 0."""
    import torch

    numbers = layers.tolist()
    jacobians = torch.tensor(np.asarray(maps)).unbind()  # [D D] of each layer
    content = {
        "J": dict(zip(numbers, jacobians, strict=True)),
        "n_prompts": num_texts.item(),
        "source_layers": numbers,
        "d_model": maps.shape[-1],
    }
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()
