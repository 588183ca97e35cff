"""The table of sentences against the source that says them."""

import ast
import re
from pathlib import Path

import pytest

import pagoda_agent
from pagoda_agent.chinese import SENTENCES, in_chinese
from pagoda_agent.consent.reasons import WORDS, Reason

SOURCE = Path(pagoda_agent.__file__).parent


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
