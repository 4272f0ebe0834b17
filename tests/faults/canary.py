"""What crafted pickles try to call."""

TRIPPED: list[object] = []


def trip(*arguments: object) -> dict[str, object]:
    """Note that it was called."""
    TRIPPED.append(arguments)
    return {}
