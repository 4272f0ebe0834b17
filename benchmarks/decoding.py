"""Measures greedy decoding and beam search of an encoder–decoder beside the same in PyTorch with a cache.

python benchmarks/decoding.py                        # 128 rows at once: a minute on two CPU cores
python benchmarks/decoding.py --rows 16 --beams 5

Each contestant encodes a batch of random sources and chooses a fixed number of tokens for each row; no token ends
a row. The sizes are those of `translation.py`. Milliseconds of a whole batch, in turns, compiled before.
"""

import dataclasses
from functools import partial

import jax
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from harness import measure_turns, print_figures
from transformer_jax import beam_search, greedy_decode, prepare_jax
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting
from translation import SizesConfig, TorchTranslator, translator

START, PAD = 1, 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingConfig(SizesConfig):
    """Measure the decoding of an encoder-decoder."""

    beams: int = setting(1, least=1)  # number of hypotheses for each row; 1: greedy decoding

    __post_init__ = set_checked_fields


class CachedLayer:
    """A `nn.TransformerDecoderLayer`, applied to one position after the other, with its keys and values kept."""

    def __init__(
        self, layer: nn.TransformerDecoderLayer, memory: Tensor, length: int, beams: int
    ) -> None:
        self.layer, self.num_heads = layer, layer.self_attn.num_heads
        # of the projections to queries, keys and values
        weights, biases = layer.multihead_attn.in_proj_weight, layer.multihead_attn.in_proj_bias
        D = memory.shape[-1]  # noqa: N806
        self.query_projection = weights[:D], biases[:D]
        keys, values = linear(memory, weights[D:], biases[D:]).chunk(2, dim=-1)
        self.memory = [self._heads(part).repeat_interleave(beams, 0) for part in (keys, values)]
        rows, num_heads, _, head_dim = self.memory[0].shape
        self.cache = [torch.empty(rows, num_heads, length, head_dim) for _ in range(2)]

    def __call__(self, x: Tensor, position: int) -> Tensor:
        """The output `[B, 1, D]` at a position."""
        layer, attention = self.layer, self.layer.self_attn
        parts = linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, dim=-1)
        query, *new = (self._heads(part) for part in parts)
        for cache, part in zip(self.cache, new, strict=True):
            cache[:, :, position] = part[:, :, 0]
        x = layer.norm1(
            x
            + self._attend(attention, query, [cache[:, :, : position + 1] for cache in self.cache])
        )
        query = self._heads(linear(x, *self.query_projection))
        x = layer.norm2(x + self._attend(layer.multihead_attn, query, self.memory))
        return layer.norm3(x + layer.linear2(layer.linear1(x).relu()))

    def select(self, rows: Tensor) -> None:
        """Go on with the cache of these rows, of which some are continued twice and others dropped."""
        self.cache = [cache.index_select(0, rows) for cache in self.cache]

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B H T d]

    @staticmethod
    def _attend(
        attention: nn.MultiheadAttention, query: Tensor, keys_and_values: list[Tensor]
    ) -> Tensor:
        return attention.out_proj(
            scaled_dot_product_attention(query, *keys_and_values).transpose(1, 2).flatten(2)
        )


@torch.inference_mode()
def decode_torch(model: TorchTranslator, source: Tensor, length: int, beams: int) -> Tensor:
    """The most probable hypothesis `[B, length]` of those that beam search keeps; with one it is greedy decoding."""
    memory = model.transformer.encoder(model.embed(source, model.source))
    layers = [
        CachedLayer(layer, memory, length, beams) for layer in model.transformer.decoder.layers
    ]
    # `first` is the first hypothesis of each source
    rows, first = len(source), torch.arange(len(source))[:, None] * beams
    scores = torch.full((rows, beams), -torch.inf).index_fill(1, torch.tensor(0), 0)
    tokens, last = (
        torch.empty(rows * beams, length, dtype=torch.long),
        torch.full((rows * beams,), START),
    )
    for position in range(length):
        x = model.embed(last[:, None], model.target, position)
        for layer in layers:
            x = layer(x, position)
        log_probs = model.output(model.transformer.decoder.norm(x))[:, 0].log_softmax(-1)
        totals = (log_probs.unflatten(0, (rows, beams)) + scores[..., None]).flatten(1)  # [B K·V]
        scores, best = totals.topk(beams)
        last = (best % log_probs.shape[-1]).flatten()
        if beams > 1:
            parents = (first + best // log_probs.shape[-1]).flatten()
            tokens = tokens[parents]
            for layer in layers:
                layer.select(parents)
        tokens[:, position] = last
    return tokens[::beams]


def jax_decoder(config: DecodingConfig, source: np.ndarray) -> partial[jax.Array]:
    """Our decoding of the same number of tokens, compiled."""
    model = translator(config)
    variables = jax.jit(model.init)(jax.random.key(0), source, source[:, :1])
    search = (
        partial(beam_search, beam_width=config.beams, n_best=1)
        if config.beams > 1
        else greedy_decode
    )

    @jax.jit
    def decode(variables, source):
        found = search(
            partial(model.apply, variables, method=model.decode_step),
            model.apply(variables, source, length=config.length, method=model.start_decoding),
            config.rows,
            start_token=START,
            end_token=(),
            pad_token=PAD,
            max_length=config.length,
        )
        return found.tokens

    return partial(decode, variables, source)


def measure(config: DecodingConfig) -> dict[str, float]:
    """Milliseconds by contestant."""
    prepare_jax()
    source = np.random.default_rng(0).integers(4, config.sources, size=(config.rows, config.length))
    ours, theirs = jax_decoder(config, source), TorchTranslator(config).eval()
    calls = {
        "transformer-jax": lambda: jax.block_until_ready(ours()),
        "PyTorch with a cache": partial(
            decode_torch, theirs, torch.tensor(source), config.length, config.beams
        ),
    }
    return measure_turns(calls, config.turns, turn_seconds=0.5)


def main(config: DecodingConfig) -> None:
    print_figures({f"{config.rows} rows, {config.beams} hypotheses each": measure(config)}, " ms")


if __name__ == "__main__":
    run(partial(parse, DecodingConfig), main)
