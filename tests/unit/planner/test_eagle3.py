"""An EAGLE-3 head is found, held against its model by headers alone, and refused with a reason."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, ConfigError, PagodaError, UnsupportedModelError
from pagoda.config.engine import EngineConfig, ModelConfig, ParallelConfig
from pagoda.config.speculation import SpeculationConfig, checked
from pagoda.core.kvcache.spec import KVLayout, attention_groups, kv_groups
from pagoda.doctor.answer import answer, with_speed
from pagoda.doctor.guesses import with_guesses
from pagoda.doctor.machine.hardware import elsewhere
from pagoda.doctor.model_report import lines
from pagoda.planner.eagle3 import head_name, wants_eagle3, with_head
from pagoda.planner.memory.plan import position_bytes
from pagoda.planner.memory.weights import weight_bytes
from pagoda.planner.speculation import resolve_speculation
from pagoda.weights.files import open_model
from tests.unit.arch.test_qwen3_5 import QWEN_27B
from tests.unit.doctor.models import LLAMA, box, subject_of

MODEL = {
    **LLAMA, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 12, "vocab_size": 300,
}  # fmt: skip
HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "intermediate_size": 80,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5, "vocab_size": 300, "draft_vocab_size": 32, "max_position_embeddings": 64,
}  # fmt: skip
SHAPES = {
    "fc.weight": (64, 192), "norm.weight": (64,), "lm_head.weight": (32, 64), "d2t": (32,),
    "t2d": (300,), "midlayer.input_layernorm.weight": (64,), "midlayer.hidden_norm.weight": (64,),
    "midlayer.post_attention_layernorm.weight": (64,),
    "midlayer.self_attn.q_proj.weight": (64, 128), "midlayer.self_attn.k_proj.weight": (32, 128),
    "midlayer.self_attn.v_proj.weight": (32, 128), "midlayer.self_attn.o_proj.weight": (64, 64),
    "midlayer.mlp.gate_proj.weight": (80, 64), "midlayer.mlp.up_proj.weight": (80, 64),
    "midlayer.mlp.down_proj.weight": (64, 80),
}  # fmt: skip
DTYPES = {"d2t": np.int64, "t2d": np.bool_}


def head_in(folder, config=None, without=(), **tensors):
    """A folder with a head; `tensors` are arrays, or shapes of zeros."""
    arrays = {
        name: np.zeros(shape, DTYPES.get(name, np.float32))
        for name, shape in SHAPES.items()
        if name not in without
    }
    for name, value in tensors.items():
        given = value if isinstance(value, np.ndarray) else np.zeros(value, np.float32)
        arrays[name] = given
    folder.mkdir(exist_ok=True)
    save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**HEAD, **(config or {})}))
    return open_model(folder)


def model_in(folder, **changes):
    (folder / "config.json").write_text(json.dumps({**MODEL, **changes}))
    files = open_model(folder)
    return files, spec_for(files.config, {}, ())


def joined(tmp_path, config=None, model=None, without=(), **tensors):
    """The spec of a model with the head."""
    files, spec = model_in(tmp_path, **(model or {}))
    head = head_in(tmp_path / "head", config, without, **tensors)
    return with_head(files, spec, head, "HEAD")[1]


def asked(**more):
    given = checked({"method": "eagle3", "model": "HEAD"})
    return EngineConfig(speculation=SpeculationConfig(given), **more)


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({}, (2, 6, 9)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 5, 12]}, (1, 5, 12)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}}, (2, 6, 9)),
        ({"eagle_config": {"use_aux_hidden_state": True}}, (2, 6, 9)),
    ],
)
def test_which_layers_are_read(tmp_path, config, layers):
    """By vLLM's rule, its key, and SGLang's, which counts the layers that give what is read."""
    assert joined(tmp_path, config).draft_head.eagle3.reads == layers


def test_sizes_and_rotation_are_the_heads_own(tmp_path):
    head = joined(tmp_path, {"rope_theta": 3e4, "norm_before_residual": True}).draft_head
    assert head.layer.mixer.rope.theta == 3e4 and head.layer.mlp.intermediate_size == 80
    assert head.eagle3.vocab_size == 32 and head.eagle3.mapped == "by offset"
    assert head.eagle3.norm_before_residual and not head.eagle3.norm_before_fc
    assert not head.own_embedding and head.own_output


def test_its_layer_has_a_place_in_the_cache_and_its_rotation_a_table(tmp_path):
    plain = model_in(tmp_path)[1]
    spec = joined(tmp_path, {"rope_theta": 3e4})
    groups = [attention_groups(kv_groups(one, KVLayout())) for one in (plain, spec)]
    assert [len(group.layers) for (group,) in groups] == [12, 13]
    assert position_bytes(spec) == 2 * position_bytes(plain)


def test_its_weights_are_counted(tmp_path):
    files, plain = model_in(tmp_path)
    head = head_in(tmp_path / "head")
    files, spec = with_head(files, plain, head, "HEAD")
    tensors = {f"eagle3.{name}": info for name, info in head.checkpoint.tensors.items()}
    found = weight_bytes(spec, tensors, "float32", frozenset()) - weight_bytes(
        plain, {}, "float32", frozenset()
    )
    matrices = sum(np.prod(shape) for name, shape in SHAPES.items() if name not in ("d2t", "t2d"))
    assert abs(found - 4 * matrices) <= 8 * 32, "the list of tokens apart"


def test_the_doctor_plans_it(tmp_path):
    subject = subject_of(tmp_path, MODEL)
    config = EngineConfig(model=ModelConfig(subject.ref, max_model_len=64))
    head = tmp_path / "head"
    head_in(head)
    given = checked({"method": "eagle3", "model": str(head)})
    with_it = replace(config, speculation=SpeculationConfig(given))
    plans = [answer(subject, box(), one).resolution for one in (config, with_it)]
    assert plans[1].config.speculation.method == "eagle3"
    assert plans[1].plan.weights > plans[0].plan.weights
    assert plans[1].plan.slab_bytes > plans[0].plan.slab_bytes
    wrong = replace(with_it, parallel=ParallelConfig(tensor_parallel_size=2))
    with pytest.raises(ConfigError, match="one device only"):
        answer(subject, box(), wrong)


def test_the_doctor_says_what_it_gains(tmp_path):
    subject = subject_of(tmp_path, MODEL)
    head = tmp_path / "head"
    head_in(head)
    given = checked({"method": "eagle3", "model": str(head)})
    config = EngineConfig(
        model=ModelConfig(subject.ref, max_model_len=64), speculation=SpeculationConfig(given)
    )
    made = with_guesses(with_speed(answer(subject, elsewhere("3090"), config)))
    ways = {way.method: way for way in made.guesses.ways}
    assert set(ways) == {"eagle3", "suffix"} and made.guesses.method == "eagle3"
    assert ways["eagle3"].memory > 0
    assert ways["eagle3"].gains and not ways["eagle3"].flags
    assert "eagle3 guesses" in "\n".join(lines(made, [], False, 300))


def test_what_guesses_is_said(tmp_path):
    spec, reasons = joined(tmp_path), []
    found = resolve_speculation(asked(), spec, "cpu", reasons)
    assert found.method == "eagle3" and found.most == 3
    said = {reason.field: reason.why for reason in reasons}
    assert said["speculation"] == "HEAD, which reads what goes into layers 2, 6, 9"


def test_models_that_write_no_text_need_none():
    encoder = {
        "architectures": ["BertModel"], "vocab_size": 90, "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32,
    }  # fmt: skip
    assert not wants_eagle3(asked(), spec_for(encoder, {}, ()))


def test_no_head_is_looked_for_where_nothing_is_to_be_guessed():
    given = {"method": "eagle3", "model": "nowhere", "num_speculative_tokens": 0}
    config, spec = EngineConfig(speculation=SpeculationConfig(given)), spec_for(MODEL, {}, ())
    assert not wants_eagle3(config, spec)
    assert resolve_speculation(config, spec, "cpu", []).method == "none"


@pytest.mark.parametrize(
    ("spec", "config", "words"),
    [
        (MODEL, {"speculation": SpeculationConfig({"method": "eagle3"})}, "no head is named"),
        (QWEN_27B, {}, "Qwen3_5ForCausalLM cannot be read"),
        (MODEL, {"parallel": ParallelConfig(tensor_parallel_size=2)}, "on one device only"),
        (MODEL, {"parallel": ParallelConfig(pipeline_parallel_size=2)}, "on one device only"),
        (MODEL, {"model": ModelConfig(load_format="dummy")}, "--load-format dummy"),
    ],
)
def test_models_that_can_have_no_head(spec, config, words):
    with pytest.raises(ConfigError, match=words):
        head_name(replace(asked(), **config), spec_for(spec, {}, ()))


OFFSETS = np.arange(32)
REFUSED = {
    "a whole model": ({}, {}, ("fc.weight",), "is no EAGLE-3 head"),
    "an older head": ({}, {}, ("midlayer.hidden_norm.weight",), "is no EAGLE-3 head"),
    "two layers": ({"num_hidden_layers": 2}, {}, (), "a head of 2 layers"),
    "the last layer alone": (
        {"eagle_config": {"use_aux_hidden_state": False}}, {}, (), "last layer alone"),
    "another width": ({"hidden_size": 128}, {}, (), "hidden states of 128 numbers.*have 64"),
    "another target": ({"target_hidden_size": 32}, {}, (), "hidden states of 32 numbers"),
    "another vocabulary": ({"vocab_size": 400}, {}, (), "400 tokens, and this model has 300"),
    "no such layer": (
        {"eagle_aux_hidden_state_layer_ids": [2, 6, 40]}, {}, (), r"layers \[2, 6, 40\].*has 12"),
    "a layer twice": ({"eagle_aux_hidden_state_layer_ids": [2, 2, 9]}, {}, (), "each once"),
    "the embeddings": ({"eagle_aux_hidden_state_layer_ids": [0, 2, 9]}, {}, (), "1 to 12"),
    "words for layers": ({"eagle_aux_hidden_state_layer_ids": ["a"]}, {}, (), r"\[a\]"),
    "no table": ({"hidden_size": 128, "target_hidden_size": 64}, {}, (), "lacks a token table"),
    "no output head": ({}, {}, ("lm_head.weight",), "lacks an output head"),
    "no list of tokens": ({}, {}, ("d2t",), "d2t, which says what its tokens are"),
    "no q": ({}, {}, ("midlayer.self_attn.q_proj.weight",), "lacks midlayer.self_attn.q_proj"),
    "four layers": ({}, {"fc.weight": (64, 256)}, (), r"fc.weight has the shape \[64, 256\]"),
    "fewer heads": (
        {}, {"midlayer.self_attn.v_proj.weight": (16, 128)}, (), "v_proj.weight has the shape"),
    "more than a head": ({}, {"mask_hidden": (1, 192)}, (), "holds mask_hidden"),
    "tokens beyond": ({}, {"d2t": OFFSETS * 10}, (), "tokens from 0 to 341.*below 300"),
    "tokens before": ({}, {"d2t": OFFSETS - 40}, (), "tokens from -40"),
    "tokens as fractions": ({}, {"d2t": OFFSETS.astype(np.float32)}, (), "stored as F32"),
    "another activation": ({"hidden_act": "relu"}, {}, (), "activation 'relu'"),
    "nonsense": ({"eagle_config": 3}, {}, (), "eagle_config must be an object"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_heads_that_do_not_fit(tmp_path, what):
    config, tensors, without, words = REFUSED[what]
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words) as refused:
        joined(tmp_path, config, without=without, **tensors)
    assert isinstance(refused.value, PagodaError) and str(refused.value).endswith(".")


def test_a_head_without_a_config(tmp_path):
    files, spec = model_in(tmp_path)
    head_in(tmp_path / "head")
    (tmp_path / "head" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="has no config.json"):
        with_head(files, spec, open_model(tmp_path / "head"), "HEAD")


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "Eagle3DraftModel", "eagle3"])
def test_a_head_in_the_place_of_a_model_is_told_what_to_write(name):
    is_gguf = name == "eagle3"
    metadata = {"general.architecture": name} if is_gguf else {}
    with pytest.raises(CheckpointError, match="Name it beside its model: --speculative-conf"):
        spec_for(None if is_gguf else {**HEAD, "architectures": [name]}, metadata, ())
