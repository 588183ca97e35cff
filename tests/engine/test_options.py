import pytest
import torch

from pagoda.base.errors import ConfigError
from pagoda.engine.start.options import engine_config


def test_arguments_reach_their_section():
    config = engine_config(
        {
            "model": "m", "dtype": "half", "max_model_len": "32K", "max_num_seqs": 7,
            "device_memory_utilization": 0.5, "enforce_eager": True, "served_model_name": "x",
            "tensor_parallel_size": 1, "override_generation_config": {"top_k": 1},
        }
    )  # fmt: skip
    assert (config.model.model, config.model.dtype) == ("m", "half")
    assert config.model.max_model_len == 32768
    assert config.model.served_model_name == ("x",)
    assert config.model.override_generation_config == {"top_k": 1}
    assert config.scheduler.max_num_seqs == 7
    assert config.cache.gpu_memory_utilization == 0.5
    assert config.device.enforce_eager is True


def test_none_is_the_default():
    assert engine_config({"seed": None, "quantization": None}) == engine_config({})


def test_quantization_at_load_is_taken():
    assert engine_config({"quantization": "int4"}).model.quantization == "int4"


@pytest.mark.parametrize(
    ("options", "task"),
    [
        ({"task": "embed"}, "embed"), ({"runner": "pooling"}, "embed"),
        ({"runner": "generate"}, "generate"), ({"convert": "classify"}, "classify"),
        ({"reranking": True}, "score"), ({"runner": "auto", "embedding": False}, "auto"),
    ],
)  # fmt: skip
def test_what_others_say_of_tasks_is_ours(options, task):
    assert engine_config(options).model.task == task


def test_a_torch_type_is_a_dtype():
    assert engine_config({"dtype": torch.bfloat16}).model.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_modellen": 5}, "did you mean 'max_model_len'"),
        ({"bogus": 1}, r"no argument 'bogus'\.$"),
        ({"zzzzqqqq": 5}, "has no argument 'zzzzqqqq'"),
        ({"max_num_seqs": 2.5}, "max_num_seqs"),
        ({"dtype": "int3"}, "int3"),
        ({"max_model_len": "long"}, "long"),
    ],
)
def test_what_cannot_be_honoured_is_an_error(options, words):
    with pytest.raises(ConfigError, match=words):
        engine_config(options)


def test_what_means_nothing_here_gives_one_line(caplog):
    caplog.set_level("INFO", logger="pagoda")
    engine_config({"trust_remote_code": True, "quantization": "awq", "swap_space": 0})
    assert [record.getMessage().partition(" has no effect")[0] for record in caplog.records] == [
        "LLM(trust_remote_code=True)",
        "LLM(quantization='awq')",
    ]
