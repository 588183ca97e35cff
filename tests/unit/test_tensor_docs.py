"""Docstrings of what handles tensors stand alone where an editor shows them."""

import ast
import re
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
