"""Draft heads (MTP) draft what the published formula does over transformers' layers, however a text
is cut into steps, batched, split over ranks or stored."""

import json

import pytest
import torch

from pagoda.base.errors import CheckpointError, ConfigError
from pagoda.kernels import cpu
from pagoda.models.base import CausalLM
from tests.models import tiny, tiny_gguf_qwen35, tiny_mtp
from tests.models.driver import Driver
from tests.models.gloo_ranks import on_ranks
from tools import train_tiny_mtp

_MIXED = {**tiny.QWEN3_5_MOE, "shared_expert_intermediate_size": 32}
FAMILIES = {"qwen3_5": tiny.QWEN3_5, "qwen3_5_moe": _MIXED, "qwen3_next": _MIXED}
IDS = tiny.random_ids(61)


class Drafter(Driver):
    """Runs the head behind each step of the model."""

    @torch.inference_mode()
    def draft(self, tokens: dict[str, list[int]]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Each request's next tokens and the one behind them; by request the head's hidden states
        and logits."""
        batch = self._batch({req: ids[:-1] for req, ids in tokens.items()})
        following = self.integers([id for ids in tokens.values() for id in ids[1:]])
        hidden = self.model.draft_head(batch, following, self.model(batch))
        return self._of_requests(tokens, hidden)

    @torch.inference_mode()
    def go_on(self, req: str, token: int, hidden: torch.Tensor) -> torch.Tensor:
        """Logits behind a drafted token; `hidden` [1, hidden] is what drafted it."""
        batch = self._batch({req: [token]})
        hidden = self.model.draft_head(batch, self.integers([token]), hidden.to(self.device))
        return self.model.draft_head.compute_logits(hidden).cpu()

    def _of_requests(self, tokens, hidden):
        logits = self.model.draft_head.compute_logits(hidden).cpu()
        assert logits.dtype == torch.float32
        sizes = [len(ids) - 1 for ids in tokens.values()]
        parts = zip(hidden.split(sizes), logits.split(sizes), strict=True)
        return dict(zip(tokens, parts, strict=True))

    def drafts(self, ids: list[int], chunk: int, req: str = "r") -> torch.Tensor:
        """Logits [len(ids) - 1, vocab]."""
        count = len(ids) - 1
        steps = [ids[i : min(i + chunk, count) + 1] for i in range(0, count, chunk)]
        return torch.cat([self.draft({req: step})[req][1] for step in steps])


@torch.inference_mode()
def expected_drafts(reference, head: tiny_mtp.Head, ids: list[int]) -> torch.Tensor:
    hidden = tiny_mtp.hidden_states(reference, ids[:-1])
    return head.logits(head(torch.tensor(ids[1:]), hidden))


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    # Twice what the model's tests allow: the head rounds behind a model that has.
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-4)


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory) -> tuple[object, tiny_mtp.Head, CausalLM]:
    reference = tiny.make(request.param, **FAMILIES[request.param])
    head = tiny_mtp.make(reference)
    folder = tmp_path_factory.mktemp(request.param)
    tiny_mtp.save(folder, reference, head.tensors())
    return reference, head, tiny.load(folder, drafts=True)


def test_drafts_equal_the_formula_whole_and_in_chunks(both):
    reference, head, model = both
    expected = expected_drafts(reference, head, IDS)
    assert expected.std() > 0.3  # else a fault could hide below the bound
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
    with torch.inference_mode():
        rows = tiny_mtp.hidden_states(reference, IDS[:-1])
        ids, last = IDS[1:], head(torch.tensor(IDS[1:]), rows)
        for _ in range(3):
            token = int(logits[-1].argmax())
            logits = driver.go_on("r", token, hidden[-1:])
            ids, rows = [*ids, token], torch.cat((rows, last[-1:]))
            last = head(torch.tensor(ids), rows)
            _close(logits, head.logits(last[-1:]))
            hidden = last


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_draft_alike(family, tmp_path):
    shared = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
    mixed = {} if family == "qwen3_5" else {"num_experts": 8}
    reference = tiny.make(family, **{**FAMILIES[family], **shared, **mixed})
    head = tiny_mtp.make(reference)
    tiny_mtp.save(tmp_path, reference, head.tensors())
    expected = expected_drafts(reference, head, IDS)
    for size in (2, 4):
        ranks = on_ranks(
            size,
            lambda parallel: Drafter(tiny.load(tmp_path, drafts=True, parallel=parallel)).drafts(
                IDS, 17
            ),
        )
        for logits in ranks:
            _close(logits, expected)
            assert torch.equal(logits, ranks[0])


@pytest.mark.parametrize("storage", ["F32", "Q8_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gguf(family, storage, tmp_path):
    reference = tiny.make(family, **FAMILIES[family])
    head = tiny_mtp.make(reference, own_tables=storage == "F32")
    path, kind = tmp_path / "model.gguf", tiny_gguf_qwen35.Storage[storage]
    tiny_gguf_qwen35.write(path, reference, kind, head.tensors())
    model = tiny.load(path, drafts=True)
    _close(Drafter(model).drafts(IDS, 13), expected_drafts(reference, head, IDS))


def test_gguf_without_a_norm_of_its_own_takes_the_models(tmp_path):
    reference = tiny.make("qwen3_5", **tiny.QWEN3_5)
    head = tiny_mtp.make(reference)
    head.norm.weight.data.copy_(reference.model.norm.weight)
    tensors = {name: x for name, x in head.tensors().items() if name != "mtp.norm.weight"}
    path = tmp_path / "model.gguf"
    tiny_gguf_qwen35.write(path, reference, tiny_gguf_qwen35.Storage.F32, tensors)
    model = tiny.load(path, drafts=True)
    _close(Drafter(model).drafts(IDS, 60), expected_drafts(reference, head, IDS))


@pytest.mark.parametrize(
    ("family", "sizes"), [("glm4_moe", tiny.GLM4_MOE), ("deepseek_v3", tiny.DEEPSEEK_V3)]
)
def test_a_head_that_is_one_more_layer(family, sizes, tmp_path):
    reference = tiny.make(family, **sizes)
    head = tiny_mtp.make(reference, own_tables=True)
    reference.config.num_nextn_predict_layers = 1
    tiny_mtp.save(tmp_path, reference, tiny_mtp.as_nextn(head.tensors(), layer=3))
    model = tiny.load(tmp_path, drafts=True)
    expected = expected_drafts(reference, head, IDS)
    assert expected.std() > 0.3
    for chunk in (60, 13):
        _close(Drafter(model).drafts(IDS, chunk), expected)
    alone = tiny.load(tmp_path)
    assert alone.draft_head is None
    logits = Driver(alone).run(IDS, 61)
    _close(logits, tiny.reference_logits(reference, IDS))


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_next"])
def test_experts_as_tensors_of_their_own(family, tmp_path):
    reference = tiny.make(family, **FAMILIES[family])
    head = tiny_mtp.make(reference)
    tensors = head.tensors()
    experts = "mtp.layers.0.mlp.experts."
    gates, ups = tensors.pop(experts + "gate_up_proj").chunk(2, dim=1)
    downs = tensors.pop(experts + "down_proj")
    for name, parts in (("gate", gates), ("up", ups), ("down", downs)):
        for index, part in enumerate(parts):
            tensors[f"{experts}{index}.{name}_proj.weight"] = part
    tiny_mtp.save(tmp_path, reference, tensors)
    model = tiny.load(tmp_path, drafts=True)
    _close(Drafter(model).drafts(IDS, 60), expected_drafts(reference, head, IDS))


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built")
@pytest.mark.parametrize("storage", ["F32", "Q8_0"])
def test_packed_weights_draft_the_same_bits_in_any_chunks(storage, tmp_path):
    reference = tiny.make("qwen3_5", **tiny.QWEN3_5)
    head, path = tiny_mtp.make(reference), tmp_path / "model.gguf"
    tiny_gguf_qwen35.write(path, reference, tiny_gguf_qwen35.Storage[storage], head.tensors())
    model = tiny.load(path, packed=True, drafts=True)
    with torch.inference_mode():
        # By transformers' hidden states, for the model rounds its own.
        hidden, following = tiny_mtp.hidden_states(reference, IDS[:-1]), torch.tensor(IDS[1:])
        drafted = model.draft_head(Drafter(model)._batch({"r": IDS[:-1]}), following, hidden)
        expected = head(following, hidden)
    assert (drafted - expected).abs().mean() < 0.02 * expected.std()
    whole = Drafter(model).drafts(IDS, 60)
    for chunk in (1, 7, 32):
        assert torch.equal(Drafter(model).drafts(IDS, chunk), whole)


@pytest.fixture
def dense(tmp_path):
    """A folder's writer: changes the head's tensors before they are saved."""
    reference = tiny.make("qwen3_5", **tiny.QWEN3_5)
    tensors = tiny_mtp.make(reference).tensors()

    def write(change=lambda tensors: None):
        change(tensors)
        tiny_mtp.save(tmp_path, reference, tensors)
        return tmp_path

    return write


def test_nobody_who_does_not_ask_gets_the_head(dense):
    model = tiny.load(dense())
    assert model.draft_head is None
    asked = tiny.load(dense(), drafts=True)
    sizes = [sum(rule.param.startswith("draft_head.") for rule in spec.expanded_weights())
             for spec in (model.spec, asked.spec)]  # fmt: skip
    assert sizes == [0, 13]
    assert asked.nbytes > model.nbytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("mtp.fc.weight"), r"lacks mtp\.fc\.weight"),
        (
            lambda tensors: tensors.pop("mtp.layers.0.self_attn.k_norm.weight"),
            r"lacks mtp\.layers\.0\.self_attn\.k_norm\.weight",
        ),
        (
            lambda tensors: tensors.update({"mtp.layers.1.mlp.up_proj.weight": torch.ones(4, 4)}),
            r"holds mtp\.layers\.1\.mlp\.up_proj\.weight",
        ),
        (
            lambda tensors: tensors.update({"mtp.fc.weight": torch.ones(64, 64)}),
            r"mtp\.fc\.weight has the shape \[64, 64\].*\[64, 128\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(dense, change, message):
    folder = dense(change)
    assert tiny.load(folder).draft_head is None, "who does not ask for the head is not concerned"
    with pytest.raises(CheckpointError, match=message):
        tiny.load(folder, drafts=True)


def test_a_checkpoint_without_the_tensors_has_no_head(dense):
    folder = dense(lambda tensors: tensors.clear())
    assert json.loads((folder / "config.json").read_text())["mtp_num_hidden_layers"] == 1
    with pytest.raises(ConfigError, match="has no draft head"):
        tiny.load(folder, drafts=True)


def test_the_tools_chains_of_drafts_are_those_of_a_text_that_goes_on():
    reference = tiny.make("qwen3_5", **tiny.QWEN3_5)
    head, ids = tiny_mtp.make(reference), torch.tensor(IDS[:12])
    hidden = tiny_mtp.hidden_states(reference, IDS[:12])
    with torch.inference_mode():
        found = torch.stack([*train_tiny_mtp.drafts(head, ids[None], hidden[None])], dim=1)[0]
        for place in range(len(ids) - train_tiny_mtp.DRAFTS):
            rows = hidden[: place + 1]
            for k in range(train_tiny_mtp.DRAFTS):
                out = head(ids[1 : place + 2 + k], rows)[-1:]
                _close(found[k, place], head.logits(out)[0])
                rows = torch.cat((rows, out))


def test_the_tools_model_loads_with_its_head(tmp_path, monkeypatch):
    small = {"MODEL_STEPS": 2, "HEAD_STEPS": 2, "HELD_OUT": 1, "REPLY_TOKENS": 4}
    for name, count in {**small, "TOKENS": 32, "TEXTS": 2}.items():
        monkeypatch.setattr(train_tiny_mtp, name, count)
    monkeypatch.setattr("sys.argv", ["train_tiny_mtp", str(tmp_path)])
    train_tiny_mtp.main()
    model = tiny.load(tmp_path, drafts=True)
    assert Drafter(model).drafts(IDS, 60).isfinite().all()
