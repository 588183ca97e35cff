"""Qwen3.5's delta nets and gated attention: logits equal to transformers', however a prompt is cut
into steps, batched, resumed or replayed."""

import pytest
import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from pagoda.arch.recurrent import DeltaNetSpec
from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError
from pagoda.kernels import cpu
from pagoda.models.loader import build_model
from pagoda.planner.memory.assumed import Dummy
from tests.models import tiny, tiny_gguf_qwen35
from tests.models.driver import Driver
from tests.unit.arch.test_qwen3_5 import QWEN_27B

CASES = {
    "as published": {},
    "equal heads": {"linear_num_value_heads": 2},
    "one key head": {"linear_num_key_heads": 1, "linear_num_value_heads": 3},
    "odd sizes": {"linear_key_head_dim": 20, "linear_value_head_dim": 10},
    "short convolution": {"linear_conv_kernel_dim": 2},
    "biases": {"attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "attention first": {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
    },
    "no attention": {
        "num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2, "use_cache": False,
    },
}  # fmt: skip
# Of a draft head (test_mtp.py), which nobody asks for here.
UNREAD = {"mtp.pre_fc_norm_embedding.weight": torch.ones(64)}


def make(**changes):
    return tiny.make("qwen3_5", **{**tiny.QWEN3_5, **changes})


@pytest.mark.parametrize("case", CASES)
def test_logits_equal(case: str, tmp_path):
    reference = make(**CASES[case])
    reference.save_pretrained(tmp_path)
    ids = tiny.random_ids(150)
    expected = tiny.reference_logits(reference, ids)
    assert expected.std() > 0.3  # else a fault could hide below the bound
    model = tiny.load(tmp_path)
    for chunk in (150, 7):
        logits = Driver(model).run(ids, chunk)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make().save_pretrained(path)
    return path


@pytest.fixture(params=["native", "none"])
def model(request, folder, monkeypatch):
    """With the native kernels, and with torch alone."""
    monkeypatch.setattr(cpu, "_cached", {})
    monkeypatch.setenv("PAGODA_CPU_ISA", "" if request.param == "native" else "none")
    return tiny.load(folder)


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    # torch's products alone round by 5e-5 differently for other numbers of rows.
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_chunked_equals_whole(model, chunk):
    ids = tiny.random_ids(100)
    _close(Driver(model).run(ids, chunk), Driver(model).run(ids, 100))


def test_batch_equals_alone(model):
    """Prefill chunks, decodes and a fresh request share steps."""
    prompts = {f"r{i}": tiny.random_ids(length, seed=i) for i, length in enumerate([1, 5, 33, 60])}
    driver = Driver(model, num_blocks=128)
    collected: dict[str, list[torch.Tensor]] = {req: [] for req in prompts}
    done = dict.fromkeys(prompts, 0)
    for sizes in ((1, 4, 9, 20), (0, 1, 1, 1), (0, 0, 22, 38), (0, 0, 1, 1)):
        tokens = {}
        for (req, ids), size in zip(prompts.items(), sizes, strict=True):
            if size:
                tokens[req] = ids[done[req] : done[req] + size]
                done[req] += size
        for req, logits in driver.step(tokens).items():
            collected[req].append(logits)
    for req, ids in prompts.items():
        assert done[req] == len(ids)
        _close(torch.cat(collected[req]), Driver(model).run(ids, len(ids)))


def test_resuming_from_a_kept_state_equals_computing_anew(model):
    """Two requests go on from one checkpoint, and it stays as it was."""
    shared, tails = tiny.random_ids(24), [tiny.random_ids(n, seed=n) for n in (17, 5)]
    driver = Driver(model, num_blocks=128)
    driver.run(shared, 10, "first")
    for name, tail in zip("ab", tails, strict=True):
        driver.resume(name, "first")
        anew = Driver(model).run(shared + tail, len(shared + tail))
        _close(driver.run(tail, 6, name), anew[24:])
    _close(driver.run(tails[0], 17, "first"), Driver(model).run(shared + tails[0], 41)[24:])


