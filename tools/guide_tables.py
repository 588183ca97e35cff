"""Writes the tables of docs/guides: what the doctor says of models on named hardware.

`python -m tools.guide_tables` takes ten seconds; `--check` says whether the pages are as written.
Each row is a command line, which its last column shows, and is planned as typed, from the configs
that come with the doctor. No flag names a CPU that is not here: its memory and cores stand in the
row.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pagoda.base.facts import DeviceFacts
from pagoda.base.units import format_bytes
from pagoda.cli.main import parse_command
from pagoda.config.flags import engine_config
from pagoda.doctor.answer import Answer
from pagoda.doctor.ask import Question, answers
from pagoda.doctor.machine.hardware import Hardware
from pagoda.kernels import cpu
from pagoda.text.images.qwen_vl import fitting_size

DOCS = Path(__file__).parent.parent / "docs"
VL_8B = "Qwen/Qwen3-VL-8B-Instruct"
VL_30B = "Qwen/Qwen3-VL-30B-A3B-Instruct"
VL_235B = "Qwen/Qwen3-VL-235B-A22B-Instruct"
ONE = "--for '1 user x 16k'"
SCREEN = f"--image-max-tokens 1024 {ONE}"
AGENT = (
    f"{VL_8B} --gpu 3090 {SCREEN}",
    f"{VL_8B} --gpu 3090 --quantization fp8 {SCREEN}",
    f"{VL_8B} --device cpu --quantization int8 {SCREEN}",
    f"{VL_30B} --gpu L40S --quantization fp8 {SCREEN}",
    f"{VL_30B} --gpu 5090 --quantization fp8 {SCREEN}",
    f"{VL_30B} --gpu 4090x2 --quantization fp8 {SCREEN}",
    f"{VL_30B} --gpu 3090x2 --quantization fp8 {SCREEN}",
    f"{VL_30B} --gpu 3090x4 {SCREEN}",
    f"{VL_30B} --device cpu --quantization int4 {SCREEN}",
    f"{VL_235B} --gpu H100x4 --quantization fp8 {SCREEN}",
)
CPUS = {VL_8B: (32, 8), VL_30B: (48, 16)}
"""GB of memory and cores of the CPU in a model's row."""
SYSTEM = 2 << 30
"""Taken by everything else on such a machine: assumed."""
OLD_GPUS = (
    f"Qwen/Qwen3-8B --gpu 2080Tix2 {ONE}",
    f"openai/gpt-oss-20b --gpu 2080Tix2 {ONE}",
    f"Qwen/Qwen3-30B-A3B --gpu 2080Tix2 --quantization int4 {ONE}",
    f"Qwen/Qwen3.6-27B --gpu 2080Tix2 --quantization int4 {ONE}",
    "Qwen/Qwen3.6-27B --gpu 2080Tix2 --quantization int4 --kv-cache-dtype int8 "
    "--kv-cache-memory-bytes 549453824 --max-num-batched-tokens 256 --image-max-tokens 512 "
    f"--video-max-tokens 1024 {ONE}",
    f"Qwen/Qwen3.6-27B --gpu 2080Ti-22G --quantization int4 --mode fast {ONE}",
    f"Qwen/Qwen3-30B-A3B --gpu 2080Tix4 --quantization int4 {ONE}",
    f"Qwen/Qwen3.6-27B --gpu 2080Tix4 --quantization int4 {ONE}",
    f"{VL_30B} --gpu 2080Tix4 --quantization int4 {SCREEN}",
)
SCREENS = ((800, 600), (1280, 720), (1920, 1080), (2560, 1440), (3840, 2160))


@dataclass(frozen=True)
class Words:
    plans: str
    """Names of the columns of plans."""
    fits: str
    no: str
    each: str
    cpu: str
    not_here: str
    screens: str


