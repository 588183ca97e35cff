"""What the machine code of a product's inner loop costs: instructions, and bytes under way.

The text is that of `nvdisasm -c -g`, which the triton package brings along. Bytes under way are
those of codes that a thread has asked for and that no instruction has used yet, at most; the loop
is followed round and round, as if every load took longer than it.
"""

import re
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import triton

OLDEST = 75
"""What nvdisasm of CUDA 13 still knows."""
_DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
_LINE = re.compile(r'//## File "(?P<file>[^"]+)", line (?P<line>\d+)')
_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s*/\*(?P<place>[0-9a-f]{4,})\*/\s+(?P<text>[^;]+);")
_REGISTER = re.compile(r"\bR(\d+)")
_ROUNDS = 12
"""Of the loop; as deep as any pipeline."""

# By compute capability (CUDA C++ programming guide, table of technical specifications).
_SHARED = {70: 96, 75: 64, 80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}
_THREADS = {70: 2048, 75: 1024, 80: 2048, 86: 1536, 89: 1536, 90: 2048, 100: 2048, 120: 1536}
_PROGRAMS = {70: 32, 75: 16, 80: 32, 86: 16, 89: 24, 90: 32, 100: 32, 120: 24}
_REGISTERS = 65536
_RESERVED = 1024
"""Bytes of shared memory that each program costs beside its own, from sm_80 on."""


class Instruction(NamedTuple):
    opcode: str
    """As `LDG.E.128`, without the predicate."""
    operands: str
    file: str
    line: int

    @property
    def loaded(self) -> int:
        """Bytes that a thread loads from global memory."""
        return self._width() if self.opcode.startswith(("LDG.", "LDGSTS.")) else 0

    @property
    def stored(self) -> int:
        """Bytes that a thread stores from its registers to shared memory."""
        return self._width() if re.match(r"STS(\.|$)", self.opcode) else 0

    def _width(self) -> int:
        width = re.search(r"\.(?:[US])?(8|16|64|128|256)(?=\.|$)", self.opcode)
        return int(width[1]) // 8 if width else 4

    def _registers(self) -> list[int]:
        return [int(number) for number in _REGISTER.findall(self.operands)]

    @property
    def filled(self) -> range:
        """Registers that a load from global memory writes."""
        first = self._registers()[0]
        return range(first, first + max(1, self.loaded // 4))

    @property
    def read(self) -> set[int]:
        """Registers that it reads; the first of a group stands for it."""
        numbers = self._registers()
        stores = self.opcode.startswith(("ST", "RED", "ATOM"))
        writes = not stores and re.match(r"\s*R\d", self.operands)
        return set(numbers[1:] if writes else numbers)


class Cost(NamedTuple):
    instructions: float
    """For a weight, in a thread."""
    bytes_per_thread: int
    """Of codes, under way at once."""
    stored: float
    """Bytes that go from registers to shared memory, for a weight."""


def disassembled(cubin: bytes) -> str:
    """What nvdisasm says of compiled code, with source lines."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [_DISASSEMBLER, "-c", "-g", file.name], check=True, capture_output=True, text=True
        ).stdout


def cost(text: str, file: str, lines: range, bits: int) -> Cost:
    """Of the loop that loads codes of `bits` for each weight, at `lines` of a source file whose
    path ends with `file`. ValueError where no loop does."""

    def is_code(instruction: Instruction) -> bool:
        known = instruction.file.endswith(file) and instruction.line in lines
        return known and instruction.loaded > 0

    loops = list(_loops(text))
    body = max(loops, key=lambda loop: sum(x.loaded for x in loop if is_code(x)), default=[])
    weights = sum(x.loaded for x in body if is_code(x)) * 8 / bits
    if not weights:
        raise ValueError(f"no loop loads codes at {file}, lines {lines.start} to {lines.stop - 1}")
    counted = sum(x.opcode != "NOP" for x in body)
    stored = sum(x.stored for x in body) / weights
    return Cost(counted / weights, _most_under_way(body, [is_code(x) for x in body]), stored)


def bytes_under_way(
    of_thread: int, target: int, registers: int, shared: int, warps: int, programs_each: int
) -> int:
    """On a processor that holds as many programs as fit, and no more than there are for each."""
    warp_registers = -(-registers // 8) * 8 * 32
    fitting = [
        _REGISTERS // (warp_registers * warps),
        _THREADS[target] // (32 * warps),
        _PROGRAMS[target],
        programs_each,
    ]
    if shared:
        own = shared + (_RESERVED if target >= 80 else 0)
        fitting.append(_SHARED[target] * 1024 // own)
    return min(fitting) * 32 * warps * of_thread


def _instructions(text: str) -> Iterator[tuple[str, Instruction | None]]:
    """(label, None) and ("", instruction), in order."""
    file, line = "", 0
    for row in text.splitlines():
        if place := _LINE.search(row):
            file, line = place["file"], int(place["line"])
        elif label := _LABEL.match(row):
            yield label[1], None
        elif found := _INSTRUCTION.match(row):
            plain = re.sub(r"^@!?U?P\w+\s+", "", found["text"].strip())
            opcode, _, operands = plain.partition(" ")
            yield "", Instruction(opcode, operands, file, line)


def _loops(text: str) -> Iterator[list[Instruction]]:
    """The bodies that end with a branch back and have no other loop inside."""
    seen: dict[str, int] = {}
    body: list[Instruction] = []
    innermost = 0
    for label, instruction in _instructions(text):
        if instruction is None:
            seen[label] = len(body)
            continue
        body.append(instruction)
        if instruction.opcode.startswith("BRA") and (
            name := re.search(r"`\((\.L_x_\d+)\)", instruction.operands)
        ):
            start = seen.get(name[1])
            # A branch to itself is the end of a program's text.
            if start is not None and start < len(body) - 1 and start >= innermost:
                yield body[start:]
                innermost = len(body)


def _most_under_way(body: list[Instruction], is_code: list[bool]) -> int:
    waiting: dict[int, tuple[range, int]] = {}
    groups: deque[int] = deque()
    open_group = most = 0
    for count in range(_ROUNDS * len(body)):
        instruction = body[count % len(body)]
        if instruction.opcode == "LDGDEPBAR":
            groups.append(open_group)
            open_group = 0
        elif instruction.opcode.startswith("DEPBAR") and "SB0" in instruction.operands:
            left = int(instruction.operands.rpartition("0x")[2], 16)
            while len(groups) > left:
                groups.popleft()
        read = instruction.read
        for place in [key for key, (own, _) in waiting.items() if read & set(own)]:
            del waiting[place]
        if is_code[count % len(body)]:
            if instruction.opcode.startswith("LDGSTS"):
                open_group += instruction.loaded
            else:
                own = instruction.filled
                waiting = {k: x for k, x in waiting.items() if not set(own) & set(x[0])}
                waiting[count] = own, instruction.loaded
        under_way = open_group + sum(groups) + sum(size for _, size in waiting.values())
        most = max(most, under_way)
    return most
