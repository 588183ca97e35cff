"""The tables of sentences against the sources that say them."""

import argparse
import ast
import importlib
import json
import re
from pathlib import Path

import pytest

import pagoda_agent
from pagoda_agent.base import errors
from pagoda_agent.chinese import SENTENCES, WORDS_FILE, in_chinese
from pagoda_agent.cli.main import KINDS
from pagoda_agent.cli.parser import FlagParser
from pagoda_agent.consent.reasons import WORDS, Reason
from pagoda_agent.words import speak, told
from tests.cli.raised import raised

SOURCE = Path(pagoda_agent.__file__).parent
TABLE = json.loads(WORDS_FILE.read_text(encoding="utf-8"))
# What errors of these folders say is for models alone.
OF_MODELS = ("dialects", "input")
WIDE = re.compile("[\u4e00-\u9fff]")


@pytest.fixture
def chinese():
    speak("zh")
    yield
    speak("en")


def parsers():
    for kind, text in KINDS.items():
        parser = FlagParser(prog=kind, usage=kind, description=text)
        importlib.import_module(f"pagoda_agent.cli.{kind}").add_arguments(parser)
        yield parser


def bare(form: str) -> str:
    """Without the names of what is quoted, what is quoted at the ends, and the full stop."""
    bare = re.sub(r"(\{[^{}]*\})+", "{}", form).removesuffix(".")
    return bare.removeprefix("{}").removesuffix("{}")


def written(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in parts)
    return None


def test_each_sentence_is_still_said() -> None:
    said = {
        bare(text)
        for path in SOURCE.rglob("*.py") if path.name != "chinese.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if (text := written(node)) is not None
    }  # fmt: skip
    assert [form for form in SENTENCES if bare(form) not in said] == []


def test_each_sentence_quotes_the_same_in_both_languages() -> None:
    for english, chinese in SENTENCES.items():
        assert sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", chinese))


@pytest.mark.parametrize("code", WORDS)
def test_each_reason_has_chinese(code) -> None:
    values = {name: f"<{name}>" for name in re.findall(r"\{(\w+)\}", WORDS[code])}
    reason = str(Reason(code, values))
    chinese = in_chinese(reason)
    assert chinese != reason and all(value in chinese for value in values.values())


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("Not executed: There is no key 'x'", "未执行：There is no key 'x'"),
        (
            "Refused by the settings: It would run 'a (b)' (rm).",
            "被设置拒绝：它会运行 'a (b)' (rm)。",
        ),
        (
            "The model gave no reply: nothing answers at http://h/v1; is the server running? "
            "(tried 5 times).",
            "模型没有答复：http://h/v1 没有响应；服务器在运行吗？（已尝试 5 次）",
        ),
        ("http://h wants an API key (401): no (1)", "http://h 需要 API 密钥 (401)：no (1)"),
        ("{not a form} (x", "{not a form} (x"),
        ("Not executed: " + "x" * 5000, "Not executed: " + "x" * 5000),
    ],
)
def test_sentences(english, chinese) -> None:
    assert in_chinese(english) == chinese


def test_help_is_chinese(chinese) -> None:
    for parser in parsers():
        texts = [parser.description]
        for group in parser._action_groups:
            texts += [group.title, group.description]
            texts += [each.help for each in group._group_actions if each.help != argparse.SUPPRESS]
        names = "openai, responses, anthropic or dashscope"
        texts = [text for text in texts if text and text != names]
        assert [
            text for text in texts if text and text != names and not WIDE.search(told(text))
        ] == []
        assert "：\n" in parser.format_help() and "用法：" in parser.format_help()


def test_each_error_has_chinese() -> None:
    shown = {name for name in vars(errors) if name.endswith("Error")}
    shown |= {"LacksError", "JournalError", "ReplayError"}
    found = {
        form: where
        for form, where in raised(
            SOURCE, shown | {"LacksError", "JournalError", "ReplayError"}
        ).items()
        if not where.startswith(OF_MODELS) and where != "the system"
    }
    values = [f"value{index}" for index in range(20)]
    missing = [
        f"{where}: {json.dumps(form)}" for form, where in found.items()
        if not WIDE.search(in_chinese(form.format(*values)))
    ]  # fmt: skip
    assert missing == [], f"Add lines to {WORDS_FILE.name}"


def test_each_line_quotes_the_same_in_both_languages() -> None:
    for english, chinese in TABLE.items():
        assert sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", chinese))


def test_what_a_terminal_is_told(chinese) -> None:
    assert told("    asks: Which file?") == "    询问：Which file?"
    assert told("It would type the secret p. Allow it? [y/N] ") == "它会输入机密 p。允许吗？[y/N] "
    speak("en")
    assert told("Nobody answered in time; it is not done.").startswith("Nobody")
