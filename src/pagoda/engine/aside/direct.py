"""The seam: who needs work done aside asks an `Aside`."""

import asyncio
from abc import ABC, abstractmethod
from typing import cast

from pagoda.engine.aside.jobs import (
    AnyJob,
    Constrain,
    Decode,
    Encode,
    ReadPdf,
    RenderChat,
    Rendered,
    RenderPair,
    Result,
    perform,
)
from pagoda.engine.constraint import Constraint
from pagoda.engine.served.text_side import TextSide
from pagoda.text.media.base import Medium
from pagoda.text.pdf import PdfText


class Aside(ABC):
    """Does jobs beside the event loop. Raises RequestError for a request's own faults, a limit
    that it met among them."""

    async def render(self, job: RenderChat | RenderPair) -> Rendered:
        return cast(Rendered, await self.run(job))

    async def encode(self, job: Encode) -> list[int]:
        return cast(list[int], await self.run(job))

    async def constrain(self, job: Constrain) -> Constraint:
        return cast(Constraint, await self.run(job))

    async def decode(self, job: Decode, file: bytes) -> Medium:
        return cast(Medium, await self.run(job, file))

    async def read_pdf(self, file: bytes) -> PdfText:
        return cast(PdfText, await self.run(ReadPdf(), file))

    @abstractmethod
    async def run(self, job: AnyJob, file: bytes = b"") -> Result: ...

    @abstractmethod
    async def close(self) -> None: ...


class Direct(Aside):
    """On a thread of this process, without limits: for a process that serves nobody else."""

    def __init__(self, side: TextSide):
        self._side = side

    async def run(self, job: AnyJob, file: bytes = b"") -> Result:
        return cast(Result, await asyncio.to_thread(perform, self._side, job, file))

    async def close(self) -> None: ...
