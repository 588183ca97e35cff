"""A web server in the test's own event loop, and certificates such as KVMs make for themselves."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]


@dataclass(frozen=True)
class Certificate:
    file: Path
    key: Path
    fingerprint: str
    """SHA-256 in hexadecimal digits, as OpenSSL prints it: upper case, with colons."""

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context


def self_signed(folder: Path, name: str = "kvm", days: int = 2) -> Certificate:
    file, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", str(key), "-out", str(file), "-days", str(days),
         "-subj", f"/CN={name}.local"],
        check=True, capture_output=True,
    )  # fmt: skip
    shown = subprocess.run(
        ["openssl", "x509", "-in", str(file), "-noout", "-fingerprint", "-sha256"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return Certificate(file, key, shown.strip().partition("=")[2])


@web.middleware
async def _compressing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """As nginx does before a KVM's server, where the client takes it."""
    response = await handler(request)
    if isinstance(response, web.Response) and response.body:
        response.enable_compression()
    return response


@asynccontextmanager
async def serving(
    routes: dict[str, Handler], certificate: Certificate | None = None
) -> AsyncIterator[int]:
    """The port on which handlers answer; a route is `GET /path`."""
    app = web.Application(middlewares=[_compressing])
    for route, handler in routes.items():
        method, _, path = route.partition(" ")
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(
            runner, "127.0.0.1", 0, ssl_context=certificate.context() if certificate else None
        )
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def until(holds: Callable[[], object], what: str, patience: float = 30.0) -> None:
    """Wait in the event loop, where the fakes live too."""
    try:
        async with asyncio.timeout(patience):
            while not holds():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited {patience:g} s in vain for {what}") from None
