"""Compile the Triton kernels ahead of time, without a GPU, and say what they need.

    python tools/triton_table.py --write          # docs/benchmarks/triton.md, what is stale in it
    python tools/triton_table.py --write --only gemm.tiles    # what is stale of that
    python tools/triton_table.py --check          # compiles nothing; fails where the page is stale
    python tools/triton_table.py --one-of-each    # a form of each kernel, targets in turn
    python tools/triton_table.py --only "head 256" --targets 80 90

Registers and spills are what the ptxas in the triton package says, shared memory what Triton
does. Exits with 1 where a kernel does not compile, asks for more shared memory than its target has,
spills without a reason, or needs other than what the page says of the same Triton.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import triton  # noqa: E402 - behind the path

from pagoda.kernels.triton.target import SHARED_MEMORY  # noqa: E402 - behind the path
from tools.triton_compile import (  # noqa: E402 - behind the path
    Form,
    Launch,
    Needs,
    all_kernels,
    all_launches,
    fingerprint,
    needs,
)

PAGE = ROOT / "docs" / "benchmarks" / "triton.md"
TARGETS = tuple(SHARED_MEMORY)
_SAVED = 10
"""New cells after which the page is written, so that an interrupted run can go on."""
SPILLS = {
    "fp32": "fp32 does not use tensor cores here: a tile's products are in registers",
    "old": "Triton does not use tensor cores here: a tile's products are in registers",
    "room": "ptxas saves registers to fit one more program on a processor",
    "codes": "sums and the codes of one iteration fill the registers",
    "more": "IQ4's levels, or scales of 16 columns, take registers beside sums and codes",
    "measured": "this form was faster on an H100 than those without spills",
    "state": "one chunk's part of the state fills the registers, and no product can be narrower",
}
_MOST_REGISTERS, _FEW_BYTES = 255, 64


class Row(NamedTuple):
    """What a form needs on each target that is offered it."""

    fingerprint: str
    needs: dict[int, Needs]


Rows = dict[Form, Row]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--check", action="store_true", help="compare it with the kernels")
    parser.add_argument(
        "--one-of-each", action="store_true", help="a form of each kernel, targets in turn"
    )
    parser.add_argument("--only", default="", help="part of the kernel and form, as printed")
    parser.add_argument("--targets", nargs="*", type=int, default=TARGETS)
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
    options = parser.parse_args()
    if options.check:
        return _report(_stale())
    if options.write:
        return _write(options.jobs, options.only)
    if options.one_of_each:
        return _report(chain(_amiss(_read()[1]), _compared(list(_one_of_each()), options.jobs)))
    chosen = _matching(options.only)
    wanted = [(form, launch) for form, launch in chosen if launch.target in options.targets]
    return _report(_compared(wanted, options.jobs))


def _compared(wanted: list[tuple[Form, Launch]], jobs: int) -> Iterator[str]:
    """Compile; problems, and what the page has otherwise of the same kernel and compiler."""
    version, rows = _read()
    for form, target, need, problem in _compile(wanted, jobs):
        row = rows.get(form)
        if problem:
            yield problem
            continue
        same = row is not None and row.fingerprint == fingerprint(all_launches()[form])
        known = row.needs.get(target, need) if row and same else need
        if version == triton.__version__ and known != need:
            where = f"{' | '.join(form)} on sm_{target}"
            yield f"{where} needs {need}; {PAGE.name} says {known}"


def _report(wrong: Iterable[str]) -> int:
    found = list(wrong)
    print(*found, sep="\n", file=sys.stderr)
    return 1 if found else 0


def _matching(text: str) -> Iterator[tuple[Form, Launch]]:
    for form, by_target in all_launches().items():
        for launch in by_target.values():
            if text in "\t".join(form):
                yield form, launch


def _one_of_each() -> Iterator[tuple[Form, Launch]]:
    """The first form of each kernel for one target, the next one for each."""
    kernels: dict[str, list[tuple[Form, Launch]]] = {}
    for form, launch in _matching(""):
        kernels.setdefault(form.kernel, []).append((form, launch))
    for turn, kernel in enumerate(sorted(kernels)):
        # Where a target is not offered the kernel, the next one that is.
        order = (*TARGETS[turn % len(TARGETS) :], *TARGETS)
        yield min(kernels[kernel], key=lambda one: order.index(one[1].target))


def _stale() -> Iterator[str]:
    """What is wrong with the page, or no longer so."""
    _, rows = _read()
    yield from _amiss(rows)
    wanted = all_launches()
    for form, by_target in wanted.items():
        row = rows.get(form)
        if row is None or row.needs.keys() != by_target.keys():
            yield f"{' | '.join(form)} is not in {PAGE.name}"
        elif row.fingerprint != fingerprint(by_target):
            yield f"{' | '.join(form)} has changed since {PAGE.name} was written"
    for form in rows.keys() - wanted.keys():
        yield f"{' | '.join(form)} is in {PAGE.name}, but no example launches it"


def _amiss(rows: Rows) -> Iterator[str]:
    """What is wrong with the page, whether or not it is of the kernels as they are."""
    for kernel in sorted(all_kernels() - {form.kernel for form in rows}):
        yield (
            f"{kernel} is not in {PAGE.name}: launch it in an example in tools/triton_examples and "
            "run python tools/triton_table.py --write"
        )
    for form, row in rows.items():
        yield from problems(form, row.needs)


def _write(jobs: int, only: str) -> int:
    """Compile what the page does not have yet, or has of another version of Triton; with `only`
    what matches, and other rows stay as they are."""
    version, rows = _read()
    wanted = all_launches()
    fresh: Rows = {}
    for form, by_target in wanted.items():
        row, mark = rows.get(form), fingerprint(by_target)
        if row is not None and row.needs.keys() == by_target.keys():
            known = row.fingerprint == mark and version == triton.__version__
            fresh[form] = row if known or only not in "\t".join(form) else Row(mark, {})
        elif only in "\t".join(form):
            fresh[form] = Row(mark, {})
    missing = [
        (form, launch)
        for form, row in fresh.items()
        if not row.needs
        for launch in wanted[form].values()
    ]

    def save() -> None:
        whole = {form: row for form, row in fresh.items() if len(row.needs) == len(wanted[form])}
        PAGE.write_text(_page(whole))

    found = []
    for count, (form, target, need, problem) in enumerate(_compile(missing, jobs)):
        if need is not None:
            fresh[form].needs[target] = need
        if problem:
            found.append(problem)
        if count % _SAVED == 0:
            save()
    save()
    return _report(found)


def _compile(
    wanted: list[tuple[Form, Launch]], jobs: int
) -> Iterator[tuple[Form, int, Needs | None, str]]:
    """(form, target, what it needs, problem), printed too."""
    forms: dict[str, list[tuple[Form, int]]] = {}
    for form, launch in wanted:
        forms.setdefault(launch.fingerprint(), []).append((form, launch.target))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for mark, need in zip(forms, pool.map(_needs_of, forms), strict=True):
            for form, target in forms[mark]:
                if isinstance(need, str):
                    yield form, target, None, need
                    continue
                print(*form, target, *need, sep="\t", flush=True)
                yield form, target, need, "; ".join(problems(form, {target: need}))


def _needs_of(mark: str) -> Needs | str:
    """Of the launch with this fingerprint; or why it does not compile."""
    try:
        return needs(_by_mark()[mark])
    except RuntimeError as error:
        return str(error)


@cache
def _by_mark() -> dict[str, Launch]:
    return {launch.fingerprint(): launch for _, launch in _matching("")}


def problems(form: Form, by_target: dict[int, Needs]) -> Iterator[str]:
    """Too much shared memory, and spills that no reason is known for."""
    for target, need in by_target.items():
        where = f"{' | '.join(form)} on sm_{target}"
        room = SHARED_MEMORY[target] * 1024
        if need.shared > room:
            yield f"{where} needs {need.shared} bytes of shared memory; there are {room}"
        if need.spilled and not _reason(form, target, need):
            yield f"{where} spills {need.spilled} bytes, for no reason that is known"


def _reason(form: Form, target: int, need: Needs) -> str:
    """For spilling."""
    if need.registers < _MOST_REGISTERS and need.spilled <= _FEW_BYTES:
        return SPILLS["room"]
    if form.kernel in ("attention.paged_attention", "experts.grouped") and target == 90:
        return SPILLS["measured"]
    if form.kernel == "delta_net.by_chunk":
        return SPILLS["state"] if need.spilled <= _FEW_BYTES else ""
    if form.kernel in ("gemm.tiles", "experts.grouped") and need.spilled <= _FEW_BYTES:
        return SPILLS["codes"]
    takes_more = form.kernel == "gemm.tiles" and re.search("IQ4|Q6_K", form.label)
    if takes_more and need.spilled <= 2 * _FEW_BYTES:
        return SPILLS["more"]
    if target < 80:
        return SPILLS["old"]
    return SPILLS["fp32"] if form.dtype == "float32" else ""


def _page(rows: Rows) -> str:
    lines = [
        "# What the Triton kernels need",
        "",
        "Each cell has the registers per thread, the bytes of shared memory per program, and the "
        "bytes that a thread spills, if any. A cell is empty where a form is not offered.",
        "",
        f"Triton {triton.__version__} compiled these kernels without a GPU. The figures are the "
        "compiler's: nothing here was measured on hardware.",
        "",
        "`python tools/triton_table.py --write` makes this page. `source` is a hash of the "
        "kernel's code and of how it is launched.",
        "",
        "| kernel | form | activations | "
        + " | ".join(f"sm_{target}" for target in TARGETS)
        + " | why it spills | source |",
        "|" + " --- |" * 3 + " --: |" * len(TARGETS) + " --- | --- |",
    ]
    for form, row in sorted(rows.items(), key=lambda item: item[0].kernel):
        cells = [_cell(row.needs.get(target)) for target in TARGETS]
        spilling = ((target, need) for target, need in row.needs.items() if need.spilled)
        why = "; ".join(dict.fromkeys(_reason(form, *one) for one in spilling))
        lines.append("| " + " | ".join((*form, *cells, why, row.fingerprint)) + " |")
    return "\n".join([*lines, "", *_costs(rows)]) + "\n"


def _costs(rows: Rows) -> Iterator[str]:
    """The part of the page about inner loops of products."""
    yield "## What a weight costs in a product"
    yield ""
    yield (
        "The first number is the instructions of the inner loop per weight that a thread decodes "
        "and multiplies. The second is the bytes of codes that a processor has requested at once. "
        "It assumes a GPU with 132 processors, and as many programs on each as its registers and "
        "shared memory hold, but no more than the product has. "
        "Both are counted in the machine code (`tools/sass.py`). sm_70 has no figures, because "
        "the disassembler of CUDA 13 does not support it."
    )
    yield ""
    yield "| kernel | form | activations | " + " | ".join(f"sm_{t}" for t in TARGETS) + " |"
    yield "|" + " --- |" * 3 + " --: |" * len(TARGETS)
    for form, row in sorted(rows.items(), key=lambda item: item[0].kernel):
        if any(need.per_weight for need in row.needs.values()):
            cells = [_cost_cell(row.needs.get(target)) for target in TARGETS]
            yield "| " + " | ".join((*form, *cells)) + " |"


def _cost_cell(need: Needs | None) -> str:
    return (
        "" if need is None or not need.per_weight else f"{need.per_weight:.2f} / {need.under_way}"
    )


def _cell(need: Needs | None) -> str:
    if need is None:
        return ""
    spilled = f" / {need.spilled} spilled" if need.spilled else ""
    return f"{need.registers} / {need.shared}{spilled}"


def _read() -> tuple[str, Rows]:
    """(version of Triton, rows) of the page."""
    text = PAGE.read_text() if PAGE.exists() else ""
    version = re.search(r"^Triton ([\w.]+) compiled", text, re.MULTILINE)
    rows: Rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 + len(TARGETS) and Form(*cells[:3]) in rows:
            _add_costs(rows[Form(*cells[:3])], cells[3:])
            continue
        if len(cells) != 5 + len(TARGETS) or not re.fullmatch(r"[0-9a-f]{10}", cells[-1]):
            continue
        by_target = {}
        for target, cell in zip(TARGETS, cells[3:-2], strict=True):
            if cell:
                registers, shared, *spilled = map(int, re.findall(r"\d+", cell))
                by_target[target] = Needs(registers, shared, *(spilled or [0]))
        rows[Form(*cells[:3])] = Row(cells[-1], by_target)
    return version[1] if version else "", rows


def _add_costs(row: Row, cells: list[str]) -> None:
    for target, cell in zip(TARGETS, cells, strict=True):
        if cell:
            per_weight, under_way = cell.split(" / ")
            row.needs[target] = row.needs[target]._replace(
                per_weight=float(per_weight), under_way=int(under_way)
            )


if __name__ == "__main__":
    sys.exit(main())
