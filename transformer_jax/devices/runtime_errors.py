"""One clear line where JAX's distributed runtime ends a process.

When another process dies, or can't be reached, the runtime ends this one from a thread of its own with `abort`, which
Python can't catch: dozens of lines on standard error, and no word on what to do. So standard error goes through a
process that leaves out the runtime's messages and, where they end this process, writes a line in their place.

As a script this file is that process; it imports nothing of the package, so that it starts at once.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

# Messages of the runtime's own files: `E1122 09:03:07.785777   23465 coordination_service_agent.cc:289] ...`. The lines
# that follow one belong to it, up to one of Python's or of this program's.
OF_RUNTIME = re.compile(
    rb"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (coordination_|preemption_|distributed_|client\.h|service\.)"
)
OURS = re.compile(rb"Traceback |\S+: error: |SIG[A-Z]+: ")
LOGGED = re.compile(rb"[IWEF]\d{4} \d\d:")  # of any part of XLA
MAY_BE_LOGGED = re.compile(rb"[IWEF](\d{0,4}|\d{4} .*)", re.DOTALL)
FATAL = re.compile(rb"F\d{4} ")
TASKS = re.compile(rb"unhealthy.*?:\n([\d, ]+)\n", re.DOTALL)


def explain_runtime_errors(meeting: str) -> None:
    """Send this process's standard error through the script below, from now on.

    Args:
        meeting: where and when the processes are to meet, for the error that they did not.
    """
    reading, writing = os.pipe()
    # In a session of its own, so that it outlives the signals that a terminal sends to a whole command.
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, meeting],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)
    os.dup2(writing, 2)
    os.close(writing)


def explanation(messages: bytes, meeting: str) -> str:
    """The line for the messages with which the runtime has ended a process."""
    if b"RegisterTask" in messages:
        return f"error: not all processes met {meeting}: the address is wrong, or one was not started"
    dead = TASKS.search(messages)
    which = f"process {dead.group(1).decode().strip()}" if dead else "process 0, or the network to it,"
    return f"error: {which} of this training has died; the same commands go on from the newest checkpoint"


def pieces(read: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines, and the beginnings of lines, as of a progress bar, that can't become a message of the runtime."""
    rest, at_start = b"", True
    for chunk in read:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
            at_start = True
        if rest and not (at_start and MAY_BE_LOGGED.fullmatch(rest)):
            yield rest
            rest, at_start = b"", False
    if rest:
        yield rest


def forward(read: Iterator[bytes], write: Callable[[bytes], object], meeting: str) -> None:
    """Write what is read, with a line in the place of the runtime's messages if one of them is fatal.

    The line is left out where the program has written an error of its own. Messages of which none is fatal are written
    at the end.
    """
    messages, is_message, is_fatal, has_error, at_start = b"", False, False, False, True
    for piece in pieces(read):
        if at_start:
            is_ours = bool(OURS.match(piece))
            has_error |= is_ours
            is_other = is_ours or bool(LOGGED.match(piece))
            is_message = bool(OF_RUNTIME.match(piece)) or (is_message and not is_other)
            is_fatal |= is_message and bool(FATAL.match(piece))
        at_start = piece.endswith(b"\n")
        if is_message:
            messages += piece
        else:
            write(piece)
    if messages and not is_fatal:
        write(messages)
    if is_fatal and not has_error:
        write(explanation(messages, meeting).encode() + b"\n")


if __name__ == "__main__":
    forward(iter(lambda: os.read(0, 2**16), b""), lambda piece: os.write(2, piece), sys.argv[1])
