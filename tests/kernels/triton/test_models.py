"""Whole tiny models through Triton's kernels give transformers' logits: prompts, chunks, decode
steps beside prompts, and requests that go on from a kept prefix."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

pytest.importorskip("triton", reason="triton is not installed")

from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels import cpu
from pagoda.kernels.triton import ops as triton_ops
from pagoda.planner.attention import AttentionChoice, own_attention
from pagoda.planner.captured import CapturedSize
from tests.models import tiny
from tests.models.driver import Driver
from tests.models.test_captured import capture
from tests.models.test_program import replay

WINDOW = 3
MODELS = {
    "llama": ("llama", {"num_hidden_layers": 2}),
    "qwen3 moe": ("qwen3_moe", {**tiny.QWEN3_MOE, "num_hidden_layers": 2}),
    "gpt-oss": (
        "gpt_oss", {**tiny.GPT_OSS, "num_hidden_layers": 2, "sliding_window": WINDOW},
    ),
    "qwen3.5": (
        "qwen3_5",
        {**tiny.QWEN3_5, "num_hidden_layers": 2,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "olmo 3": (
        "olmo3",
        {**tiny.OLMO3, "num_hidden_layers": 2, "sliding_window": WINDOW,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "glm-4.5 moe": ("glm4_moe", {**tiny.GLM4_MOE, "num_hidden_layers": 2}),
    "gemma 2": (
        "gemma2", {**tiny.GEMMA2, "num_hidden_layers": 2, "sliding_window": WINDOW},
    ),
    "gemma 4": (
        "gemma4",
        {**tiny.GEMMA4, "num_hidden_layers": 2, "sliding_window": WINDOW,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gemma 4 e": ("gemma4_e", {**tiny.GEMMA4_E, "sliding_window": WINDOW}),
}  # fmt: skip


# As a GPU has it; `native` is whatever `on_triton` puts there.
_TOKEN_BY_TOKEN = (
    own_attention("cuda")
    if torch.cuda.is_available()
    else AttentionChoice(KVLayout("tokens"), "native")
)


@pytest.fixture
def on_triton(monkeypatch):
    """Without a GPU, CPU tensors take Triton's forms."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(cpu, "native_ops", lambda: triton_ops)


def load(case: str, folder, device: str):
    """(model of transformers, ours on the device)."""
    family, changes = MODELS[case]
    reference = tiny.make(family, **changes)
    reference.save_pretrained(folder)
    model = tiny.load(folder, device=device, attention=_TOKEN_BY_TOKEN)
    model.reserve(64)
    return reference, model


class Syncs(TorchFunctionMode):
    """Notes what would make the host wait for a GPU."""

    NAMES = frozenset(
        ("item", "tolist", "numpy", "cpu", "nonzero", "masked_select", "unique", "argwhere",
         "__bool__", "__int__", "__float__", "__index__")
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", str(func))
        indices = args[1] if name in ("__getitem__", "__setitem__") else ()
        indices = indices if isinstance(indices, tuple) else (indices,)
        by_mask = any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in indices)
        if name in self.NAMES or by_mask or (name == "where" and len(args) == 1):
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


# Requests and how many tokens: prompts, decode steps beside them, chunks, a kept prefix.
STEPS = ({"a": 4}, {"a": 1, "b": 5}, {"b": 1, "a": 3}, {"b": 2, "kept a": 1, "a": 1},
         {"a": 1, "kept a": 1})  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_logits_equal(case, tmp_path, device, on_triton):
    """And no step makes the host wait, but for experts, which the reference takes one by one."""
    reference, model = load(case, tmp_path, device)
    ids = tiny.random_ids(10)
    expected = tiny.reference_logits(reference, ids)
    syncs = Syncs()
    with torch.device(device):
        driver, done = Driver(model), {}
        for step in STEPS:
            if "kept a" in step and "kept a" not in done:
                driver.resume("kept a", kept="a")
                done["kept a"] = done["a"]
            begins = {req: done.get(req, 0) for req in step}
            done.update({req: begins[req] + count for req, count in step.items()})
            tokens = {req: ids[begins[req] : done[req]] for req in step}
            with syncs:
                logits = driver.step(tokens)
            for req, found in logits.items():
                rows = expected[begins[req] : done[req]]
                torch.testing.assert_close(found.cpu(), rows, rtol=0, atol=1e-4)
    assert done == {"a": 10, "b": 8, "kept a": 10}
    assert syncs.seen <= ({"where"} if "moe" in case or "oss" in case else set())


