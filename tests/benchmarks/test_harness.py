"""What the benchmarks share: turns."""

from harness import measure_turns


def test_contestants_take_turns_of_one_call_off_the_clock_and_at_least_one_on_it():
    called = []
    found = measure_turns({name: lambda name=name: called.append(name) for name in "ab"}, repeats=3)
    assert "".join(called) == "aabb" * 3
    assert list(found) == ["a", "b"]
