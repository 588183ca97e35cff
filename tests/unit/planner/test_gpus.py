import pytest

from pagoda.base.errors import ConfigError
from pagoda.planner.devices.gpus import GPUS, find_gpus

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("A100-80G", "A100-80G", 1),
        ("a100 80gb", "A100-80G", 1),
        ("3090x4", "3090", 4),
        ("4xH100", "H100-SXM", 4),
        ("2 x RTX 4090", "4090", 2),
        ("h100-pcie", "H100-PCIe", 1),
        ("H100 NVL x 2", "H100-NVL", 2),
        ("RTX6000Ada", "RTX6000Ada", 1),
        ("RTX PRO 6000", "RTX-PRO-6000", 1),
        ("2080ti-22gx2", "2080Ti-22G", 2),
        ("L40Sx8", "L40S", 8),
        # As the driver names them.
        ("NVIDIA GeForce RTX 3090", "3090", 1),
        ("NVIDIA A100 80GB PCIe", "A100-80G", 1),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80G", 1),
        ("NVIDIA H100 80GB HBM3", "H100-SXM", 1),
        ("Tesla V100-SXM2-32GB", "V100-32G", 1),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada", 1),
        ("Tesla T4", "T4", 1),
    ],
)
def test_names_that_people_type(text, name, count):
    gpu, found = find_gpus(text)
    assert (gpu.name, found) == (name, count)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A100", ("A100-40G", "A100-80G")),
        ("4xV100", ("V100-16G", "V100-32G")),
        ("4060 Ti", ("4060Ti-8G", "4060Ti-16G")),
        ("RTX 3900", ("not known", "3090")),
        ("L40SS", ("not known", "L40S")),
        ("RTX99", ("not known", "are 3090, 4090, 5090.")),
        ("H300", ("not known", "are H100-SXM, H200, ")),
        ("MI300X", ("not known", "All are NVIDIA's")),
        ("", ("not known", "V100-16G", "GB10")),
        ("xyz", ("not known", "V100-16G", "GB10")),
        ("0x3090", ("between 1 and",)),
        ("3090x9999", ("between 1 and",)),
    ],
)
def test_names_that_mean_nothing_or_too_much(text, said):
    with pytest.raises(ConfigError) as error:
        find_gpus(text)
    for word in said:
        assert word in str(error.value)


def test_every_gpu_is_found_by_all_of_its_names():
    for gpu in GPUS:
        for name in (gpu.name, *gpu.aliases):
            assert find_gpus(name) == (gpu, 1), name
            assert find_gpus(f"{name}x3") == (gpu, 3), name
            assert find_gpus(f"3x{name.lower()}") == (gpu, 3), name


def test_measured_memory_is_that_of_the_logs():
    assert find_gpus("V100-32G")[0].memory == round(31.74 * GIB)
    assert find_gpus("L4")[0].memory_source == "measured"
    assumed = find_gpus("L40S")[0]
    assert "46068 MiB" in assumed.memory_source
    assert 43 * GIB < assumed.memory < 46068 << 20


def test_types_that_tensor_cores_have():
    assert set(find_gpus("V100-32G")[0].matmul) == {"fp16"}
    assert set(find_gpus("T4")[0].matmul) == {"fp16", "int8"}
    assert set(find_gpus("3090")[0].matmul) == {"fp16", "bf16", "int8"}
    for gpu in GPUS:
        assert ("fp8" in gpu.matmul) == (gpu.capability >= (8, 9)), gpu.name
        assert ("bf16" in gpu.matmul) == (gpu.capability >= (8, 0)), gpu.name
        # Per byte from memory all do between 20 and 1000 operations.
        assert 20 < gpu.matmul["fp16"] / gpu.bandwidth < 1000, gpu.name


def test_a_name_with_an_x_counts_nothing():
    with pytest.raises(ConfigError, match="'RX 7900' is not known"):
        find_gpus("RX 7900")
    assert find_gpus("3090 x 4")[1] == 4
    with pytest.raises(ConfigError, match="100,000 characters"):
        find_gpus("A" * 100_000)
