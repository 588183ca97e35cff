"""Packed matrices that are mapped from files: the same bits, and read before they are needed."""

import ctypes
import hashlib
import mmap
import os
import time
from pathlib import Path

import pytest
import torch

from pagoda.kernels import cpu, ops
from pagoda.kernels.ref import experts as ref
from pagoda.quant.experts import ExpertSizes, PackedExpertFormat
from pagoda.weights.formats import FORMATS
from tests.kernels import packed
from tests.kernels.packed import _native
from tests.kernels.test_native_experts import Quantized

COUNT, HIDDEN, SIZE = 16, 512, 512
EXPERT = 4 * HIDDEN * SIZE  # bytes of a part in fp32, whole pages
PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def native(monkeypatch):
    kernels = _native.Native(2)
    monkeypatch.setattr(cpu, "_cached", {"native": kernels})
    return kernels


def written(path: Path, matrix, before: int = 0):
    """The matrix in a file, from a place on; it is on the disk."""
    with path.open("wb") as file:
        file.write(bytes(before))
        file.write(matrix.panels)
        file.flush()
        os.fsync(file.fileno())
    return ops.mapped_packed(matrix, path, before)


@pytest.mark.parametrize("storage", packed.STORAGES)
def test_mapped_matrices_have_the_same_bits(native, storage, tmp_path):
    raw = packed.random_raw(storage, 40, 512)
    matrix = packed.pack(native, storage, raw, 512)
    mapped = written(tmp_path / "panels", matrix, 2 * PAGE)
    assert (mapped.rows, mapped.columns, mapped.storage, mapped.nbytes) == (
        matrix.rows, matrix.columns, matrix.storage, matrix.nbytes,
    )  # fmt: skip
    assert bytes(mapped.panels) == bytes(matrix.panels) and len(matrix.panels) == matrix.nbytes
    del matrix  # what it has lives no longer than it does, a mapping longer than its file
    (tmp_path / "panels").unlink()
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(1))
    expected = packed.multiply(native, x, [packed.pack(native, storage, raw, 512)])
    assert torch.equal(packed.multiply(native, x, [mapped]), expected)
    assert torch.equal(
        packed.unpack(native, mapped), packed.unpack(native, packed.pack(native, storage, raw, 512))
    )


def test_files_that_cannot_be_mapped(native, tmp_path):
    matrix = packed.pack(native, "F32", packed.random_raw("F32", 32, 512), 512)
    mapped = written(tmp_path / "panels", matrix)
    with pytest.raises(ValueError, match="has its rows"):
        native.load(mapped, 0, 0, 0, 0)
    with pytest.raises(FileNotFoundError):
        ops.mapped_packed(matrix, tmp_path / "nowhere", 0)
    with pytest.raises(OSError, match="Illegal seek"):
        ops.mapped_packed(matrix, tmp_path / "panels", PAGE)


def test_a_matrix_that_goes_gives_its_memory_back(native):
    """Though others that lie beside it stay."""
    storage, rows, columns = "F32", 1024, 1024
    raw = packed.random_raw(storage, rows, columns)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

    kept = [packed.pack(native, storage, raw[:16], columns)]
    before = resident()
    matrix = packed.pack(native, storage, raw, columns)
    kept.append(packed.pack(native, storage, raw[:16], columns))
    assert resident() > before + matrix.nbytes // 2
    del matrix
    assert resident() < before + 4 * rows * columns // 2


# What is kept of panels between builds: whoever changes them raises `kPanelLayout` with this.
LAYOUT = (1, "b67bea94adfa77ad")


def test_a_layout_has_a_number(native):
    digest = hashlib.sha256()
    for storage in packed.STORAGES:
        row_bytes = FORMATS[storage].nbytes(512)
        raw = (torch.arange(40 * row_bytes) * 167 % 251).to(torch.uint8).view(40, row_bytes)
        digest.update(packed.pack(native, storage, raw, 512).panels)
    assert (_native.PANEL_LAYOUT, digest.hexdigest()[:16]) == LAYOUT


