"""What is said of a mixture whose experts a CPU reads from disk."""

from math import inf

import pytest

from pagoda.base.units import format_bytes
from pagoda.doctor import streaming
from pagoda.doctor.answer import answer, with_speed
from pagoda.doctor.model_report import as_json, lines
from pagoda.doctor.remedies.search import remedies
from pagoda.doctor.streaming import streaming_findings, streams
from tests.unit.doctor.models import GIB, LLAMA, QWEN3_MOE, asked, box, subject_of
from tests.unit.doctor.test_speed import device

LAYER = 2 * 3 * 2048 * 768 * 128  # bytes of one's experts


@pytest.fixture
def made(tmp_path):
    """Of 48 layers most have their experts on disk."""
    subject = subject_of(tmp_path, QWEN3_MOE)
    return answer(subject, box(16), asked(subject))


def test_it_runs_and_is_told_so(made, tmp_path):
    assert made.fits and streams(made)
    placement = made.resolution.plan.placement
    assert placement.nbytes == placement.experts * LAYER and 30 < placement.experts < 48
    text = "\n".join(lines(made, [], True, 200))
    row = ["on", "disk", *format_bytes(placement.nbytes).split(), "estimate", "experts,", "read"]
    assert row in [line.split()[:7] for line in text.split("\n")]
    assert f"experts of {placement.experts} of 48 layers are read from disk" in text
    assert "It runs here" in text
    found = as_json(made, [])
    assert (found["disk"], found["host_memory"]) == (placement.nbytes, 0)
    dense = subject_of(tmp_path, LLAMA)
    for hardware in (box(128), box(3)):
        assert not streams(answer(dense, hardware, asked(dense)))


def test_the_disk_bounds_the_speed(made):
    """Of a device that does all else at once."""
    nbytes = made.resolution.plan.placement.nbytes
    fast = device(read=inf, disk=1e9)
    one = with_speed(made, fast).speeds.one
    assert one.decode == pytest.approx(1e9 / (nbytes * 8 / 128))
    assert one.prefill == pytest.approx(512 * 1e9 / nbytes)
    assert one.decode_bound == one.prefill_bound == "reading experts from disk"
    assert with_speed(made, device()).speeds is None  # nobody knows how fast the disk is
    # Reading for a prompt hides behind computing that takes as long; a reply's token waits.
    slow = with_speed(made, device(start=1.0, disk=1e12)).speeds.one
    alone = with_speed(made, device(start=1.0, disk=inf)).speeds.one
    assert 1 / slow.decode - 1 / alone.decode == pytest.approx(nbytes * 8 / 128 / 1e12)
    assert slow.prefill == pytest.approx(alone.prefill, rel=1e-3)


def test_findings(made, monkeypatch):
    placement = made.resolution.plan.placement
    monkeypatch.setattr(streaming, "free_bytes", lambda folder: 200 * GIB)
    (found,) = streaming_findings(made, placement.nbytes / 4)
    assert found.status == "WARN" and "512 tokens of a prompt" in found.text
    assert "that allows 4 tokens/s for one reply and 128 for a prompt" in found.text
    (unknown,) = streaming_findings(made, None)
    assert unknown.text.endswith("How fast the disk reads is not known")
    monkeypatch.setattr(streaming, "free_bytes", lambda folder: 5 * GIB)
    _, short = streaming_findings(made, 1e9)
    assert short.text.endswith("whose disk has 5.00 GiB free") and "PAGODA_CACHE" in short.fix


def test_findings_of_what_is_in_memory(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    for hardware in (box(), box(1)):
        assert streaming_findings(answer(subject, hardware, asked(subject)), 1e9) == ()


def test_remedies_have_all_in_memory(tmp_path):
    config = {**QWEN3_MOE, "quantization_config": {
        "quant_method": "fp8", "weight_block_size": [128, 128]}}  # fmt: skip
    subject = subject_of(tmp_path, config)
    made = answer(subject, box(8), asked(subject))
    assert streams(made) and remedies(made) == []
    long = answer(subject, box(36), asked(subject, max_model_len=32768))
    assert streams(long)
    (shorter, *_) = remedies(long)
    text = "\n".join(lines(long, [shorter], False, 300))
    assert f"It would be all in memory with {shorter.words}:" in text
