"""Each harness takes its corpus, what once failed, and some changed inputs of a fixed seed."""

import pytest

from fuzz import native, seeded
from fuzz.registry import NAMES, ROOT, corpus, regressions, words

EXECUTIONS = {"parsers": 100, "text": 150, "tokenizer_json": 150, "agent": 300, "http1": 200}


@pytest.mark.parametrize("name", NAMES)
def test_a_short_session_finds_nothing(name):
    failed = [error for error in seeded.session(name, 0, EXECUTIONS.get(name, 400)) if error]
    assert not failed, "\n".join(f"{error} ({error.__cause__!r})" for error in failed)


def test_a_session_is_its_seed():
    def made(seed):
        stream = seeded.inputs("gguf", seed)
        return [next(stream) for _ in range(100)]

    assert made(1) == made(1) != made(2)


def broken(data: bytes) -> None:
    raise AssertionError("broken")


def endless(data: bytes) -> None:
    while True:
        pass


@pytest.mark.parametrize("function", [broken, endless])
def test_failures_and_inputs_without_end_are_findings(function, monkeypatch):
    monkeypatch.setattr(seeded, "SECONDS_PER_INPUT", 0.01)
    with pytest.raises(seeded.FoundError, match="harness x failed on 2 bytes"):
        seeded.check("x", function, b"ab")


def test_every_harness_has_a_corpus_and_the_whole_is_small():
    assert all(corpus(name) and words(name) for name in NAMES)
    files = [path for path in ROOT.rglob("*") if path.is_file() and "corpus" in path.parts]
    assert sum(path.stat().st_size for path in files) < 1_000_000


def test_no_regression_is_left_out():
    folders = {path.name for path in (ROOT / "regressions").iterdir()}
    assert folders <= {*NAMES, "native"}
    assert all(regressions(name) for name in folders)


@pytest.mark.skipif(native.compiler() is None, reason="no compiler with ASan and UBSan here")
def test_the_plain_kernels_stay_in_their_memory():
    native.execute(native.build("generic"), 0, 150)


def test_texts_pass_through_each_family_of_tokenizers():
    from fuzz.harnesses.text import tokenizers

    assert {name.split("-")[0] for name in tokenizers()} == {"gpt2", "llama", "bert"}


def test_what_failed_is_kept_and_replayed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(seeded, "harness", lambda name: broken)
    monkeypatch.setattr("sys.argv", ["x", "gguf", "--executions", "3", f"--findings={tmp_path}"])
    assert seeded.main() == 1
    assert "executions: 3, failures: 3" in capsys.readouterr().out
    kept = sorted(tmp_path.iterdir())
    assert {path.read_bytes() for path in kept} == {p.read_bytes() for p in corpus("gguf")[:3]}
    monkeypatch.setattr("sys.argv", ["x", "gguf", "--replay", str(kept[0])])
    with pytest.raises(seeded.FoundError, match="harness gguf failed"):
        seeded.main()