class Layer:
    """Random experts in fp32: gate, up and down, in memory and in files."""

    def __init__(self, folder: Path, seed: int):
        self.formats, self.paths = [], []
        for part, (parts, rows, columns) in enumerate([(2, SIZE, HIDDEN), (1, HIDDEN, SIZE)]):
            sizes = ExpertSizes(COUNT, parts, rows, columns)
            stored = PackedExpertFormat(sizes, ("F32",) * COUNT * parts, torch.float32, "cpu")
            generator = torch.Generator().manual_seed(10 * seed + part)
            for matrix in stored.matrices:
                raw = torch.randn(COUNT * rows, columns, generator=generator).view(torch.uint8)
                ops.load_packed(matrix, 0, raw)
            path = folder / f"{seed}-{part}"
            with path.open("wb") as file:
                stored.write(file)
                file.flush()
                os.fsync(file.fileno())
            assert path.stat().st_size == stored.file_bytes
            self.formats.append(stored)
            self.paths.append(path)

    @property
    def matrices(self):
        return self.formats[0].matrices + self.formats[1].matrices

    def map(self) -> None:
        for stored, path in zip(self.formats, self.paths, strict=True):
            stored.map(path, self)

    def mix(self, x, ids, weights):
        up, down = (stored.operand(None) for stored in self.formats)
        return ops.mix_experts(x, ops.Routed(ids, weights), up, down, ops.Gating())

    def forget(self) -> None:
        """Have the system drop what it holds of the files, which nobody may have touched since they
        were mapped."""
        for path in self.paths:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def experts_in_memory(self) -> list[set[int]]:
        """Of each part the experts of which every page is in memory, and those of which any is."""
        every, some = set(range(COUNT)), set()
        for path, parts in zip(self.paths, (2, 1), strict=True):
            pages = in_memory(path)
            for first in range(0, parts * COUNT * EXPERT, COUNT * EXPERT):
                for expert in range(COUNT):
                    start = (first + expert * EXPERT) // PAGE
                    found = pages[start : start + EXPERT // PAGE]
                    every -= set() if all(found) else {expert}
                    some |= {expert} if any(found) else set()
        return [every, some]


def in_memory(path: Path) -> list[bool]:
    """By page of the file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as view:
        pages = (ctypes.c_ubyte * -(-len(view) // PAGE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        assert LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(view)), pages) == 0
        return [bool(page & 1) for page in pages]


@pytest.fixture
def layers(native, tmp_path) -> list[Layer]:
    found = [Layer(tmp_path, seed) for seed in range(2)]
    found[1].forget()
    if found[1].experts_in_memory()[1]:
        pytest.skip("this file system keeps files in memory")
    return found


def chosen_by(tokens: int, among: list[int], top_k: int = 2):
    """Inputs, and experts of this list in turn."""
    torch.manual_seed(tokens)
    ids = torch.tensor(among * (tokens * top_k))[: tokens * top_k].view(tokens, top_k)
    return torch.randn(tokens, HIDDEN), ids.contiguous(), torch.rand(tokens, top_k)


def test_chosen_experts_are_read_and_no_others(layers):
    layer = layers[0]
    inputs = chosen_by(3, [2, 9, 12])
    expected = layer.mix(*inputs)
    layer.map()
    layer.forget()
    assert layer.experts_in_memory() == [set(), set()]
    assert torch.equal(layer.mix(*inputs), expected)
    assert layer.experts_in_memory() == [{2, 9, 12}, {2, 9, 12}]


@pytest.mark.parametrize("in_file", [False, True])
def test_a_prompt_has_the_next_layer_read_ahead(layers, in_file):
    """Whether its own experts are in memory or in a file; a reply's token does not know."""
    layer, later = layers
    few, most = chosen_by(4, list(range(8))), chosen_by(8, list(range(13)))
    expected = layer.mix(*most)
    later.map()
    layer.formats[1].next_streamed = later.matrices
    if in_file:
        layer.map()
    later.forget()
    layer.mix(*few)
    time.sleep(0.05)
    assert later.experts_in_memory() == [set(), set()]
    assert torch.equal(layer.mix(*most), expected)
    end = time.monotonic() + 60
    while later.experts_in_memory()[0] != set(range(COUNT)):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_other_storage_formats_have_the_same_bits(native, tmp_path):
    """Experts whose bytes are no whole pages."""
    torch.manual_seed(4)
    model = Quantized(native, ("Q4_K", "Q4_K", "Q6_K"), 6, 256, 256)
    x = torch.randn(21, 256)
    ids, weights, _ = ref.route(torch.randn(21, 6), 3, "softmax", True)
    expected = model.mix(x, ids, weights)
    for name in ("up", "down"):
        experts = getattr(model, name)
        parts = tuple(
            written(tmp_path / f"{name}{i}", matrix) for i, matrix in enumerate(experts.parts)
        )
        setattr(model, name, experts._replace(parts=parts))
    assert torch.equal(model.mix(x, ids, weights), expected)
    assert torch.equal(model.mix(x[:1], ids[:1], weights[:1]), expected[:1])
