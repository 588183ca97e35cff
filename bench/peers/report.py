"""The tables of docs/benchmarks/cpu.md."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bench.peers.contenders import PAGODA
from bench.peers.plan import MEASURES, READ
from bench.peers.results import Entry, Results, Section

_RATIO = "x the best peer"
_TITLES = {
    "decode": "Decoding, one request, 128 tokens",
    "prefill": "Reading a prompt of 512 tokens",
    "prefill4k": "Reading a prompt of 4,096 tokens",
    "decode16": "Decoding, 16 requests of 128 + 128 tokens",
    "depth": "What context costs",
    "kl": "Accuracy",
    "vectors": "Vectors of 256 texts",
    "pictures": "Embeddings of a picture of 1,024 x 1,024 pixels",
    "served": "Served",
    "startup": "Start-up",
    "memory": "Memory",
}


def rewrite(path: Path, processor: str, text: str) -> None:
    """Put `text` in the place of the file's tables of this processor; the first time behind those
    of all others."""
    begin, end = f"<!-- measured: {processor} -->", f"<!-- /measured: {processor} -->"
    whole = path.read_text()
    if begin in whole:
        head, rest = whole.split(begin, 1)
        tail = rest.split(end, 1)[1]
    else:
        last = list(re.finditer("<!-- /measured: .* -->\n", whole))[-1]
        head, tail = f"{whole[: last.end()]}\n", f"\n{whole[last.end() :]}"
    path.write_text(f"{head}{begin}\n\n{text}\n{end}{tail}")


def tables(results: Results, processor: str) -> str:
    parts = [f"### {processor}\n"]
    for measure in MEASURES:
        sections = results.of(measure)
        if sections:
            parts.append(f"#### {_TITLES[measure]}\n\n{_TABLES[measure](sections)}\n")
    every = list(results.sections.values())
    return "\n".join([*parts, _machines(every), "", _flags(every), ""])


def _speeds(sections: Sequence[Section]) -> str:
    header = ["file", "engine", "tok/s", "range", _RATIO, "% of the limit"]
    rows = []
    for section in sections:
        limit = _limit(section)
        for name, entry in section.entries.items():
            if name == READ:
                continue
            first = [section.file, name]
            if entry.error:
                rows.append([*first, f"not measured: {entry.error}"])
                continue
            speed = entry.median("tok_s")
            percent = f"{100 * speed / limit:.0f}" if limit else ""
            span = _range(entry.values("tok_s"), 0)
            rows.append(
                [*first, f"{speed:.0f}", span, _ratio(section, entry, "tok_s", max), percent]
            )
        if limit:
            read = section.entries[READ]
            text = f"reads {read.median('gb_s'):.1f} GB/s [{_range(read.values('gb_s'), 1)}]"
            rows.append([section.file, "the limit", f"{limit:.0f}", text])
    if not any(_limit(section) for section in sections):
        header.pop()
    return _table(header, rows)


def _depth(sections: Sequence[Section]) -> str:
    rows = []
    for section in sections:
        for name, entry in section.entries.items():
            if entry.error:
                rows.append([section.file, name, f"not measured: {entry.error}"])
                continue
            figures = [f"{entry.median(key):.2f}" for key in ("near_ms", "far_ms", "added_ms")]
            span = _range(entry.values("added_ms"), 2)
            rows.append(
                [section.file, name, *figures, span, _ratio(section, entry, "added_ms", min)]
            )
    header = [
        "file", "engine", "ms per token at 128", "at 4,096", "added", "range", _RATIO
    ]  # fmt: skip
    return _table(header, rows)


def _accuracy(sections: Sequence[Section]) -> str:
    rows = []
    for section in sections:
        for name, entry in section.entries.items():
            if entry.error:
                rows.append([section.file, name, f"not measured: {entry.error}"])
                continue
            (sample,) = entry.samples
            ratio = _ratio(section, entry, "kl", min)
            agreed = f"{100 * sample['agreed']:.2f}"
            rows.append([section.file, name, f"{1000 * sample['kl']:.3f}", agreed, ratio])
    return _table(["file", "engine", "mean KL, 1e-3 nats", "same first token, %",
                   _RATIO], rows)  # fmt: skip


def _compared(sections: Sequence[Section], key: str, unit: str, digits: int) -> str:
    """Speeds, and how much alike the results are."""
    rows = []
    for section in sections:
        first = next((e for e in section.entries.values() if e.samples), None)
        for name, entry in section.entries.items():
            if entry.error or first is None:
                rows.append([section.file, name, f"not measured: {entry.error}"])
                continue
            alike = np.dot(entry.samples[0]["vector"], first.samples[0]["vector"])
            rows.append(
                [
                    section.file, name, f"{entry.median(key):.{digits}f}",
                    _range(entry.values(key), digits), _ratio(section, entry, key, max),
                    f"{alike:.5f}",
                ]
            )  # fmt: skip
    return _table(["file", "engine", unit, "range", _RATIO,
                   "cosine of the first vector to the first engine's"], rows)  # fmt: skip


def _served(sections: Sequence[Section]) -> str:
    keys = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99")
    rows = []
    for section in sections:
        for name, entry in section.entries.items():
            if entry.error:
                rows.append([name, "", f"not measured: {entry.error}"])
            for concurrency in sorted({sample["concurrency"] for sample in entry.samples}):
                part = [s for s in entry.samples if s["concurrency"] == concurrency]
                speeds = [sample["tok_s"] for sample in part]
                figures = [f"{statistics.median(s[key] for s in part):.1f}" for key in keys]
                speed = f"{statistics.median(speeds):.1f}"
                rows.append([name, f"{concurrency:.0f}", speed, _range(speeds, 1), *figures])
    header = ["server", "concurrency", "output tok/s", "range", "TTFT p50 ms", "TTFT p99",
              "ITL p50 ms", "ITL p99"]  # fmt: skip
    return _table(header, rows)


def _startup(sections: Sequence[Section]) -> str:
    rows = []
    for section in sections:
        for name, entry in section.entries.items():
            if entry.error:
                rows.append([name, f"not measured: {entry.error}"])
                continue
            beyond = [s["first_token"] - s["import_torch"] for s in entry.samples]
            rows.append(
                [
                    name, f"{entry.median('first_token'):.2f}",
                    _range(entry.values("first_token"), 2), f"{entry.median('import_torch'):.2f}",
                    f"{statistics.median(beyond):.2f}",
                ]
            )  # fmt: skip
    header = ["server", "command to first token, s", "range", "`import torch` alone", "beyond it"]
    return _table(header, rows)


def _memory(sections: Sequence[Section]) -> str:
    rows = []
    for section in sections:
        for name, entry in section.entries.items():
            if entry.error:
                rows.append([name, f"not measured: {entry.error}"])
                continue
            (sample,) = entry.samples
            peak, rest = (sample[key] / 1e6 for key in ("peak", "without_kv"))
            rows.append([name, f"{peak:.0f}", f"{rest:.0f}"])
        budget = 2.5 * section.file_bytes / 1e6 + 250
        rows.append(["the budget: 2.5 x the q4_1 file + 250 MB", "", f"{budget:.0f}"])
    return _table(["server", "peak PSS, MB", "without the KV pool"], rows)


_TABLES = {
    "decode": _speeds,
    "prefill": _speeds,
    "prefill4k": _speeds,
    "decode16": _speeds,
    "depth": _depth,
    "kl": _accuracy,
    "vectors": partial(_compared, key="texts_s", unit="texts/s", digits=0),
    "pictures": partial(_compared, key="pictures_min", unit="pictures/min", digits=2),
    "served": _served,
    "startup": _startup,
    "memory": _memory,
}


def _machines(sections: Sequence[Section]) -> str:
    """Where, when, and how quiet it was."""
    lines = sorted({f"{s.machine}; {s.threads} threads each; {s.when}." for s in sections})
    others = [cores for s in sections for entry in s.entries.values() for cores in entry.others]
    if others:
        lines.append(
            f"Other processes used {statistics.median(others):.2f} cores meanwhile (median of "
            f"{len(others)} samples; {max(others):.2f} at most)."
        )
    return "\n".join(lines)


def _flags(sections: Sequence[Section]) -> str:
    seen: dict[tuple[str, str, str], None] = {}
    for section in sections:
        for name, entry in section.entries.items():
            if entry.flags:
                seen[name, entry.version, entry.flags.replace("|", "\\|")] = None
    return _table(["engine", "version", "flags"], [list(row) for row in seen])


def _limit(section: Section) -> float:
    """Tokens a second at which the weights would come at the machine's reading speed; 0 if that
    was not measured."""
    read = section.entries.get(READ)
    if read is None or not read.samples:
        return 0.0
    return read.median("gb_s") * 1e9 / section.streamed_bytes


def _ratio(
    section: Section, entry: Entry, key: str, best: Callable[[Iterable[float]], float]
) -> str:
    """To the median of the peer that did best in this section."""
    peers = [
        peer.median(key)
        for name, peer in section.entries.items()
        if name not in (PAGODA, READ) and peer.samples
    ]
    return f"{entry.median(key) / best(peers):.2f}" if peers and best(peers) else ""


def _range(values: Sequence[float], digits: int) -> str:
    return f"{min(values):.{digits}f}-{max(values):.{digits}f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [*row, *[""] * (len(header) - len(row))][: len(header)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
