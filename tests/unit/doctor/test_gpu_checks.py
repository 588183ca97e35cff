"""Findings of GPUs: what is normal for a card reads like that."""

from dataclasses import replace

import pytest

from pagoda.doctor.machine.checks import findings
from pagoda.doctor.machine.gpus import GpuProcess
from tests.unit.doctor.machines import GIB, H100, RTX_2080_TI, V100, laptop, with_gpus


def by_topic(machine, topic):
    return [finding for finding in findings(machine) if finding.topic == topic]


def only(machine, topic):
    (finding,) = by_topic(machine, topic)
    return finding


def test_an_h100():
    finding = only(with_gpus(H100), "gpu 0")
    assert finding.status == "PASS"
    assert finding.text == (
        "NVIDIA H100 80GB HBM3: 79.00 GiB of 80.00 GiB free, compute capability 9.0 "
        "(float16, int8, bfloat16, fp8)"
    )
    assert only(with_gpus(H100), "driver").status == "PASS"
    assert not by_topic(with_gpus(H100), "nvlink")


@pytest.mark.parametrize(
    ("gpu", "cuda", "native"),
    [(V100, (12, 6), "(float16)"), (RTX_2080_TI, (13, 0), "(float16, int8)")],
)
def test_a_card_without_bf16_is_normal(gpu, cuda, native):
    machine = with_gpus(gpu, software={"torch_cuda": cuda})
    assert {finding.status for finding in findings(machine)} == {"PASS"}
    text = only(machine, "gpu 0").text
    assert native in text
    assert text.endswith("bfloat16 models run in float16 here, as they should")


def test_a_card_that_the_installed_torch_left_out():
    _, problem = by_topic(with_gpus(V100), "gpu 0")
    assert problem.status == "WARN"
    assert "CUDA 13.0, which left out compute capability 7.0" in problem.text


def test_a_card_that_the_installed_torch_does_not_know_yet():
    b200 = replace(H100, name="NVIDIA B200", capability=(10, 0))
    _, problem = by_topic(with_gpus(b200, software={"torch_cuda": (12, 6)}), "gpu 0")
    assert "does not know compute capability 10.0 yet" in problem.text
    assert len(by_topic(with_gpus(b200, software={"torch_cuda": (12, 8)}), "gpu 0")) == 1


def test_an_old_driver():
    finding = only(with_gpus(H100, cuda=(12, 4)), "driver")
    assert finding.status == "WARN"
    assert "580.65" in finding.fix
    assert "torch for CUDA 12" in finding.fix
    newer_minor = with_gpus(H100, cuda=(12, 4), software={"torch_cuda": (12, 8)})
    assert only(newer_minor, "driver").status == "PASS"


def test_a_torch_that_only_knows_the_cpu():
    software = {"torch": "2.13.0+cpu", "torch_cuda": None}
    finding = only(with_gpus(H100, software=software), "driver")
    assert finding.status == "WARN"
    assert "2.13.0+cpu only knows the CPU" in finding.text


def test_a_gpu_that_another_process_fills():
    trainer = GpuProcess(4242, "python3", 70 * GIB)
    desktop = GpuProcess(99, "Xorg", GIB)
    busy = replace(H100, free_memory=8 * GIB, processes=(trainer, desktop))
    finding = only(with_gpus(busy), "gpu 0")
    assert finding.status == "WARN"
    assert "python3 (pid 4242) 70.00 GiB, Xorg (pid 99) 1.00 GiB in use" in finding.text
    assert "kill 4242" in finding.fix
    assert "8.00 GiB" in finding.fix


def test_a_gpu_that_a_program_outside_the_container_fills():
    busy = replace(H100, free_memory=8 * GIB, processes=(GpuProcess(4242, "", 70 * GIB),))
    finding = only(with_gpus(busy), "gpu 0")
    assert "outside this container (pid 4242 there) 70.00 GiB" in finding.text
    assert "kill" not in finding.fix


def test_a_full_gpu_whose_users_are_unknown():
    finding = only(with_gpus(replace(H100, free_memory=GIB)), "gpu 0")
    assert finding.status == "WARN"
    assert "other processes hold the rest" in finding.text


def test_a_desktop_on_the_gpu_is_no_fault():
    shared = replace(H100, free_memory=75 * GIB, processes=(GpuProcess(99, "Xorg", None),))
    finding = only(with_gpus(shared), "gpu 0")
    assert finding.status == "PASS"
    assert finding.text.endswith("Xorg (pid 99) in use")


def test_a_gpu_that_shares_the_memory_of_the_machine():
    spark = replace(H100, capability=(12, 1), total_memory=None, free_memory=None)
    finding = only(with_gpus(spark), "gpu 0")
    assert finding.status == "PASS"
    assert "shares the machine's memory" in finding.text


def test_a_gpu_that_is_left_out():
    machine = with_gpus(replace(H100, visible=False))
    finding = only(machine, "gpu 0")
    assert finding.status == "SKIP"
    assert "as asked" in finding.text
    assert not by_topic(machine, "driver")


def test_heat_and_memory_errors():
    _, hot = by_topic(with_gpus(replace(H100, slowed=True)), "gpu 0")
    assert "heat" in hot.text
    _, broken = by_topic(with_gpus(replace(H100, memory_errors=2)), "gpu 0")
    assert "results may be wrong" in broken.text


def test_two_gpus_over_pcie_in_dockers_default_shm():
    pair = (RTX_2080_TI, replace(RTX_2080_TI, index=1))
    machine = with_gpus(*pair, memory={"shm_free": 64 << 20})
    assert only(machine, "nvlink").status == "PASS"
    finding = only(machine, "shm")
    assert finding.status == "WARN"
    assert "64.00 MiB" in finding.text
    assert "--shm-size" in finding.fix
    assert not by_topic(with_gpus(*pair), "shm")


def test_nvlink():
    pair = [replace(H100, index=index, links=18) for index in range(2)]
    assert only(with_gpus(*pair), "nvlink").text == "18 NVLinks per GPU"
    alone = [pair[0], replace(pair[1], links=0)]
    assert "on 1 of 2 GPUs" in only(with_gpus(*alone), "nvlink").text


@pytest.mark.parametrize(
    ("error", "container", "fix"),
    [
        ("its driver is not installed here", "docker", "--gpus all"),
        ("its driver is not installed here", "", "Install NVIDIA's driver"),
        ("the loaded driver and its library are of different versions", "", "Reboot."),
    ],
)
def test_a_card_whose_driver_does_not_answer(error, container, fix):
    machine = laptop(gpus={"error": error}, software={"container": container})
    finding = only(machine, "gpu")
    assert finding.status == "WARN"
    assert error in finding.text and finding.text.endswith("models run on the CPU")
    assert fix in finding.fix
