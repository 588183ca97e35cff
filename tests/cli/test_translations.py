"""The Chinese pages say what the English ones say: sections, commands, code and links are the same,
and what docs/troubleshooting.md quotes is what the code prints."""

import ast
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAIRS = {
    "README.md": "README.zh-CN.md",
    "docs/agent.md": "docs/zh/agent.md",
    "docs/doctor.md": "docs/zh/doctor.md",
    "docs/gpu.md": "docs/zh/gpu.md",
    "docs/guides/2080ti.md": "docs/zh/guides/2080ti.md",
    "docs/guides/agent-model.md": "docs/zh/guides/agent-model.md",
    "docs/guides/clients.md": "docs/zh/guides/clients.md",
    "docs/models.md": "docs/zh/models.md",
    "docs/proxy.md": "docs/zh/proxy.md",
    "docs/troubleshooting.md": "docs/zh/troubleshooting.md",
}
PARTS = {
    "docs/gpu.md": (
        "NVIDIA GPUs",
        "Use",
        "Which kernels attend",
        "The KV cache in fp8",
        "Models larger than the GPU",
    )
}
"""Of these pages only some sections are translated: those for whoever uses Pagoda."""

CHINESE = {chinese: english for english, chinese in PAIRS.items()}
BOTH = [*PAIRS, *CHINESE]
HEADING = re.compile(r"(#+) (?:<a id=\"([^\"]+)\"></a>)?(.*)")
"""A Chinese heading has the English one's anchor in front, so that links to it hold in both."""
LINK = re.compile(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"")
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
PLAIN = re.compile(r"\s*(?!\d+\. )[^\s|#<-]")
REMARK = re.compile(r"\s{2,}# .*")
GENERATED = re.compile(r"<!-- generated: .*?<!-- end: \w+ -->", re.DOTALL)


@dataclass
class Section:
    line: int
    level: int
    heading: str
    anchor: str
    blocks: list[list[str]] = field(default_factory=list)
    """Lines of each fenced block, its opening one first, without remarks."""
    prose: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.prose)

    @property
    def spans(self) -> set[str]:
        """What stands in backticks, wherever a line may be broken."""
        return {" ".join(found[1].split()) for found in CODE.findall(self.text)}

    @property
    def rows(self) -> int:
        return sum(line.startswith("|") for line in self.prose)


@cache
def sections(name: str) -> list[Section]:
    """A page's sections without the line that leads to the other language. A generated part is a
    link to where it stands in the English page: a Chinese one has such a link, or the part."""
    path = ROOT / name
    text = GENERATED.sub(lambda part: "[](SELF)" + "\n" * part[0].count("\n"), path.read_text())
    found: list[Section] = []
    block: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        heading = HEADING.fullmatch(line) if block is None else None
        if line.startswith("```"):
            block = None if block is not None else [line]
            if block is not None:
                found[-1].blocks.append(block)
        elif block is not None:
            block.append(REMARK.sub("", line))
        elif heading:
            anchor = heading[2] or slug(heading[3])
            found.append(Section(number, len(heading[1]), heading[3], anchor, [], [line]))
        elif not is_switch(number, line):
            page = os.path.relpath(CHINESE.get(name, name), Path(name).parent)
            place = f"{page}#{found[-1].anchor}"
            found[-1].prose.append(line.replace("SELF", place))
    return found


def is_switch(number: int, line: str) -> bool:
    return number == 3 and line.startswith(("[中文](", "[English]("))


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(name: str, section: Section) -> Counter[str]:
    """Places in the repository, those of a Chinese page by the English page's name."""
    places: Counter[str] = Counter()
    for match in LINK.finditer(section.text):
        link = match[1] or match[2]
        if link.startswith(("http:", "https:")):
            places[link] += 1
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / name).parent / target if target else ROOT / name
        place = path.resolve().relative_to(ROOT).as_posix()
        translated = place in (PAIRS if name in PAIRS else CHINESE)
        is_part = place == name and bool(target)
        if translated and not is_part:
            place = CHINESE.get(place, place)
        places[f"{place}#{anchor}" if anchor else place] += 1
    return places


def chosen(english: str) -> list[Section]:
    found = sections(english)
    if english not in PARTS:
        return found
    return [section for section in found if section.heading in PARTS[english]]


def differences(english: str) -> list[str]:
    """Where the two pages part, each with its place in both."""
    chinese, found = PAIRS[english], []
    for ours, theirs in zip_longest(chosen(english), sections(chinese)):
        if ours is None or theirs is None:
            extra, page = (ours, english) if ours else (theirs, chinese)
            found.append(f"{page}:{extra.line}: {extra.heading!r} is in this page alone")
            break
        place = f"{english}:{ours.line} {ours.heading!r} and {chinese}:{theirs.line}: "
        found += [place + what for what in unlike(english, ours, theirs)]
        if ours.level != theirs.level or ours.anchor != theirs.anchor and ours.level > 1:
            break  # what follows is compared with something else
    return found


