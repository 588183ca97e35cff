"""Adapters of experts give what the merged model of transformers gives."""

import json

import pytest
import torch

from pagoda.arch.adapters import expert_module
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.models.adapters import ModelAdapters
from pagoda.planner.adapters import adapter_bytes
from pagoda.planner.resolved import ResolvedAdapters
from pagoda.weights.adapters import open_adapter
from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver
from tests.models.gloo_ranks import on_ranks
from tests.models.test_adapters import IDS, close, logits, slots
from tests.models.tiny_adapter import TinyAdapter
from tests.models.tiny_expert_adapter import TinyExpertAdapter
from tests.models.tiny_gguf import Storage

ROOM = ResolvedAdapters(3, 8, experts=True)
FAMILIES = {
    "qwen3_moe": tiny.QWEN3_MOE,
    "mixtral": tiny.MIXTRAL,
    "gpt_oss": tiny.GPT_OSS,
    "deepseek_v3": tiny.DEEPSEEK_V3,
    "gemma4": tiny.GEMMA4_MOE,
    "nemotron_h": tiny.NEMOTRON_H_MOE,
}
MIXTRAL_NAMES = {"gate": "w1", "up": "w3", "down": "w2"}


def with_room(path, **options):
    model = tiny.load(path, **options)
    return model, ModelAdapters(model, ROOM, of_gguf=path.suffix == ".gguf")


# Without square matrices.
NARROW = {**tiny.QWEN3_MOE, "moe_intermediate_size": 24}


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moe")
    reference = tiny.make("qwen3_moe", **NARROW)
    reference.save_pretrained(folder)
    return reference, folder, *with_room(folder)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_all_experts(family, packed, tmp_path):
    reference = tiny.make(family, **FAMILIES[family])
    reference.save_pretrained(tmp_path)
    adapter = TinyExpertAdapter(reference)
    model, adapters = with_room(tmp_path, packed=packed)
    adapters.load(1, [(open_adapter(adapter.save_folded(tmp_path / "a")), 1.0)])
    merged = adapter.merged_into(reference)
    close(logits(model, 1), merged)
    close(logits(model, -1), reference)
    close(logits(model, 0), reference)
    change = tiny.reference_logits(merged, IDS) - tiny.reference_logits(reference, IDS)
    assert change.abs().max() > 0.1


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "deepseek_v3"])
@pytest.mark.parametrize("experts", [(), (1, 3)])
def test_modules_of_single_experts(family, experts, tmp_path):
    """Experts without a module stay as they are."""
    reference = tiny.make(family, **FAMILIES[family])
    reference.save_pretrained(tmp_path)
    adapter = TinyExpertAdapter(reference)
    names = {"names": MIXTRAL_NAMES} if family == "mixtral" else {}
    model, adapters = with_room(tmp_path)
    saved = adapter.save_single(tmp_path / "a", experts, **names)
    adapters.load(0, [(open_adapter(saved), 1.0)])
    close(logits(model, 0), adapter.merged_into(reference, experts))


@pytest.mark.parametrize("parameter", ["gate_up_proj", "down_proj"])
def test_one_of_the_parameters(parameter, moe, tmp_path):
    reference, _, model, adapters = moe
    adapter = TinyExpertAdapter(reference, parameters=(parameter,))
    adapters.load(0, [(open_adapter(adapter.save_folded(tmp_path)), 1.0)])
    close(logits(model, 0), adapter.merged_into(reference))


def test_beside_other_layers_and_other_adapters(moe, tmp_path):
    """Their ranks add up in one slot; another one's are gone."""
    reference, _, model, adapters = moe
    dense = TinyAdapter(reference, targets=("q_proj", "o_proj"))
    bare = {"target_parameters": ["down_proj", "gate_up_proj"]}
    first, second = (TinyExpertAdapter(reference, rank=rank, seed=rank) for rank in (3, 5))
    paths = [
        dense.save_peft(tmp_path / "dense", **bare), first.save_folded(tmp_path / "first"),
        second.save_single(tmp_path / "second"),
    ]  # fmt: skip
    files = [open_adapter(path) for path in paths]
    adapters.load(2, [(each, 1.0) for each in files])
    both = second.merged_into(first.merged_into(dense.merged_into(reference)))
    close(logits(model, 2), both)
    adapters.load(2, [(files[2], 1.0)])
    close(logits(model, 2), second.merged_into(reference))


