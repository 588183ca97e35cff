"""The harnesses by name, and where their inputs lie."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent
Harness = Callable[[bytes], None]

NAMES = (
    "gguf",
    "safetensors",
    "config",
    "draft_head",
    "gguf_vocab",
    "tokenizer_json",
    "text",
    "template",
    "http1",
    "grammar",
    "parsers",
    "agent",
)


def harness(name: str) -> Harness:
    function: Harness = getattr(import_module(f"fuzz.harnesses.{name}"), f"fuzz_{name}")
    return function


def words(name: str) -> tuple[bytes, ...]:
    """What inputs of this kind are made of, for mutations."""
    found: tuple[bytes, ...] = import_module(f"fuzz.harnesses.{name}").WORDS
    return found


def corpus(name: str) -> list[Path]:
    return sorted((ROOT / "corpus" / name).iterdir())


def regressions(name: str) -> list[Path]:
    """Inputs that a harness once failed on."""
    folder = ROOT / "regressions" / name
    return sorted(folder.iterdir()) if folder.is_dir() else []