ENGLISH = Words(
    plans="hardware | model | does it fit? | weights | longest context | tokens/s | asked",
    fits="yes",
    no="no",
    each="each",
    cpu="CPU, {} GB, {} cores",
    not_here="measured there",
    screens="screen | tokens of a picture",
)
CHINESE = Words(
    plans="硬件 | 模型 | 放得下吗？ | 权重 | 最长上下文 | token/s | 命令",
    fits="是",
    no="否",
    each="每张",
    cpu="CPU，{} GB，{} 核",
    not_here="在那台机器上测",
    screens="屏幕 | 一张图的 token 数",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check, stale = parser.parse_args().check, 0
    for name, sections in pages().items():
        text = (DOCS / name).read_text()
        fresh = text
        for section, lines in sections.items():
            fresh = marked(section).sub("\\1" + "\n".join(lines) + "\n\\2", fresh)
        if check and fresh != text:
            print(f"{name} is stale: run `make docs`.")
            stale = 1
        elif not check:
            (DOCS / name).write_text(fresh)
    return stale


def marked(section: str) -> re.Pattern[str]:
    """A section of a page, with the lines around it as groups."""
    begin, end = f"<!-- generated: {section} -->", f"<!-- end: {section} -->"
    return re.compile(f"({begin}\n).*?({end})", re.DOTALL)


def pages() -> dict[str, dict[str, Iterable[str]]]:
    """Generated sections by page, under docs/."""
    with no_hub():
        agent = [plan(line) for line in AGENT]
        old = [plan(line) for line in OLD_GPUS]
        found: dict[str, dict[str, Iterable[str]]] = {}
        for folder, words in (("guides", ENGLISH), ("zh/guides", CHINESE)):
            found[f"{folder}/agent-model.md"] = {
                "models": list(table(zip(AGENT, agent, strict=True), words)),
                "screens": list(_screens(words)),
            }
            found[f"{folder}/2080ti.md"] = {
                "models": list(table(zip(OLD_GPUS, old, strict=True), words))
            }
    return found


@contextmanager
def no_hub() -> Iterator[None]:
    """Neither a network nor what this machine has fetched changes a table: the configs that come
    with the doctor do."""
    kept = dict(os.environ)
    with TemporaryDirectory() as empty:
        os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=empty, PAGODA_CACHE=empty)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(kept)


def plan(line: str) -> Answer:
    args = parse_command("doctor", shlex.split(line))[1]
    config = engine_config(args)
    question = Question.of(config, args)
    model = config.model.model
    if question.elsewhere is None:
        question = replace(question, elsewhere=_cpu(*CPUS[model]))
    (found,) = answers(question, [model], None)
    return found


def _cpu(gigabytes: int, cores: int) -> Hardware:
    total = gigabytes << 30
    facts = DeviceFacts(
        device="cpu", total_memory=total, free_memory=total - SYSTEM, num_threads=cores,
        packed_storages=cpu.packed_storages(),
    )  # fmt: skip
    return Hardware(facts, 1, here=False)


def table(rows: Iterable[tuple[str, Answer]], words: Words) -> Iterator[str]:
    yield f"| {words.plans} |"
    yield "|" + "---|" * len(words.plans.split(" | "))
    for line, answer in rows:
        cells = (
            _hardware(answer, words),
            answer.subject.ref.rpartition("/")[2],
            words.fits if answer.fits else words.no,
            *_numbers(answer, words),
            f"`pagoda doctor {line}`",
        )
        yield f"| {' | '.join(cells)} |"


def _hardware(answer: Answer, words: Words) -> str:
    hardware = answer.hardware
    if hardware.gpu is None:
        facts = hardware.facts
        return words.cpu.format(facts.total_memory >> 30, facts.num_threads)
    each = f" {words.each}" if hardware.count > 1 else ""
    return f"{hardware.name}, {hardware.gpu.memory / (1 << 30):.1f} GiB{each}"


def _numbers(answer: Answer, words: Words) -> tuple[str, str, str]:
    """Weights of a device, the longest context of one request, and how fast it is written."""
    if answer.resolution is None or answer.users is None:
        return "", "", ""
    devices = answer.config.parallel.num_devices
    each = f" {words.each}" if devices > 1 else ""
    weights = format_bytes(answer.resolution.plan.weights)
    speed = words.not_here
    if answer.speeds is not None:
        speed = "{:,.0f}-{:,.0f}".format(*answer.speeds.one.decode_range)
    return f"{weights}{each}", f"{answer.users.longest:,}", speed


def _screens(words: Words) -> Iterator[str]:
    yield f"| {words.screens} |"
    yield "|---|---|"
    unit = 32
    for width, height in SCREENS:
        rows, columns = (edge // unit for edge in fitting_size(height, width, unit, 1, 1 << 24))
        yield f"| {width} x {height} | {rows * columns:,} |"


if __name__ == "__main__":
    sys.exit(main())
