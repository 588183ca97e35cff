"""What was measured: one section per measure and file, each the work of one run."""

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Entry:
    """One contender's figures in a section."""

    samples: list[dict[str, float]] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """Cores that other processes used, per sample."""
    error: str = ""
    version: str = ""
    flags: str = ""

    def values(self, key: str) -> list[float]:
        return [sample[key] for sample in self.samples]

    def median(self, key: str) -> float:
        return statistics.median(self.values(key))


@dataclass
class Section:
    measure: str
    file: str
    when: str
    machine: str
    threads: int
    entries: dict[str, Entry]
    streamed_bytes: int = 0
    """Bytes of weights that a token's step reads."""
    file_bytes: int = 0


@dataclass
class Results:
    sections: dict[str, Section] = field(default_factory=dict)

    def add(self, section: Section) -> None:
        """In place of an older one: figures of two runs do not mix."""
        self.sections[f"{section.measure} {section.file}"] = section

    def of(self, measure: str) -> list[Section]:
        return [section for section in self.sections.values() if section.measure == measure]

    @classmethod
    def load(cls, path: Path) -> "Results":
        if not path.is_file():
            return cls()
        return cls({key: _section(value) for key, value in json.loads(path.read_text()).items()})

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        sections = {key: asdict(section) for key, section in self.sections.items()}
        path.write_text(json.dumps(sections, indent=1) + "\n")


def _section(value: dict[str, Any]) -> Section:
    entries = {name: Entry(**entry) for name, entry in value.pop("entries").items()}
    return Section(entries=entries, **value)
