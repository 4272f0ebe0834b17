"""The shared harness of the benchmarks: contestants take turns."""

from harness import measure_turns


def test_each_turn_has_one_untimed_call_and_at_least_one_timed_call():
    called = []
    found = measure_turns({name: lambda name=name: called.append(name) for name in "ab"}, repeats=3)
    assert "".join(called) == "aabb" * 3
    assert list(found) == ["a", "b"]
