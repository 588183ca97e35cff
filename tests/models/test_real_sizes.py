"""Models of real sizes, reduced in layers only, with random weights: every shape fits."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import LayerSpec, ModelSpec
from pagoda.kernels import cpu
from pagoda.models.loader import build_model
from pagoda.planner.memory.assumed import Dummy
from pagoda.planner.memory.tensors import parameter_count
from tests.models.driver import Driver
from tests.unit.arch.test_gemma2 import GEMMA2_27B
from tests.unit.arch.test_gemma3 import GEMMA3_1B, GEMMA3_4B, GEMMA3_27B
from tests.unit.arch.test_gemma3n import GEMMA3N_E2B, GEMMA3N_E4B
from tests.unit.arch.test_gemma4 import GEMMA4_26B_A4B, GEMMA4_31B, GEMMA4_E2B, GEMMA4_E4B
from tests.unit.arch.test_moe import QWEN3_30B_A3B, QWEN_35B_A3B

# As published, but for fields that nobody reads. Beside each the parameters of the whole model, as
# the repository's safetensors headers sum up; of Qwen3.6 without its tower and draft head, as
# transformers counts them.
CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    "DeepSeek-R1-Distill-Qwen-7B": (
        {
            "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151643,
            "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
            "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2",
            "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06, "rope_theta": 10000, "sliding_window": 4096,
            "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_mrope": False,
            "use_sliding_window": False, "vocab_size": 152064,
        },
        7_615_616_512,
    ),
    "SmolLM3-3B": (
        {
            "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False,
            "bos_token_id": 128000, "eos_token_id": 128012, "hidden_act": "silu",
            "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536,
            "mlp_bias": False, "model_type": "smollm3", "num_attention_heads": 16,
            "num_hidden_layers": 36, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
            "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
            "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 128256,
        },
        3_075_098_624,
    ),
    "Phi-4-mini-instruct": (
        {
            "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "bos_token_id": 199999,
            "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu",
            "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
            "mlp_bias": False, "model_type": "phi3", "num_attention_heads": 24,
            "num_hidden_layers": 32, "num_key_value_heads": 8,
            "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
            "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
            "rope_scaling": {
                "type": "longrope", "long_factor": [1.0 + i for i in range(48)],
                "short_factor": [1.0] * 48,
            },
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 200064,
        },
        3_836_021_760,
    ),
    "Qwen3-30B-A3B": (QWEN3_30B_A3B, 30_532_122_624),
    "Qwen3.6-35B-A3B": (QWEN_35B_A3B, 34_660_610_688),
    "gemma-2-27b": (GEMMA2_27B, 27_227_128_320),
    "gemma-3-1b": (GEMMA3_1B, 999_885_952),
    "gemma-3-4b": (GEMMA3_4B, 4_300_079_472),
    "gemma-3-27b": (GEMMA3_27B, 27_432_406_640),
    # As transformers builds them. They see in tests/engine/test_gemma4_vision.py.
    "gemma-4-31B": (GEMMA4_31B, 31_273_088_876),
    "gemma-4-26B-A4B": (GEMMA4_26B_A4B, 25_805_936_206),
    "gemma-4-E2B": (GEMMA4_E2B, 4_628_569_379),
    "gemma-4-E4B": (GEMMA4_E4B, 7_463_013_418),
    # With timm's tower of 294,126,912, and without what hears.
    "gemma-3n-E2B": (GEMMA3N_E2B, 4_733_770_144),
    "gemma-3n-E4B": (GEMMA3N_E4B, 7_133_823_024),
}  # fmt: skip


def one_of_each(spec: ModelSpec) -> ModelSpec:
    """With one layer of each kind; those that borrow keys and values differ in whose they are."""
    kinds = [_kind(layer) for layer in spec.layers]
    kept = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    weights = [
        rule if rule.layers is None else replace(
            rule, layers=tuple(new for new, old in enumerate(kept) if old in rule.layers)
        )
        for rule in spec.weights
    ]  # fmt: skip
    layers = [spec.layers[i] for i in kept]
    for new, old in enumerate(kept):
        back = getattr(layers[new].mixer, "borrows", 0)
        if back:
            lender = kept.index(kinds.index(kinds[old - back]))
            layers[new] = replace(
                layers[new], mixer=replace(layers[new].mixer, borrows=new - lender)
            )
    return replace(spec, layers=tuple(layers), weights=tuple(weights))


def _kind(layer: LayerSpec) -> LayerSpec:
    back = getattr(layer.mixer, "borrows", 0)
    return replace(layer, mixer=replace(layer.mixer, borrows=1)) if back else layer


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_counted(name: str):
    config, parameters = CONFIGS[name]
    assert parameter_count(spec_for(config, {}, ())) == parameters


# A dense model and a mixture on each landing; the others differ in sizes only.
LANDING = ("SmolLM3-3B", "Qwen3-30B-A3B")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name in LANDING else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in CONFIGS
    ],
)
def test_random_weights_run(name: str):
    spec = spec_for(CONFIGS[name][0], {}, ())
    small = replace(one_of_each(spec), vision=None)
    model = build_model(
        small,
        Dummy(),
        dtype=torch.bfloat16,
        device="cpu",
        packed=cpu.native() is not None,
    )
    model.reserve(64)
    logits = Driver(model, num_blocks=8, block_size=16).run([1, 2, 3, 4, 5], chunk=4)
    assert logits.shape == (5, spec.vocab_size)
    assert logits.isfinite().all()
    assert logits.std() > 0


def test_the_catalogue_is_as_its_tool_writes_it():
    from tools import catalogue  # which reads the configs above

    assert catalogue.PATH.read_text() == catalogue.written()
