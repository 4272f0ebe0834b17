"""Three ways to decode a batch greedily with the same weights, for `decoding.py` to measure.

- `cached`: `Transformer.decode_step` under `greedy_decode`, one compiled call; on a CPU its cores share the rows.
- `rerun`: `Transformer.decode` of the whole prefix under the same `greedy_decode`, in the same way. Compiled
  shapes are fixed, so the prefix is padded, to the next eighth of T: all in all 1/8 more positions than without.
- `pytorch`: `torch.nn.Transformer` in evaluation mode on all threads; the decoder runs on exactly the prefix, and only
  its last position is projected to logits.

Each encodes the source once, and is then a function that decodes. What `cached` has done by then too is to project the
memory's keys and values, which the others do for every token.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax
from torch import Tensor, nn

from transformer_jax import TrainingConfig, params_to_torch
from transformer_jax.decoding.token_by_token import greedy_decode
from transformer_jax.devices.mesh import choose_devices
from transformer_jax.nn.encoder_decoder import DecodingCache, Transformer
from transformer_jax.nn.positions import sinusoidal_table

START_TOKEN = 0

Decode = Callable[[], np.ndarray]  # what is measured: tokens [B, T] of a batch that is encoded already


def prepare_cached(model: Transformer, params: Any, source: Array, length: int) -> Decode:
    """Our decoding: each token costs one position."""
    start = jax.jit(partial(model.apply, method="start_decoding"))
    step = partial(model.apply, method="decode_step")
    return _prepare(model, step, params, start(params, source), length, DecodingCache.grow)


class Prefix(NamedTuple):
    """What rerunning keeps between the tokens that it decodes."""

    tokens: Array  # [B T], beginning with the start token
    memory: Array  # [B S D]


def prepare_rerun(model: Transformer, params: Any, source: Array, length: int) -> Decode:
    """Our model without its cache: each token costs all positions before it, and some padding."""
    block = math.ceil(length / 8)
    lengths = [min(end, length) for end in range(block, length + block, block)]

    def step(params: Any, tokens: Array, position: Array, prefix: Prefix) -> tuple[Array, Prefix]:
        prefix = prefix._replace(tokens=lax.dynamic_update_index_in_dim(prefix.tokens, tokens, position, axis=1))

        def next_logits(padded_length: int) -> Array:
            logits = model.apply(params, prefix.tokens[:, :padded_length], prefix.memory, method="decode")  # [B T V]
            return logits[:, position]  # which sees nothing of the padding after it

        return lax.switch(position // block, [partial(next_logits, end) for end in lengths]), prefix

    memory = jax.jit(partial(model.apply, method="encode"))(params, source)
    return _prepare(model, step, params, Prefix(jnp.zeros((len(source), length), jnp.int32), memory), length)


def _prepare(
    model: Transformer,
    step: Callable[..., tuple[Array, Any]],
    params: Any,
    cache: Any,
    length: int,
    grow: Any = None,
) -> Decode:
    """Compile greedy decoding with a step function that takes the parameters first."""
    end_token = model.target_vocabulary_size  # one more than there are; it is never chosen
    devices = choose_devices(TrainingConfig(batch_size=len(jax.tree.leaves(cache)[0])))
    params, cache = devices.place(params), devices.place_rows(cache)

    def decode(params: Any, cache: Any) -> Array:
        batch_size = len(jax.tree.leaves(cache)[0])

        def step_without_end(tokens: Array, position: Array, cache: Any) -> tuple[Array, Any]:
            logits, cache = step(params, tokens, position, cache)
            return jnp.pad(logits, ((0, 0), (0, 1)), constant_values=-jnp.inf), cache

        ends = {"start_token": START_TOKEN, "end_token": end_token, "pad_token": end_token}
        return greedy_decode(step_without_end, cache, batch_size, **ends, max_length=length, grow=grow).tokens

    compiled = jax.jit(devices.share(decode, returns_rows=True)).lower(params, cache).compile()
    return lambda: np.asarray(compiled(params, cache))


def prepare_torch(model: Transformer, params: Any, source: Array, length: int) -> Decode:
    """PyTorch's own Transformer with these weights, where JAX runs: on the CPU or on CUDA."""
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    module = TorchTransformer(model, params, max(length, source.shape[1])).to(device).eval()
    with torch.no_grad():
        memory = module.encode(torch.from_numpy(np.array(source)).to(device))
    return lambda: module.greedy_decode(memory, length).cpu().numpy()


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` between embeddings and a projection, with the weights of one of our models.

    Args:
        model: with separate vocabularies.
        params: its parameters.
        max_len: longest sequence.
    """

    def __init__(self, model: Transformer, params: Any, max_len: int) -> None:
        super().__init__()
        ours = jax.tree.map(lambda leaf: torch.from_numpy(np.array(leaf)), params["params"])
        self.source_embedding = nn.Embedding.from_pretrained(ours["source_embedding"]["embedding"])
        self.target_embedding = nn.Embedding.from_pretrained(ours["target_embedding"]["embedding"])
        self.output_layer = nn.Linear(model.model_dim, model.target_vocabulary_size)
        self.output_layer.load_state_dict(
            {"weight": ours["output_layer"]["kernel"].T, "bias": ours["output_layer"]["bias"]}
        )
        stacks = model.clone(source_vocabulary_size=None, target_vocabulary_size=None)
        weights = {name: params["params"][name] for name in ("encoder", "decoder")}
        layers = model.num_encoder_layers, model.num_decoder_layers
        self.transformer = nn.Transformer(
            model.model_dim, model.num_heads, *layers, model.dim_feedforward, batch_first=True
        )
        self.transformer.load_state_dict(params_to_torch(stacks, weights))
        self.register_buffer("positions", torch.from_numpy(sinusoidal_table(max_len, model.model_dim)))
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(max_len))

    def embed(self, embedding: nn.Embedding, tokens: Tensor) -> Tensor:
        """Embeddings, scaled, with their positions."""
        return embedding(tokens) * math.sqrt(embedding.embedding_dim) + self.positions[: tokens.shape[1]]

    def encode(self, source: Tensor) -> Tensor:
        """The memory `[B, S, D]`."""
        return self.transformer.encoder(self.embed(self.source_embedding, source))

    @torch.no_grad()
    def greedy_decode(self, memory: Tensor, length: int) -> Tensor:
        """The most probable tokens `[B, T]`, without the start token."""
        tokens = torch.full((len(memory), 1), START_TOKEN, device=memory.device)
        for end in range(1, length + 1):
            x = self.embed(self.target_embedding, tokens)  # [B end D]
            x = self.transformer.decoder(x, memory, self.causal[:end, :end], tgt_is_causal=True)
            chosen = self.output_layer(x[:, -1]).argmax(dim=-1, keepdim=True)
            tokens = torch.cat([tokens, chosen], dim=1)
        return tokens[:, 1:]


CONTESTANTS = {"cached": prepare_cached, "rerun": prepare_rerun, "pytorch": prepare_torch}
