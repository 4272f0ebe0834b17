"""The age of this process, by a clock that nobody sets."""

import os
import time
from pathlib import Path

_imported_at = time.monotonic()


def process_age() -> float:
    """Seconds since this process began; where the system does not tell it, since this module was imported."""
    since_import = time.monotonic() - _imported_at
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()  # the name before ")" may hold spaces
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # seconds after the boot
        return max(since_import, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (AttributeError, OSError):  # not Linux
        return since_import
