"""The processes that load data: they leave signals to the main process and end with it; their death is reported."""

import atexit
import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess

from transformer_jax.errors import InputError

OF_WORKER = "Caught InputError in DataLoader worker"  # begins PyTorch's message; the worker's traceback follows

_started: list[BaseProcess] = []


@atexit.register
def _kill_started() -> None:
    """Leave no process for which Python would wait, after a SIGTERM that never reaches it.

    Registered here, before PyTorch is imported, it is called after PyTorch has asked them to end.
    """
    for process in _started:
        process.kill()


class WorkerProcesses:
    """The worker processes that PyTorch's `DataLoader` starts."""

    def __init__(self) -> None:
        self._processes: list[BaseProcess] = []

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """A block that starts the processes.

        SIGTERM and SIGINT never reach them, also when the whole process group gets one: the main process decides.
        They inherit that from their birth. The main process gets a signal of that time after the block.
        """
        # Before the block, since it unblocks the signals in this process after it has started its own.
        resource_tracker.ensure_running()
        # PyTorch handles SIGCHLD with an error that could come up anywhere in the main thread. Without it `watched`
        # finds a process that died, within seconds.
        in_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGCHLD)
        others = set(multiprocessing.active_children())
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            yield
        except (ConnectionError, EOFError) as error:  # one ended while it read what it begins with
            raise InputError(f"a process that loads data ended while it started ({error}); out of memory?") from error
        finally:
            self._processes = [process for process in multiprocessing.active_children() if process not in others]
            _started[:] = [process for process in _started if process.is_alive()] + self._processes
            if in_main_thread and handler is not None:  # None: set by another language's code
                signal.signal(signal.SIGCHLD, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A block that waits for the processes.

        Raises:
            InputError: the block failed because one of them is dead, or raised an `InputError`.
        """
        try:
            yield
        except InputError as error:
            message = str(error)
            if not message.startswith(OF_WORKER):
                raise
            raise InputError(message.rpartition(f"{InputError.__name__}: ")[2].strip()) from error
        except RuntimeError as error:
            for process in self._processes:
                if not process.is_alive():
                    raise InputError(
                        f"a process that loads data ({process.pid}, one of {len(self._processes)} workers) "
                        f"{_end_of(process)}; the same command goes on from the newest checkpoint"
                    ) from error
            raise


def _end_of(process: BaseProcess) -> str:
    """How it ended, in words."""
    status = process.exitcode or 0
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
