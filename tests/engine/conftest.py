import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.engine.aside.direct import Direct
from pagoda.engine.served import entries
from pagoda.engine.served import fleet as fleets

from .fake_fleet import SIZES, FakeEngine, FakeText

TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "eos_token_id": 259,
    "bos_token_id": 258,
    "hidden_act": "silu",
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A folder with a config.json and no weights: `--load-format dummy` makes them."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    return folder


@pytest.fixture(scope="session")
def tiny_config(tiny_model) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(tiny_model), load_format="dummy", dtype="float32"),
        cache=CacheConfig(num_gpu_blocks_override=129),
        device=DeviceConfig(device="cpu", threads=1),
    )


def with_model(config: EngineConfig, **changes) -> EngineConfig:
    return replace(config, model=replace(config.model, **changes))


CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_byte_tokenizer(folder: Path) -> None:
    """One token per byte (ids 0 to 255 in the order of the byte-level alphabet), then specials."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def tiny_chat_model(tmp_path_factory) -> Path:
    """As `tiny_model`, with a byte tokenizer, a chat template and sampling defaults."""
    folder = tmp_path_factory.mktemp("tiny-chat")
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.5, "top_k": 7, "do_sample": True, "max_new_tokens": None})
    )
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(autouse=True)
def _log_reaches_caplog(monkeypatch):
    """Whatever ran before may have called `setup_logging`, which ends propagation."""
    monkeypatch.setattr(logging.getLogger("pagoda"), "propagate", True)


@pytest.fixture
def fake_engines(monkeypatch):
    """Any name is a model, and none has files."""
    SIZES["broken"] = 1
    FakeEngine.running, FakeEngine.alive = set(), set()
    FakeEngine.most, FakeEngine.launches = 0, []
    monkeypatch.setattr(fleets, "fetch_model", lambda model, *_: model)
    monkeypatch.setattr(fleets, "load_text_side", lambda model: FakeText(model.model))
    monkeypatch.setattr(fleets, "start_workers", lambda model: Direct(FakeText(model.model)))
    monkeypatch.setattr(entries, "parse_ref", lambda ref: None)
