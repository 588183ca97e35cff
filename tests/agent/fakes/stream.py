"""A KVM's stream of JPEGs, with knobs for what goes wrong with one."""

import asyncio
from typing import Literal

from aiohttp import web
from PIL import Image

from tests.agent.fakes.screens import Screen, as_jpeg

HTML = b"<!DOCTYPE html><html><body>Log in</body></html>"


class Stream:
    def __init__(self, screen: Screen):
        self._screen = screen
        self.fps = 10.0
        self.detects = False
        """Send nothing while the picture is the same."""
        self.rests = False
        """Send nothing at all after the first picture, whatever happens."""
        self.dead = False
        """Send nothing at all."""
        self.shows: Literal["screen", "black", "cut", "html", "empty", "sizeless"] = "screen"
        self.length: Literal["right", "none", "short", "long"] = "right"
        self.content_type = "multipart/x-mixed-replace; boundary=frame"
        self.piece = 0
        """Bytes of each write; 0 writes a part at once."""
        self.clients = 0
        self.sent = 0
        self._generation = 0

    def cut(self) -> None:
        """End what runs now."""
        self._generation += 1

    async def serve(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": self.content_type})
        await response.prepare(request)
        self.clients += 1
        last = None
        generation = self._generation
        while generation == self._generation:
            jpeg = await self._jpeg()
            if not self.dead and not (last is not None and (self.rests or self._same(last, jpeg))):
                await self._write(response, jpeg)
                self.sent += 1
                last = jpeg
            await asyncio.sleep(1 / self.fps)
        if request.transport is not None:
            request.transport.abort()
        return response

    def _same(self, last: bytes, jpeg: bytes) -> bool:
        return self.detects and last == jpeg

    async def _jpeg(self) -> bytes:
        if self.shows == "html":
            return HTML
        if self.shows == "empty":
            return b""
        image = await asyncio.to_thread(self._screen.picture)
        if self.shows == "black":
            image = Image.new("RGB", image.size)
        jpeg = await asyncio.to_thread(as_jpeg, image)
        if self.shows == "cut":
            return jpeg[: len(jpeg) // 2]
        if self.shows == "sizeless":
            # The height and width in the frame header (SOF0).
            place = jpeg.index(b"\xff\xc0") + 5
            return jpeg[:place] + bytes(4) + jpeg[place + 4 :]
        return jpeg

    async def _write(self, response: web.StreamResponse, jpeg: bytes) -> None:
        said = {
            "right": f"Content-Length: {len(jpeg)}\r\n",
            "none": "",
            "short": f"Content-Length: {max(0, len(jpeg) - 10)}\r\n",
            "long": f"Content-Length: {len(jpeg) + 10}\r\n",
        }[self.length]
        part = b"--frame\r\nContent-Type: image/jpeg\r\n" + said.encode() + b"\r\n" + jpeg + b"\r\n"
        step = self.piece or len(part)
        for start in range(0, len(part), step):
            await response.write(part[start : start + step])
