"""What the Triton kernels are launched with, and what a compiled one needs of its target.

Examples call ops with tensors on the CPU; their launches are caught, and compiled for GPUs that are
not there.
"""

import ast
import hashlib
import importlib
import inspect
import io
import math
import pkgutil
import re
import tempfile
import textwrap
from contextlib import redirect_stdout
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import pagoda.kernels.triton as kernels
from pagoda.kernels.triton.products.decode import load_codes
from pagoda.kernels.triton.products.layouts import Layout
from pagoda.kernels.triton.target import SHARED_MEMORY, assuming, processors
from tools.sass import OLDEST, bytes_under_way, cost, disassembled
from tools.triton_examples import Example, examples

TENSOR_MEMORY = 512
"""Columns that a program of sm_100 may have (PTX ISA, tcgen05.alloc)."""
_MOST_STORED = 1
"""Bytes for each weight of a product: less than a weight has when it is decoded."""
_PRODUCTS = ("gemm.one_token", "gemm.tiles", "experts.alone", "experts.grouped")
TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int8: "i8",
    torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.bool: "i1", torch.float64: "fp64",
}  # fmt: skip


class Form(NamedTuple):
    """A kernel in one of its forms: a row of the table."""

    kernel: str
    """As `attention.paged_attention`."""
    label: str
    dtype: str
    """Of activations."""


class Launch(NamedTuple):
    """What an op asked of Triton."""

    kernel: Any
    types: dict[str, str]
    constants: dict[tuple[int], Any]
    known: dict[tuple[int], Any]
    """Of arguments, as that they can be divided by 16."""
    options: dict[str, int]
    target: int
    programs: int
    """For each processor; of products alone, else 0."""

    @property
    def layout(self) -> Layout | None:
        """Of the codes that a product decodes."""
        layouts = (x for x in self.constants.values() if isinstance(x, Layout) and x.planes)
        return next(layouts, None) if self.programs else None

    def fingerprint(self) -> str:
        """Of all that the compiled kernel follows from, but for Triton's version."""
        told = self[1:] if self.programs else self[1:-1]
        return _digest(_source_of(self.kernel), *told)


class Needs(NamedTuple):
    registers: int
    """Of a thread."""
    shared: int
    """Bytes of a program."""
    spilled: int
    """Bytes of a thread."""
    per_weight: float = 0.0
    """Instructions of a thread for a weight, in the inner loop of a product; to a hundredth."""
    under_way: int = 0
    """Bytes of codes that a processor waits for at once, there."""


Launches = dict[Form, dict[int, Launch]]
"""By form and target; nothing where a form is not offered."""


@cache
def all_launches() -> Launches:
    """Each form once: of examples that launch the same, only the first is there."""
    found: Launches = {}
    seen: set[str] = set()
    for example in examples():
        for form, by_target in _of_example(example).items():
            marks = {launch.fingerprint() for launch in by_target.values()}
            if not marks <= seen:
                found[form] = by_target
                seen |= marks
    return found


def fingerprint(by_target: dict[int, Launch]) -> str:
    """Of a form on all its targets."""
    return _digest(*(launch.fingerprint() for launch in by_target.values()))


def all_kernels() -> set[str]:
    """Those that are launched, not called by others, in `pagoda.kernels.triton`."""
    functions: set[Any] = set()
    called: set[Any] = set()
    for found in pkgutil.iter_modules(kernels.__path__):
        module = importlib.import_module(f"{kernels.__name__}.{found.name}")
        own = {value for value in vars(module).values() if isinstance(value, JITFunction)}
        functions |= own
        called |= {callee for function in own for callee in _callees(function)}
    return {name_of(kernel) for kernel in functions - called}


def name_of(kernel: Any) -> str:
    return f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.__name__.strip('_')}"


