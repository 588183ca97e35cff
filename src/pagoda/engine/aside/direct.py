"""The seam: who needs work done aside asks an `Aside`."""

import asyncio
from abc import ABC, abstractmethod
from typing import cast

from pagoda.engine.aside.jobs import (
    AnyJob,
    Constrain,
    DecodeImage,
    DecodeVideo,
    Encode,
    RenderChat,
    Rendered,
    RenderPair,
    Result,
    perform,
)
from pagoda.engine.constraint import Constraint
from pagoda.engine.media import VideoData
from pagoda.engine.text_side import TextSide
from pagoda.text.images.base import ProcessedImage
from pagoda.text.images.video import ProcessedVideo


class Aside(ABC):
    """Does jobs beside the event loop. Raises RequestError for a request's own faults, a limit
    that it met among them."""

    async def render(self, job: RenderChat | RenderPair) -> Rendered:
        return cast(Rendered, await self.run(job))

    async def encode(self, job: Encode) -> list[int]:
        return cast(list[int], await self.run(job))

    async def constrain(self, job: Constrain) -> Constraint:
        return cast(Constraint, await self.run(job))

    async def image(self, job: DecodeImage, file: bytes | None = None) -> ProcessedImage:
        return cast(ProcessedImage, await self.run(job, file))

    async def video(self, job: DecodeVideo, file: VideoData | None = None) -> ProcessedVideo:
        return cast(ProcessedVideo, await self.run(job, file))

    @abstractmethod
    async def run(self, job: AnyJob, file: VideoData | None = None) -> Result: ...

    @abstractmethod
    async def close(self) -> None: ...


class Direct(Aside):
    """On a thread of this process, without limits: for a process that serves nobody else."""

    def __init__(self, side: TextSide):
        self._side = side

    async def run(self, job: AnyJob, file: VideoData | None = None) -> Result:
        return cast(Result, await asyncio.to_thread(perform, self._side, job, file))

    async def close(self) -> None: ...
