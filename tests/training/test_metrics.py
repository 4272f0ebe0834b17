"""Metrics: weighted by real elements, regardless of batch sizes."""

import numpy as np
import pytest
from flax.core import FrozenDict

from transformer_jax import InputError
from transformer_jax.fitted.results import summary
from transformer_jax.training.metrics import SumsOfSteps, layer_norms, layer_of, means, weighted_sums


def test_sums_count_valid_rows_with_the_weights_of_their_elements():
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    weights = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    both, first = np.array([True, True]), np.array([True, False])
    for of, valid, expected in (
        (weights, first, (3, 2)),
        (1.0, both, (21, 6)),
        (np.array([[1.0], [2.0]]), both, (36, 9)),
    ):
        assert weighted_sums(FrozenDict({"loss": (values, of)}), valid) == {"loss": expected}


def test_elements_of_weight_zero_may_be_infinite_or_nan():
    values = np.array([[1.0, np.inf, 3.0], [np.nan, -np.inf, np.nan]])
    weights = np.array([[1.0, 0.0, 0.5], [1.0, 1.0, 1.0]])
    sums = weighted_sums({"loss": (values, weights)}, np.array([True, False]))
    assert means([sums]) == {"loss": pytest.approx((1 + 3 * 0.5) / 1.5)}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (np.ones(2), 'loss_function returned float64[2]; it must return {"loss": (losses, weights)}: for'),
        ({"loss": np.ones(2)}, "loss_function returned {'loss': 'float64[2]'}; it must return"),
        ({}, "loss_function returned {}; it must return"),
        ({"error": (np.ones(()), 1.0)}, "error of loss_function has values of shape (); it must have one for each"),
        ({"loss": (np.ones(3), 1.0)}, "loss of loss_function has values of shape (3,); it must have one for each"),
    ],
)
def test_what_a_loss_function_may_not_return_is_named_with_what_it_may(returned, message, without_type_checks):
    with pytest.raises(InputError) as caught:
        weighted_sums(returned, np.array([True, False]))
    assert str(caught.value).startswith(message)


def test_means_weigh_each_step_by_what_it_counted():
    assert means([{"accuracy": (9.0, 10.0)}, {"accuracy": (0.0, 2.0)}]) == {"accuracy": pytest.approx(9 / 12)}


def test_the_sums_of_steps_come_back_by_step_and_name():
    first = {"loss": (1.5, 2), "accuracy": (np.float32(3.0), 4.0)}
    second = {"accuracy": (7.0, 8.0), "loss": (5.5, 6)}
    stacked = SumsOfSteps.zeros(3, first).with_step(0, first).with_step(1, second)
    assert stacked.of_each(2) == [
        {"loss": (1.5, 2.0), "accuracy": (3.0, 4.0)},
        {"loss": (5.5, 6.0), "accuracy": (7.0, 8.0)},
    ]


def test_a_layer_is_the_path_up_to_its_number_or_the_first_part():
    paths = "encoder/layers_0/self_attn/query_proj/kernel", "decoder/layers_11/norm_2/scale", "net/dense/bias", "table"
    assert [*map(layer_of, paths)] == ["encoder/layers_0", "decoder/layers_11", "net", "table"]


def test_stacked_layers_have_norms_of_their_own():
    stacked = {"a": np.arange(1.0, 4).reshape(3, 1, 1) * np.ones((3, 2, 5)), "b": np.zeros((3, 7))}
    norms = layer_norms({"encoder": {"stacked_layers": stacked, "norm": {"scale": np.full(4, 3.0)}}})
    assert norms == pytest.approx({"encoder": 6} | {f"encoder/layers_{i}": (i + 1) * 10**0.5 for i in range(3)})


def test_a_metric_that_no_element_has_a_weight_for_has_no_mean():
    steps = [{"loss": (2.0, 1.0), "rare": (0.0, 0.0)}, {"loss": (4.0, 1.0), "rare": (0.0, 0.0)}]
    assert means(steps) == {"loss": 3.0}
    assert [*summary({"val": means(steps), "test": {"loss": 3.0, "rare": 1.0}}, last="loss", counted="sets")] == [
        "Test rare: 1.0000",
        "Val loss:  3.0000",
        "Test loss: 3.0000",
    ]
