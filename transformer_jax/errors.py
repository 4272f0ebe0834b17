"""The error for a mistake that a user can correct, and checks that raise it."""


class InputError(ValueError):
    """A setting or an input that cannot work; the message names it, its value and the allowed values.

    Commands show it as one line, other errors with a traceback.
    """


def check_probability(name: str, value: float) -> None:
    """Raise an `InputError` if a probability or a decay rate is outside [0, 1)."""
    if not 0 <= value < 1:
        raise InputError(f"{name} is {value}; it must be at least 0 and below 1")


def check_heads(width: int, num_heads: int) -> None:
    """Raise an `InputError` if `num_heads` does not divide the model's width."""
    if num_heads < 1 or width < 1 or width % num_heads:
        raise InputError(f"num_heads is {num_heads}; it must be at least 1 and divide the model's width {width}")
