"""What people type today parses: every command line of docs/walkthroughs.md, and of the pages that
are there in Chinese (their English ones have the same: test_translations.py)."""

import runpy
import shlex
import sys
import types
from itertools import pairwise
from pathlib import Path, PurePath

import pytest

from pagoda.cli.main import main, parse_command
from pagoda.config import compat, flags
from pagoda.config.server import ServerConfig
from pagoda.weights.choice import RemoteFile, choose_files
from pagoda.weights.source import parse_ref
from pagoda_agent.cli import main as agent

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "walkthroughs.md"
TRANSLATED = [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs" / "zh").glob("*.md"))]
GGUF = "./Qwen3-VL-2B-Thinking-GGUF/Qwen3VL-2B-Thinking-Q8_0.gguf"
AWQ_27B = (
    "serve ./Qwen3.6-27B-AWQ-INT4 --host 0.0.0.0 --port 8000 "
    "--served-model-name Qwen3.6-27B-AWQ-INT4 --dtype half --max-model-len 262144 "
    "--max-num-seqs 1 --max-num-batched-tokens 8192 --kv-cache-dtype fp8 "
    "--disable-custom-all-reduce --enable-prefix-caching --mamba-cache-mode align "
    "--enable-flashinfer-autotune --mode fast --reasoning-parser qwen3 "
    "--enable-auto-tool-choice --tool-call-parser qwen3_coder"
)
GEMMA = "serve google/gemma-4-26B-A4B --max-model-len 4096 --reasoning-parser gemma4"


MODULE = "pagoda.entrypoints.openai.api_server"
PROGRAMS = {f"python3 -m {MODULE} ": "serve ", "python3 -m pagoda ": "", "pagoda ": ""}
"""How a line begins, and what the command makes of it."""


def documented() -> list[str]:
    """Pagoda's command lines in the document, without their program."""
    lines = []
    for line in DOCUMENT.read_text().splitlines():
        program = next((p for p in PROGRAMS if line.startswith(p)), None)
        if program:
            lines.append(PROGRAMS[program] + line.removeprefix(program))
    assert lines
    return lines


def typed(beginning):
    """The one line of the document that begins so, as it stands there."""
    (line,) = [x for x in DOCUMENT.read_text().splitlines() if x.startswith(beginning)]
    return line


def translated():
    """Pagoda's command lines in the Chinese pages, without their program and remark."""
    found = []
    for page in TRANSLATED:
        fenced = False
        for line in page.read_text().splitlines():
            fenced ^= line.startswith("```")
            words = line.removeprefix("$ ")
            if fenced and words.startswith("pagoda "):
                found.append(words.removeprefix("pagoda ").partition("  # ")[0])
    return sorted(set(found))


SERVED = [line for line in documented() if line.startswith("serve ")]
OTHERS = [line for line in documented() if not line.startswith("serve ")]


def parse(line):
    name, *words = shlex.split(line)
    args = parse_command(name, words)[1]
    return agent.parse_kind(args.words)[1] if name == "agent" else args


@pytest.mark.parametrize("line", SERVED)
def test_served(line):
    args = parse(line)
    for answer in compat.answers(args):
        assert answer.count("\n") == 0
    flags.engine_config(args)
    flags.from_namespace(ServerConfig, args)


@pytest.mark.parametrize("line", OTHERS)
def test_other_commands_parse(line):
    parse(line)


@pytest.mark.parametrize("line", translated())
def test_commands_of_translated_pages_parse(line):
    parse(line)


def test_values_of_the_offline_server():
    args = parse(SERVED[-1])
    config = flags.engine_config(args)
    assert config.model.model == "./DeepSeek-R1-Distill-Qwen-7B"
    assert config.model.max_model_len == 2048
    assert config.model.dtype == "half"


def test_the_lines_of_a_2080_ti_command():
    args = parse(AWQ_27B)
    answers = compat.answers(args)
    about = {answer.split()[0] for answer in answers}
    assert about == {
        "--disable-custom-all-reduce",
        "--mamba-cache-mode",
        "--enable-flashinfer-autotune",
        "--enable-auto-tool-choice",
    }
    assert flags.engine_config(args).speculation.has_mode


def test_parsers_are_taken_by_vllms_names():
    args = parse(GEMMA)
    assert not any("parser" in answer for answer in compat.answers(args))
    assert flags.engine_config(args).model.reasoning_parser == "gemma4"


def test_a_parser_of_a_later_version_is_said():
    args = parse("serve m --reasoning-parser none --tool-call-parser kimi_k3")
    (line,) = compat.answers(args)
    assert line.startswith("--tool-call-parser kimi_k3 is not supported yet")
    model = flags.engine_config(args).model
    assert (model.reasoning_parser, model.tool_call_parser) == ("none", "auto")


def test_a_length_of_256k_is_binary():
    args = parse(f"serve {GGUF} --max-model-len 256K")
    assert flags.engine_config(args).model.max_model_len == 262_144


@pytest.fixture
def started(monkeypatch):
    """What `main` hands run_server."""
    seen = {}

    def run_server(engine, server, spawner, more_models, wrap, advise, advice):
        assert not more_models
        seen.update(engine=engine, server=server)
        return 7

    launch = types.ModuleType("pagoda.server.launch")
    launch.run_server = run_server
    monkeypatch.setitem(sys.modules, "pagoda.server.launch", launch)
    return seen


def test_a_line_of_llama_server_as_it_is_typed(started):
    program, *words = shlex.split(typed("pagoda serve --host 0.0.0.0 -m Qwen3-VL"))
    assert (program, main(words)) == ("pagoda", 7)
    folder = "Qwen3-VL-2B-Thinking-GGUF/"
    model = started["engine"].model
    assert model.model == folder + "Qwen3VL-2B-Thinking-Q8_0.gguf"
    assert model.mmproj == folder + "mmproj-Qwen3VL-2B-Thinking-Q8_0.gguf"
    assert model.max_model_len is None
    assert (started["server"].host, started["server"].port) == ("0.0.0.0", 50088)


def test_a_line_of_vllms_module_as_it_is_typed(started, monkeypatch):
    _, _, module, *words = shlex.split(typed(f"python3 -m {MODULE}"))
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 7
    model = started["engine"].model
    assert model.model == "./DeepSeek-R1-Distill-Qwen-7B"
    assert (model.max_model_len, model.dtype) == (2048, "half")
    assert (started["server"].host, started["server"].port) == ("0.0.0.0", 8080)


def test_the_config_reaches_the_server(started):
    line = "serve ./m --port 9 --api-key a --max-model-len 32k --no-enable-prefix-caching"
    assert main(line.split()) == 7
    assert started["engine"].model.max_model_len == 32_000
    assert not started["engine"].cache.enable_prefix_caching
    assert (started["server"].port, started["server"].api_key) == (9, ("a",))


def test_the_first_model_may_have_a_name_of_its_own(tmp_path):
    model = flags.engine_config(parse(f"serve small={GGUF} big=org/name")).model
    assert (model.model, model.served_model_name) == (GGUF, ("small",))
    model = flags.engine_config(parse(f"serve small={GGUF} --served-model-name other")).model
    assert (model.model, model.served_model_name) == (GGUF, ("other",))
    odd = tmp_path / "a=b.gguf"
    odd.touch()
    assert flags.engine_config(parse(f"serve {odd}")).model.model == str(odd)


FOLDER = ("config.json", "tokenizer.json", "model.safetensors")
HUBS = {
    "Qwen/Qwen3-VL-2B-Thinking-GGUF": tuple(
        f"{kind}Qwen3VL-2B-Thinking-{quant}.gguf"
        for kind, quants in (("", ("F16", "Q4_K_M", "Q8_0")), ("mmproj-", ("F16", "Q8_0")))
        for quant in quants
    ),
    "Qwen/Qwen3-VL-2B-Thinking": FOLDER,
    "Qwen/Qwen3-VL-8B-Instruct": FOLDER,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": FOLDER,
    "cyankiwi/Qwen3.6-27B-AWQ-INT4": FOLDER,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": FOLDER,
}
"""What the repositories have that the document's lines fetch."""


def pulled(words):
    """The paths that a line of `pagoda pull REPO --to FOLDER` makes, the folder's first."""
    args = parse_command("pull", words)[1]
    model = parse_ref(args.ref)
    files = [RemoteFile(name, 1) for name in HUBS[model.name]]
    chosen = choose_files(model.name, files, model.selector)
    return [PurePath(args.to), *(PurePath(args.to) / file.path for file in chosen.files)]


def test_what_a_line_opens_was_fetched_before():
    here, paths, opened = PurePath(), set(), 0
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("## "):
            here = PurePath()
        elif line.startswith("cd "):
            here = here / line.removeprefix("cd ")
            assert here in paths
        elif line.startswith("pagoda pull "):
            paths |= set(pulled(shlex.split(line)[2:]))
        elif line.startswith(("pagoda ", "python3 -m pagoda")):
            words = shlex.split(line.partition("   # ")[0])
            for flag, word in pairwise(words):
                is_path = word.startswith("./") or word.endswith(".gguf")
                if is_path and flag not in ("--hf-file", "--chat-template"):
                    assert here / word in paths, line
                    opened += 1
        elif line.startswith("llm = "):
            assert PurePath(line.split('"')[1]) in paths
            opened += 1
    assert opened > 15


def test_a_tower_may_be_fetched_alone():
    repo = "hf:Qwen/Qwen3-VL-2B-Thinking-GGUF"
    tower = "mmproj-Qwen3VL-2B-Thinking-Q8_0.gguf"
    assert pulled([f"{repo}:{tower}", "--to", "x"]) == [PurePath("x"), PurePath("x") / tower]
    both = pulled([f"{repo}:Q8_0", "--to", "x"])[1:]
    assert [path.name for path in both] == [
        "Qwen3VL-2B-Thinking-Q8_0.gguf", "mmproj-Qwen3VL-2B-Thinking-F16.gguf",
    ]  # fmt: skip
