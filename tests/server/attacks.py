"""Hostile clients by name: what docs/security.md says is bounded, done to a server by its port.

Each attack names the rows of that page that it is of; tests/unit/test_security_doc.py wants one for
every row that a client of the server can do anything about.
"""

import asyncio
import base64
import contextlib
import gzip
import json
import struct
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.text.pdfs import pdf

Act = Callable[[int], Awaitable[None]]

"""Rendering, tokenizing, schemas and media still hold the server's interpreter."""

ELSEWHERE = {
    "code that a checkpoint brings (`auto_map`)": "of files",
    "model output evaluated by a tool parser": "of models",
    "internal sockets open to others": "of other users of the machine",
    "GGUF headers that lie": "of files",
    "vocabularies that overflow buffers": "of files",
    "MCP program: starts, and its lines in the log": "of the user's own file",
    "script in what the chat page shows: model text, tool output, names, files": "of pages",
}
"""Rows that no client of the API has a hand in."""

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_USER = [{"role": "user", "content": "hi"}]
# More is not waited for: what matters is how others fare meanwhile.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Attack:
    rows: tuple[str, ...]
    act: Act


ATTACKS: dict[str, Attack] = {}


def attack(*rows: str) -> Callable[[Act], Act]:
    def enter(act: Act) -> Act:
        ATTACKS[act.__name__] = Attack(rows, act)
        return act

    return enter


def request(
    path: str, body: bytes, *lines: bytes, method: str = "POST", kind: str = "application/json"
) -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    )
    return head.encode() + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


async def send(port: int, data: bytes) -> None:
    """And read what comes back, as long as patience lasts."""
    with contextlib.suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(_PATIENCE):
                writer.write(data)
                await writer.drain()
                while await reader.read(1 << 20):
                    pass
        finally:
            writer.close()


async def send_all(port: int, requests: Iterable[bytes]) -> None:
    await asyncio.gather(*(send(port, data) for data in requests))


async def post(port: int, path: str, **body: Any) -> None:
    await send(port, request(path, json.dumps(body).encode()))


LARGE = "large headers and bodies, long lists, compressed bodies, deep JSON"
HOLDS = "what a body holds"
NESTING = "JSON nesting, lists, numbers, choices, prompts, stop strings"


@attack(LARGE, HOLDS, "body")
async def long_lists(port: int) -> None:
    ids = b"[" + b"1," * 15_000_000 + b"1]"
    for field in (b"prompt", b"stop_token_ids", b"allowed_token_ids"):
        await send(port, request(COMPLETIONS, b'{"' + field + b'":' + ids + b"}"))


@attack(LARGE, HOLDS)
async def lists_that_are_allowed(port: int) -> None:
    ids = b"[" + b"1," * 1_000_000 + b"1]"
    for field in (b"prompt", b"stop_token_ids", b"allowed_token_ids"):
        await send(port, request(COMPLETIONS, b'{"' + field + b'":' + ids + b"}"))
    await send(port, request("/detokenize", b'{"tokens":' + ids + b"}"))


@attack(LARGE, HOLDS)
async def many_objects(port: int) -> None:
    message = b'{"role":"user","content":"a"}'
    bodies = (
        b'{"messages":[' + (message + b",") * n + message + b"]}" for n in (1_000_000, 15_000)
    )
    for body in bodies:
        await send(port, request(CHAT, body))


@attack(LARGE, HOLDS)
async def many_names(port: int) -> None:
    for count in (1_000_000, 60_000):
        names = b",".join(b'"%d":1' % number for number in range(count))
        for body in (b'{"logit_bias":{' + names + b"}}", b"{" + names + b"}"):
            await send(port, request(COMPLETIONS, body))


@attack(LARGE, NESTING)
async def deep_json(port: int) -> None:
    deep = [b"[" * 8_000_000, b'{"a":' * 3_000_000, b"[" * 10_000 + b"]" * 10_000]
    await send_all(port, (request(CHAT, b'{"messages":' + body) for body in deep))


@attack(LARGE, "body")
async def strings_of_megabytes(port: int) -> None:
    for unit in (b"a", b"\\n", b"\\u00e9", b'\\",[{'):
        text = unit * (30_000_000 // len(unit))
        await send(
            port, request(COMPLETIONS, b'{"user":"' + text + b'","prompt":"a","max_tokens":1}')
        )


@attack(LARGE, "body")
async def compressed_bombs(port: int) -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    codings = (b"gzip", b"deflate", b"br", b"gzip, gzip")
    await send_all(port, (request(CHAT, bomb, b"Content-Encoding: " + c) for c in codings))


@attack(LARGE, "request line and headers")
async def huge_heads(port: int) -> None:
    heads = [b"X: " + b"a" * 1_000_000, *(b"X: a\r\n" * count for count in (3000, 100_000))]
    await send_all(port, (request("/version", b"", head, method="GET") for head in heads))


SLOW = "slow and many connections"


@attack(SLOW, "time for a body", "idle connection")
async def slow_heads_and_bodies(port: int) -> None:
    body = request(CHAT, b" " * 1000)[:-900]

    async def drip(data: bytes) -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            for at in range(min(60, len(data))):
                writer.write(data[at : at + 1])
                await asyncio.sleep(0.02)
            writer.close()

    await asyncio.gather(*(drip(body) for _ in range(100)))


@attack(SLOW, "connections")
async def many_connections(port: int) -> None:
    opened = []
    with contextlib.suppress(OSError):
        for _ in range(400):
            opened.append(await asyncio.open_connection("127.0.0.1", port))
    await asyncio.sleep(0.2)
    for _, writer in opened:
        writer.close()


@attack(SLOW, "reader of a reply that has stopped")
async def readers_that_stop(port: int) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 50, "n": 8, "stream": True}).encode()
    opened = []
    for _ in range(4):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(COMPLETIONS, body))
        opened.append(writer)
    await asyncio.sleep(0.3)
    for writer in opened:
        writer.transport.abort()


