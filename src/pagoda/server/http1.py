"""HTTP/1.1 for replies of many small chunks."""

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class _Connection(h11.Connection):
    """Frames the chunks of a streamed reply itself.

    h11 looks at its state for each; between the head and the end of a reply there is nothing to
    look at, and a token of a stream spends a tenth of its time there.
    """

    _chunked = False

    def send(self, event: h11.Event) -> bytes | None:
        if type(event) is h11.Data and self._chunked:
            data = event.data
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        output = super().send(event)
        # What h11 has written tells how it frames the body.
        self._chunked = type(event) is h11.Response and (
            output is not None and b"\r\ntransfer-encoding: chunked\r\n" in output.lower()
        )
        return output


class StreamingProtocol(H11Protocol):
    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.conn = _Connection(h11.SERVER)
