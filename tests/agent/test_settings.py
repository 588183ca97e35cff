"""Settings: what is shown of them, and what goes before what."""

import msgspec
import pytest

from pagoda.cli.main import main
from pagoda_agent.base.errors import ConfigError
from pagoda_agent.cli.flags import load_settings, named_driver, settings_path
from pagoda_agent.cli.main import parse_kind
from pagoda_agent.consent.policy import Category, Decision, Level, decisions
from pagoda_agent.settings import Settings, changed, save


def test_settings_show_every_kind_and_whether_it_follows_the_level():
    shown = Settings(policy={Category.CLOSE: Decision.DENY}).shown()["policy"]
    assert shown["close"] == "deny" and shown["power"] == "" and len(shown) == len(Category)


def test_a_kind_that_is_set_goes_before_the_level():
    own = {Category.CLOSE: Decision.DENY, Category.COMMAND: Decision.ALLOW}
    for level in Level:
        decided = Settings(consent=level, policy=own).make_policy(()).decisions
        assert decided == {**decisions(level), **own} and set(decided) == set(Category)


@pytest.mark.parametrize(
    "kind", [["run", "task"], ["resume", "run"], ["replay", "run"], ["serve"], ["mcp"]]
)
def test_the_level_of_consent_is_a_flag(monkeypatch, tmp_path, kind):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_settings(parse_kind(kind)[1]).consent is Level.DEFAULT
    settings = load_settings(parse_kind([*kind, "--consent", "strict"])[1])
    assert settings.consent is Level.STRICT
    with pytest.raises(ConfigError, match="strict, default or trusting"):
        load_settings(parse_kind([*kind, "--consent", "lax"])[1])


def test_settings_never_show_the_key():
    settings = Settings(api_key="sk-very-long-key-1234")
    assert settings.shown()["api_key"] == "...1234"
    assert Settings(api_key="short").shown()["api_key"] == "set"
    assert Settings().shown()["api_key"] == ""
    assert "sk-" not in msgspec.json.encode(settings.shown()).decode()


def test_flags_go_before_the_pages_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PAGODA_API_KEY", "sk-of-the-environment")
    save(Settings(driver="x11://:7", max_rounds=5, prompt="A lamp."), settings_path())
    flags = ["--driver", "vnc://desk", "--max-rounds", "9"]
    settings = load_settings(parse_kind(["run", "task", *flags])[1])
    assert (settings.driver, settings.max_rounds) == ("vnc://desk", 9)
    assert (settings.prompt, settings.api_key) == ("A lamp.", "sk-of-the-environment")
    for kind in (["run", "task"], ["replay", "run"], ["serve"], ["resume", "run"], ["mcp"]):
        assert named_driver(load_settings(parse_kind(kind)[1])).target == "the X display :7"


def test_a_computer_must_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="Name the computer with --driver: x11:"):
        named_driver(load_settings(parse_kind(["serve"])[1]))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("max_rounds", 0, "These settings do not fit: max_rounds must be at least 1."),
        ("max_rounds", 1.5, "These settings do not fit: max_rounds must be a whole number."),
        ("max_cost", "abc", "These settings do not fit: max_cost must be a number."),
        ("max_cost", 1.0, "A cap on the cost needs the prices of a million tokens."),
        ("reply_seconds", 0, "These settings do not fit: reply_seconds must be more than 0."),
        ("prompt", 3, "These settings do not fit: prompt must be text."),
    ],
)
def test_values_that_do_not_fit_are_told_in_words(field, value, said):
    with pytest.raises(ConfigError) as caught:
        changed(Settings(), {field: value})
    assert str(caught.value) == said


def test_of_a_flag_it_is_told_by_its_flag(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="do not fit: --max-rounds must be at least 1"):
        load_settings(parse_kind(["run", "task", "--max-rounds", "0"])[1])


def test_a_slow_model_is_given_time(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    args = parse_kind(["run", "task", "--reply-seconds", "1800"])[1]
    endpoint = load_settings(args).endpoint("m")
    assert endpoint.total_seconds == endpoint.read_seconds == 1800.0


def test_a_kind_that_is_misspelt():
    with pytest.raises(ConfigError, match="no 'srve' of agents; did you mean 'serve'"):
        parse_kind(["srve"])


def test_a_task_without_quotes(capsys):
    assert main(["agent", "run", "open", "the", "terminal"]) == 1
    assert "The task is in quotes" in (said := capsys.readouterr().err)
    assert "'open the terminal'" in said
