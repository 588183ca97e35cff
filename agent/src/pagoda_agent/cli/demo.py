"""`pagoda agent demo`: the whole agent, with a small program to operate and a scripted model."""

import argparse

from pagoda_agent.words import told

USAGE = "[--port N]"
_PORT = 5000
_NOTICE = (
    "A demonstration: the model is a script that knows where this form's buttons are. "
    "Everything else is the agent itself."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=_PORT, help=f"port of the page ({_PORT})")


def run(args: argparse.Namespace) -> int:
    import asyncio

    return asyncio.run(_demo(args.port))


async def _demo(port: int) -> int:
    import contextlib
    import tempfile
    from pathlib import Path

    from pagoda_agent.base.errors import ConfigError
    from pagoda_agent.base.log import setup_logging
    from pagoda_agent.demo.desktop import check_installed, desktop
    from pagoda_agent.demo.script import MODEL, PROFILE, TASK, Script
    from pagoda_agent.demo.serving import model_server
    from pagoda_agent.drivers.registry import make_driver
    from pagoda_agent.runs.journal import make_runs
    from pagoda_agent.secrets import Secrets
    from pagoda_agent.service.app import Service, Suggestion
    from pagoda_agent.service.gate import Gate
    from pagoda_agent.service.listen import listen
    from pagoda_agent.service.server import Server
    from pagoda_agent.settings import Settings
    from pagoda_agent.task.operator import Operator

    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port} must be from 0 to 65535.")
    check_installed()
    setup_logging("info")
    listener = listen("127.0.0.1", port)
    async with contextlib.AsyncExitStack() as stack:
        # Nothing of the user's own settings and runs is read or written.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pagoda-demo-")))
        running = await stack.enter_async_context(desktop())
        base_url = await stack.enter_async_context(model_server(Script(running).app()))
        driver = f"x11://{running.display}"
        settings = Settings(driver=driver, base_url=base_url, model=MODEL, profile=PROFILE)
        operator = Operator(make_driver(driver), settings, Secrets({}), folder / "runs")
        make_runs(operator.runs)
        await operator.open()

        def stop() -> None:
            server.should_exit = True

        gate = Gate("127.0.0.1", listener.getsockname()[1])
        suggestion = Suggestion(TASK, _NOTICE)
        service = Service(
            operator, gate, folder / "agent.json", stop, suggestion=suggestion, installs=True
        )
        server = Server(service)
        said = told(
            f"{_NOTICE}\nOpen {gate.address} (it works once), press I understand, then Submit. "
            "Ctrl-C ends the demonstration."
        )
        print(said, flush=True)
        _open_browser(gate.address)
        await server.serve([listener])
    return 0


def _open_browser(address: str) -> None:
    """Where there is a desktop; elsewhere the address is enough."""
    from pagoda_agent.base import env

    if env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"):
        import webbrowser

        webbrowser.open(address)
