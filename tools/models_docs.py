"""The generated part of docs/models.md: what is supported, by the registries, and how it is tested,
by the tables of the tests. Those are read, not imported, which would take transformers."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pagoda.arch.registry import CONFIG_ARCHITECTURES, GGUF_ARCHITECTURES
from pagoda.base.registry import Registry

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "models"
GOLDEN = ROOT / "tests" / "golden" / "llama_cpp"
# A table of families (name to transformers' classes), and tables of cases by family.
DECODERS, ENCODERS = TESTS / "tiny.py", TESTS / "encoders.py"
NONE = "-"


def sections() -> dict[str, Iterable[str]]:
    return {"models": _models()}


def _models() -> Iterator[str]:
    yield (
        "| models | class in config.json | GGUF | safetensors | GGUF | CPU steps | llama.cpp "
        "| tests of its own |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    decoders, encoders = _classes(DECODERS), _classes(ENCODERS)
    counts = [
        _cases("test_transformers.py", "CASES", decoders)
        + _cases("test_bert.py", "CASES", encoders),
        _cases("test_gguf.py", "MODELS", decoders)
        + _cases("test_encoder_gguf.py", "MODELS", encoders),
        _cases("test_program.py", "MODELS", decoders),
        _golden(),
    ]
    ggufs = _by_module(GGUF_ARCHITECTURES)
    for module, names in _by_module(CONFIG_ARCHITECTURES).items():
        tested = [sum(count[name] for name in names) for count in counts]
        cells = [
            _first_paragraph(module),
            _code(names),
            _code(ggufs.get(module, [])),
            *(str(count or NONE) for count in tested),
            _own_tests(module),
        ]
        yield f"| {' | '.join(cells)} |"


def _by_module(registry: Registry) -> dict[str, list[str]]:
    """Names of a registry by the file that reads them."""
    modules: dict[str, list[str]] = {}
    for name in registry:
        modules.setdefault(registry.get(name).__module__, []).append(name)
    return modules


def _first_paragraph(module: str) -> str:
    path = ROOT / "src" / (module.replace(".", "/") + ".py")
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).rstrip(".").replace("|", "\\|")


def _own_tests(module: str) -> str:
    file = f"test_{module.rpartition('.')[2]}.py"
    return _code([file] if (TESTS / file).is_file() else [])


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or NONE


def _classes(path: Path) -> dict[str, str]:
    """Family to the class of its checkpoints."""
    found = {}
    for family, value in _table(path, "FAMILIES"):
        assert isinstance(value, ast.Tuple) and isinstance(value.elts[1], ast.Name)
        found[family] = value.elts[1].id
    return found


def _cases(file: str, table: str, classes: dict[str, str]) -> Counter[str]:
    """How many cases of a test have each class."""
    found: Counter[str] = Counter()
    for _, value in _table(TESTS / file, table):
        assert isinstance(value, ast.Tuple) and isinstance(value.elts[0], ast.Constant)
        found[classes[str(value.elts[0].value)]] += 1
    return found


def _golden() -> Counter[str]:
    found: Counter[str] = Counter()
    for name, value in _table(ROOT / "tools" / "llama_golden.py", "MODELS"):
        assert isinstance(value, ast.Tuple) and isinstance(value.elts[0], ast.Constant)
        found[str(value.elts[0].value)] += (GOLDEN / f"{name}.npz").is_file()
    return found


def _table(path: Path, name: str) -> Iterator[tuple[str, ast.expr]]:
    """Entries of a dictionary at the top of a file."""
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert isinstance(node.value, ast.Dict), f"{path}: {name} is no plain table"
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                assert isinstance(key, ast.Constant)
                yield str(key.value), value
            return
    raise ValueError(f"{path} has no table {name}")