def test_a_checkpoint_with_vision_and_draft_layers_gives_its_text_model(tmp_path):
    text = make().config.to_dict()
    text["rope_parameters"]["mrope_section"] = [2, 1, 1]
    vision = {
        "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
        "out_hidden_size": text["hidden_size"], "num_position_embeddings": 16,
    }  # fmt: skip
    torch.manual_seed(1)
    config = Qwen3_5Config(text_config=text, vision_config=vision)
    reference = Qwen3_5ForConditionalGeneration(config).eval()
    reference.model.language_model.load_state_dict(make().model.state_dict())
    state = dict(reference.state_dict(), **{"mtp.fc.weight": torch.zeros(4, 4)})
    reference.save_pretrained(tmp_path, state_dict=state)
    ids = tiny.random_ids(40)
    logits = Driver(tiny.load(tmp_path)).run(ids, 40)
    expected = tiny.reference_logits(reference, ids)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("storage", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("heads", [(2, 4), (1, 3), (3, 6), (2, 2)])
def test_gguf(storage, heads, tmp_path):
    """Its value heads are ordered differently, and it may hold layers that draft tokens."""
    sizes = {"linear_num_key_heads": heads[0], "linear_num_value_heads": heads[1]}
    path = tmp_path / "model.gguf"
    kind = tiny_gguf_qwen35.Storage[storage]
    reference = tiny_gguf_qwen35.write(path, make(**sizes), kind, UNREAD)
    ids = tiny.random_ids(60)
    logits = Driver(tiny.load(path)).run(ids, 13)
    expected = tiny.reference_logits(reference, ids)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("storage", ["F32", "Q8_0"])
@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_next"])
def test_gguf_with_experts(family, storage, tmp_path):
    path = tmp_path / "model.gguf"
    kind = tiny_gguf_qwen35.Storage[storage]
    made = tiny.make(family, **{**tiny.QWEN3_5_MOE, "shared_expert_intermediate_size": 32})
    reference = tiny_gguf_qwen35.write(path, made, kind, UNREAD)
    ids = tiny.random_ids(60)
    expected = tiny.reference_logits(reference, ids)
    torch.testing.assert_close(Driver(tiny.load(path)).run(ids, 13), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3_5", tiny.QWEN3_5),
        ("qwen3_5_moe", tiny.QWEN3_5_MOE),
        ("qwen3_next", tiny.QWEN3_5_MOE),
    ],
)
def test_half_precision_stays_close(family, sizes, dtype, tmp_path):
    """The distance to fp32 is no more than transformers' own in the same dtype."""
    reference = tiny.make(family, **sizes)
    reference.save_pretrained(tmp_path)
    ids = tiny.random_ids(60)
    exact = tiny.reference_logits(reference, ids)
    theirs = (tiny.reference_logits(reference.to(dtype), ids).float() - exact).abs().mean()
    ours = (Driver(tiny.load(tmp_path, dtype)).run(ids, 60) - exact).abs().mean()
    assert ours < 1.2 * theirs


def test_sizes_that_do_not_fit_the_checkpoint_are_named(folder, tmp_path):
    config = (folder / "config.json").read_text()
    changed = config.replace('"linear_num_value_heads": 4', '"linear_num_value_heads": 6')
    assert changed != config
    (tmp_path / "config.json").write_text(changed)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"linear_attn.*has the shape"):
        tiny.load(tmp_path)


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built")
def test_packed_weights_say_nearly_the_same_and_the_same_bits_in_any_chunks(folder):
    reference = make()
    model = tiny.load(folder, packed=True)
    ids = tiny.random_ids(60)
    whole = Driver(model).run(ids, 60)
    expected = tiny.reference_logits(reference, ids)
    assert (whole - expected).abs().mean() < 0.02 * expected.std()
    for chunk in (1, 7, 32):
        assert torch.equal(Driver(model).run(ids, chunk), whole)


@pytest.mark.slow
@pytest.mark.skipif(
    cpu.native() is None, reason="torch rounds products of 16 bits by how many rows there are"
)
def test_published_sizes_run_with_random_weights():
    """Qwen3.6-27B with one layer of each kind: 1.5 GiB of weights, a 64th of its vocabulary."""
    text = {
        **QWEN_27B["text_config"], "num_hidden_layers": 2, "full_attention_interval": 2,
        "vocab_size": 248320 // 64,
    }  # fmt: skip
    spec = spec_for({**QWEN_27B, "text_config": text}, {}, ())
    assert [isinstance(layer.mixer, DeltaNetSpec) for layer in spec.layers] == [True, False]
    model = build_model(spec, Dummy(), dtype=torch.bfloat16, device="cpu", packed=True)
    ids = tiny.random_ids(8, vocab_size=248320 // 64)
    whole = Driver(model).run(ids, 8)
    assert whole.isfinite().all()
    assert whole.std() > 0
    # The same bits from native kernels, nearly the same from torch.
    torch.testing.assert_close(Driver(model).run(ids, 5), whole, rtol=1e-3, atol=1e-3)
