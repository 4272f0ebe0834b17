"""Masks as values: what they allow, how they combine, print and draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import ALiBi, ArrayMask, Causal, InputError, Padding, Prefix, Segments, Window, combine_masks
from transformer_jax.attention import MaskFunction
from transformer_jax.attention.masks.symbolic import mask_array

B, H, T, S = 2, 3, 5, 7
POSITION, KEY = np.arange(T)[:, None], np.arange(S)[None]
VALID = np.array([[1, 1, 0, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]], bool)
QUERY_IDS, KEY_IDS = (
    np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]]),
    np.array([[0, 1, 1, 2, 2, 2, 3], [0, 0, 1, 1, 1, 2, 2]]),
)


def full(mask, shape=(B, H, T, S)) -> np.ndarray:
    return np.broadcast_to(mask_array(mask, shape), shape)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Causal(), KEY <= POSITION),
        (Causal(2), KEY <= POSITION + 2),
        (Window(2, 1), (KEY >= POSITION - 2) & (KEY <= POSITION + 1)),
        (Window(0, None, offset=1), KEY >= POSITION + 1),
        (Prefix(3), np.broadcast_to(KEY < 3, (T, S))),
        (Prefix(np.array([1, 4])), np.array([1, 4])[:, None, None, None] > KEY),
        (Padding(VALID), VALID[:, None, None]),
        (Padding(VALID.astype(int)), VALID[:, None, None]),
        (Segments(QUERY_IDS, KEY_IDS), (QUERY_IDS[:, :, None] == KEY_IDS[:, None])[:, None]),
        (ArrayMask(VALID[:, None]), VALID[:, None, None]),
        (MaskFunction(lambda b, h, q, k: (q + k + h) % 2 == b),
         (POSITION + KEY + np.arange(H)[:, None, None]) % 2 == np.arange(B)[:, None, None, None]),
        (MaskFunction(lambda b, h, q, k, far: k - q < far, (np.int32(2),), offset=1), KEY - POSITION < 3),
        (Causal() & Window(2, None), (KEY <= POSITION) & (KEY >= POSITION - 2)),
        (Causal() | Prefix(2), (KEY <= POSITION) | (KEY < 2)),
        (~Causal(), KEY > POSITION),
        (VALID[:, None] & Causal() & np.tri(T, S, -1, dtype=bool), VALID[:, None, None] & (KEY < POSITION)),
    ],
)  # fmt: skip
def test_a_mask_allows_what_it_says(mask, expected):
    np.testing.assert_array_equal(full(mask), np.broadcast_to(expected, (B, H, T, S)))


def test_a_shifted_mask_is_that_of_queries_further_on():
    mask = (Causal() & Window(2, None)) | ~MaskFunction(lambda b, h, q, k: (q - k) % 3 > 0)
    whole = full(mask, (1, 1, 9, S))
    np.testing.assert_array_equal(full(mask.shifted(4), (1, 1, T, S)), whole[:, :, 4:])
    shifted = jax.jit(lambda offset: mask_array(mask.shifted(offset), (1, 1, T, S)))(4)
    np.testing.assert_array_equal(shifted, whole[:, :, 4:])


def test_combine_masks_takes_values_too():
    combined = combine_masks(None, Causal(), VALID[:, None])
    assert str(combined) == "Causal() & ArrayMask(bool[2, 1, 7])"


def test_a_mask_prints_itself():
    mask = (Causal() & ~(Window(256, 0) | Prefix(3))) | Padding(VALID) & Causal(offset=4)
    assert repr(mask) == "Causal() & ~(Window(256, 0) | Prefix(3)) | Padding(bool[2, 7]) & Causal(offset=4)"
    assert str((Causal() | Prefix(1)) & Segments(QUERY_IDS, KEY_IDS)) == (
        "(Causal() | Prefix(1)) & Segments(int32[2, 5], int32[2, 7])"
    )
    traced = []
    jax.make_jaxpr(lambda offset: traced.append(str(Causal(offset))) or offset)(3)
    assert traced == ["Causal(offset=traced int32[])"]


def test_a_mask_draws_itself():
    assert repr(Causal(1).show(3, 5)) == "■ ■ · · ·\n■ ■ ■ · ·\n■ ■ ■ ■ ·"
    assert Causal().show(64, 64).splitlines()[1] == "■ ▒" + " ·" * 30  # two positions in each sign
    assert Padding(VALID).show(1, S, batch=0) == "■ ■ · ■ ■ · ·"


def test_numbers_in_a_mask_are_known_when_a_program_is_compiled_and_arrays_are_its_arguments():
    mask = (Causal() & Window(3, 0)) | Prefix(2)
    assert jax.tree.leaves(mask) == []
    assert [leaf.shape for leaf in jax.tree.leaves(Padding(VALID) & Causal(jnp.int32(3)))] == [VALID.shape, ()]
    np.testing.assert_array_equal(jax.jit(full_of_2)(Padding(VALID) & Causal()), full(Padding(VALID) & Causal()))


def full_of_2(mask):
    return jnp.broadcast_to(mask_array(mask, (B, H, T, S)), (B, H, T, S))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(-1, 0), "left is -1; it must be at least 0"),
        (lambda: Causal(0.5), "offset is 0.5; it must be a whole number"),
        (lambda: Causal(2**31), "offset is 2147483648; it must be a whole number, -1073741824 … 1073741824"),
        (lambda: Prefix(-1), "n is -1; it must be a whole number, 0 …"),
        (lambda: Padding(np.ones(S, bool)), r"valid has shape \(7,\)"),
        (lambda: Padding(np.ones((B, S))), "valid has type float64"),
        (lambda: Segments(np.ones(T, int), KEY_IDS), r"query_ids is int64\[5\]; it must be \[B, T\]"),
        (lambda: Causal() & ALiBi(4), r"mask is ALiBi\(4\); it must be a mask such as Causal\(\), or an array"),
        (lambda: Causal() & np.ones((B, S, S, S, S), bool), "mask has shape"),
        (lambda: MaskFunction("causal"), "fn is 'causal'; it must be Callable"),
        (lambda: Causal().show(0, 3), "num_queries is 0; it must be at least 1"),
        (lambda: Padding(VALID).show(3, S + 1), f"an array of shape .* has {S} keys; it must have {S + 1}"),
        (lambda: Padding(VALID).show(1, S, batch=9), "an array of shape .* has 2 batch elements; it must have 10"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_arguments_that_are_not_masks_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
