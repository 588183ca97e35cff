"""The agent's own API, which its page and any script of the same user speak.

Everything but `/` and the page's files wants the controller's cookie. All answers are JSON; errors
are `{"error": "a sentence"}`.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.responses import StreamingResponse as Stream
from starlette.routing import Route
from starlette.types import ASGIApp

from pagoda_agent import settings as settings_file
from pagoda_agent.base.errors import AgentError, DriverError, ModelError
from pagoda_agent.chinese import SENTENCES
from pagoda_agent.drivers.absent import AbsentDriver
from pagoda_agent.input.actions import HidReset, Power
from pagoda_agent.runs.export import export_html
from pagoda_agent.runs.journal import FRAMES, JournalError, read
from pagoda_agent.service.gate import COOKIE, Gate
from pagoda_agent.service.install import Installer
from pagoda_agent.service.prompt import shown_prompt
from pagoda_agent.service.replies import body_of, error_reply, until
from pagoda_agent.service.site import Site
from pagoda_agent.task.control import Control, StateError
from pagoda_agent.task.operator import Operator

log = logging.getLogger(__name__)

_FPS = 5.0
_PICTURES = {".jpeg": "image/jpeg", ".png": "image/png"}
_BOUNDARY = "frame"
Handler = Callable[[Request], Awaitable[Response]]


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class TaskBody(msgspec.Struct, forbid_unknown_fields=True):
    task: str


class HintBody(msgspec.Struct, forbid_unknown_fields=True):
    hint: str = ""


class AnswerBody(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class ConsentBody(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    allow: bool
    lasting: bool = False
    """Allows all that the request offers."""


class ButtonBody(msgspec.Struct, forbid_unknown_fields=True):
    what: Literal["press", "hold", "reset", "replug"]


class DriverBody(msgspec.Struct, forbid_unknown_fields=True):
    driver: str
    """One of drivers/needs.py."""


class RunBody(msgspec.Struct, forbid_unknown_fields=True):
    run: str


@dataclass(frozen=True)
class Suggestion:
    """What the page offers before anything was typed."""

    task: str
    notice: str
    """What is to be known of this agent, as long as its page is open."""


@dataclass
class Service:
    operator: Operator
    gate: Gate
    settings_path: Path
    exit: Callable[[], None]
    """Ends the program."""
    exits_with_page: bool = True
    """Whether the agent ends when its page does not come back; the task is paused in any case."""
    suggestion: Suggestion | None = None
    installs: bool = False
    """Whether the page may install what a driver lacks."""

    def __post_init__(self) -> None:
        self.installer = Installer(self.installs, self._installed)
        self._ending = asyncio.Event()

    def app(self) -> ASGIApp:
        """The API, and the page that speaks it."""
        routes = [
            Route("/api/session", self._guard(self.enter, open_to_all=True), methods=["POST"]),
            *(
                Route(f"/api/{name}", self._guard(handler), methods=["POST"])
                for name, handler in {
                    "start": self.start, "pause": self.pause, "resume": self.resume,
                    "answer": self.answer, "consent": self.consent, "reset": self.reset,
                    "settings": self.set_settings, "continue": self.continue_run,
                    "button": self.button, "install": self.install, "close": self.close,
                }.items()
            ),
            *(
                Route(f"/api/{path}", self._guard(handler), methods=["GET"])
                for path, handler in {
                    "status": self.status, "settings": self.get_settings, "events": self.events,
                    "sentences": self.sentences, "screen": self.screen, "runs": self.runs,
                    "drivers": self.drivers, "prompt": self.prompt,
                    "runs/{run}": self.run_events,
                    "runs/{run}/frames/{file}": self.run_frame,
                    "runs/{run}/export": self.run_export,
                }.items()
            ),
        ]  # fmt: skip
        return Site(Starlette(routes=routes, lifespan=self._lifespan))

    def end_streams(self) -> None:
        """Those of events and of the screen, which have no end of their own."""
        self._ending.set()

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(self._watch_controller())
        try:
            yield
        finally:
            watch.cancel()
            await self.installer.close()
            await self.operator.close()

    async def _watch_controller(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            if not self.gate.is_gone():
                continue
            self.gate.forget()
            if self.exits_with_page:
                log.info("The page was closed, so the agent ends; --keep lets it stay.")
                self.exit()
                return
            await self.operator.pause("The page was closed.")
            log.info("The page was closed; the agent goes on at %s", self.gate.address)

    def _guard(self, handler: Handler, open_to_all: bool = False) -> Handler:
        async def guarded(request: Request) -> Response:
            if not self.gate.is_ours(request):
                return error_reply(403, "This request comes from another site.")
            if not open_to_all and not self.gate.knows(request):
                return error_reply(403, "Open the address that the agent printed; it works once.")
            try:
                return await handler(request)
            except StateError as error:
                return error_reply(409, str(error))
            except (DriverError, JournalError, ModelError) as error:
                return error_reply(502, str(error))
            except AgentError as error:
                return error_reply(400, str(error))

        return guarded

    async def enter(self, request: Request) -> Response:
        cookie = self.gate.enter((await body_of(request, TokenBody)).token)
        if cookie is None:
            await asyncio.sleep(1)  # so that guessing takes longer than the token's life
            return error_reply(
                403, "This address was used before, or is of an agent that has ended."
            )
        reply = JSONResponse({})
        reply.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return reply

    async def start(self, request: Request) -> Response:
        await self.operator.start((await body_of(request, TaskBody)).task)
        return self._status()

    async def continue_run(self, request: Request) -> Response:
        """Go on with a run that was cut off."""
        await self.operator.resume(self._run_folder((await body_of(request, RunBody)).run))
        return self._status()

    async def pause(self, request: Request) -> Response:
        await self.operator.pause()
        self._control()
        return self._status()

    async def resume(self, request: Request) -> Response:
        await self._control().resume((await body_of(request, HintBody)).hint)
        return self._status()

    async def answer(self, request: Request) -> Response:
        await self._control().answer((await body_of(request, AnswerBody)).text)
        return self._status()

    async def consent(self, request: Request) -> Response:
        body = await body_of(request, ConsentBody)
        await self._control().consent(body.id, body.allow, body.lasting)
        return self._status()

    async def reset(self, request: Request) -> Response:
        await self.operator.reset()
        return self._status()

    async def button(self, request: Request) -> Response:
        """The computer's power buttons, and the plug of its keyboard and mouse."""
        what = (await body_of(request, ButtonBody)).what
        await self.operator.use_buttons(HidReset() if what == "replug" else Power(what))
        return self._status()

    async def drivers(self, request: Request) -> Response:
        """Every driver, and what it lacks here."""
        return JSONResponse(self.installer.shown())

    async def install(self, request: Request) -> Response:
        """Install what a driver lacks: server-sent events, of which the last has an `error`."""
        if self.operator.busy:
            raise StateError("A task is going on; install it when it is over.")
        said = self.installer.begin((await body_of(request, DriverBody)).driver)

        async def stream() -> AsyncGenerator[str]:
            async with contextlib.aclosing(said):
                async for part in said:
                    yield f"data: {json.dumps(part)}\n\n"

        return Stream(until(self._ending, stream()), media_type="text/event-stream")

    async def _installed(self, driver: str) -> None:
        waiting = self.operator.driver
        if isinstance(waiting, AbsentDriver) and waiting.lacks.driver == driver:
            await self.operator.connect()

    async def prompt(self, request: Request) -> Response:
        """The built-in system prompt, and what takes the place of its placeholder for the model
        that the settings mean."""
        return JSONResponse(await shown_prompt(self.operator))

    async def close(self, request: Request) -> Response:
        """The page says goodbye: nothing goes on unseen. It may be loaded anew, so the agent itself
        stays until the page is missed."""
        await self.operator.pause("The page was closed.")
        return JSONResponse({})

    async def status(self, request: Request) -> Response:
        return self._status()

    async def sentences(self, request: Request) -> Response:
        """What the agent says, in Chinese."""
        return JSONResponse(SENTENCES)

    async def get_settings(self, request: Request) -> Response:
        return JSONResponse(self.operator.settings.shown())

    async def set_settings(self, request: Request) -> Response:
        """Fields that are not sent stay, the key above all."""
        changes = await body_of(request, dict[str, Any])
        settings = settings_file.changed(self.operator.settings, changes)
        settings.model_profile(settings.model)
        settings.endpoint(settings.model)
        # Flags of the command line hold for this program only, and are not kept.
        kept = settings_file.changed(settings_file.load(self.settings_path), changes)
        await self.operator.configure(settings)
        settings_file.save(kept, self.settings_path)
        return JSONResponse(settings.shown())

    async def events(self, request: Request) -> Response:
        """Server-sent events; `?since=` the number after the last that was seen."""
        if not self.gate.listen():
            return error_reply(409, "The agent's page is open in another tab.")
        since = request.query_params.get("since", "0")
        number = int(since) if since.isdigit() else 0

        async def stream() -> AsyncGenerator[str]:
            try:
                async for event in self.operator.events.follow(number):
                    yield f"id: {event['number']}\ndata: {json.dumps(event)}\n\n"
            finally:
                self.gate.stop_listening()

        return Stream(until(self._ending, stream()), media_type="text/event-stream")

    async def screen(self, request: Request) -> Response:
        """The screen as Motion JPEG, while somebody looks."""
        kind = f"multipart/x-mixed-replace; boundary={_BOUNDARY}"
        return Stream(until(self._ending, self._pictures()), media_type=kind)

    async def _pictures(self) -> AsyncGenerator[bytes]:
        last: bytes | None = None
        # Browsers show a picture once the head of the next one has come: it is sent with this one.
        head = f"\r\n--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\n\r\n".encode()
        yield head
        while True:
            with contextlib.suppress(DriverError):
                frame = await self.operator.look()
                data = await asyncio.to_thread(frame.encoded, "JPEG", frame.scaled_size(1280), 70)
                if data != last:
                    last = data
                    yield data + head
            await asyncio.sleep(1 / _FPS)

    async def runs(self, request: Request) -> Response:
        """All journals, the newest first."""
        folders = sorted(filter(Path.is_dir, self.operator.runs.glob("*")), reverse=True)
        return JSONResponse([_summary(folder) for folder in folders[:200]])

    async def run_events(self, request: Request) -> Response:
        return JSONResponse(list(read(self._run_folder(request.path_params["run"]))))

    async def run_frame(self, request: Request) -> Response:
        folder = self._run_folder(request.path_params["run"]) / FRAMES
        path = folder / request.path_params["file"]
        kind = _PICTURES.get(path.suffix)
        if path.parent != folder or kind is None or not path.is_file():
            return error_reply(404, "There is no such frame.")
        return FileResponse(path, media_type=kind)

    async def run_export(self, request: Request) -> Response:
        folder = self._run_folder(request.path_params["run"])
        chinese = request.query_params.get("language", "").startswith("zh")
        page = await asyncio.to_thread(export_html, folder, chinese)
        name = f'attachment; filename="{folder.name}.html"'
        return HTMLResponse(page, headers={"Content-Disposition": name})

    def _run_folder(self, name: str) -> Path:
        folder = self.operator.runs / name
        if folder.parent != self.operator.runs or name.startswith(".") or not folder.is_dir():
            raise StateError("There is no such run.")
        return folder

    def _control(self) -> Control:
        if self.operator.control is None:
            raise StateError("There is no task.")
        return self.operator.control

    def _status(self) -> Response:
        control, driver = self.operator.control, self.operator.driver
        power = ["press", "hold", "reset"] * driver.capabilities.power
        status: dict[str, Any] = {
            "state": "idle", "driver": driver.name,
            "buttons": [*power, *["replug"] * driver.capabilities.hid_reset],
            "run": self.operator.folder.name if self.operator.folder else None,
        }  # fmt: skip
        if isinstance(driver, AbsentDriver):
            status["lacks"] = driver.lacks.sentence
        if self.suggestion is not None:
            status |= {"suggestion": self.suggestion.task, "notice": self.suggestion.notice}
        if control is not None:
            request = control.consent_request
            status |= {
                "state": control.state, "reason": control.reason, "question": control.question,
                "consent": None if request is None else request.id,
                "spent": msgspec.to_builtins(control.budget.spent),
            }  # fmt: skip
        return JSONResponse(status)


def _summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = {"run": folder.name, "task": "", "state": "broken", "steps": 0}
    with contextlib.suppress(JournalError):
        for event in read(folder):
            match event["event"]:
                case "start":
                    summary |= {"task": event["task"], "state": "cut off"}
                case "step":
                    summary["steps"] = event["step"]
                case "state":
                    summary["state"] = event["state"]
    return summary