@pytest.mark.parametrize("alpha", [False, True])
def test_patterns_of_parameters(alpha, moe, tmp_path):
    """As peft writes them where it joins gate and up of an older adapter."""
    reference, _, model, adapters = moe
    adapter = TinyExpertAdapter(reference, parameters=("gate_up_proj",), rank=6, alpha=12.0)
    patterns = {"rank_pattern": {r".*\.gate_up_proj": 6}, "r": 3, "lora_alpha": 6.0}
    if alpha:
        patterns["alpha_pattern"] = {r".*\.gate_up_proj": 12.0}
    else:
        adapter.alpha = 6.0
    adapters.load(0, [(open_adapter(adapter.save_folded(tmp_path, **patterns)), 1.0)])
    close(logits(model, 0), adapter.merged_into(reference))


@pytest.mark.parametrize("family", ["qwen3_moe", "llama4"])
def test_factors_that_peft_turned_around(family, tmp_path):
    """Until 0.19 for Qwen's, and since then for Llama 4's."""
    reference = tiny.make(family, **(tiny.LLAMA4 if family == "llama4" else tiny.QWEN3_MOE))
    reference.save_pretrained(tmp_path)
    adapter = TinyExpertAdapter(reference, turned=family != "llama4")
    model, adapters = with_room(tmp_path)
    adapters.load(0, [(open_adapter(adapter.save_folded(tmp_path / "a")), 1.0)])
    close(logits(model, 0), adapter.merged_into(reference))


@pytest.mark.parametrize("form", ["folded", "single", "gguf"])
@pytest.mark.parametrize("storage", ["F32", "Q4_1"])
def test_beside_a_gguf(form, storage, tmp_path):
    reference = tiny.make("qwen3_moe", **tiny.QWEN3_MOE)
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage[storage])
    adapter = TinyExpertAdapter(reference)
    model, adapters = with_room(path)
    place = tmp_path / ("a.gguf" if form == "gguf" else "a")
    adapters.load(0, [(open_adapter(getattr(adapter, f"save_{form}")(place)), 1.0)])
    close(logits(model, 0), adapter.merged_into(reference))


def test_biased_experts_of_a_gguf(tmp_path):
    """There gate and up lie apart; peft has their rows in turn."""
    reference = tiny.make("gpt_oss", **{**tiny.GPT_OSS, "swiglu_limit": 7.0})
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage.F32)
    adapter = TinyExpertAdapter(reference)
    model, adapters = with_room(path, packed=True)
    adapters.load(0, [(open_adapter(adapter.save_folded(tmp_path / "a")), 1.0)])
    close(logits(model, 0), adapter.merged_into(reference))


