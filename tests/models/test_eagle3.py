"""EAGLE-3 heads draft what the published formula does, however a text is cut into steps, batched or
stored."""

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.kernels import cpu
from pagoda.models.base import CausalLM
from pagoda.models.loader import build_model
from pagoda.planner.eagle3 import with_head
from pagoda.weights.files import open_model
from tests.models import tiny, tiny_eagle3, tiny_gguf
from tests.models.driver import Driver
from tests.models.test_captured import capture
from tests.models.test_program import LIMITS, record, replay

FAMILIES = {"llama": {}, "qwen3": {"head_dim": 16}, "qwen3_moe": {**tiny.QWEN3_MOE, "head_dim": 16}}
IDS = tiny.random_ids(61)


def load(folder, head_folder, device: str = tiny.DEVICE, **options) -> CausalLM:
    files = open_model(folder)
    spec = spec_for(files.config, files.metadata, files.checkpoint.tensors)
    files, spec = with_head(files, spec, open_model(head_folder), "HEAD")
    return build_model(spec, files.checkpoint, dtype=torch.float32, device=device, **options)


class Drafter(Driver):
    """Runs the head behind each step of the model."""

    @torch.inference_mode()
    def draft(self, tokens: dict[str, list[int]]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Each request's next tokens and the one behind them; by request the head's hidden states
        and logits."""
        batch = self._batch({req: ids[:-1] for req, ids in tokens.items()})
        following = self.integers([id for ids in tokens.values() for id in ids[1:]])
        head = self.model.draft_head
        hidden = head(batch, following, head.read(self.model(batch)))
        logits = head.compute_logits(hidden).cpu()
        assert logits.dtype == torch.float32
        sizes = [len(ids) - 1 for ids in tokens.values()]
        parts = zip(hidden.split(sizes), logits.split(sizes), strict=True)
        return dict(zip(tokens, parts, strict=True))

    @torch.inference_mode()
    def go_on(self, req: str, token: int, hidden: torch.Tensor):
        """Hidden state and logits behind a drafted token; `hidden` [1, hidden] drafted it."""
        batch = self._batch({req: [token]})
        hidden = self.model.draft_head(batch, self.integers([token]), hidden)
        return hidden, self.model.draft_head.compute_logits(hidden).cpu()

    def drafts(self, ids: list[int], chunk: int, req: str = "r") -> torch.Tensor:
        """Logits [len(ids) - 1, vocab]."""
        count = len(ids) - 1
        steps = [ids[i : min(i + chunk, count) + 1] for i in range(0, count, chunk)]
        return torch.cat([self.draft({req: step})[req][1] for step in steps])


@torch.inference_mode()
def expected_drafts(reference, head: tiny_eagle3.Head, ids: list[int]) -> torch.Tensor:
    hidden = head.read(tiny_eagle3.layers_of(reference, ids[:-1]))
    return head.logits(head(torch.tensor(ids[1:]), hidden))


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(actual.isinf(), expected.isinf())
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory) -> tuple[object, tiny_eagle3.Head, CausalLM]:
    reference = tiny.make(request.param, **FAMILIES[request.param])
    head = tiny_eagle3.make(reference)
    folder = tmp_path_factory.mktemp(request.param)
    reference.save_pretrained(folder)
    return reference, head, load(folder, tiny_eagle3.save(folder / "head", head))


def test_drafts_equal_the_formula_whole_and_in_chunks(both):
    reference, head, model = both
    expected = expected_drafts(reference, head, IDS)
    assert expected[expected.isfinite()].std() > 0.3  # else a fault could hide below the bound
    for chunk in (60, 13):
        _close(Drafter(model).drafts(IDS, chunk), expected)


def test_a_batch_drafts_what_each_request_does_alone(both):
    """Prefill chunks, decodes and a fresh request share steps."""
    reference, head, model = both
    prompts = {f"r{i}": tiny.random_ids(length, seed=i) for i, length in enumerate([3, 9, 33, 50])}
    driver = Drafter(model, num_blocks=128)
    logits: dict[str, list[torch.Tensor]] = {req: [] for req in prompts}
    done = dict.fromkeys(prompts, 0)
    for sizes in ((1, 4, 9, 20), (0, 1, 1, 1), (1, 3, 22, 28)):
        steps = {
            req: ids[done[req] : done[req] + size + 1]
            for (req, ids), size in zip(prompts.items(), sizes, strict=True)
            if size
        }
        for req, (_, part) in driver.draft(steps).items():
            logits[req].append(part)
            done[req] += len(part)
    for req, ids in prompts.items():
        assert done[req] == len(ids) - 1
        _close(torch.cat(logits[req]), expected_drafts(reference, head, ids))


def test_a_further_draft_reads_the_heads_own_hidden_state(both):
    """Behind the text come tokens that the model never saw."""
    reference, head, model = both
    driver = Drafter(model)
    hidden, logits = driver.draft({"r": IDS})["r"]
    hidden = hidden[-1:]
    with torch.inference_mode():
        rows = head.read(tiny_eagle3.layers_of(reference, IDS[:-1]))
        ids, last = IDS[1:], head(torch.tensor(IDS[1:]), rows)
        for _ in range(3):
            token = int(logits[-1].argmax())
            hidden, logits = driver.go_on("r", token, hidden)
            ids, rows = [*ids, token], torch.cat((rows, last[-1:]))
            last = head(torch.tensor(ids), rows)
            _close(logits, head.logits(last[-1:]))


FORMS = {
    "norm before residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "own embedding": {"own_embedding": True},
    "another size": {"own_embedding": True, "hidden_size": 96, "target_hidden_size": 64},
    "other heads": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8},
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_published_heads(form, tmp_path):
    reference = tiny.make("llama")
    head = tiny_eagle3.make(reference, **FORMS[form])
    reference.save_pretrained(tmp_path)
    model = load(tmp_path, tiny_eagle3.save(tmp_path / "head", head))
    _close(Drafter(model).drafts(IDS, 13), expected_drafts(reference, head, IDS))


def test_as_the_library_speculators_writes_it(tmp_path):
    reference = tiny.make("qwen3", head_dim=16)
    head = tiny_eagle3.make(reference, norm_before_residual=True)
    reference.save_pretrained(tmp_path)
    config, tensors = tiny_eagle3.speculators_config(head), tiny_eagle3.as_speculators(head)
    model = load(tmp_path, tiny_eagle3.save(tmp_path / "head", head, config, tensors))
    _close(Drafter(model).drafts(IDS, 13), expected_drafts(reference, head, IDS))


GGUFS = {
    "F32": ({}, "target_layers", "F32"),
    "older": ({}, "extract_layers", "F32"),
    "norms": ({"norm_before_residual": True, "norm_before_fc": True}, "target_layers", "F32"),
    "Q8_0": ({"own_embedding": True, "intermediate_size": 96}, "target_layers", "Q8_0"),
}


@pytest.mark.parametrize("kind", GGUFS)
def test_gguf_beside_a_folder_and_beside_a_gguf(kind, tmp_path):
    changes, layers, storage = GGUFS[kind]
    reference = tiny.make("llama")
    head = tiny_eagle3.make(reference, **changes)
    path = tmp_path / "head.gguf"
    tiny_eagle3.write_gguf(path, head, layers, tiny_gguf.Storage[storage])
    reference.save_pretrained(tmp_path / "model")
    expected = expected_drafts(reference, head, IDS)
    _close(Drafter(load(tmp_path / "model", path)).drafts(IDS, 13), expected)
    tiny_gguf.write(tmp_path / "model.gguf", reference, lambda name: tiny_gguf.Storage.F32)
    _close(Drafter(load(tmp_path / "model.gguf", path)).drafts(IDS, 13), expected)


@pytest.mark.skipif(cpu.native() is None, reason="needs the native kernels")
def test_packed_weights_draft_the_same(both, tmp_path):
    """The form that serves on a CPU."""
    reference, head, _ = both
    reference.save_pretrained(tmp_path)
    model = load(tmp_path, tiny_eagle3.save(tmp_path / "head", head), packed=True)
    _close(Drafter(model).drafts(IDS, 13), expected_drafts(reference, head, IDS))


@pytest.mark.parametrize("form", ["captured", "recorded"])
def test_replayed_steps_keep_what_the_head_reads(form, tmp_path):
    """In memory that stays where it is, whatever else the step's memory is used for."""
    if form == "recorded" and cpu.native() is None:
        pytest.skip("steps are recorded by the native kernels, which are not built")
    reference = tiny.make("qwen3", head_dim=16)
    reference.save_pretrained(tmp_path)
    head_folder = tiny_eagle3.save(tmp_path / "head", tiny_eagle3.make(reference))
    model = load(tmp_path, head_folder, "cpu", packed=form == "recorded")
    model.draft_head.reserve(LIMITS.max_tokens)
    eager, replayed = Driver(model), Driver(model)
    steps = capture(replayed, 4) if form == "captured" else record(replayed)
    prompts = {f"r{i}": tiny.random_ids(3 + i, seed=i) for i in range(3)}
    for driver in (eager, replayed):
        driver.step(prompts)
    sizes = [1, 1] if form == "captured" else [1, 4]  # captured steps have a token each
    step = {f"r{i}": tiny.random_ids(size, seed=9 + i) for i, size in enumerate(sizes)}
    rows = torch.empty(sum(sizes), 64)
    with torch.inference_mode():
        eager.step(step)
        expected = model.draft_head.read(rows).clone()
        model.draft_head._taps._kept[0].fill_(torch.nan)
        replay(steps, replayed, step)
        found = model.draft_head.read(rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
