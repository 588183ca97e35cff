"""Which steps are captured on a GPU: what launching and padding cost is worked out by hand here."""

from dataclasses import replace

import pytest

from pagoda.arch.recurrent import Mamba2Spec
from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from pagoda.base.facts import DeviceFacts
from pagoda.planner.captured import CapturedSize, captured_sizes, mixed_sizes
from pagoda.planner.devices.gpus import find_gpus, likest_gpu
from pagoda.planner.resolve import refit, resolve
from tests.unit.planner.test_resolve import GIB, configure

HIDDEN, WIDE, HEADS, KV_HEADS, LAYERS, VOCAB = 4096, 14336, 32, 8, 32, 128256
NAMES = ("L4", "4090", "A100-80G", "H100", "B200")


def llama8b() -> ModelSpec:
    attention = AttentionSpec("full", HEADS, KV_HEADS, 128, 0.088, RopeSpec(5e5, 128))
    layer = LayerSpec(attention, MlpSpec(WIDE))
    return ModelSpec(
        "LlamaForCausalLM", VOCAB, HIDDEN, (layer,) * LAYERS, 1e-5, False, 8192, "bfloat16", ()
    )  # fmt: skip


def facts_of(name: str, **changes) -> DeviceFacts:
    gpu = find_gpus(name)[0]
    capability = 10 * gpu.capability[0] + gpu.capability[1]
    facts = DeviceFacts(
        "cuda", gpu.memory, gpu.memory, 4, name=f"NVIDIA {gpu.name}", capability=capability
    )
    return replace(facts, **changes)


def prompts(resolution) -> tuple[CapturedSize, ...]:
    return tuple(size for size in resolution.captured_sizes if size.prompts)


def why(resolution) -> str:
    return next(r.why for r in resolution.reasons if r.field == "captured_prompts")


def both(memory: float, arithmetic: float) -> float:
    """Two times that overlap (docs/doctor.md)."""
    return (memory**3 + arithmetic**3) ** (1 / 3)


def seconds(name: str, tokens: int) -> float:
    """The work of the first tokens of a prompt: half of the GPU's nominal speed, 0.76 of its
    bandwidth, each product by itself."""
    gpu = find_gpus(name)[0]
    speed, read = 0.5 * gpu.matmul["bf16"], 0.76 * gpu.bandwidth
    qkv = (HEADS + 2 * KV_HEADS) * 128 * HIDDEN
    products = [qkv, HIDDEN * HIDDEN, 2 * HIDDEN * WIDE, HIDDEN * WIDE]
    layers = LAYERS * sum(both(2 * size / read, 2 * size * tokens / speed) for size in products)
    pairs = tokens * (tokens // 2)
    attending = LAYERS * 4 * pairs * HEADS * 128 / speed
    head = VOCAB * HIDDEN
    return layers + attending + both(2 * head / read, 2 * head / speed)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_captured_while_launches_cost_more_than_padding(name):
    found = resolve(configure(), llama8b(), {}, facts_of(name))
    launching = 50e-6 * (9 * LAYERS + 4)

    def gains(tokens: int) -> bool:
        work = seconds(name, tokens)
        return launching >= 0.1 * work and launching >= seconds(name, round(1.25 * tokens)) - work

    expected = [size for size in mixed_sizes(256, 2048) if gains(size.tokens)]
    assert prompts(found) == tuple(expected)
    assert found.captured_sizes[: len(captured_sizes(256))] == captured_sizes(256)


def test_a_faster_gpu_captures_longer_steps():
    most = [
        max(s.tokens for s in prompts(resolve(configure(), llama8b(), {}, facts_of(name))))
        for name in NAMES
    ]
    assert most == [256, 320, 512, 1792, 2048]


def test_the_reason_is_kept():
    assert "launching takes little beside computing on the A100-80G" in why(
        resolve(configure(), llama8b(), {}, facts_of("A100-80G"))
    )
    assert "all that a step may have" in why(resolve(configure(), llama8b(), {}, facts_of("B200")))


def test_captured_steps_take_a_small_share_of_the_memory():
    """Launches of a small model would be worth a graph of any step, and memory has none."""
    facts = facts_of("H100", total_memory=24 * GIB, free_memory=24 * GIB)
    large = resolve(configure(), llama8b(), {}, facts_of("H100"))
    small = resolve(configure(), llama8b(), {}, facts)
    assert 16 < max(s.tokens for s in prompts(small)) < max(s.tokens for s in prompts(large))
    assert small.plan.captured <= 24 * GIB / 16 < large.plan.captured
    assert "a sixteenth of the GPU's memory" in why(small)


def test_none_where_prompts_cannot_be_captured():
    for changes in (
        {"device": {"enforce_eager": True}},
        {"device": {"attention_backend": "torch"}},
    ):
        assert not resolve(configure(**changes), llama8b(), {}, facts_of("H100")).captured_sizes
    mamba = LayerSpec(Mamba2Spec(64, 64, 128, 8, 4, 1e-5), MlpSpec(WIDE))
    hybrid = replace(llama8b(), layers=(mamba, *llama8b().layers))
    assert not resolve(configure(), hybrid, {}, facts_of("H100")).captured_sizes
    libraries = frozenset(("flash-attn",))
    other = resolve(configure(), llama8b(), {}, facts_of("H100", attention_libraries=libraries))
    assert other.captured_sizes == captured_sizes(256)
    old = resolve(configure(), llama8b(), {}, facts_of("V100-32G", supports_bf16=False))
    assert old.captured_sizes == captured_sizes(256)


def test_the_plan_has_room_for_the_largest_step():
    """Beside the KV pool, as predicted and as measured again: its hidden states, once kept and
    twice in between, logits, and the parts of up to 16 tokens of each request."""
    spec, asked = llama8b(), configure()
    made = resolve(asked, spec, {}, facts_of("H100"))
    short = resolve(
        configure(scheduler={"max_num_batched_tokens": 512}), spec, {}, facts_of("H100")
    )
    token = 3 * 2 * HIDDEN + 32 * 4 * HEADS * 128
    assert made.plan.captured - short.plan.captured > (1792 - 512) * token
    assert made.plan.captured > 1792 * token + 256 * 12 * VOCAB
    fitted = refit(asked, spec, made, activations=GIB, usable=40 * GIB)
    assert fitted.captured_sizes == made.captured_sizes
    assert fitted.pool_limit == 39 * GIB - made.plan.captured
    assert fitted.plan.kv_pool <= fitted.pool_limit
    few = resolve(configure(scheduler={"max_num_seqs": 8}), spec, {}, facts_of("H100"))
    assert few.plan.captured < made.plan.captured - (1792 - 16 * 8) * 32 * 4 * HEADS * 128


@pytest.mark.parametrize(
    ("name", "capability", "gib", "gpu"),
    [
        ("NVIDIA A100-SXM4-80GB", 80, 79, "A100-SXM-80G"),
        ("NVIDIA GeForce RTX 4060 Ti", 89, 15.6, "4060Ti-16G"),
        ("NVIDIA GeForce RTX 4060 Ti", 89, 7.6, "4060Ti-8G"),
        ("Tesla V100-PCIE-16GB", 70, 15.8, "V100-16G"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 120, 95, "RTX-PRO-6000"),
        ("", 90, 79, "H100-SXM"),
    ],
)
def test_a_name_that_no_table_has_is_like_another(name, capability, gib, gpu):
    nbytes = int(gib * GIB)
    assert likest_gpu(DeviceFacts("cuda", nbytes, nbytes, 4, True, name, capability)).name == gpu