def unlike(english: str, ours: Section, theirs: Section) -> list[str]:
    found = []
    if ours.level != theirs.level:
        found.append(f"heading of level {ours.level} and {theirs.level}")
    if ours.level > 1 and ours.anchor != theirs.anchor:
        found.append(f"anchor {ours.anchor!r} and {theirs.anchor!r}")
    if len(ours.blocks) != len(theirs.blocks):
        found.append(f"{len(ours.blocks)} and {len(theirs.blocks)} blocks")
    for one, other in zip(ours.blocks, theirs.blocks, strict=False):
        pairs = zip_longest(one, other, fillvalue="(nothing)")
        found += [f"{a!r} and {b!r}" for a, b in pairs if a != b]
    here, there = links(english, ours), links(PAIRS[english], theirs)
    if here != there:
        found.append(f"links {sorted((here - there) | (there - here))}")
    if ours.spans != theirs.spans:
        found.append(f"code {sorted(ours.spans ^ theirs.spans)}")
    if ours.rows != theirs.rows:
        found.append(f"{ours.rows} and {theirs.rows} rows of tables")
    return found


@pytest.mark.parametrize("english", PAIRS)
def test_a_translation_is_in_step(english):
    assert differences(english) == []


def test_the_list_of_pairs_is_complete():
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/zh").rglob("*.*")}
    assert {*there, "README.zh-CN.md"} == set(CHINESE)
    guides = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/guides").iterdir()}
    assert guides <= set(PAIRS)
    for english, parts in PARTS.items():
        assert {*parts} <= {section.heading for section in sections(english)}


@pytest.mark.parametrize("english", PAIRS)
def test_each_links_to_the_other_at_its_top(english):
    chinese = PAIRS[english]
    forth, back = (
        os.path.relpath(to, Path(of).parent) for of, to in ((english, chinese), (chinese, english))
    )
    assert (ROOT / english).read_text().splitlines()[2] == f"[中文]({forth})"
    assert (ROOT / chinese).read_text().splitlines()[2] == f"[English]({back})"


@pytest.mark.parametrize("name", BOTH)
def test_links_lead_somewhere(name):
    for match in LINK.finditer((ROOT / name).read_text()):
        link = match[1] or match[2]
        if link.startswith(("http:", "https:")):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), link
        if anchor:
            page = path.resolve().relative_to(ROOT).as_posix()
            assert anchor in {section.anchor for section in sections(page)}, link


@pytest.mark.parametrize("chinese", CHINESE)
def test_chinese_and_latin_stand_apart(chinese):
    """As Chinese documentation is set: a space between a Chinese sign and a Latin word."""
    for section in sections(chinese):
        for line in section.prose:
            touching = re.search(r"[\u4e00-\u9fff][A-Za-z0-9`]|[A-Za-z0-9`%][\u4e00-\u9fff]", line)
            assert touching is None, f"{chinese}: {line}"


@pytest.mark.parametrize("chinese", CHINESE)
def test_a_chinese_paragraph_is_one_line(chinese):
    """A line break inside of one shows as a gap between two signs."""
    for section in sections(chinese):
        for one, other in pairwise(section.prose):
            broken = PLAIN.match(one) and PLAIN.match(other)
            assert not broken, f"{chinese}: {other}"


def strings(node: ast.AST) -> str | None:
    """A literal as text, with `...` for what is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sdr]|\{\w+[^{}]*\}", "...", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(strings(part) or "..." for part in node.values)
    return None


JOINT = re.compile(r"\"\s+f?\"")
"""Between two halves of a long literal."""


@cache
def sources() -> dict[Path, str]:
    """Pagoda's sources, with long literals in one piece."""
    paths = sorted((ROOT / "src/pagoda").rglob("*.py"))
    return {path: JOINT.sub("", path.read_text()) for path in paths}


def printed(message: str) -> bool:
    """Whether a literal that is no docstring has it."""
    part = max(message.split("..."), key=len)
    for path, text in sources().items():
        if part not in text:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            texts = map(strings, ast.iter_child_nodes(node))
            if any(message in found for found in texts if found):
                return True
    return False


@cache
def topics() -> set[str]:
    """Of what the doctor finds to be wrong, `gpu 0` and its like as `gpu N`."""
    found = set()
    for path, text in sources().items():
        if "pagoda/doctor/" not in path.as_posix() or "Finding(" not in text:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding":
                topic, status = (ast.unparse(arg) for arg in node.args[:2])
                if status in ("'WARN'", "'FAIL'"):
                    found.add("gpu N" if topic == "topic" else ast.literal_eval(topic))
    return found


def quoted() -> list[str]:
    pages = sections("docs/troubleshooting.md")
    headings = [CODE.findall(section.heading) for section in pages if section.level == 3]
    assert all(headings)
    return [span for found in headings for _, span in found]


def test_every_finding_has_an_entry():
    assert topics() <= {span.strip() for span in quoted()}


@pytest.mark.parametrize("message", sorted({span.strip() for span in quoted()}))
def test_a_quoted_message_is_printed(message):
    assert message in topics() or printed(message)
