"""Measure one contestant in a separate process, for its memory and its first calls.

python benchmarks/pretrained_process.py ours load DIRECTORY   # as `benchmarks/pretrained.py` calls it; prints figures

load: seconds to open the directory, and peak memory divided by the size of the weights.
answer: seconds for the first answer of 16 tokens, then for a prompt that is 1 token longer, and for one 11 longer.
fine-tuning: median seconds of an AdamW step on 4 × 128 tokens, without the first step, and the peak memory of the
process in GB.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

ROWS, LENGTH, STEPS = 4, 128, 6  # of fine-tuning
PROMPTS = (10, 11, 22)  # tokens


def peak() -> int:
    """Peak memory of this process in bytes; `ru_maxrss` would start from the parent's peak."""
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def load_ours(directory: str) -> dict[str, float]:
    import jax
    import jax.numpy as jnp

    from transformer_jax.weights.huggingface import pretrained

    jnp.zeros(1).block_until_ready()
    before, began = peak(), time.perf_counter()
    _, variables = pretrained.from_transformers(directory)
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "memory": (peak() - before) / sum(leaf.nbytes for leaf in jax.tree.leaves(variables)),
    }


def load_theirs(directory: str) -> dict[str, float]:
    import torch
    import transformers

    torch.zeros(1)
    kind = transformers.AutoModelForCausalLM  # imports its modules before the clock starts
    kind.from_config(
        transformers.AutoConfig.from_pretrained(directory, num_hidden_layers=1, vocab_size=8)
    )
    before, began = peak(), time.perf_counter()
    model = kind.from_pretrained(directory, dtype=torch.float32)
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "memory": (peak() - before) / sum(4 * p.numel() for p in model.parameters()),
    }


def prompts() -> Iterator[tuple[str, str]]:
    """Yield name and text; " a" is one token in the vocabularies of GPT-2, Llama and similar models."""
    for name, length in zip(("first", "longer by 1", "longer by 11"), PROMPTS, strict=True):
        yield name, "a" + " a" * (length - 1)


def answer_ours(directory: str) -> dict[str, float]:
    from transformer_jax import load_transformers

    model = load_transformers(directory)
    return {
        name: timed(lambda text=text: model.predict(text, max_new=16)) for name, text in prompts()
    }


def answer_theirs(directory: str) -> dict[str, float]:
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def answer(text: str) -> str:
        found = model.generate(
            **tokenizer(text, return_tensors="pt"), max_new_tokens=16, do_sample=False
        )
        return tokenizer.decode(found[0])

    return {name: timed(lambda text=text: answer(text)) for name, text in prompts()}


def tokens(directory: str) -> np.ndarray:
    """Random ids, [ROWS * STEPS, LENGTH + 1]."""
    vocabulary = json.loads(Path(directory, "config.json").read_text())["vocab_size"]
    return np.random.default_rng(0).integers(
        vocabulary, size=(ROWS * STEPS, LENGTH + 1), dtype=np.int32
    )


def fine_tuning_ours(directory: str) -> dict[str, float]:
    import jax
    import optax

    from transformer_jax import (
        TrainerModule,
        TrainingConfig,
        from_transformers,
        make_loader,
        prepare_jax,
    )
    from transformer_jax.data import ArrayDataset

    class NextToken(TrainerModule):
        name, config_class = "NextToken", TrainingConfig

        def model_inputs(self, inputs):
            return (inputs,)

        def loss_function(self, params, batch, key, *, train):
            logits = self.apply(params, batch.inputs, key, train=train)
            return {
                "loss": (
                    optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets),
                    1.0,
                )
            }

    prepare_jax()
    model, variables = from_transformers(directory)
    ids = tokens(directory)
    loaders = (
        make_loader(ArrayDataset(rows[:, :-1], rows[:, 1:]), ROWS) for rows in (ids, ids[:ROWS])
    )
    with tempfile.TemporaryDirectory() as runs:
        config = TrainingConfig(
            max_epochs=1, steps_per_call=1, batch_size=ROWS, lr=1e-5, warmup=1, checkpoint_dir=runs
        )
        trainer, params = NextToken(config, model=model), variables.pop("params")
        times = []
        with trainer, trainer.training(*loaders, params) as loop:
            del params
            for step in range(1, STEPS):
                times.append(
                    timed(
                        lambda n=step: (
                            loop.train_until(n),
                            jax.block_until_ready(loop.state.params),
                        )
                    )
                )
            return {"seconds": median(times[1:]), "GB": peak() / 1e9}


def fine_tuning_theirs(directory: str) -> dict[str, float]:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(ids: np.ndarray) -> None:
        rows = torch.tensor(ids, dtype=torch.long)
        logits = model(rows[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    times = [timed(lambda rows=rows: step(rows)) for rows in np.split(tokens(directory), STEPS)]
    return {"seconds": median(times[1:]), "GB": peak() / 1e9}


if __name__ == "__main__":
    contestant, what, directory = sys.argv[1:]
    print(json.dumps(globals()[f"{what.replace('-', '_')}_{contestant}"](directory)))
