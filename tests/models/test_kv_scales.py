"""Caches in fp8 with scales per head: read from checkpoints, split among ranks, and applied."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagoda.base.errors import CheckpointError
from pagoda.core.kvcache.spec import KVLayout
from pagoda.layers.attention import Attention
from pagoda.models.kv_scales import digest, load_kv_scales
from pagoda.planner.attention import AttentionChoice
from pagoda.weights.files import open_model
from tests.models import published, tiny
from tests.models.driver import Driver
from tests.models.gloo_ranks import on_ranks

LAYERS, KV_HEADS = 2, 2
ONE, TWO = torch.tensor(0.25), torch.tensor(0.5)
HEADS = torch.tensor([0.25, 0.5])
# (k, v) of each layer, by the names that packages give them.
LAYOUTS = {
    "compressed-tensors": {"k_scale": ONE, "v_scale": TWO},
    "one per head": {"k_scale": HEADS.view(2, 1, 1), "v_scale": HEADS.flip(0).view(2, 1, 1)},
    "vllm": {"attn.k_scale": ONE[None], "attn.v_scale": TWO[None]},
    "modelopt": {"k_proj.k_scale": ONE, "v_proj.v_scale": TWO},
    "autofp8": {"k_proj.output_scale": ONE[None], "v_proj.output_scale": TWO[None]},
    "one for both": {"kv_scale": TWO},
}
EXPECTED = {
    "one per head": (HEADS, HEADS.flip(0)),
    "one for both": (TWO.expand(2), TWO.expand(2)),
}
TORCH = AttentionChoice(KVLayout("tokens"), "torch")


@pytest.fixture(scope="module")
def twin():
    return tiny.make("llama", num_hidden_layers=LAYERS)


def write(folder: Path, model, scales: dict[str, torch.Tensor]) -> Path:
    published.save(folder, model, {}, {"quant_method": "fp8"})
    file = folder / "model.safetensors"
    named = {
        f"model.layers.{layer}.self_attn.{name}": value.clone()
        for layer in range(LAYERS)
        for name, value in scales.items()
    }
    save_file(load_file(file) | named, file)
    return folder


def loaded(folder: Path, **options):
    """(model, where its scales come from)."""
    model = published.load(folder, attention=TORCH, **options)
    model.reserve(64)
    return model, load_kv_scales(model, open_model(folder).checkpoint)


def scales_of(model) -> list[tuple[torch.Tensor, ...]]:
    return [layer.kv_scales for layer in model.modules() if isinstance(layer, Attention)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts(layout, twin, tmp_path):
    model, words = loaded(write(tmp_path, twin, LAYOUTS[layout]))
    k, v = EXPECTED.get(layout, (ONE.expand(2), TWO.expand(2)))
    found = scales_of(model)
    assert len(found) == LAYERS and "4 of 4 are the checkpoint's" in words
    for scales in found:
        assert torch.equal(scales[0], k) and torch.equal(scales[1], v)


def test_without_scales_they_are_one(twin, tmp_path):
    model, words = loaded(write(tmp_path, twin, {}))
    assert words.startswith("the checkpoint has none, so they are 1")
    assert all(part.eq(1).all() for scales in scales_of(model) for part in scales)


def test_scales_before_a_norm_of_keys_are_not_theirs(tmp_path):
    qwen = tiny.make("qwen3", num_hidden_layers=LAYERS)
    model, words = loaded(write(tmp_path, qwen, LAYOUTS["autofp8"]))
    assert words == "2 of 4 are the checkpoint's; the others are 1"
    assert all(k.eq(1).all() and v.eq(0.5).all() for k, v in scales_of(model))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (torch.ones(3), "one number, or one for each of the 2 KV heads"),
        (torch.tensor([0.5, torch.nan]), "must be above 0"),
        (torch.tensor(-1.0), "must be above 0"),
    ],
)
def test_what_is_no_scale_is_refused(bad, words, twin, tmp_path):
    with pytest.raises(CheckpointError, match=words):
        loaded(write(tmp_path, twin, {"k_scale": bad}))


def test_other_scales_have_another_digest(twin, tmp_path):
    """By it prefixes on disk are told apart."""
    folders = [tmp_path / name for name in ("a", "b", "c")]
    layouts = ("compressed-tensors", "modelopt", "one per head")
    names = []
    for folder, layout in zip(folders, layouts, strict=True):
        folder.mkdir()
        names.append(digest(loaded(write(folder, twin, LAYOUTS[layout]))[0]))
    assert names[0] == names[1] != names[2]


def with_outlier(model, size: float):
    """One KV head of the first layer's keys and values is `size` times as large, and what it does
    to the result is taken back: its queries and outputs are as much smaller."""
    attention = model.model.layers[0].self_attn
    dim, group = attention.head_dim, attention.num_key_value_groups
    with torch.no_grad():
        attention.k_proj.weight[:dim] *= size
        attention.v_proj.weight[:dim] *= size
        attention.q_proj.weight[: dim * group] /= size
        attention.o_proj.weight[:, : dim * group] /= size
    return model


def error_of(model, ids, expected) -> float:
    driver = Driver(model, kv_dtype=torch.float8_e4m3fn)
    found = torch.cat(
        (driver.run(ids[:24], 7), *(driver.step({"r": [id]})["r"] for id in ids[24:]))
    )
    return published.relative_error(found, expected)


def test_heads_with_outliers_are_as_close_as_others(tmp_path):
    """With a scale of its own a head of 1000 times the size costs nothing more; with 1 it
    saturates. Read back by a second request, a prefix gives the same."""
    ids = tiny.random_ids(32)
    plain = tiny.make("llama", num_hidden_layers=LAYERS)
    expected = tiny.reference_logits(plain, ids)
    folder = tmp_path / "plain"
    folder.mkdir()
    usual = error_of(loaded(write(folder, plain, {}))[0], ids, expected)
    assert 1e-4 < usual < 0.1
    big = with_outlier(plain, 2.0**10)
    folder = tmp_path / "big"
    folder.mkdir()
    own = torch.tensor([2.0**10, 1.0])
    model, _ = loaded(write(folder, big, {"k_scale": own, "v_scale": own}))
    for layer in scales_of(model)[1:]:
        for part in layer:
            part.fill_(1)
    assert error_of(model, ids, expected) == pytest.approx(usual, rel=1e-3)
    folder = tmp_path / "saturated"
    folder.mkdir()
    assert error_of(loaded(write(folder, big, {}))[0], ids, expected) > 3 * usual

    driver = Driver(model, kv_dtype=torch.float8_e4m3fn)
    driver.step({"a": ids[:16]})
    driver.resume("b", kept="a")
    both = driver.step({"a": ids[16:20], "b": ids[16:20]})
    torch.testing.assert_close(both["a"], both["b"], rtol=0, atol=0)


def test_ranks_take_the_scales_of_their_heads(twin, tmp_path):
    folder = write(tmp_path, twin, LAYOUTS["one per head"])
    ids = tiny.random_ids(12)
    whole = Driver(loaded(folder)[0], kv_dtype=torch.float8_e4m3fn).run(ids, 5)

    def work(parallel):
        model, _ = loaded(folder, parallel=parallel)
        logits = Driver(model, kv_dtype=torch.float8_e4m3fn).run(ids, 5)
        return [part.tolist() for part in scales_of(model)[0]], logits

    (first, logits), (second, _) = on_ranks(2, work)
    assert first == [[0.25], [0.5]] and second == [[0.5], [0.25]]
    torch.testing.assert_close(logits, whole, rtol=1e-3, atol=1e-3)


def test_other_caches_read_no_scales(twin, tmp_path):
    """A checkpoint with scales loads with any other cache, which reads none of them."""
    folder = write(tmp_path, twin, LAYOUTS["compressed-tensors"])
    ids = tiny.random_ids(8)
    model = published.load(folder, attention=TORCH)
    model.reserve(64)
    expected = tiny.reference_logits(twin, ids)
    torch.testing.assert_close(Driver(model).run(ids, 8), expected, rtol=0, atol=1e-4)
