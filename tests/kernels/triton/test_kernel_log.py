"""What was compiled is counted by Triton's own word, and said with its reason."""

import logging
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="triton is not installed")

import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from pagoda.kernels.triton.products.layouts import layout_of
from pagoda.runtime.triton import kernel_notes
from pagoda.runtime.triton.kernel_log import KernelLog


def zero(x):
    tl.store(x, 0.0)


def offset(x, LAYOUT: tl.constexpr):
    tl.store(x, LAYOUT.offset)


def compile_for(capability: int, kernel=zero, **constants: object) -> None:
    """As a launch on such a GPU would, from Triton's folder if it has the kernel."""
    types = {"x": "*fp32", **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(JITFunction(kernel), types, constants, {})
    triton.compile(source, GPUTarget("cuda", capability, 32), {"enable_fp_fusion": True})


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "pagoda"))
    caplog.set_level(logging.INFO, "pagoda")
    with knobs.cache.scope(), knobs.compilation.scope():
        knobs.cache.dir = str(tmp_path / "kernels")
        yield


def start(caplog, *capabilities: int, gpu: str = "H100", model: str = "one") -> str:
    """What a start says that needs a kernel for each."""
    caplog.clear()
    log = KernelLog()
    log.expect(gpu, model)
    for capability in capabilities:
        compile_for(capability)
    log.report("First steps")
    return caplog.text


def test_a_second_start_compiles_nothing(caplog, tmp_path):
    said = start(caplog, 80, 90)
    assert f"Triton {triton.__version__} and these kernels are new on H100" in said
    assert "First steps compiled 2 kernels in" in said and f"{tmp_path}/kernels" in said
    said = start(caplog, 80, 90)
    assert f"Kernels are those that an earlier start left in {tmp_path}/kernels" in said
    assert "compiled" not in said
    assert "First steps compiled 1 kernels" in start(caplog, 80, 89)


def test_kernels_of_another_table_of_layouts_are_others(caplog):
    """Those of an earlier Pagoda may lie in the same folder."""
    log = KernelLog()
    layout = layout_of("Q4_0")
    for changed in (layout, replace(layout, offset=9), layout):
        assert repr(changed) == repr(layout)
        compile_for(90, offset, LAYOUT=changed)
    log.report("They")
    assert "They compiled 2 kernels" in caplog.text


def test_the_reason(caplog, monkeypatch):
    start(caplog)
    assert "an earlier start" in start(caplog)
    assert "the model or its settings are new here" in start(caplog, model="other")
    assert "an earlier start" in start(caplog) and "an earlier start" in start(
        caplog, model="other"
    )
    assert "are new on L4" in start(caplog, gpu="L4")
    monkeypatch.setattr(kernel_notes, "kernels_version", lambda: "changed")
    assert "are new on H100" in start(caplog)
    knobs.compilation.always_compile = True
    assert "TRITON_ALWAYS_COMPILE is set" in start(caplog)


def test_a_folder_that_cannot_be_written(caplog, tmp_path):
    (tmp_path / "kernels").write_text("in the way")
    said = start(caplog, 80)
    assert "cannot be written" in said and "TRITON_CACHE_DIR" in said
    assert "First steps compiled 1 kernels" in said


def test_notes_that_make_no_sense(caplog):
    start(caplog)
    notes = kernel_notes.notes_of("H100")
    for text in ("[]", "{", '{"models": 7}', '{"models": [7, {}]}'):
        notes.path.write_text(text)
        assert "are new on H100" in start(caplog)
        assert "an earlier start" in start(caplog)
