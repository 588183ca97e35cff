"""The agent behind its page, with a fake computer and a scripted model, in a thread of its own."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from pagoda_agent.screen.observe import Settle
from pagoda_agent.secrets import Secrets
from pagoda_agent.service.app import Service
from pagoda_agent.service.gate import Gate
from pagoda_agent.settings import Settings
from pagoda_agent.task.operator import Operator
from tests.agent.fake_computer import FakeComputer
from tests.agent.model_server import ModelServer

PATIENCE = 30
QUICK = Settle(least=0.0, between=0.001, patience=0.01, most=0.1, dark=0.05)


class AgentServer:
    def __init__(self, folder: Path, model: ModelServer, exits: bool, settings: dict[str, Any]):
        self.computer = FakeComputer()
        self.model = model
        self.settings_path = folder / "agent.json"
        self.exited = threading.Event()
        fields = {
            "driver": "fake:", "base_url": f"{model.url}/v1", "model": "scripted",
            "profile": "nanokvm",
        }  # fmt: skip
        self.operator = Operator(
            self.computer, Settings(**{**fields, **settings}), Secrets({}), folder / "runs", QUICK
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.gate = Gate("127.0.0.1", self.listener.getsockname()[1])
        self.url = self.gate.address.partition("/#")[0]
        self.service = Service(
            self.operator, self.gate, self.settings_path, self.exited.set, exits, installs=True,
        )  # fmt: skip
        app = self.service.app()
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none"))
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],))

    @property
    def state(self) -> str:
        return "idle" if self.operator.control is None else str(self.operator.control.state)

    def start(self) -> None:
        self.thread.start()
        wait_until(lambda: self.server.started)

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(PATIENCE)
        self.listener.close()


def wait_until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "this did not happen in time"
        time.sleep(0.01)


@contextlib.contextmanager
def serving(
    folder: Path, script: Any = (), exits: bool = True, **settings: Any
) -> Iterator[AgentServer]:
    with ModelServer(script) as model:
        server = AgentServer(folder, model, exits, settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()
