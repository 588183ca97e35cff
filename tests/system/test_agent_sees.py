"""The agent drives a computer through a served tiny Qwen2.5-VL: what it sends is what the model
sees, and the pixels that the model writes are those."""

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagoda_agent.models.dialogue import Message, Reply
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.registry import make_model
from pagoda_agent.secrets import Secrets
from pagoda_agent.settings import Settings
from pagoda_agent.task.control import State
from pagoda_agent.task.operator import Operator
from tests.agent.fake_computer import FakeComputer
from tests.agent.test_operator import QUICK, journal
from tests.models import vision
from tests.system.conftest import starter
from tests.system.harness import Served
from tests.system.test_vision import png, write_tokenizer

NAMES = ("UI-TARS-1.5-7B", "Qwen2.5-VL-7B-Instruct")
SCREEN = (1280, 720)
SENT = (1176, 672)
"""The largest of its shape with 1024 tokens of 28 x 28 pixels."""
CALL = '<tool_call>\n{{"name": "computer_use", "arguments": {{"action": {}}}}}\n</tool_call>'
REPLIES = {
    "UI-TARS-1.5-7B": (
        "Action: click(start_box='(294,504)')", "Action: finished(content='It is open.')",
    ),
    "Qwen2.5-VL-7B-Instruct": (
        CALL.format('"left_click", "coordinate": [294, 504]'),
        CALL.format('"terminate", "status": "success"'),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vl")
    model = vision.make(family="qwen2_5_vl", text={"max_position_embeddings": 16384})
    vision.save(model, folder)
    # As published, but for the bounds of the other tests.
    settings = {**vision.QWEN2_PREPROCESSOR, "max_pixels": 12845056}
    vision.write_settings(folder, settings)
    write_tokenizer(folder)
    with starter() as start:
        served = start(folder, "--max-num-seqs", "2", "--served-model-name", *NAMES)
        served.wait_ready(60)
        yield served


class Guided:
    """The served model, whose weights are random: a grammar says what it writes."""

    def __init__(self, api: str, endpoint: Endpoint, replies: Sequence[str]):
        self._api, self._endpoint, self._left = api, endpoint, list(replies)
        self.sizes: list[tuple[int, int]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> Reply:
        grammar = {"structured_outputs": {"regex": re.escape(self._left.pop(0))}}
        model = make_model(self._api, replace(self._endpoint, extra=grammar))
        reply = await model.complete(messages, tools)
        await model.close()
        self.sizes += [picture.size for picture in messages[-1].pictures]
        return reply

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("name", NAMES)
async def test_a_click_lands_where_the_model_points(
    name: str, server: Served, tmp_path: Path
) -> None:
    computer, made = FakeComputer(SCREEN), []

    def make(api: str, endpoint: Endpoint) -> Guided:
        made.append(Guided(api, endpoint, REPLIES[name]))
        return made[-1]

    settings = Settings(base_url=f"{server.url}/v1", model=name)
    operator = Operator(computer, settings, Secrets({}), tmp_path / "runs", QUICK, make)
    control = await operator.start("Open the menu")
    await control.wait()
    assert control.state is State.DONE, control.reason
    # A quarter of the way to the right, three quarters down: in the middle of the model's pixel.
    ((_, x, y),) = computer.done("move")
    assert (x, y) == pytest.approx((320, 540), abs=1)
    (model,) = made
    assert model.sizes == [SENT, SENT]
    assert journal(operator)[0]["model"] == name


def test_the_model_sees_the_picture_as_it_was_sent(server: Served) -> None:
    """One token for each of its squares of 28 x 28 pixels, with Pagoda's default bounds."""
    lengths = []
    for size in (SENT, (28, 28)):
        data = base64.b64encode(png(vision.picture("letters", *size))).decode()
        parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
        reply = server.openai().chat.completions.create(
            model=NAMES[0], messages=[{"role": "user", "content": parts}], max_tokens=1
        )
        lengths.append(reply.usage.prompt_tokens)
    # The small one is made as large as the model wants at least: 2 x 2.
    assert lengths[0] - lengths[1] == (SENT[0] // 28) * (SENT[1] // 28) - 4
