import json
import logging

import pytest

from pagoda.base.log import get_logger, setup_logging


@pytest.fixture(autouse=True)
def restore_logging():
    root = logging.getLogger("pagoda")
    state = list(root.handlers), root.level, root.propagate
    yield
    root.handlers[:], root.level, root.propagate = state[0], state[1], state[2]


def test_a_line_break_in_request_data_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]):
    setup_logging()
    get_logger("pagoda.x").info("model %s", "a\nERROR 11-21 forged\x1b[31m")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert r"a\nERROR 11-21 forged\x1b[31m" in lines[0]


def test_json_lines_parse(capsys: pytest.CaptureFixture[str]):
    setup_logging(level="debug", log_format="json")
    get_logger("x").debug("grüße %d", 7)
    entry = json.loads(capsys.readouterr().err)
    assert (entry["level"], entry["message"], entry["logger"]) == ("debug", "grüße 7", "pagoda.x")


HOSTILE = "a\nb\r\x1b[31m\x85\x9b\u2028\u2029\U000e0001\x7f"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_character_of_a_request_breaks_a_line_or_reaches_the_terminal(log_format, capsys):
    setup_logging(log_format=log_format)
    get_logger("x").info("%s", HOSTILE)
    written = capsys.readouterr().err
    assert len(written.splitlines()) == 1
    assert written.removesuffix("\n").isprintable()
    if log_format == "json":
        assert json.loads(written)["message"] == HOSTILE


def test_an_exception_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]):
    setup_logging()
    try:
        raise ValueError("no\nERROR 11-21 00:00:00 [x] forged\x1b[31m")
    except ValueError:
        get_logger("x").exception("It failed.")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("It failed.")
    assert rest and all(line.startswith("  ") and line.isprintable() for line in rest)


def test_setting_up_twice_writes_once(capsys: pytest.CaptureFixture[str]):
    setup_logging()
    setup_logging()
    get_logger("x").warning("once")
    assert capsys.readouterr().err.count("once") == 1
