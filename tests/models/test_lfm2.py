"""LFM2's gated short convolutions: logits equal to transformers', however a prompt is cut into
steps, batched or resumed."""

import pytest
import torch

from pagoda.arch.recurrent import ShortConvSpec
from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.kernels import cpu
from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver

CASES = {
    "dense": ("lfm2", {}),
    "adjusted width": ("lfm2", {"block_auto_adjust_ff_dim": True, "block_multiple_of": 40}),
    "biases": ("lfm2", {"conv_bias": True}),
    "wide convolution": ("lfm2", {"conv_L_cache": 5}),
    "attention first": (
        "lfm2", {"layer_types": ["full_attention", "conv", "conv", "full_attention"]},
    ),
    "mixture": ("lfm2_moe", {}),
    "mixture that is not corrected": (
        "lfm2_moe", {"use_expert_bias": False, "routed_scaling_factor": 1.5},
    ),
}  # fmt: skip
SIZES = {"lfm2": tiny.LFM2, "lfm2_moe": tiny.LFM2_MOE}


def make(family: str, **changes):
    return tiny.make(family, **{**SIZES[family], **changes})


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal(case: str, tmp_path):
    family, changes = CASES[case]
    reference = make(family, **changes)
    reference.save_pretrained(tmp_path)
    ids = tiny.random_ids(90)
    expected = tiny.reference_logits(reference, ids)
    assert expected.std() > 0.3  # else a fault could hide below the bound
    model = tiny.load(tmp_path)
    for chunk in (90, 7, 1):
        _close(Driver(model).run(ids, chunk), expected)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make("lfm2").save_pretrained(path)
    return path


@pytest.fixture(params=["native", "none"])
def model(request, folder, monkeypatch):
    """With the native kernels, and with torch alone."""
    monkeypatch.setattr(cpu, "_cached", {})
    monkeypatch.setenv("PAGODA_CPU_ISA", "" if request.param == "native" else "none")
    return tiny.load(folder)


def test_batch_equals_alone(model):
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
        _close(torch.cat(collected[req]), Driver(model).run(ids, len(ids)))


def test_resuming_from_a_kept_state_equals_computing_anew(model):
    shared, tails = tiny.random_ids(24), [tiny.random_ids(n, seed=n) for n in (17, 5)]
    driver = Driver(model, num_blocks=128)
    driver.run(shared, 10, "first")
    for name, tail in zip("ab", tails, strict=True):
        driver.resume(name, "first")
        anew = Driver(model).run(shared + tail, len(shared + tail))
        _close(driver.run(tail, 6, name), anew[24:])
    _close(driver.run(tails[0], 17, "first"), Driver(model).run(shared + tails[0], 41)[24:])


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built")
def test_packed_weights_give_the_same_bits_in_any_chunks(folder):
    model = tiny.load(folder, packed=True)
    ids = tiny.random_ids(60)
    whole = Driver(model).run(ids, 60)
    expected = tiny.reference_logits(make("lfm2"), ids)
    assert (whole - expected).abs().mean() < 0.02 * expected.std()
    for chunk in (1, 7, 32):
        assert torch.equal(Driver(model).run(ids, chunk), whole)


@pytest.mark.parametrize("storage", ["F32", "Q8_0"])
@pytest.mark.parametrize("family", SIZES)
def test_gguf(family, storage, tmp_path):
    reference, path = make(family), tmp_path / "model.gguf"
    kind = tiny_gguf.Storage[storage]
    tiny_gguf.write(path, reference, lambda name: kind)
    ids = tiny.random_ids(60)
    _close(Driver(tiny.load(path)).run(ids, 13), tiny.reference_logits(reference, ids))


# The fields of LiquidAI/LFM2-1.2B's config.json that say what is computed, as first published.
LFM2_1_2B = {
    "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048,
    "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
    "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048,
    "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048,
    "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05,
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "rope_theta": 1000000.0, "vocab_size": 65536,
}  # fmt: skip


def test_the_first_published_files():
    spec = spec_for(LFM2_1_2B, {}, ())
    attends = [not isinstance(layer.mixer, ShortConvSpec) for layer in spec.layers]
    assert [index for index, found in enumerate(attends) if found] == [2, 5, 8, 10, 12, 14]
    assert spec.layers[0].mlp is not None and spec.layers[0].mlp.intermediate_size == 8192
    assert spec.layers[0].mixer == ShortConvSpec(2048, 3)
    assert spec.tie_word_embeddings and spec.eos_token_ids == (7,)
    rope = spec.attentions[0].rope
    assert rope is not None and rope.theta == 1e6


def test_layers_of_unknown_kinds_are_named():
    config = {**LFM2_1_2B, "layer_types": ["conv", "mamba"] * 8}
    with pytest.raises(CheckpointError, match="full_attention or conv"):
        spec_for(config, {}, ())


@pytest.mark.parametrize("field", [{"attention.causal": False}, {"attention.sliding_window": 512}])
def test_gguf_of_other_kinds_is_refused(field):
    ((name, value),) = field.items()
    metadata = {
        "general.architecture": "lfm2", "lfm2.attention.head_count_kv": [0, 8],
        f"lfm2.{name}": value,
    }  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=name):
        spec_for(None, metadata, ())
