"""Nothing that comes from outside ever runs: not from files, requests or a model's output."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import pagoda
from pagoda.arch.registry import spec_for
from pagoda.base.errors import UnsupportedModelError
from pagoda.weights.files import open_model

SOURCES = Path(pagoda.__file__).parent
# pickle and what is built on it, and what runs or compiles text.
MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "pty", "code"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    ("torch", "load"), ("torch", "hub"), ("os", "system"), ("os", "popen"), ("yaml", "load"),
    ("yaml", "unsafe_load"), ("yaml", "full_load"), ("importlib", "util"), ("runpy", "run_path"),
}  # fmt: skip


def dangers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from MODULES & {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Name) and node.id in CALLS:
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in METHODS:
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg in ("shell", "trust_remote_code"):
            yield str(node.arg)


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from dill import loads", "eval(x)", "f = exec", "torch.load(path)",
     "yaml.load(x)", "run(x, shell=True)", "from_pretrained(x, trust_remote_code=True)"],
)  # fmt: skip
def test_the_search_finds_what_it_is_for(text: str) -> None:
    assert list(dangers(ast.parse(text)))


def test_nothing_is_evaluated_or_unpickled() -> None:
    files = list(SOURCES.rglob("*.py"))
    assert len(files) > 100
    for file in files:
        assert not list(dangers(ast.parse(file.read_text()))), file


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "EvilForCausalLM"])
def test_a_checkpoint_brings_no_code(tmp_path: Path, architecture: str) -> None:
    marker = tmp_path / "it-ran"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(marker)!r}, 'w').close()")
    code = {"AutoConfig": "modeling_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    config = {
        "architectures": [architecture], "model_type": "llama", "auto_map": code,
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 260,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = open_model(tmp_path)
    if architecture == "LlamaForCausalLM":
        assert spec_for(files.config, {}, ()).vocab_size == 260
    else:
        with pytest.raises(UnsupportedModelError, match=architecture):
            spec_for(files.config, {}, ())
    assert not marker.exists()
