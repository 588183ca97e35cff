"""Inputs that reach new code, by Atheris over libFuzzer: `python -m fuzz.guided NAME [flags]`.

The flags are libFuzzer's. Atheris is the extra `fuzz`; it has wheels for Linux on x86-64.
"""

import sys
import tempfile
from pathlib import Path

import atheris

from fuzz.registry import NAMES, corpus, harness, regressions, words
from fuzz.seeded import MAX_INPUT, SECONDS_PER_INPUT

_FOUND = Path("build/fuzz/corpus")


def main() -> None:
    name = sys.argv[1]
    if name not in NAMES:
        sys.exit(f"There is no harness {name!r}; there are {', '.join(NAMES)}.")
    with atheris.instrument_imports(include=["pagoda", "jinja2", "h11", "uvicorn", "gguf"]):
        function = harness(name)
        for path in (*corpus(name), *regressions(name)):
            function(path.read_bytes())  # what is imported late is then imported, too
    found = _FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    folders = [path for path in (found, *_seeds(name)) if path.is_dir()]
    with tempfile.NamedTemporaryFile("w", suffix=".dict") as dictionary:
        dictionary.writelines(f'"{_escaped(word)}"\n' for word in words(name) if word)
        dictionary.flush()
        flags = [
            f"-dict={dictionary.name}",
            f"-max_len={MAX_INPUT}",
            f"-timeout={SECONDS_PER_INPUT * 4:g}",
            "-rss_limit_mb=4096",
            "-print_final_stats=1",
            *sys.argv[2:],
            *map(str, folders),
        ]
        atheris.Setup([f"fuzz-{name}", *flags], function)
        atheris.Fuzz()


def _seeds(name: str) -> list[Path]:
    return list(dict.fromkeys(path.parent for path in (*corpus(name), *regressions(name))))


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