def test_latent_attention_is_torchs_between_tritons_forms(tmp_path, device, on_triton):
    reference = tiny.make("deepseek_v3", **{**tiny.DEEPSEEK_V3, "num_hidden_layers": 2})
    reference.save_pretrained(tmp_path)
    by_torch = AttentionChoice(KVLayout("tokens", 4), "torch")
    model = tiny.load(tmp_path, device=device, attention=by_torch)
    ids = tiny.random_ids(12)
    with torch.device(device):
        logits = Driver(model).run(ids, chunk=5)
    torch.testing.assert_close(
        logits.cpu(), tiny.reference_logits(reference, ids), rtol=0, atol=1e-4
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="graphs are played on the CPU's tensors")
def test_steps_padded_to_a_captured_size(tmp_path, device, on_triton):
    """Rows of nobody neither change the others nor what these keep, K and V or states."""
    reference, model = load("qwen3.5", tmp_path, device)
    ids = tiny.random_ids(5)
    expected = tiny.reference_logits(reference, ids)
    driver = Driver(model)
    driver.step({"a": ids[:3], "b": ids[:2], "c": ids[:4]})
    steps = capture(driver, 4, CapturedSize(4, 4))
    for _ in range(2):
        lens = {req: driver.lens[req] for req in ("b", "a")}
        logits, _ = replay(steps, driver, {req: [ids[at]] for req, at in lens.items()})
        rows = expected[list(lens.values())]
        torch.testing.assert_close(logits, rows, rtol=0, atol=1e-4)
    assert list(steps._graphs) == [CapturedSize(4, 4)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="graphs are played on the CPU's tensors")
@pytest.mark.parametrize("case", ["llama", "qwen3.5"])
def test_steps_with_prompts_padded_to_a_captured_size(case, tmp_path, device, on_triton):
    """A stream, a chunk, and a new prompt, in a step of more requests and more tokens."""
    reference, model = load(case, tmp_path, device)
    ids = tiny.random_ids(12)
    expected = tiny.reference_logits(reference, ids)
    driver = Driver(model)
    driver.step({"a": ids[:3], "b": ids[:2]})
    steps = capture(driver, 4, CapturedSize(4, 16, prompts=True))
    for counts in ({"b": 1, "a": 3, "c": 5}, {"c": 4, "a": 1}):
        lens = {req: driver.lens.get(req, 0) for req in counts}
        step = {req: ids[lens[req] : lens[req] + count] for req, count in counts.items()}
        logits, _ = replay(steps, driver, step)
        places = [lens[req] + count - 1 for req, count in counts.items()]
        torch.testing.assert_close(logits, expected[places], rtol=0, atol=1e-4)
    assert list(steps._graphs) == [CapturedSize(4, 16, prompts=True)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="graphs are played on the CPU's tensors")
@pytest.mark.parametrize("case", ["llama", "qwen3.5"])
def test_steps_with_guesses_padded_to_a_captured_size(case, tmp_path, device, on_triton):
    """Requests of one token and of several, in a step of more requests and more tokens."""
    reference, model = load(case, tmp_path, device)
    ids = tiny.random_ids(12)
    expected = tiny.reference_logits(reference, ids)
    driver = Driver(model)
    driver.step({"a": ids[:3], "b": ids[:2], "c": ids[:4]})
    steps = capture(driver, 4, CapturedSize(4, 8))
    for counts in ({"b": 1, "a": 3}, {"a": 2, "c": 3, "b": 1}):
        lens = {req: driver.lens[req] for req in counts}
        step = {req: ids[lens[req] : lens[req] + count] for req, count in counts.items()}
        logits, _ = replay(steps, driver, step, {req: len(ids) for req, ids in step.items()})
        places = [lens[req] + i for req, count in counts.items() for i in range(count)]
        torch.testing.assert_close(logits, expected[places], rtol=0, atol=1e-4)
    assert list(steps._graphs) == [CapturedSize(4, 8)]
