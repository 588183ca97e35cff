"""What the command line and the doctor say in Chinese: all of it, and nothing else differs."""

import json
import re
import string
from pathlib import Path

import pytest

from pagoda.base.columns import columns, wrap
from pagoda.base.errors import CapacityError, ConfigError, EngineDeadError
from pagoda.base.units import format_bytes
from pagoda.base.words import CHINESE as FILE
from pagoda.base.words import CHINESE_ERRORS, message_of, say, speak, tell, told
from pagoda.cli.main import main
from pagoda.config.parser import FlagParser
from pagoda.doctor.findings import Finding
from pagoda.doctor.report import finding_lines
from tests.cli.messages import messages, parsers
from tests.cli.raised import OF_SYSTEM, raised

CHINESE = Path(FILE)
CATALOGUE = json.loads(CHINESE.read_text(encoding="utf-8"))
ERRORS = json.loads(Path(CHINESE_ERRORS).read_text(encoding="utf-8"))
MESSAGES = messages()
WIDE = re.compile("[\u4e00-\u9fff]")
# Sentences in the catalogue, apart from words that are names in both languages.
SENTENCES = [text for text in MESSAGES if len(text.split()) > 2 and "{" not in text
             and CATALOGUE.get(text) != text]  # fmt: skip
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
NAMED = re.compile(r"%(?:\(\w+\))?[rs]")


@pytest.fixture
def chinese_spoken():
    speak("zh")
    yield
    speak("en")


@pytest.fixture(autouse=True)
def english_afterwards():
    yield
    speak("en")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command with these variables of the language alone; its status and what it printed."""

    def run(*words: str, **variables: str) -> tuple[int, str]:
        for name in ("PAGODA_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        try:
            status = main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


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


def test_every_error_has_its_chinese():
    forms = raised()
    missing = [f"{where}: {json.dumps(text)}" for text, where in forms.items()
               if text not in ERRORS]  # fmt: skip
    assert not missing, (
        f"{len(missing)} errors have no Chinese. Add a line for each to "
        f"src/pagoda/base/{Path(CHINESE_ERRORS).name}, English: Chinese, where {{0}}, {{1}}, ... "
        "are its values:\n" + "\n".join(missing)
    )
    left = [text for text in ERRORS if text not in forms]
    assert not left, f"{Path(CHINESE_ERRORS).name} has lines of no error:\n" + "\n".join(left)


def test_errors_are_found_wherever_they_are_raised(tmp_path: Path):
    (tmp_path / "module.py").write_text(
        """
_ADVICE = "Take another."

def _fault(what):
    if not what:
        return f"{what} is empty."
    return "It is {no} field."

def _wrong(path, said):
    return ConfigError(f"{path}: {said}.")

def load(path, kind):
    end = "is missing" if kind else f"is a {kind:>3}"
    if kind:
        raise errors.CheckpointError(f"{path} {end}; {_ADVICE}")
    if not path:
        raise CapacityError(_fault(path))
    raise _wrong(path, f"{kind} is no kind of file") from None

def ask(kind):
    raise RequestError(f"{kind} is for clients.")