def needs(launch: Launch) -> Needs:
    """RuntimeError where it does not compile, or takes decoded weights through shared memory."""
    where = f"{name_of(launch.kernel)} on sm_{launch.target}"
    source = ASTSource(launch.kernel, launch.types, launch.constants, launch.known)
    # Said, because 3.9 warns that 3.10 will have another default.
    options = {**launch.options, "enable_fp_fusion": True}
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope(), knobs.nvidia.scope():
        knobs.cache.dir, knobs.nvidia.dump_ptxas_log = folder, True
        try:
            with redirect_stdout(said):
                compiled = triton.compile(source, GPUTarget("cuda", launch.target, 32), options)
        except Exception as error:
            raise RuntimeError(f"{where}: {error}") from error
    columns = compiled.metadata.tmem_size or 0
    if columns > TENSOR_MEMORY:
        raise RuntimeError(f"{where} needs {columns} of {TENSOR_MEMORY} columns of tensor memory")
    registers = re.search(r"Used (\d+) registers", said.getvalue())
    assert registers is not None, said.getvalue()
    stores = re.findall(r"(\d+) bytes spill stores", said.getvalue())
    needed = Needs(int(registers[1]), compiled.metadata.shared, sum(map(int, stores)))
    if launch.layout is None or launch.target < OLDEST:
        return needed
    return _with_cost(needed, launch, compiled.asm["cubin"])


def _with_cost(needed: Needs, launch: Launch, cubin: bytes) -> Needs:
    assert launch.layout is not None
    lines, begin = inspect.getsourcelines(load_codes.fn)
    # Triton writes a load as PTX of several lines, which may count as lines behind its own.
    where = range(begin, begin + len(lines) + 6)
    found = cost(disassembled(cubin), "products/decode.py", where, sum(launch.layout.planes))
    if found.stored >= _MOST_STORED:
        raise RuntimeError(
            f"{name_of(launch.kernel)} on sm_{launch.target} stores {found.stored:.2f} bytes to "
            "shared memory for each weight: decoded weights are to stay in registers"
        )
    under_way = bytes_under_way(
        found.bytes_per_thread, launch.target, needed.registers, needed.shared,
        launch.options["num_warps"], launch.programs,
    )  # fmt: skip
    return needed._replace(per_weight=round(found.instructions, 2), under_way=under_way)


@cache
def _source_of(kernel: Any) -> str:
    """A hash of it and of all that it calls, without comments and docstrings."""
    texts = [_code(kernel), *(_source_of(callee) for callee in _callees(kernel))]
    values = _globals_of(kernel).items()
    texts += [f"{name} = {x.value!r}" for name, x in values if isinstance(x, tl.constexpr)]
    return _digest(texts)


def _of_example(example: Example) -> Launches:
    found: Launches = {}
    for target in SHARED_MEMORY:
        if example.declined(target) is not None:
            continue
        with assuming(target):
            launches = caught(example, target)
        count: dict[str, int] = {}
        seen = set()
        for launch in launches:
            if (same := launch.fingerprint()) in seen:
                continue
            seen.add(same)
            name = name_of(launch.kernel)
            count[name] = count.get(name, 0) + 1
            label = example.label + (f" ({count[name]})" if count[name] > 1 else "")
            found.setdefault(Form(name, label, example.dtype), {})[target] = launch
    return found


def caught(example: Example, target: int) -> list[Launch]:
    """What the example would run on a GPU of capability `target`."""
    launches = []

    def catch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in list(kwargs) if name not in kernel.arg_names}
        arguments = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        each = _programs_each(grid, arguments) if name_of(kernel) in _PRODUCTS else 0
        launches.append(Launch(kernel, *_signature(kernel, arguments), options, target, each))

    with mock.patch.object(JITFunction, "run", catch):
        example.call()
    return launches


def _programs_each(grid: tuple[int, ...], arguments: dict[str, Any]) -> int:
    """Programs for each processor."""
    x = next(value for value in arguments.values() if isinstance(value, torch.Tensor))
    return -(-math.prod(grid) // processors(x))


def _signature(
    kernel: Any, arguments: dict[str, Any]
) -> tuple[dict[str, str], dict[tuple[int], Any], dict[tuple[int], Any]]:
    """(types, constants, what is known of arguments), as Triton makes them of a launch."""
    types, constants, known = {}, {}, {}
    for index, param in enumerate(kernel.params):
        value = arguments[param.name]
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


def _globals_of(kernel: Any) -> dict[str, Any]:
    names = kernel.fn.__code__.co_names
    return {name: kernel.fn.__globals__[name] for name in names if name in kernel.fn.__globals__}


def _callees(kernel: Any) -> list[Any]:
    return [value for value in _globals_of(kernel).values() if isinstance(value, JITFunction)]


def _code(kernel: Any) -> str:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn)))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    if ast.get_docstring(function) is not None:
        del function.body[0]
    return ast.unparse(tree)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:10]
