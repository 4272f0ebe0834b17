"""The error for what a user can mend."""


class InputError(ValueError):
    """A setting or an input that cannot work; the message names it, its value and what it may be.

    Experiments show it as one line, and everything else with a traceback.
    """