"""
    )
    assert set(raised(tmp_path)) - set(OF_SYSTEM) == {
        "{0} is missing; Take another.", "{0} is a {1}; Take another.", "{0} is empty.",
        "It is {{no}} field.", "{0}: {1}.", "{0} is no kind of file",
    }  # fmt: skip


def test_an_error_is_told_by_its_form(chinese_spoken: None):
    values = [f"value{index}" for index in range(20)]
    said = {text.format(*values): chinese.format(*values) for text, chinese in ERRORS.items()}
    assert {text: told(message_of(ConfigError(text))) for text in said} == said


def test_what_an_error_quotes_is_told(chinese_spoken: None):
    missing = "/a cannot be read: No such file or directory"
    assert told(message_of(ConfigError(f"The variable X is 'y': {missing}."))) == (
        "环境变量 X 是 'y'：/a 无法读取：没有这个文件或文件夹。"
    )
    assert told(message_of(ConfigError("something else."))) == "something else."
    # What another process said is a text alone.
    dead = say("{needs}. Free memory, choose a smaller quantization, or lower --max-num-seqs and "
               "--max-num-batched-tokens.", needs="It needs 2")  # fmt: skip
    assert told(message_of(EngineDeadError(str(dead)))) == told(message_of(CapacityError(dead)))


def fields(text: str) -> set[tuple[str, str, str]]:
    """Names with their formats and conversions; of a text without any its % fields."""
    try:
        found = {(name, kind or "", how or "")
                 for _, name, kind, how in string.Formatter().parse(text) if name}  # fmt: skip
    except ValueError:  # braces of JSON, in a message without fields
        return set()
    return {each for each in found if each[0].isidentifier() or each[0].isdigit()}


def test_both_have_the_same_fields_and_flags():
    def parts(text: str) -> tuple[object, ...]:
        return fields(text), sorted(NAMED.findall(text)), set(FLAG.findall(text))

    both = CATALOGUE | {text: ERRORS[text] for text in ERRORS if text not in OF_SYSTEM}
    differ = {each: said for each, said in both.items() if parts(each) != parts(said)}
    assert not differ


def test_help_is_chinese(chinese_spoken: None):
    for name, parser in parsers().items():
        text = " ".join(parser.format_help().split())
        assert WIDE.search(text), name
        assert not [each for each in SENTENCES if each in text], name


@pytest.mark.parametrize(
    "variables",
    [
        {"LANG": "zh_CN.UTF-8"},
        {"LC_ALL": "zh_TW.UTF-8", "LANG": "en_US.UTF-8"},
        {"LC_MESSAGES": "zh", "LANG": "C"},
        {"PAGODA_LANG": "zh", "LC_ALL": "C"},
    ],
)
def test_the_environment_says_chinese(variables: dict[str, str], run):
    assert "用兼容 OpenAI 的 API 提供一个模型。" in run("--help", **variables)[1]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"LC_ALL": "C", "LANG": "zh_CN.UTF-8"},
        {"LANG": "de_DE.UTF-8"},
        {"PAGODA_LANG": "en", "LANG": "zh_CN.UTF-8"},
    ],
)
def test_all_others_say_english(variables: dict[str, str], run):
    _, out = run("--help", **variables)
    assert "Serve a model behind an OpenAI-compatible API." in out
    assert not WIDE.search(out)


def test_the_flag_wins_over_the_environment(run):
    assert not WIDE.search(run("stop", "--help", "--lang", "en", LANG="zh_CN.UTF-8")[1])
    assert WIDE.search(run("--lang=zh", "stop", "--help", PAGODA_LANG="en")[1])


def test_a_language_that_there_is_not(run):
    status, out = run("stop", "--lang", "fr")
    assert status == 2
    assert "invalid choice: 'fr'" in out
    status, out = run("ps", PAGODA_LANG="fr")
    assert status == 1
    assert "PAGODA_LANG is 'fr': write en or zh" in out


def test_the_words_of_a_client_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    from pagoda.cli import main as module

    seen = []
    monkeypatch.setattr(module, "_run_command", lambda name, words: seen.append(words) or 0)
    main(["launch", "codex", "--lang", "en", "--", "--lang", "zh"])
    assert seen == [["codex", "--", "--lang", "zh"]]


def test_errors_are_chinese(capsys: pytest.CaptureFixture[str]):
    assert main(["--lang", "zh", "doctor", "there-is-none"]) == 1
    assert "这里没有文件或文件夹 'there-is-none'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--lang", "zh", "serve", "--prot", "80"])
    assert capsys.readouterr().err.startswith(
        "pagoda serve: 未知的参数 --prot；是否想用 --port？\n详见"
    )
    with pytest.raises(SystemExit):
        main(["serve", "--port", "x", "--lang", "zh"])
    assert "参数 --port：'x' 不是整数。" in capsys.readouterr().err


def test_the_doctor_of_a_model(smollm2_gguf, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", str(smollm2_gguf), "--why", "--lang", "zh"]) == 0
    out = capsys.readouterr().out
    assert "可以在本机运行：\n    pagoda serve " in out
    text = " ".join(out.split())
    assert not [each for each in SENTENCES if each in text]
    # Neither two English words in a row, commands, names and units apart.
    prose = "\n".join(line for line in out.splitlines() if "pagoda serve" not in line)
    assert not re.findall(r"\b[a-z]{4,} [a-z]{2,}\b", prose.partition("\n")[2])


def test_rows_of_a_table_are_aligned(smollm2_gguf, capsys: pytest.CaptureFixture[str]):
    main(["doctor", str(smollm2_gguf), "--lang", "zh"])
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("内存") + 1
    last = next(i for i, line in enumerate(lines) if line.startswith("  合计"))
    rows = lines[first : last + 1]
    assert len(rows) > 3
    # A long note goes on in a line of its own.
    sizes = [found for row in rows if (found := re.match(r".*?[KMG]iB", row))]
    assert len(sizes) > 3 and len({columns(found[0]) for found in sizes}) == 1


@pytest.mark.parametrize("words", [(), ("--gpu", "3090", "--for", "4 users x 4000")])
def test_json_is_the_same(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16", "model_type": "llama",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    said = {}
    for language in ("en", "zh"):
        main(["doctor", str(folder), "--gpu", "3090", *words, "--json", "--lang", language])
        said[language] = capsys.readouterr().out
    assert said["en"] == said["zh"]
    assert "--why" not in said["zh"]
    assert "findings" in json.loads(said["zh"])


def test_findings_fit_the_terminal(chinese_spoken: None):
    text = say("{used}: weights that are swapped out come back from disk for every token",
               used=say("{used} of {total} swap in use", used="1 GiB", total="2 GiB"))  # fmt: skip
    fix = say("{end}, or serve a smaller model.", end=say("End what uses it"))
    lines = finding_lines([Finding("swap", "WARN", text, fix)], 44, False)
    assert lines == [
        "WARN  swap  交换空间用了 1 GiB，共 2 GiB：换",
        "            出的权重在每个 token 时都要从磁",
        "            盘读回",
        "            -> 结束占用它的程序，或换用更小",
        "               的模型。",
    ]
    assert all(columns(line) <= 44 for line in lines)


def test_a_line_begins_with_no_punctuation(chinese_spoken: None):
    text = told(FlagParser(prog="x").format_help()) + "，".join(["权重"] * 40)
    for width in range(20, 60):
        lines = wrap(text, width)
        assert not [line for line in lines if line.lstrip()[:1] in "，。；：）"]
        assert all(columns(line) <= max(width, 22) for line in lines)


def test_a_message_is_its_english():
    inner = say("{free} of {total} free", free=format_bytes(1 << 30), total=format_bytes(1 << 31))
    text = say("{name}: {memory}, {types}", name="A", memory=inner, types="b")
    assert text == "A: 1.00 GiB of 2.00 GiB free, b"
    assert type(str(text)) is str
    assert message_of(ValueError(text)) is text
    speak("zh")
    assert told(text) == "A：1.00 GiB 空闲，共 2.00 GiB，b"
    assert text == "A: 1.00 GiB of 2.00 GiB free, b"
    assert tell("a message {that} has no Chinese", that="{x}") == "a message {x} has no Chinese"
