"""What the command line and the doctor say in Chinese: all of it, and nothing else differs."""

import json
import re
import string

import pytest

from tests.cli.messages import messages, parsers
from pagoda.base.columns import columns
from pagoda.base.words import CHINESE, speak, told
from pagoda.cli.main import main

CATALOGUE = json.loads(CHINESE.read_text(encoding="utf-8"))
MESSAGES = messages()
# Names and units that are the same in both.
_SAME = re.compile(r"[^\u4e00-\u9fff]*")


@pytest.fixture
def chinese():
    speak("zh")
    yield
    speak("en")


def test_every_message_has_its_chinese():
    missing = [f"{where}: {text!r}" for text, where in MESSAGES.items() if text not in CATALOGUE]
    assert not missing, (
        f"{len(missing)} messages have no Chinese. Add a line for each to "
        f"src/pagoda/base/{CHINESE.name}, English: Chinese, with the same {{fields}} and the terms "
        "of README.zh-CN.md:\n" + "\n".join(missing)
    )


def test_no_line_is_left_behind():
    left = [text for text in CATALOGUE if text not in MESSAGES]
    assert not left, f"src/pagoda/base/{CHINESE.name} has lines of no message:\n" + "\n".join(left)
