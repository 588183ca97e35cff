"""What a process asks of the system about its own life."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def go_on_without_parent() -> None:
    """Have the system wake this process up when its parent ends, where it is stopped (SIGSTOP):
    it can then see that the parent is gone, and leave. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
