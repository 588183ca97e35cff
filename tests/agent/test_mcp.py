"""The tools, through the protocol's own client."""

import asyncio
import base64
import io

import pytest
from mcp import Client
from PIL import Image

from pagoda.version import __version__
from pagoda_agent.consent.policy import Category
from pagoda_agent.service.mcp_server import make_server
from tests.agent.test_operator import computer, make

__all__ = ["computer", "make"]


@pytest.fixture
def client(make):
    def client(*replies, allowed=(), **options):
        operator, _script = make(*replies, **options)
        return Client(make_server(operator, allowed))

    return client


def text_of(result):
    return " ".join(part.text for part in result.content if part.type == "text")


async def call(client, name, **arguments):
    result = await client.call_tool(name, arguments)
    assert not result.is_error, text_of(result)
    return result


async def fails(client, name, **arguments):
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return text_of(result)


async def test_look_click_and_type(client, computer):
    async with client() as session:
        assert session.server_info.version == __version__
        names = {tool.name for tool in (await session.list_tools()).tools}
        assert {"screenshot", "click", "run_task", "control_task"} <= names
        picture = (await call(session, "screenshot")).content[0]
        with Image.open(io.BytesIO(base64.b64decode(picture.data))) as image:
            assert image.size == (640, 360) and picture.mime_type == "image/jpeg"
        await call(session, "click", x=320, y=180, count=2)
        assert computer.done("press", "move") == [("move", 320, 180)] + [("press", "left")] * 2
        await call(session, "type_text", text="é 中")
        await call(session, "press_keys", keys="ctrl+c")
        await call(session, "drag", path=[[10, 10], [100, 100]])
        await call(session, "scroll", x=5, y=5, up=-2)
    assert computer.typed == "é 中" and computer.held == ()
    assert computer.done("wheel") == [("wheel", 0, -1)] * 2


async def test_bad_calls_do_nothing(client, computer):
    async with client() as session:
        assert "screenshot first" in await fails(session, "click", x=1, y=1)
        await call(session, "screenshot")
        assert "off the screenshot" in await fails(session, "click", x=640, y=1)
        assert "clicks is 9" in await fails(session, "click", x=1, y=1, count=9)
        assert "no key" in await fails(session, "press_keys", keys="ctrl+nothing")
        await fails(session, "click", x="a", y=None)
        await fails(session, "click", x=1, y=1, button="sixth")
        await fails(session, "drag", path=[])
    assert computer.log == []


async def test_dangerous_calls_are_refused_unless_allowed(client, computer):
    async with client() as session:
        assert "--allow command" in await fails(session, "type_text", text="reboot\n")
        await call(session, "type_text", text="reboo")
        refused = await fails(session, "type_text", text="t\r")
        assert "--allow command" in refused and refused.endswith("was removed again.")
        assert computer.typed == ""
        await call(session, "type_text", text="date -s 1")
        refused = await fails(session, "press_keys", keys="ctrl+j")
        assert "--allow line" in refused and refused.endswith("was removed again.")
    assert computer.typed == ""
    async with client(allowed=[Category.COMMAND, Category.LINE]) as session:
        await call(session, "type_text", text="reboot\n")
    assert computer.typed == "reboot\n"


async def test_the_computers_buttons_want_consent(client, computer):
    async with client() as session:
        assert "--allow power" in await fails(session, "use_buttons", what="hold")
        assert "--allow power" in await fails(session, "use_buttons", what="replug")
        await fails(session, "use_buttons", what="explode")
    assert computer.log == []
    async with client(allowed=[Category.POWER]) as session:
        await call(session, "use_buttons", what="hold")
        await call(session, "use_buttons", what="replug")
    assert computer.log == [("power", "hold"), ("replug",)]


async def test_a_whole_task(client, computer):
    async with client("mouse 500 500 1", "Done") as session:
        assert (await call(session, "task_status")).structured_content["state"] == "idle"
        assert "no task" in await fails(session, "control_task", command="pause")
        await call(session, "run_task", task="click")
        state = ""
        async with asyncio.timeout(30):
            while state != "done":
                state = (await call(session, "task_status")).structured_content["state"]
        assert computer.done("press")
        assert await fails(session, "control_task", command="resume")


async def test_one_hand_at_a_time(client, computer):
    async with client(asyncio.Event()) as session:
        await call(session, "screenshot")
        await call(session, "run_task", task="wait")
        assert "task of the agent is going on" in await fails(session, "click", x=1, y=1)
        await call(session, "control_task", command="pause")
        await call(session, "control_task", command="cancel")
        await call(session, "click", x=1, y=1)
