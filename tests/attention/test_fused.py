"""The fused kernels: what each refuses, and that programs with them lower for CUDA and TPUs on any machine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import ALiBi, Causal, Window
from transformer_jax.attention import AttentionDropout, explain
from transformer_jax.attention.fused import fused_attention
from transformer_jax.attention.request import checked_request

T = 256
IS_HOPPER = jax.default_backend() == "gpu" and float(jax.devices()[0].compute_capability) >= 9
CUDA, TPU = ("cuda", jnp.bfloat16), ("tpu", jnp.float32)


def shapes(dtype=jnp.bfloat16, width: int = 64, queries: int = T, keys: int = T, width_v: int | None = None):
    sizes = (queries, width), (keys, width), (keys, width_v or width)
    return [jax.ShapeDtypeStruct((2, 4, *size), dtype) for size in sizes]


@pytest.mark.parametrize(
    ("backend", "operands", "options", "reason"),
    [
        ("cuda", shapes(), {"return_attention": True}, "it returns no weights"),
        ("cuda", shapes(), {"bias": ALiBi(4)}, "it takes no bias, ALiBi(4)"),
        ("cuda", shapes(), {"dropout": AttentionDropout(0.1, jax.random.key(0))}, "it drops other weights than"),
        ("cuda", shapes(jnp.float32), {}, "cuDNN takes float16 and bfloat16; the type is float32"),
        (
            "cuda",
            shapes(width=12),
            {},
            f"a head width that is a multiple of 8, at most {256 if IS_HOPPER else 128}; it is 12",
        ),
        ("cuda", shapes(width_v=32), {}, "values as wide as keys; the widths are 32 and 64"),
        ("cuda", shapes(), {"mask": Causal(3)}, "the mask is Causal(offset=3)"),
        ("cuda", shapes(queries=254), {"mask": Causal()}, "takes a causal mask where T = S; they are 254 and 256"),
        (
            "cuda",
            shapes(queries=255),
            {"mask": np.ones((255, T), bool)},
            "even T and S with an array as mask; they are",
        ),
        ("cuda", shapes(), {"mask": np.ones((2, 1, 1, T), bool)}, "would have to be broadcast"),
        ("tpu", shapes(jnp.float16), {}, "takes bfloat16 and float32; the type is float16"),
        ("tpu", shapes(width=192), {}, "a head width of at most 128, or a multiple of it; it is 192"),
        ("tpu", shapes(queries=200), {}, "T and S that are multiples of 128; they are 200 and 256"),
        ("tpu", shapes(), {"mask": Window(4, 0)}, "takes the mask Causal(); the mask is Window(4, 0)"),
    ],
)
def test_settings_that_a_kernel_does_not_support_are_named(backend, operands, options, reason):
    explanation = explain(*operands, **options, backend=backend)
    assert explanation.implementation != "fused"
    assert reason in explanation.others["fused"]


@pytest.mark.parametrize(
    ("backend", "mask", "kernel"),
    [
        (CUDA, None, "__cudnn$fmhaSoftmax"),
        (CUDA, Causal(), "__cudnn$fmhaSoftmax"),
        (CUDA, Causal() & Window(16, None), "__cudnn$fmhaSoftmax"),
        (CUDA, np.ones((T, T), bool), "__cudnn$fmhaScaleBiasSoftmax"),
        (TPU, None, "tpu_custom_call"),
        (TPU, Causal(), "tpu_custom_call"),
    ],
)
def test_the_programs_lower_for_the_machines_of_the_kernels(backend, mask, kernel, monkeypatch):
    # Tracing asks for the version of an installed cuDNN. There is no public way around it.
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91100)
    name, dtype = backend
    operands = shapes(dtype)
    assert explain(*operands, mask, backend=name).implementation == "fused"

    def total(q, k, v):
        request = checked_request(q, k, v, mask, None, backend=name)
        return fused_attention(q, k, v, request).astype(jnp.float32).sum()

    program = jax.jit(jax.grad(total, (0, 1, 2))).trace(*operands).lower(lowering_platforms=(name,)).as_text()
    calls = [line.split("@")[1].split("(")[0] for line in program.splitlines() if "stablehlo.custom_call @" in line]
    assert calls[0] == kernel
    assert len(calls) >= 2  # forward and backward
