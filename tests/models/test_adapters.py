"""Adapters beside a model give what the merged model of transformers gives."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagoda.base.errors import CheckpointError, ConfigError, UnsupportedModelError
from pagoda.models.adapters import ModelAdapters
from pagoda.models.base import CausalLM
from pagoda.planner.adapters import adapter_bytes
from pagoda.planner.resolved import ResolvedAdapters
from pagoda.weights.adapters import open_adapter
from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver
from tests.models.tiny_adapter import TARGETS, TinyAdapter
from tests.models.tiny_gguf import Storage

IDS = tiny.random_ids(60)
DELTA_NET = ("in_proj_qkv", "in_proj_z", "out_proj", "in_proj_a")
FAMILIES = {
    "llama": ({}, TARGETS),
    "qwen3": ({"head_dim": 32}, TARGETS),
    "phi3": ({}, ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")),
    "gemma3": (tiny.GEMMA3, TARGETS),
    # Its own checkpoints have rotary pairs side by side.
    "cohere2": (tiny.COHERE2, TARGETS),
    # q_proj has an output gate between its heads.
    "qwen3_5": (tiny.QWEN3_5, (*TARGETS, *DELTA_NET)),
    "lfm2": (tiny.LFM2, ("q_proj", "out_proj", "in_proj", "w1", "w2")),
    "qwen3_5_moe": (tiny.QWEN3_5_MOE, ("q_proj", "v_proj", "o_proj")),
    # A layer here is two blocks there.
    "nemotron_h": (
        tiny.NEMOTRON_H,
        ("q_proj", "o_proj", "in_proj", "out_proj", "up_proj", "down_proj"),
    ),
}


def slots(count: int, slot: int) -> torch.Tensor:
    return torch.full((count,), slot, dtype=torch.int32)


def logits(model: CausalLM, slot: int, chunk: int = 23) -> torch.Tensor:
    driver, parts = Driver(model), []
    for start in range(0, len(IDS), chunk):
        piece = IDS[start : start + chunk]
        parts.append(driver.step({"r": piece}, adapters=slots(len(piece), slot))["r"])
    return torch.cat(parts)


def with_room(path: Path, num_slots: int = 3, max_rank: int = 8, **options):
    model = tiny.load(path, **options)
    of_gguf = path.suffix == ".gguf"
    return model, ModelAdapters(model, ResolvedAdapters(num_slots, max_rank), of_gguf=of_gguf)


def close(found: torch.Tensor, reference, atol: float = 1e-4) -> None:
    expected = tiny.reference_logits(reference, IDS)
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rslora", [False, True])
def test_peft(family: str, rslora: bool, tmp_path):
    changes, targets = FAMILIES[family]
    reference = tiny.make(family, **changes)
    reference.save_pretrained(tmp_path)
    adapter = TinyAdapter(reference, targets=targets, rslora=rslora, alpha=4.0)
    model, adapters = with_room(tmp_path)
    adapters.load(1, [(open_adapter(adapter.save_peft(tmp_path / "a")), 1.0)])
    merged = adapter.merged_into(reference)
    close(logits(model, 1), merged)
    close(logits(model, -1), reference)
    close(logits(model, 0), reference)  # an empty slot
    change = tiny.reference_logits(merged, IDS) - tiny.reference_logits(reference, IDS)
    assert change.abs().max() > 0.1


@pytest.mark.parametrize("family", ["llama", "qwen3", "granite", "cohere2", "glm4"])
@pytest.mark.parametrize("form", ["peft", "gguf"])
@pytest.mark.parametrize("storage", ["F32", "Q4_1"])
def test_beside_a_gguf(family: str, form: str, storage: str, tmp_path):
    """Quantized weights stay as they are, and the adapter adds to their product."""
    changes = {**(tiny.COHERE2 if family == "cohere2" else {}), "tie_word_embeddings": True}
    reference = tiny.make(family, **changes)
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage[storage])
    targets = [name for name in TARGETS if family != "glm4" or name not in ("gate_proj", "up_proj")]
    adapter = TinyAdapter(reference, targets=targets)
    model, adapters = with_room(path)
    where = tmp_path / "a.gguf"
    saved = adapter.save_peft(tmp_path / "a") if form == "peft" else adapter.save_gguf(where)
    adapters.load(0, [(open_adapter(saved), 1.0)])
    close(logits(model, 0), adapter.merged_into(reference))


def test_rows_that_the_converter_turns_though_nothing_is_rotated(tmp_path):
    reference, path = tiny.make("granite4", **tiny.GRANITE4_HYBRID), tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage.F32)
    adapter = TinyAdapter(reference, targets=("q_proj", "k_proj", "o_proj"))
    model, adapters = with_room(path)
    adapters.load(0, [(open_adapter(adapter.save_peft(tmp_path / "a")), 1.0)])
    close(logits(model, 0), adapter.merged_into(reference))


def test_many_in_one_batch(tmp_path):
    reference = tiny.make("llama")
    reference.save_pretrained(tmp_path)
    made = [
        TinyAdapter(reference, rank=rank, targets=targets, seed=rank)
        for rank, targets in ((2, TARGETS), (8, ("q_proj", "v_proj")), (5, ("down_proj",)))
    ]
    model, adapters = with_room(tmp_path)
    for slot, adapter in enumerate(made):
        files = open_adapter(adapter.save_peft(tmp_path / str(slot)))
        adapters.load(slot, [(files, 1.0)])
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


def test_a_sum_with_scales_is_a_slot(tmp_path):
    reference = tiny.make("llama")
    reference.save_pretrained(tmp_path)
    first = TinyAdapter(reference, rank=3, targets=TARGETS[:4], seed=1)
    second = TinyAdapter(reference, rank=5, targets=TARGETS[2:], seed=2)
    files = [
        open_adapter(each.save_peft(tmp_path / str(i))) for i, each in enumerate((first, second))
    ]
    model, adapters = with_room(tmp_path)
    adapters.load(2, [(files[0], 0.5), (files[1], -1.5)])
    close(logits(model, 2), second.merged_into(first.merged_into(reference, 0.5), -1.5))
    adapters.load(2, [(files[1], 1.0)])
    close(logits(model, 2), second.merged_into(reference))


def test_room_takes_what_is_predicted(tmp_path):
    for family in ("llama", "qwen3_5_moe", "gemma4"):
        changes = {"qwen3_5_moe": tiny.QWEN3_5_MOE, "gemma4": tiny.GEMMA4}.get(family, {})
        folder = tmp_path / family
        tiny.make(family, **changes).save_pretrained(folder)
        model, adapters = with_room(folder, 3, 8)
        room = [layer.adapters.nbytes for layer in adapters._layers.values()]
        assert sum(room) == adapter_bytes(model.spec, ResolvedAdapters(3, 8)) > 0


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    reference = tiny.make("llama")
    reference.save_pretrained(folder)
    return reference, *with_room(folder)


CONFIGS = {
    "use_dora": ({"use_dora": True}, "DoRA"),
    "bias": ({"bias": "lora_only"}, "trained biases"),
    "modules_to_save": ({"modules_to_save": ["lm_head"]}, "whole modules"),
    "kind": ({"peft_type": "IA3"}, "type 'IA3'"),
    "aLoRA": ({"alora_invocation_tokens": [1, 2]}, "aLoRA"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "left behind"),
    "pattern": ({"alpha_pattern": {".*q_proj": 4}}, "alpha_pattern"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_what_is_not_served_is_refused(case: str, llama, tmp_path):
    config, words = CONFIGS[case]
    folder = TinyAdapter(llama[0]).save_peft(tmp_path, **config)
    with pytest.raises(UnsupportedModelError, match=words):
        open_adapter(folder)


def test_alpha_of_single_modules(llama, tmp_path):
    reference, model, adapters = llama
    adapter = TinyAdapter(reference, targets=("q_proj", "o_proj"))
    folder = adapter.save_peft(tmp_path, alpha_pattern={"layers.0.self_attn.o_proj": 3.0})
    adapters.load(0, [(open_adapter(folder), 1.0)])
    merged = adapter.merged_into(reference)
    a, b = adapter.pairs["model.layers.0.self_attn.o_proj"]
    merged.model.layers[0].self_attn.o_proj.weight.data += (3.0 - adapter.alpha) / 4 * (b @ a)
    close(logits(model, 0), merged)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("model.embed_tokens", "table of tokens"),
        ("lm_head", "output head"),
        ("model.layers.0.mlp.experts.3.up_proj", "expert's"),
        ("model.visual.blocks.0.attn.qkv", "vision tower"),
        ("model.layers.0.self_attn.w_q", "none of LlamaForCausalLM that takes adapters"),
        ("model.layers.9.self_attn.q_proj", "none of LlamaForCausalLM that takes adapters"),
    ],
)
def test_modules_without_a_place_are_named(module: str, words: str, llama, tmp_path):
    reference, _, adapters = llama
    adapter = TinyAdapter(reference, targets=("q_proj",))
    adapter.pairs[module] = torch.zeros(4, 8), torch.zeros(8, 4)
    files = open_adapter(adapter.save_peft(tmp_path))
    with pytest.raises(UnsupportedModelError, match=words):
        adapters.load(0, [(files, 1.0)])


def test_ranks_and_shapes_are_checked_before_anything_changes(llama, tmp_path):
    reference, model, adapters = llama
    good = TinyAdapter(reference, seed=4)
    adapters.load(0, [(open_adapter(good.save_peft(tmp_path / "good")), 1.0)])
    large = open_adapter(TinyAdapter(reference, rank=9).save_peft(tmp_path / "large"))
    with pytest.raises(ConfigError, match="--max-lora-rank 9"):
        adapters.load(0, [(large, 1.0)])
    other = TinyAdapter(tiny.make("llama", hidden_size=96)).save_peft(tmp_path / "other")
    with pytest.raises(
        CheckpointError, match=r"is of another model: model\.layers\.0\..* is for a weight of"
    ):
        adapters.load(0, [(open_adapter(other), 1.0)])
    close(logits(model, 0), good.merged_into(reference))


def test_broken_files_are_refused(llama, tmp_path):
    with pytest.raises(CheckpointError, match="There is no adapter at"):
        open_adapter(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="lacks adapter_config.json"):
        open_adapter(tmp_path)
    folder = TinyAdapter(llama[0]).save_peft(tmp_path / "a")
    weights = folder / "adapter_model.safetensors"
    tensors = load_file(weights)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    for extra in ("lora_magnitude_vector", "lora_B.bias"):
        save_file({**tensors, f"{name}.{extra}": torch.zeros(3)}, weights)
        with pytest.raises(UnsupportedModelError, match=f"holds .*{extra}, which is no half"):
            open_adapter(folder)
    save_file({**tensors, f"{name}.lora_A.weight": torch.zeros(5, 64)}, weights)
    with pytest.raises(CheckpointError, match="must be .rank, in. and .out, rank."):
        open_adapter(folder)
    bad = tensors[f"{name}.lora_A.weight"].clone()
    bad[0, 0] = torch.nan
    save_file({**tensors, f"{name}.lora_A.weight": bad}, weights)
    with pytest.raises(CheckpointError, match="not finite"):
        llama[2].load(0, [(open_adapter(folder), 1.0)])
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": "x"}))
    with pytest.raises(CheckpointError, match="lora_alpha is 'x'"):
        open_adapter(folder)


def test_a_gguf_adapter_goes_with_a_gguf(llama, tmp_path):
    path = TinyAdapter(llama[0]).save_gguf(tmp_path / "a.gguf")
    with pytest.raises(UnsupportedModelError, match="goes with a model in a GGUF"):
        llama[2].load(0, [(open_adapter(path), 1.0)])
    whole = tmp_path / "model.gguf"
    tiny_gguf.write(whole, llama[0], lambda name: Storage.F32)
    with pytest.raises(CheckpointError, match="is no adapter: its general.type"):
        open_adapter(whole)


def test_what_it_is_follows_from_its_content(llama, tmp_path):
    first, again = (TinyAdapter(llama[0]).save_peft(tmp_path / name) for name in ("a", "b"))
    other = TinyAdapter(llama[0], alpha=11.0).save_peft(tmp_path / "c")
    assert open_adapter(first).identity() == open_adapter(again).identity()
    assert open_adapter(first).identity() != open_adapter(other).identity()
