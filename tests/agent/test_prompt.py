"""The system prompt: built in or the user's own, as the model's server receives it."""

import pytest

from pagoda.cli.main import main
from pagoda_agent.base.errors import ConfigError
from pagoda_agent.cli.flags import load_settings, settings_path
from pagoda_agent.cli.main import parse_kind
from pagoda_agent.dialects.rules import BUILT_IN, FORMAT
from pagoda_agent.models.profiles import dialect_of, profile_for
from pagoda_agent.screen.frame import Frame
from pagoda_agent.secrets import Secrets
from pagoda_agent.settings import Settings, changed, load, save
from pagoda_agent.task.operator import Operator
from tests.agent.fake_computer import FakeComputer
from tests.agent.model_server import ModelServer
from tests.agent.test_operator import QUICK, computer, journal, make, run
from tests.agent.test_service import serve

__all__ = ["computer", "make", "serve"]

OWN = f"Press buttons slowly.\n\n{FORMAT}\n\nThank you."

OVER = (
    '<tool_call>{"name": "computer_use", "arguments": {"action": "terminate", "status": "success"}}'
    "</tool_call>"
)


def told_format(operator, profile="nanokvm"):
    chosen = profile_for("", profile)
    size = chosen.picture_size(Frame(operator.driver.image, 0))
    return dialect_of(chosen).instructions(size, operator.driver.capabilities)


@pytest.mark.parametrize("own", ["", OWN])
async def test_it_reaches_the_models_server_and_is_kept_with_the_run(tmp_path, own):
    with ModelServer(["Done"]) as model:
        settings = Settings(
            base_url=f"{model.url}/v1", model="any", profile="nanokvm", system_prompt=own,
            prompt="The lamp is on.",
        )  # fmt: skip
        operator = Operator(FakeComputer(), settings, Secrets({"PIN": "4711"}), tmp_path, QUICK)
        await run(operator)
        (request,) = model.requests
    system, _task = request.body["messages"]
    begin, end = (own or BUILT_IN).split(FORMAT)
    assert system["role"] == "system"
    assert system["content"].startswith(begin + told_format(operator) + end)
    assert system["content"].endswith("The lamp is on.")
    start = journal(operator)[0]
    assert start["event"] == "start" and start["system"] == system["content"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Click.", "system_prompt must have {{format}} once"),
        (f"{FORMAT} {FORMAT}", "it has it 2 times"),
        (f"{FORMAT} {{{{screen}}}}", "{{screen}}, which nothing fills; known: {{format}}"),
        (f"{FORMAT} {{{{ format }}}}", "{{ format }}, which nothing fills"),
    ],
)
async def test_one_without_the_form_of_actions_is_refused(make, serve, tmp_path, text, says):
    running = await serve(make()[0])
    client = await running.controller()
    reply = await client.post("/api/settings", json={"system_prompt": text})
    assert reply.status_code == 400 and says in reply.json()["error"]
    assert not (tmp_path / "agent.json").exists()
    with pytest.raises(ConfigError, match="system_prompt"):
        changed(Settings(), {"system_prompt": text})


async def test_the_page_is_told_it_and_saves_ones_own(make, serve, tmp_path):
    operator, script = make(OVER, OVER, profile="qwen3-vl", secrets={"PIN": "4711"})
    running = await serve(operator)
    client = await running.controller()
    shown = (await client.get("/api/prompt")).json()
    assert shown == {
        "built_in": BUILT_IN, "placeholder": FORMAT, "profile": "qwen3-vl",
        "format": told_format(operator, "qwen3-vl"),
    }  # fmt: skip
    own = OWN + " {{secret:PIN}}"
    assert (await client.post("/api/settings", json={"system_prompt": own})).status_code == 200
    assert load(tmp_path / "agent.json").system_prompt == own
    await run(operator)
    assert script.requests[0][0].text.startswith("Press buttons slowly.")
    assert (await client.post("/api/settings", json={"system_prompt": ""})).status_code == 200
    await run(operator)
    assert script.requests[1][0].text.startswith(BUILT_IN.partition(FORMAT)[0])


async def test_the_page_is_told_that_of_the_model_which_a_task_would_take(make, serve):
    with ModelServer(models=["Qwen3-VL-8B-Instruct"]) as model:
        settings = Settings(base_url=f"{model.url}/v1")
        running = await serve(Operator(FakeComputer(), settings, Secrets({}), make()[0].runs))
        client = await running.controller()
        assert (await client.get("/api/prompt")).json()["profile"] == "qwen3-vl"
    # A server that is gone: the settings open all the same.
    assert (await client.get("/api/prompt")).json()["profile"] == "nanokvm"


def test_the_flag_reads_a_file_that_begins_with_the_built_in_one(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    save(Settings(system_prompt=OWN), settings_path())
    assert main(["agent", "prompt"]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "prompt.txt"
    file.write_text(printed.replace("Click in the middle", "Click in the very middle"))
    flags = ["run", "task", "--system-prompt-file", str(file)]
    settings = load_settings(parse_kind(flags)[1])
    assert settings.system_prompt == BUILT_IN.replace("the middle", "the very middle")
    file.write_text("Just click.")
    with pytest.raises(ConfigError, match="--system-prompt-file must have {{format}} once"):
        load_settings(parse_kind(flags)[1])
    file.unlink()
    with pytest.raises(ConfigError, match=r"prompt\.txt cannot be read: .*No such file"):
        load_settings(parse_kind(flags)[1])