@attack("waiting requests", "cached blocks of others: collisions, timing")
async def aborted_requests(port: int) -> None:
    async def leave(number: int) -> None:
        body = {"prompt": "a" * 500, "max_tokens": 500, "cache_salt": str(number)}
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(COMPLETIONS, json.dumps(body).encode()))
        await asyncio.sleep(0.1)
        writer.transport.abort()

    await asyncio.gather(*(leave(number) for number in range(64)))


HIDDEN = "requests that hide in others (smuggling)"


@attack(HIDDEN)
async def pipelined_junk(port: int) -> None:
    next_one = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    await send_all(
        port, [next_one * 200 + b"\x00" * 100_000, b"\x16\x03" * 100_000, b"\r\n" * 200_000]
    )


@attack(HIDDEN)
async def tiny_chunks(port: int) -> None:
    head = request(CHAT, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    await send_all(port, [head + b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n"])


@attack("regular expressions that backtrack over input or output", NESTING)
async def many_stop_strings(port: int) -> None:
    stops = ["." * n + "(a+)+$" for n in range(60)]
    await asyncio.gather(
        *(post(port, COMPLETIONS, prompt="a", stop=stops, max_tokens=20) for _ in range(8)),
        post(port, COMPLETIONS, prompt="a", stop=["a"] * 1_000_000),
        post(port, COMPLETIONS, prompt="a", bad_words=["a"] * 1_000_000),
    )


@attack("parameters that end or corrupt the engine", NESTING)
async def numbers_beyond_all_bounds(port: int) -> None:
    numbers = (b"9" * 1_000_000, b"1e999", b"-" + b"9" * 5000, b"0." + b"0" * 1_000_000 + b"1")
    fields = (b"seed", b"max_tokens", b"n", b"temperature")
    bodies = (b'{"prompt":"a","' + f + b'":' + n + b"}" for f in fields for n in numbers)
    await send_all(port, (request(COMPLETIONS, body) for body in bodies))


@attack("code in pickles and tensors, from the network or a file")
async def tensors_in_a_prompt(port: int) -> None:
    await post(port, COMPLETIONS, prompt="a", prompt_embeds="A" * 20_000_000)


@attack("requests to other hosts through media URLs (SSRF), local files", "image or video by URL")
async def media_of_other_hosts(port: int) -> None:
    urls = ("file:///etc/passwd", f"http://127.0.0.1:{port}/health", "http://[::1]/", "http://0/")
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls * 8]
    await post(port, CHAT, messages=[{"role": "user", "content": parts}], max_tokens=1)


def _png(side: int) -> bytes:
    """Black, of `side` pixels squared, in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    rows = zlib.compress(bytes((side // 8 + 1) * side))
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@attack("media that exhaust memory, collide or do not fit", "image", "video",
        "decoding an image; a video")  # fmt: skip
async def pictures_that_explode(port: int) -> None:
    for side in (8000, 20_000):
        url = "data:image/png;base64," + base64.b64encode(_png(side)).decode()
        parts = [{"type": "image_url", "image_url": {"url": url}}] * 8
        await post(port, CHAT, messages=[{"role": "user", "content": parts}], max_tokens=1)


@attack("reading a PDF")
async def pdfs_that_never_end(port: int) -> None:
    long = pdf(b"BT /F1 9 Tf " + b"(word) Tj 0 -1 Td " * 1_500_000 + b"ET")
    many = pdf(*["page"] * 20_000)
    files = (
        long,
        many,
        b"%PDF-1.7\n" + b"<<" * 10_000_000,
        b"%PDF-1.7\n" + b"1 0 obj\n" * 1_000_000,
    )
    await send_all(port, (request("/extract-text", f, kind="application/pdf") for f in files))


_MCP_REPLIES = (
    b'{"tools": [' + b"[]," * 5_000_000 + b"0]}",
    b'{"tools": ' + b"[" * 1_000_000,
    b'{"tools": [' + b'{"name": "a", "inputSchema": {"type": "object"}},' * 2000 + b"0]}",
    b'{"tools": [{"name": "a", "inputSchema": {"type": "object", "x": "'
    + b"y" * 7_000_000
    + b'"}}]}',
    b'{"tools": [], "nextCursor": "' + b"z" * 1_000_000 + b'"}',
)


@attack(
    "MCP server: one reply; time to connect, to list, to call", "MCP server: its tools and results"
)
async def hostile_mcp_servers(port: int) -> None:
    """The attacker's own, which a page may name: as honest ones until they are asked for tools."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
                message = json.loads(await reader.readexactly(int(length or 0)) or "{}")
                info = b'"capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}'
                found = b'{"protocolVersion": "2025-06-18", ' + info + b"}"
                if message.get("method") == "tools/list":
                    found = _MCP_REPLIES[int(head.partition(b" /")[2].partition(b" ")[0])]
                whole = b'{"jsonrpc": "2.0", "id": %d, "result": ' % message.get("id", 0)
                whole += found + b"}"
                lines = b"Content-Type: application/json\r\nContent-Length: %d" % len(whole)
                writer.write(b"HTTP/1.1 200 OK\r\n" + lines + b"\r\n\r\n" + whole)
                await writer.drain()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = "http://127.0.0.1:%d/%d"
        own = server.sockets[0].getsockname()[1]
        for kind in range(len(_MCP_REPLIES)):
            named = {"id": f"attack-{kind}", "name": "evil", "url": url % (own, kind)}
            asks = [post(port, "/mcp/tools", server=named) for _ in range(4)]
            await asyncio.gather(*asks)


@attack("built-in tool: a call on files; a command")
async def tools_that_never_end(port: int) -> None:
    endless = {"path": "data", "pattern": "(a+)+$"}
    calls = [{"tool": "grep_search", "params": endless}] * 4
    calls += [{"tool": "exec_shell_command", "params": {"command": "yes", "timeout": 2}}] * 4
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").write_text("a" * 60 + "!")
        cwd = b"x-tool-cwd: " + folder.encode()
        await send_all(port, (request("/tools", json.dumps(c).encode(), cwd) for c in calls))


TEMPLATES = "templates: escapes, and templates or variables of a request"


@attack(TEMPLATES, "chat template")
async def templates_that_never_end(port: int) -> None:
    kwargs = {"endless": True}
    asks = [
        post(port, CHAT, messages=_USER, max_tokens=1, chat_template_kwargs=kwargs)
        for _ in range(2)
    ]
    await asyncio.gather(*asks)


@attack(TEMPLATES)
async def templates_that_run_long(port: int) -> None:
    messages = [{"role": "user", "content": "{{ 9 ** 9 }}" * 20}] * 7000
    kwargs = {"x": ["a"] * 100_000}
    for _ in range(2):
        await post(port, CHAT, messages=messages, max_tokens=1, chat_template_kwargs=kwargs)
    await post(port, CHAT, messages=_USER, chat_template="{% for x in range(9**9) %}{% endfor %}")


@attack(LARGE, "tokenizing a text")
async def long_texts(port: int) -> None:
    text = "word " * 6_000_000
    await post(port, "/tokenize", prompt=text)
    await post(port, COMPLETIONS, prompt=text, truncate_prompt_tokens=10, max_tokens=1)


SCHEMAS = "schemas, grammars and tool definitions that end the engine or fill a disk"


@attack(SCHEMAS, "schema, grammar, tools")
async def schemas_that_explode(port: int) -> None:
    wide = {"type": "object", "properties": {f"k{n}": {"enum": [f"v{n}"] * 3} for n in range(2000)}}
    deep: dict[str, Any] = {}
    for _ in range(90):
        deep = {"anyOf": [deep, {"type": "array", "items": deep}], "x": 1}
        if len(json.dumps(deep)) > 500_000:
            break
    for schema in (wide, deep):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        await post(port, CHAT, messages=_USER, response_format=form, max_tokens=1)


@attack("regular expressions that backtrack over input or output", SCHEMAS)
async def patterns_that_explode(port: int) -> None:
    for pattern in ("(a+)+$", "(a|aa){500}" * 20, "[ab]*a[ab]{2000}", "(x{100}){100}"):
        outputs = {"regex": pattern}
        await post(port, COMPLETIONS, prompt="a", structured_outputs=outputs, max_tokens=1)


@attack("a key that a spelling of path or Host goes past", "keys found by timing")
async def wrong_keys_and_paths(port: int) -> None:
    paths = ("/health/../v1/models", "//v1/models", "/%2e%2e/" * 500, "/v1/models;" + "a" * 9000)
    keys = [b"Authorization: Bearer " + b"k" * n for n in (1, 9000)]
    await send_all(port, (request(p, b"", k, method="GET") for p in paths * 20 for k in keys))


@attack("foreign web pages and rebound names on a local server")
async def foreign_pages(port: int) -> None:
    lines = [b"Origin: http://%d.example" % number for number in range(200)]
    await send_all(port, (request(CHAT, b"{}", line) for line in lines))


@attack(
    "secrets, texts and forged lines in logs and metrics",
    "headers that a request writes into its reply",
)
async def forged_lines(port: int) -> None:
    lines = [b"X-Request-Id: " + b"\xff\x1b[2J%0a" * 1000, b"X-Request-Id: a"]
    await send_all(port, (request("/v1/%0a%1b" + "%00" * 900, b"", x) for x in lines * 50))
