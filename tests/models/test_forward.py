"""However a request's tokens are cut into steps and batched, its logits are the same."""

import pytest
import torch

from pagoda.models.base import CausalLM
from tests.models import tiny
from tests.models.driver import Driver
from tests.models.test_transformers import LONGROPE, MULTIPLIERS

MODELS = {
    "llama": ("llama", {}),
    "qwen3 windows": (
        "qwen3", {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1},
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "phi3": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
    "granite": ("granite", MULTIPLIERS),
    "qwen3 moe": ("qwen3_moe", tiny.QWEN3_MOE),
    "gpt-oss": ("gpt_oss", tiny.GPT_OSS),
    "olmo 3": ("olmo3", tiny.OLMO3),
    "glm-4.5": ("glm4_moe", tiny.GLM4_MOE),
    "deepseek v2": ("deepseek_v2", tiny.DEEPSEEK_V2),
    "deepseek v3": ("deepseek_v3", tiny.DEEPSEEK_V3),
    "deepseek v3.2": ("deepseek_v32", tiny.DEEPSEEK_V32),
    "glm-5.2": ("glm_moe_dsa", tiny.GLM_MOE_DSA),
    "command r7b": ("cohere2", tiny.COHERE2),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory) -> CausalLM:
    folder = tmp_path_factory.mktemp("model")
    family, changes = MODELS[request.param]
    tiny.make(family, **changes).save_pretrained(folder)
    return tiny.load(folder)


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("chunk", [1, 3, 7, 32])
def test_chunked_equals_whole(model: CausalLM, chunk: int):
    ids = tiny.random_ids(50)
    _close(Driver(model).run(ids, chunk), Driver(model).run(ids, 50))


def test_batch_equals_alone(model: CausalLM):
    """Prefill chunks, decodes of many lengths and a fresh request share steps."""
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


def test_given_embeddings_replace_rows(model: CausalLM):
    """A prompt whose rows are half given as embeddings equals the prompt of their ids."""
    ids = tiny.random_ids(20)
    rows = torch.arange(20) % 3 == 1
    given = model.embed_tokens(torch.tensor(ids, device=tiny.DEVICE)).cpu()
    hidden = [0 if row else token for token, row in zip(ids, rows.tolist(), strict=True)]
    embeds = torch.where(rows[:, None], given, torch.nan)
    logits = Driver(model).step({"r": hidden}, input_embeds=embeds, embed_rows=rows)["r"]
    _close(logits, Driver(model).run(ids, 20))


def test_reserved_rotary_tables_stay_where_they_are(model: CausalLM):
    model.reserve(5000)
    table = model.layers[0].attention.rotary
    before = table.upto(1).data_ptr()
    assert table.upto(5000).data_ptr() == before
    assert table.upto(5000).shape[0] >= 5000
    rotaries = {layer.attention.rotary for layer in model.layers} - {None}
    assert rotaries == set(model.context.rotary.tables.values())
    assert len(rotaries) == len({rotary.spec for rotary in rotaries})
