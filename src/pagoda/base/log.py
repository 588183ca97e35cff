"""Logging for the whole of Pagoda: one handler on stderr, as text or as JSON lines."""

import json
import logging
import sys
import time

from pagoda.base.printable import escaped

_ROOT = "pagoda"


def get_logger(name: str) -> logging.Logger:
    """A logger below `pagoda`; pass `__name__`."""
    return logging.getLogger(name if name.startswith(_ROOT) else f"{_ROOT}.{name}")


class _TextFormatter(logging.Formatter):
    """`INFO 11-21 01:02:03 [engine.core] message`; control characters are escaped.

    A traceback is indented: its last line is an exception's text, which may be a request's.
    """

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix(_ROOT + ".")
        text = escaped(record.getMessage())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text += "".join(f"\n  {escaped(line)}" for line in trace.split("\n"))
        return f"{record.levelname} {stamp} [{name}] {text}"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return escaped(json.dumps(entry, ensure_ascii=False), json.dumps)


def setup_logging(level: str = "info", log_format: str = "text") -> None:
    """Send Pagoda's log to stderr; calling it again replaces the handler."""
    root = logging.getLogger(_ROOT)
    for handler in list(root.handlers):
        root.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False


def log_settings() -> tuple[str, str]:
    """(level, format) for a process beside this one: what is worth to be said twice."""
    root = logging.getLogger(_ROOT)
    as_json = any(isinstance(handler.formatter, _JsonFormatter) for handler in root.handlers)
    debugs = root.isEnabledFor(logging.DEBUG)
    return "debug" if debugs else "warning", "json" if as_json else "text"
