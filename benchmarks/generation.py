"""Measure text generation by a GPT-2 small with random weights: ours beside `transformers`' `generate` in PyTorch.

python benchmarks/generation.py                                       # on a GPU: two minutes
python benchmarks/generation.py --num-layers 1 --width 64 --vocabulary 97 --new 8    # anywhere: seconds

Greedy and sampled text in bfloat16, for one prompt and for 64: milliseconds per call, after a first one.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from harness import measure_turns, print_figures
from transformer_jax import from_transformers
from transformer_jax.cli import parse, run
from transformer_jax.decoding.token_by_token import Decoded, greedy_decode, sample
from transformer_jax.fields import set_checked_fields, setting
from transformer_jax.tasks.language_model.continuation import tokens_after


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Measure generation of text."""

    width: int = setting(768, least=64)  # D, of heads 64 wide
    num_layers: int = setting(12, least=1)  # L
    vocabulary: int = setting(50257, least=2)  # V
    prompt: int = setting(128, least=1)  # tokens of each prompt
    new: int = setting(256, least=1)  # tokens that are generated
    batch_sizes: tuple[int, ...] = (1, 64)  # prompts of a call
    repeats: int = setting(3, least=1)  # calls of each contestant, in turns; the median counts

    __post_init__ = set_checked_fields


def ours(directory: str, config: GenerationConfig, sampled: bool) -> Callable[..., object]:
    """A function of prompts `[B P]` that generates tokens `[B new]` in one program."""
    model, variables = from_transformers(directory)
    variables = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), variables)

    @jax.jit
    def generate(variables: object, prompts: jax.Array) -> Decoded:
        apply = functools.partial(model.apply, variables)
        step = functools.partial(apply, method="decode_step")
        decode = functools.partial(greedy_decode, end_token=())
        if sampled:
            decode = functools.partial(sample, key=jax.random.key(0), end_token=())
        return tokens_after(apply, step, prompts, config.prompt, decode, config.new)

    return lambda prompts: jax.block_until_ready(generate(variables, prompts).tokens)


def theirs(directory: str, config: GenerationConfig, sampled: bool) -> Callable[..., object]:
    """The same by `transformers`."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(directory, dtype=torch.bfloat16).to(device)
    lengths = {"max_new_tokens": config.new, "min_new_tokens": config.new}

    def generate(prompts: np.ndarray) -> object:
        ids = torch.tensor(prompts, dtype=torch.long, device=device)
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=sampled,
                top_k=0,
                pad_token_id=0,
                **lengths,
            )
        return found.cpu()

    return generate


def measure(config: GenerationConfig) -> dict[str, dict[str, float]]:
    """Milliseconds of a call, by measurement and contestant; each measurement is printed when it has ended."""
    import transformers

    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        of_gpt2 = transformers.GPT2Config(
            vocab_size=config.vocabulary,
            n_embd=config.width,
            n_layer=config.num_layers,
            n_head=config.width // 64,
        )
        transformers.GPT2LMHeadModel(of_gpt2).save_pretrained(directory)
        for sampled in (False, True):
            contestants = {
                "transformer-jax": ours(directory, config, sampled),
                "transformers": theirs(directory, config, sampled),
            }
            for rows in config.batch_sizes:
                shape = rows, config.prompt
                prompts = np.random.default_rng(0).integers(config.vocabulary, size=shape)
                calls = {
                    name: functools.partial(generate, prompts)
                    for name, generate in contestants.items()
                }
                kind = "sampled" if sampled else "greedy"
                what = f"{kind}, {rows} prompts, ms"
                found[what] = measure_turns(calls, config.repeats)
                print_figures({what: found[what]})
    return found


if __name__ == "__main__":
    run(functools.partial(parse, GenerationConfig), measure)
