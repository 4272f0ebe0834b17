"""What remains of standard error when JAX's distributed runtime writes into it."""

import pytest

from transformer_jax.devices.runtime_errors import forward

# As JAX 0.10 wrote them.
UNHEALTHY = b"""\
E1122 09:03:07.785312   23454 coordination_service.cc:1549] [7613] Use error polling to propagate: UNAVAILABLE: The \
following tasks are unhealthy (stopped sending heartbeats):
1
The tasks have crashed. Check the task logs for an earlier error, or scheduler events to debug further.
F1122 09:03:07.785917   23465 client.h:80] Terminating process because the JAX distributed service detected fatal \
errors. absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):
1

RPC: /xla.coordination.CoordinationService/PollForError
*** Check failure stack trace: ***
    @     0x7f33fd840634  absl::lts_20260107::log_internal::LogMessage::SendToLog()
"""
NEVER_MET = b"""\
F1122 09:02:43.940075   23164 client.h:80] Terminating process. absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded

RPC: /xla.coordination.CoordinationService/RegisterTask
"""


def written(*chunks: bytes) -> str:
    pieces: list[bytes] = []
    forward(iter(chunks), pieces.append, "at node1:1 in 3 seconds")
    return b"".join(pieces).decode()


@pytest.mark.parametrize("size", [1, 7, 10_000])  # bytes that are read at once
def test_a_fatal_message_becomes_a_line_that_names_the_process(size):
    content = b"a warning\n" + UNHEALTHY
    chunks = [content[begin : begin + size] for begin in range(0, len(content), size)]
    line = "error: process 1 of this training has died; the same commands go on from the newest checkpoint"
    assert written(*chunks) == f"a warning\n{line}\n"


def test_processes_that_never_met_are_named():
    assert written(NEVER_MET) == (
        "error: not all processes met at node1:1 in 3 seconds: the address is wrong, or one was not started\n"
    )


def test_an_error_that_the_program_wrote_stands_alone():
    line = b"reverse.py: error: the disk is full\n"
    assert written(line, UNHEALTHY) == line.decode()


def test_messages_that_end_nothing_are_written_at_the_end():
    """Lines that follow one may belong to it, up to one that certainly does not."""
    message = b"W1122 09:03:07.785312   23454 coordination_service.cc:1549] a process is slow\n"
    other = b"E1122 09:03:08.785312   23454 gpu_executor.cc:12] out of memory\n"
    assert written(message, b"a line after it\n", other, b"loss 0.3\n") == (
        (other + b"loss 0.3\n" + message + b"a line after it\n").decode()
    )


def test_the_beginning_of_a_line_is_written_at_once_unless_it_may_become_a_message():
    pieces: list[bytes] = []
    forward(iter([b"Epochs: 1%|#", b"\rEpochs: 2%|##", b"\nE11", b"22 09:"]), pieces.append, "")
    assert pieces == [b"Epochs: 1%|#", b"\rEpochs: 2%|##", b"\n", b"E1122 09:"]


def test_other_output_passes_as_it_comes():
    assert written(b"12%|##", b"\r13%|##\n", b"Error in your code\nE is no message\n") == (
        "12%|##\r13%|##\nError in your code\nE is no message\n"
    )
