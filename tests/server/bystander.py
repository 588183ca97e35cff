"""Two clients that harm nobody, in a process of their own: `bystander.py PORT`.

Each line that it prints is (kind, begin, seconds) as JSON: how long `/health` took, how long the
next part of a stream, and by how much this process itself was late, which is the machine's fault.
"""

import asyncio
import json
import sys
import time

_BODY = json.dumps({"prompt": "a", "max_tokens": 1000, "stream": True}).encode()
_PAUSE = 0.02


def tell(kind: str, begin: float, end: float) -> None:
    print(json.dumps([kind, begin, end - begin]), flush=True)


async def ask(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        begin = time.monotonic()
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        tell("health", begin, time.monotonic())
        await asyncio.sleep(_PAUSE)


async def listen(port: int) -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
    )
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + _BODY)
        last = time.monotonic()
        while await reader.read(1 << 16):
            now = time.monotonic()
            tell("stream", last, now)
            last = now
        writer.close()


async def watch_the_machine() -> None:
    while True:
        begin = time.monotonic()
        await asyncio.sleep(_PAUSE)
        tell("own", begin, time.monotonic() - _PAUSE)


async def main(port: int) -> None:
    await asyncio.gather(ask(port), listen(port), watch_the_machine())


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
