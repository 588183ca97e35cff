"""What a reply's head tells of a body: lists of texts that are anyone's."""

import json
from collections.abc import Sequence

# Proxies refuse more than a few kB of headers.
_MAX_HEADER = 1000


def header_list(texts: Sequence[str]) -> str:
    """A JSON list in visible ASCII, as a header takes it: of a thousand characters at most, so the
    last texts may be left out, or the only one cut."""
    told = list(texts)
    while len(text := _ascii(told)) > _MAX_HEADER:
        told = told[:-1] if len(told) > 1 else [told[0][: len(told[0]) // 2]]
    return text


def _ascii(texts: list[str]) -> str:
    # JSON leaves this one as it is, and no header may hold it.
    return json.dumps(texts).replace("\x7f", "\\u007f")
