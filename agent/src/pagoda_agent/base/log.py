"""The agent's log: lines on stderr, below the logger `pagoda_agent`."""

import logging
import sys
import time

from pagoda_agent.base.printable import escaped


class _Formatter(logging.Formatter):
    """`INFO 11-21 01:02:03 [agent.service.app] message`; control characters are escaped.

    A traceback is indented: its last line is an exception's text, which may be a model's.
    """

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(record.created))
        text = escaped(record.getMessage())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text += "".join(f"\n  {escaped(line)}" for line in trace.split("\n"))
        return f"{record.levelname} {stamp} [{record.name.removeprefix('pagoda_')}] {text}"


def setup_logging(level: str) -> None:
    """Send the log to stderr; calling it again replaces the handler."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    root = logging.getLogger("pagoda_agent")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
