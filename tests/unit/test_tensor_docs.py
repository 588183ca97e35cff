"""Docstrings of what handles tensors stand alone where an editor shows them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

import pagoda

_SRC = Path(pagoda.__file__).parent
_FORMATS = [
    pytest.param(node, id=node.name)
    for path in sorted((_SRC / "kernels/ref/dequant").glob("*.py"))
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef)
    and node.name.upper() in GGMLQuantizationType.__members__
    and [argument.arg for argument in node.args.args] == ["blocks"]
]


@pytest.mark.parametrize("function", _FORMATS)
def test_a_block_formats_docstring_gives_ggufs_sizes(function: ast.FunctionDef) -> None:
    elements, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[function.name.upper()]]
    shapes = re.findall(r"(\w+) \[blocks, (\d+)\]", ast.get_docstring(function) or "")
    assert shapes == [("fp32", str(elements)), ("uint8", str(nbytes))]


_SHAPE = re.compile(r"\[[^\]]*\]|any shape|\b[Aa]s `|`Ops\.")


def _public_functions(tree: ast.AST, of: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield of + node.name, node


@pytest.mark.parametrize("folder", ["kernels", "layers", "runtime"])
def test_what_takes_or_gives_tensors_names_their_shapes(folder: str) -> None:
    """Or it says whose forms it has, or that any will do. Kernels that Triton compiles have
    pointers."""
    found = []
    for path in sorted((_SRC / folder).rglob("*.py")):
        for name, function in _public_functions(ast.parse(path.read_text())):
            arguments = [*function.args.args, *function.args.kwonlyargs]
            types = [part.annotation for part in arguments] + [function.returns]
            written = " ".join(ast.unparse(part) for part in types if part is not None)
            compiled = any("jit" in ast.unparse(part) for part in function.decorator_list)
            if not re.search(r"\bTensor\b", written) or compiled:
                continue
            if not _SHAPE.search(ast.get_docstring(function) or ""):
                found.append(f"{path.relative_to(_SRC)}:{function.lineno}: {name}")
    assert not found, "\n".join(found)
