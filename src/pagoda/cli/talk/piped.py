"""What a program or a file pipes into `chat` and `complete`."""

import select
import sys

from pagoda.base.errors import ConfigError
from pagoda.base.words import tell

_SILENCE_SECONDS = 1.0


def with_piped(text: str | None) -> str | None:
    """What is piped in, with `text` (that of -q) behind it as a question stands behind what it
    asks about; None where a person types and there is no `text`.

    Raises ConfigError for what is not text.
    """
    piped = _piped()
    if text is None or piped is None or not piped.strip():
        return piped if text is None else text
    return f"{piped.rstrip()}\n\n{text}"


def _piped() -> str | None:
    """None where stdin is a terminal, or closed."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    if not select.select([sys.stdin], [], [], _SILENCE_SECONDS)[0]:
        # Maybe it is the input of a script, which nobody meant for us and nobody closes.
        said = tell("Waiting for text on the standard input; `< /dev/null` gives none.")
        print(said, file=sys.stderr)
    try:
        # Not as the locale has it: in C.UTF-8, Python takes any bytes for text.
        return sys.stdin.buffer.read().decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError("What is piped in is not text (UTF-8).") from error
