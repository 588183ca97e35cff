"""A small server on 127.0.0.1 that speaks as both hubs and as their storage, and counts what it
sends. Weights are made while they are sent, so that files can have their true size."""

import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class File:
    """Bytes, and zeros behind them up to a size."""

    def __init__(self, head: bytes, size: int | None = None):
        self.head = head
        self.size = len(head) if size is None else size

    def part(self, start: int, stop: int) -> bytes:
        known = self.head[start:stop]
        return known + bytes(stop - start - len(known))


class Server(BaseHTTPRequestHandler):
    """Both hubs and the storage of files: their paths do not meet."""

    protocol_version = "HTTP/1.1"
    repos: dict[str, dict[str, File]]
    sent: Counter[str]
    """Bytes of bodies by file."""
    requests: list[tuple[str, str, str | None]]
    """Host, path and authorization."""
    storage: str | None
    """Base address that files are redirected to."""
    ignores_ranges: bool
    says: dict[str, bytes]
    """Bodies that are sent instead of a file or of an interface's reply."""
    fails: list[int]
    """Statuses of the next replies to requests for files."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        host, token = self.headers.get("Host", ""), self.headers.get("Authorization")
        self.requests.append((host, url.path, token))
        for repo, files in self.repos.items():
            if url.path.startswith(f"/api/models/{repo}"):
                return self.hub_listing(files)
            if url.path.startswith(f"/{repo}/resolve/{COMMIT}/"):
                return self.send_file(url.path.split(f"{COMMIT}/", 1)[1], files)
            if url.path == f"/api/v1/models/{repo}/repo/files":
                entries = [
                    {"Path": name, "Type": "blob", "Size": file.size}
                    for name, file in files.items()
                ]
                return self.send(json.dumps({"Data": {"Files": entries}}).encode())
            if url.path == f"/api/v1/models/{repo}/repo":
                return self.send_file(query["FilePath"], files)
            if url.path.startswith(f"/storage/{repo}/"):
                return self.send_part(url.path.split(f"{repo}/", 1)[1], files)
        self.send(b"{}", 404, {"X-Error-Code": "RepoNotFound"})

    def hub_listing(self, files: dict[str, File]) -> None:
        siblings = [{"rfilename": name, "size": file.size} for name, file in files.items()]
        reply = json.dumps({"id": "x", "sha": COMMIT, "siblings": siblings}).encode()
        self.send(self.says.get("listing", reply))

    def send_file(self, name: str, files: dict[str, File]) -> None:
        if self.fails:
            status = self.fails.pop(0)
            return self.send(b"{}", status, {"X-Error-Code": "GatedRepo"} if status == 403 else {})
        if self.storage is None:
            return self.send_part(name, files)
        repo = next(repo for repo, known in self.repos.items() if known is files)
        self.send(b"", 302, {"Location": f"{self.storage}/storage/{repo}/{name}"})

    def send_part(self, name: str, files: dict[str, File]) -> None:
        if name in self.says:
            return self.send(self.says[name], 200, {"Content-Type": "text/html"})
        file = files[name]
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, stop = (int(match[1]), int(match[2]) + 1) if match else (0, file.size)
        headers = {}
        if self.ignores_ranges:
            start, stop = 0, file.size
        else:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
        self.begin(200 if self.ignores_ranges else 206, stop - start, headers)
        try:
            for offset in range(start, stop, 1 << 16):
                chunk = file.part(offset, min(offset + (1 << 16), stop))
                self.wfile.write(chunk)
                self.sent[name] += len(chunk)
        except ConnectionError:
            self.close_connection = True

    def send(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.begin(status, len(body), headers or {})
        self.wfile.write(body)

    def begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(length)} | headers).items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


class _Threads(ThreadingHTTPServer):
    # All connections of a fetch come at once.
    request_queue_size = 64


def serve(kind: type[Server]) -> tuple[ThreadingHTTPServer, str]:
    server = _Threads(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"
