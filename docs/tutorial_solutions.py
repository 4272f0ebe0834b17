"""Solutions of the exercises in `tutorial.ipynb`, in their order. The tests put them into the notebook and run it."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import capture, patch
from transformer_jax.inspection import knock_out, swap


def attend(query, keys, values):
    scores = keys @ query
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum() @ values


def masked_attention(queries, keys, values, mask):
    scores = queries @ keys.T / np.sqrt(queries.shape[-1])  # [T, S]
    lowest = scores.min()  # in the place of hidden scores, so that nothing is infinite
    scores = np.where(mask, scores, lowest)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True)) * mask
    sums = exponentials.sum(-1, keepdims=True)
    return exponentials / np.where(sums == 0, 1, sums) @ values


def multihead_attention(x, params, num_heads):
    def project(name, x):
        return x @ params[name]["kernel"] + params[name]["bias"]

    def split(x):
        return x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)  # [B, H, T, d]

    query, key, value = (split(project(f"{name}_proj", x)) for name in ("query", "key", "value"))
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])  # [B, H, T, S]
    weights = np.asarray(jax.nn.softmax(scores))
    heads = weights @ value
    return project("output_proj", heads.swapaxes(1, 2).reshape(x.shape))


def logits_without(model, variables, inputs, offset):
    removed = [knock_out(i, (15 - i + offset) % 16) for i in range(16)]
    return patch(model, variables, inputs, patches={"encoder.layers.0.attention.weights": removed})


def importance(circuit, tokens, others):
    model, variables, inputs = circuit.model, circuit.variables, circuit.inputs(tokens)
    _, of_others = capture(model, variables, *circuit.inputs(others), names=["*.head_outputs"])
    result = np.zeros((model.num_layers, model.num_heads))
    for layer, head in np.ndindex(result.shape):
        name = f"encoder.layers.{layer}.attention.head_outputs"
        logits = patch(model, variables, *inputs, patches={name: swap(of_others[name], heads=head)})
        result[layer, head] = np.abs(logits - circuit.logits(tokens)).mean()
    return result


def permutation_error(predict, sets, permutation):
    return np.abs(predict(sets[:, permutation]) - predict(sets)[:, permutation]).max()


def changes(model, variables, source, target):
    def predictions(hidden):
        patches = {"decoder.layers.*.cross_attention.weights": hidden}
        return patch(model, variables, source, target, patches=patches)[0].argmax(-1)  # [T]

    of_all = model.apply(variables, source, target)[0].argmax(-1)
    without = jax.vmap(lambda s: predictions(knock_out(None, s)))(jnp.arange(source.shape[1]))  # [S, T]
    return np.asarray(without != of_all)


def prefer_previous(logit, batch, head, query, key):
    return logit + 10 * (key == jnp.maximum(query - 1, 0))
