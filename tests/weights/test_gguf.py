"""The recipe of docs/pretrained.md converts a GGUF file to a directory."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from compiled_models import applied, assert_close

from documents import gguf_recipe
from transformer_jax import load_transformers

pytestmark = pytest.mark.slow  # it compiles

TOKENS = [*"abcdef", "ab"]


def tiny_llama() -> Any:
    """A Llama in which heads share keys, and no norm is an identity."""
    config = transformers.LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=12, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
        intermediate_size=17, max_position_embeddings=29, rms_norm_eps=1e-3, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 13.0},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def write_gguf(model: Any, path: Path) -> None:
    """Write a Llama, and a tokenizer of letters, as one file."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(TOKENS))
    writer.add_token_merges(["a b"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:  # in GGUF, the two numbers of a rotated pair are adjacent
            halves = array.reshape(-1, 2, config.head_dim // 2, config.hidden_size)
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        writer.add_tensor(f"{names.get_name(name.removesuffix('.weight'))}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_recipe_opens_a_gguf_file_whose_logits_are_those_of_the_model_in_it(tmp_path):
    theirs = tiny_llama()
    write_gguf(theirs, tmp_path / "tiny.gguf")
    exec(gguf_recipe(tmp_path, "tiny.gguf", tmp_path / "tiny"), {})
    run = load_transformers(tmp_path / "tiny")
    tokens = np.array([run.tokenizer.encode("facabedb").ids])
    np.testing.assert_array_equal(tokens, [[5, 0, 2, 6, 4, 3, 1]])
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    assert_close(applied(run.model, {"params": run.params}, tokens), expected, 1e-5)
