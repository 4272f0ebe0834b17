"""The scaling benchmark: how it reads compiled programs, and the numbers of a tiny model on eight devices."""

import json

import numpy as np
import pytest

import scaling
from collectives import Program, groups_in


@pytest.mark.parametrize(
    ("attributes", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}, x", [[0, 1], [2, 3]]),
        ("replica_groups=[2,3]<=[6], x", [[0, 1, 2], [3, 4, 5]]),
        ("replica_groups=[3,2]<=[2,3]T(1,0), x", [[0, 3], [1, 4], [2, 5]]),
        ("replica_groups=mesh['a'=2,'b'=3] {'b'}, x", [[0, 1, 2], [3, 4, 5]]),
        # Devices in the order 0 3 1 4 2 5, as a mesh of 3 × 2.
        ("replica_groups=mesh['a'=3,'b'=2], device_ids=([2,3]T(1,0)) {'a'}, x", [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_groups_of_devices_are_read_in_each_form(attributes, groups):
    np.testing.assert_array_equal(groups_in(attributes), groups)


def test_devices_of_one_host_divide_the_traffic_among_their_ports():
    (one,) = Program(
        "ENTRY %m (a: f32[]) -> f32[] {\n  %x = f32[9]{0} all-gather(%a), replica_groups=[1,6]<=[6]\n}"
    ).collectives()
    assert one.sent == 36 * 5 / 6
    assert (one.hosts(3), one.through_port(3)) == (2, one.sent / 3)
    assert (one.hosts(1), one.through_port(1)) == (6, one.sent)
    assert (one.hosts(6), one.through_port(6)) == (1, 0)


@pytest.mark.slow
def test_a_tiny_model_on_eight_devices_has_the_numbers_of_the_formulas(tmp_path, capsys):
    path = tmp_path / "scaling.json"
    scaling.main(scaling.Settings(models=("tiny",), devices=(8,), json=path))
    assert capsys.readouterr().out.count("| tiny | 8 | `fsdp=8` |") == 3
    (case,) = json.loads(path.read_text())
    compiled, arithmetic = case["compiled"], case["arithmetic"]
    # Three layers have six kernels each; two more are outside. Vectors are small, and stay whole.
    in_layers, outside = 3 * (4 * 64 * 64 + 2 * 64 * 256), 2 * 256 * 64
    whole = 3 * (9 * 64 + 256) + 2 * 64 + 256
    assert compiled["parameters"] == in_layers + outside + whole
    state = 3 * 4 * ((in_layers + outside) / 8 + whole)  # with Adam's two means
    assert compiled["held"] == pytest.approx(state, abs=512)  # and the batch, the key, the number of the step
    on_devices = {one["kind"]: one for one in compiled["collectives"]}
    # Layers are gathered twice, in bfloat16, the others once for both passes, in float32.
    gathered = on_devices["all-gather"]
    assert gathered["elements"] == 2 * in_layers + outside
    assert gathered["sent"] == (2 * 2 * in_layers + 4 * outside) * 7 / 8
    assert gathered["sent"] == pytest.approx(arithmetic["all-gather"], rel=0.05)
    assert on_devices["reduce-scatter"]["elements"] == in_layers + outside
    assert on_devices["reduce-scatter"]["sent"] == pytest.approx(arithmetic["reduce-scatter"], rel=0.05)
    # A block's last product is not computed again.
    last = 3 * 2 * 64 * 256 * 32
    assert compiled["flops"] == arithmetic["flops"] - last - 8 * (whole * 32)
