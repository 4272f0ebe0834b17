"""transformer-jax: a Transformer in JAX and Flax to understand, trust and modify.

A model is a Flax `linen` module:

    import jax, numpy as np
    from transformer_jax import TransformerPredictor, capture, load_run, train_reverse

    model = TransformerPredictor(model_dim=32, num_classes=10, num_heads=4, num_layers=2)
    x = np.zeros((8, 16, 10), np.float32)  # [B T features]
    variables = model.init(jax.random.key(0), x)
    logits = model.apply(variables, x)  # [B T C]

Training writes a run directory, `checkpoints/short`, from which any process can open the model again:

    trainer, results = train_reverse(max_epochs=2, seq_len=8, train_size=2000, warmup=5, name="short")
    trained = load_run("checkpoints/short")  # or an included model: "reverse", "digits", "dates"
    trained.predict([3, 1, 4, 1, 5, 9, 2, 6])

Every activation has a name and can be captured, or changed with `patch`:

    logits, seen = capture(model, variables, x, names=["encoder.layers.0.attention.weights"])

The parts of the package (the most common names can also be imported from here):

    nn          models, blocks, layers, positions    tasks       reverse, anomaly, translation, text, your own
    attention   the function, masks, biases          decoding    greedy, sampling, beam search
    data        data sets and loaders                inspection  capture, patch, attribution, probes, circuits
    training    trainer, callbacks, schedules        plots       figures of attention maps, sets, curves
    runs        run directories, loggers             weights     PyTorch and HuggingFace

Letters of dimensions, in types, docstrings and comments alike:

    B  batch                          H  heads
    T  query or target length         d  width of one head, D / H
    S  key or source length           F  feed-forward width
    D  model width                    L  layers
    C  classes                        V  vocabulary
    K  beams, steps of a call         N  rows that are decoded, B or B·K
"""

import importlib.metadata
import platform
import re
import sys
import warnings

# as in pyproject.toml
SUPPORTED = "Python 3.11 with jax 0.10, or Python 3.12 and newer with jax 0.11.2 to 0.12"

if sys.version_info < (3, 11):  # noqa: UP036  # a checkout runs with any Python
    raise ImportError(
        f"transformer-jax needs {SUPPORTED}; this is Python {platform.python_version()}"
    )
_jax = importlib.metadata.version("jax")
_release = tuple(map(int, re.findall(r"\d+", _jax)[:2]))
if _release < (0, 10):
    raise ImportError(f"transformer-jax needs {SUPPORTED}; this is jax {_jax}")
if _release > (0, 12):
    warnings.warn(f"transformer-jax was tested with {SUPPORTED}; this is jax {_jax}", stacklevel=2)

__version__ = "0.1.0"

import lazy_loader  # noqa: E402  # after the check of versions

# The public names are in `__init__.pyi`. Each is imported when it is first used, so that a model does not wait for
# PyTorch or matplotlib.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