@pytest.mark.parametrize("packed", [False, True])
def test_many_in_one_batch(packed, moe, tmp_path):
    reference, folder, *_ = moe
    model, adapters = with_room(folder, packed=packed)
    made = [TinyExpertAdapter(reference, rank=rank, seed=rank) for rank in (2, 8, 5)]
    for slot, adapter in enumerate(made):
        adapters.load(slot, [(open_adapter(adapter.save_folded(tmp_path / str(slot))), 1.0)])
    prompts = {f"r{slot}": tiny.random_ids(9 + slot, seed=slot) for slot in (2, -1, 0, 1)}
    rows = torch.cat([slots(len(ids), int(name[1:])) for name, ids in prompts.items()])
    together = Driver(model).step(prompts, adapters=rows)
    for name, ids in prompts.items():
        slot = int(name[1:])
        alone = Driver(model).step({"r": ids}, adapters=slots(len(ids), slot))["r"]
        expected = reference if slot < 0 else made[slot].merged_into(reference)
        expected = tiny.reference_logits(expected, ids)
        torch.testing.assert_close(together[name], expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(alone, expected, rtol=0, atol=1e-4)
        # A CPU's kernels give the same bits.
        assert torch.equal(alone, together[name]) or not packed or tiny.DEVICE != "cpu"


def test_ranks_hold_what_stands_beside_their_experts(moe, tmp_path):
    reference, folder, *_ = moe
    adapter = TinyExpertAdapter(reference)
    files = open_adapter(adapter.save_folded(tmp_path))
    expected = tiny.reference_logits(adapter.merged_into(reference), IDS)

    def run(parallel):
        model = tiny.load(folder, parallel=parallel)
        adapters = ModelAdapters(model, ROOM, of_gguf=False)
        adapters.load(1, [(files, 1.0)])
        room = sum(layer.adapters.nbytes for layer in adapters._adapted.values())
        return logits(model, 1), room == adapter_bytes(model.spec, ROOM, 2)

    for found, predicted in on_ranks(2, run):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
        assert predicted


@pytest.mark.parametrize("family", FAMILIES)
def test_room_takes_what_is_predicted(family, tmp_path):
    tiny.make(family, **FAMILIES[family]).save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    for room in (ROOM, ResolvedAdapters(2, 4, "bfloat16", experts=True), ResolvedAdapters(3, 8)):
        adapters = ModelAdapters(model, room, of_gguf=False)
        held = sum(layer.adapters.nbytes for layer in adapters._adapted.values())
        assert held == adapter_bytes(model.spec, room) > 0


def test_what_does_not_fit_is_said(moe, tmp_path):
    reference, folder, _, adapters = moe
    adapter = TinyExpertAdapter(reference)
    saved = adapter.save_folded(tmp_path / "a")
    without = ModelAdapters(tiny.load(folder), ResolvedAdapters(2, 8), of_gguf=False)
    with pytest.raises(UnsupportedModelError, match="start the server with --lora-experts"):
        without.load(0, [(open_adapter(saved), 1.0)])
    fewer = tiny.make("qwen3_moe", **{**NARROW, "num_experts": 4})
    other = TinyExpertAdapter(fewer).save_folded(tmp_path / "fewer")
    with pytest.raises(CheckpointError, match="4 experts with .* this model has 8 experts"):
        adapters.load(0, [(open_adapter(other), 1.0)])
    config = json.loads((saved / "adapter_config.json").read_text())
    for change, words in (
        ({"target_parameters": ["experts.gate_up_proj"]}, "with 2 of the parameters"),
        ({"target_parameters": ["experts.gate_up_proj", "experts.bias"]}, "of the parameters"),
    ):
        (saved / "adapter_config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(UnsupportedModelError, match=words):
            open_adapter(saved)
    (saved / "adapter_config.json").write_text(json.dumps({**config, "r": 5}))
    with pytest.raises(CheckpointError, match="no number of experts with the rank 5"):
        open_adapter(saved)


def test_square_weights_alone_say_too_little(tmp_path):
    sizes = {**tiny.GPT_OSS, "intermediate_size": tiny.SIZES["hidden_size"]}
    reference = tiny.make("gpt_oss", **sizes)
    reference.save_pretrained(tmp_path)
    model, adapters = with_room(tmp_path)
    alone = TinyExpertAdapter(reference, parameters=("down_proj",)).save_folded(tmp_path / "a")
    with pytest.raises(UnsupportedModelError, match="on which side A stands"):
        adapters.load(0, [(open_adapter(alone), 1.0)])
    both = TinyExpertAdapter(reference)
    adapters.load(0, [(open_adapter(both.save_folded(tmp_path / "b")), 1.0)])
    close(logits(model, 0), both.merged_into(reference))


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.shared_experts.gate_proj", "model.layers.0.mlp.gate",
        "model.layers.0.mlp.experts.3.act", "layers.1.mlp.shared_expert.up_proj",
    ],
)  # fmt: skip
def test_what_is_no_expert(name):
    assert expert_module(name) is None


def test_a_router_is_refused(moe, tmp_path):
    reference, _, _, adapters = moe
    adapter = TinyAdapter(reference, targets=("q_proj",))
    adapter.pairs["model.layers.0.mlp.gate"] = torch.zeros(4, 64), torch.zeros(8, 4)
    with pytest.raises(UnsupportedModelError, match="chooses experts"):
        adapters.load(0, [(open_adapter(adapter.save_peft(tmp_path)), 1.0)])


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3"])
def test_files_and_merge_of_peft_itself(family, tmp_path):
    peft = pytest.importorskip("peft")
    reference = tiny.make(family, **FAMILIES[family])
    reference.save_pretrained(tmp_path)
    before = "" if family in ("mixtral", "deepseek_v3") else "experts."
    config = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["o_proj"], task_type="CAUSAL_LM",
        target_parameters=[f"{before}gate_up_proj", f"{before}down_proj"],
    )  # fmt: skip
    trained = peft.get_peft_model(reference, config)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, weight in trained.named_parameters():
            if "lora_" in name:
                weight.copy_(0.1 * torch.randn(weight.shape))
    trained.save_pretrained(tmp_path / "a")
    model, adapters = with_room(tmp_path)
    adapters.load(0, [(open_adapter(tmp_path / "a"), 1.0)])
    close(logits(model, 0), trained.merge_and_unload())
