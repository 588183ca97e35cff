"""Compile the Triton kernels ahead of time, without a GPU, and write what they need.

    python tools/triton_table.py [--files attention kv_cache] [--targets 80 90] [--write]

Registers and spills are what the ptxas in the triton package says, shared memory what Triton
does. Exits with 1 where a kernel asks for more shared memory than its target has, or spills
without a reason.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402 - behind the path
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import get_ptxas  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from pagoda.kernels.triton.target import SHARED_MEMORY, assuming  # noqa: E402
from tools.triton_examples import examples  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks" / "triton.md"
TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int8: "i8",
    torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.bool: "i1", torch.float64: "fp64",
}  # fmt: skip
SPILLS = {
    "fp32": "fp32 has no tensor cores here: a tile's products are in registers",
    "old": "no tensor cores here: a tile's products are in registers",
    "split": "fp32 as three products of tf32: keys of a chunk are in registers in two parts",
}


class Launch(NamedTuple):
    """What an op asked of Triton."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]


class Row(NamedTuple):
    """A line of the table."""

    kernel: str
    label: str
    dtype: str
    target: int
    registers: int
    spilled: int
    """Bytes."""
    shared: int
    """Bytes."""

    @property
    def reason(self) -> str:
        """For spilling."""
        if not self.spilled:
            return ""
        if self.kernel == "delta_net.rule":
            return SPILLS["split"]
        if self.target < 80:
            return SPILLS["old"]
        return SPILLS["fp32"] if self.dtype == "float32" else ""

    @property
    def problem(self) -> str:
        where = f"{self.kernel} ({self.label}, {self.dtype}) on sm_{self.target}"
        room = SHARED_MEMORY[self.target] * 1024
        if self.shared > room:
            return f"{where} needs {self.shared} bytes of shared memory; there are {room}"
        if self.spilled and not self.reason:
            return f"{where} spills {self.spilled} bytes, for no reason that is known"
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", nargs="*", default=[], help="of kernels; all, if not given")
    parser.add_argument("--targets", nargs="*", type=int, default=list(SHARED_MEMORY))
    parser.add_argument("--only", default="", help="part of the labels to compile")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    # Triton 3.9 tells of a default that 3.10 changes.
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    rows = []
    for target in options.targets:
        for row in _rows(options.files, target, options.only):
            print(*row, row.problem, sep="\t", flush=True)
            rows.append(row)
    if options.write:
        PAGE.write_text(_page(rows, options.only))
    return 1 if any(row.problem for row in rows) else 0


def _rows(files: list[str], target: int, only: str) -> Iterator[Row]:
    for file, example in examples(files):
        if only in example.label and example.declined(target) is None:
            with assuming(target):
                launches = _launches(example.call)
            for launch in launches:
                name = f"{file}.{launch.kernel.__name__.strip('_')}"
                yield Row(name, example.label, example.dtype, target, *_needs(launch, target))


def _launches(call: Callable[[], object]) -> list[Launch]:
    """What `call` would run."""
    launches = []

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in list(kwargs) if name not in kernel.arg_names}
        launches.append(
            Launch(kernel, dict(zip(kernel.arg_names, args, strict=False)) | kwargs, options)
        )

    with mock.patch.object(JITFunction, "run", record):
        call()
    return launches


def _needs(launch: Launch, target: int) -> tuple[int, int, int]:
    """(registers of a thread, bytes spilled, bytes of shared memory)."""
    source = ASTSource(launch.kernel, *_signature(launch))
    compiled = triton.compile(source, GPUTarget("cuda", target, 32), launch.options)
    ptx = compiled.asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        arch = re.search(r"\.target (sm_\w+)", ptx)
        assert arch is not None
        command = [get_ptxas(target).path, "-v", f"--gpu-name={arch[1]}", file.name]
        said = subprocess.run(
            [*command, "-o", "/dev/null"], capture_output=True, text=True, check=True
        ).stderr
    registers = re.search(r"Used (\d+) registers", said)
    assert registers is not None, said
    spilled = sum(int(number) for number in re.findall(r"(\d+) bytes spill stores", said))
    return int(registers[1]), spilled, compiled.metadata.shared


def _signature(launch: Launch) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """(types, constants, what is known of arguments), as Triton makes them of a launch."""
    types, constants, known = {}, {}, {}
    for index, param in enumerate(launch.kernel.params):
        value = launch.arguments[param.name]
        special = type(value) is int and not param.do_not_specialize
        if param.is_constexpr or value is None or (special and value == 1):
            types[param.name], constants[(index,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            types[param.name] = "*" + TYPES[value.dtype]
            known[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            types[param.name] = "fp32"
        else:
            types[param.name] = "i32" if abs(value) < 1 << 31 else "i64"
            if special and value % 16 == 0:
                known[(index,)] = [["tt.divisibility", 16]]
    return types, constants, known


def _page(rows: list[Row], only: str) -> str:
    lines = [
        "# What the Triton kernels need",
        "",
        f"Compiled without a GPU by Triton {triton.__version__}; `python tools/triton_table.py "
        f"{only and f'--only {only!r} '}--write` makes this page. Registers and spilled bytes are "
        "a thread's, shared bytes a program's. How fast they are: not run on hardware.",
        "",
        "| kernel | form | activations | target | registers | spilled | shared | reason |",
        "| --- | --- | --- | --- | --: | --: | --: | --- |",
    ]
    for row in sorted(rows):
        cells = (row.kernel, row.label, row.dtype, f"sm_{row.target}", *row[4:], row.reason)
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
