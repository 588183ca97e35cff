"""Findings of the host: each fact that hurts is told with its fix, all others are fine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.doctor.machine.checks import checkpoint_findings, findings
from pagoda.doctor.machine.disk import Disk
from pagoda.doctor.machine.probe import Machine
from tests.unit.doctor.machines import GIB, LAPTOP, laptop

# What makes a reader of a line believe that something is broken.
ALARMING = ("error", "fail", "cannot", "missing", "not found", "unsupported", "warning", "skip")


def by_topic(machine, topic):
    return [finding for finding in findings(machine) if finding.topic == topic]


def only(machine, topic):
    (finding,) = by_topic(machine, topic)
    return finding


def test_a_healthy_machine_has_nothing_to_mend():
    found = findings(LAPTOP)
    assert {finding.status for finding in found} == {"PASS", "SKIP"}
    text = " ".join(finding.text for finding in found)
    for fact in ("Toaster 3000", "8 cores", "16 threads", "L3 32 MiB", "avx512", "24.00 GiB"):
        assert fact in text
    assert "torch 2.13.0" in text and "Python 3.12.1" in text and "2.5 GB/s (estimate)" in text


def test_no_gpu_does_not_read_like_a_fault():
    finding = only(LAPTOP, "gpu")
    assert (finding.status, finding.text) == ("SKIP", "no NVIDIA GPU here; models run on the CPU")


def test_torch_that_is_not_there_is_fatal():
    finding = only(laptop(software={"torch": None, "torch_cuda": None}), "versions")
    assert finding.status == "FAIL"
    assert "pip install" in finding.fix


def test_a_container_says_its_limits():
    docker = laptop(software={"container": "docker"}, memory={"limit": 8 * GIB}, cpu={"quota": 4.0})
    finding = only(docker, "container")
    assert finding.status == "PASS"
    assert finding.text == "in a docker container, limited to 8.00 GiB of memory and 4 CPUs"
    assert "of 8.00 GiB available" in only(docker, "memory").text


def test_a_container_without_limits():
    finding = only(laptop(software={"container": "podman"}), "container")
    assert finding.text == "in a podman container, without limits"
    assert not by_topic(LAPTOP, "container")


def test_a_limit_without_a_container():
    finding = only(laptop(memory={"limit": 8 * GIB}), "container")
    assert finding.text.startswith("in a control group, limited to 8.00 GiB")


def test_wsl_2_is_fine_and_wsl_1_is_not():
    assert only(laptop(software={"wsl": 2}), "wsl").status == "PASS"
    old = only(laptop(software={"wsl": 1}), "wsl")
    assert old.status == "WARN"
    assert "wsl --set-version" in old.fix


def test_a_quota_of_half_a_cpu():
    finding = only(laptop(cpu={"quota": 0.5, "threads": 1}), "cpu")
    assert finding.status == "WARN"
    assert "0.5 CPUs of 16" in finding.text
    assert "--cpus 16" in finding.fix
    assert only(laptop(cpu={"quota": 6.0, "threads": 6}), "cpu").status == "PASS"


def test_an_affinity_is_said_and_no_fault():
    finding = only(laptop(cpu={"affinity": 4, "cores": 2, "threads": 4}), "cpu")
    assert finding.status == "PASS"
    assert "4 of 16 hardware threads" in finding.text


def test_kernels_that_were_not_built():
    finding = only(laptop(kernels={"sets": (), "isa": None}), "kernels")
    assert finding.status == "WARN"
    assert "apt install g++" in finding.fix


def test_kernels_that_are_switched_off():
    finding = only(laptop(kernels={"isa": None, "wanted": "none"}), "kernels")
    assert (finding.status, finding.fix) == ("WARN", "unset PAGODA_CPU_ISA")


def test_a_lower_set_than_the_best_is_as_asked():
    finding = only(laptop(kernels={"isa": "avx2", "wanted": "avx2"}), "kernels")
    assert finding.status == "PASS"
    assert "avx512" in finding.text


def test_a_cpu_without_vectors():
    finding = only(laptop(kernels={"sets": ("generic",), "isa": "generic"}), "kernels")
    assert finding.status == "WARN"
    assert "-cpu host" in finding.fix
    # `generic` because the user asked for it is not the CPU's fault.
    chosen = only(laptop(kernels={"isa": "generic", "wanted": "generic"}), "kernels")
    assert chosen.status == "PASS"


def test_an_unknown_set_is_fatal_as_in_serve():
    finding = only(laptop(kernels={"isa": None, "wanted": "mmx"}), "kernels")
    assert finding.status == "FAIL"
    assert "avx512, avx2, generic" in finding.fix


@pytest.mark.parametrize(
    ("available", "status"),
    [(24 * GIB, "PASS"), (GIB, "WARN"), (100 << 20, "FAIL")],
)
def test_memory(available, status):
    assert only(laptop(memory={"available": available}), "memory").status == status


def test_who_can_give_more_memory():
    little = {"available": GIB}
    assert "docker" not in only(laptop(memory=little), "memory").fix
    assert "--memory" in only(laptop(memory={**little, "limit": 2 * GIB}), "memory").fix
    assert ".wslconfig" in only(laptop(memory=little, software={"wsl": 2}), "memory").fix


def test_thrashing():
    memory = {"swap_used": 6 * GIB, "pressure": 0.43}
    finding = only(laptop(memory=memory), "swap")
    assert finding.status == "WARN"
    assert "43% of the time" in finding.text


def test_much_in_swap_and_little():
    finding = only(laptop(memory={"swap_used": 4 * GIB, "pressure": None}), "swap")
    assert finding.status == "WARN"
    assert "4.00 GiB of 8.00 GiB" in finding.text
    assert only(laptop(memory={"swap_used": GIB}), "swap").status == "PASS"
    assert only(laptop(memory={"swap_total": 0}), "swap").status == "PASS"


def test_oom_kills():
    machine = only(laptop(memory={"oom_kills": 3}), "oom")
    assert machine.status == "WARN"
    assert "ended 3 processes for" in machine.text
    assert "journalctl" in machine.fix
    inside = only(laptop(memory={"oom_kills": 3, "oom_kills_inside": 1}), "oom")
    assert "ended 1 process of this container" in inside.text
    assert "--memory" in inside.fix


def test_limits():
    assert not by_topic(LAPTOP, "limits")
    assert "ulimit -v" in only(laptop(software={"address_space": GIB}), "limits").fix
    assert "nofile" in only(laptop(software={"open_files": 256}), "limits").fix


def test_strict_overcommit_matters_when_it_grants_less_than_there_is():
    finding = only(laptop(memory={"commit_left": GIB}), "limits")
    assert "vm.overcommit_memory=0" in finding.fix
    assert not by_topic(laptop(memory={"commit_left": 60 * GIB}), "limits")


def test_huge_pages_that_are_off():
    assert only(laptop(memory={"huge_pages": "never"}), "pages").status == "WARN"
    for setting in ("always", "madvise", ""):
        assert not by_topic(laptop(memory={"huge_pages": setting}), "pages")


def test_a_tiny_dev_shm_does_not_matter_to_one_engine():
    assert findings(laptop(memory={"shm_free": 64 << 20})) == findings(LAPTOP)


def test_disks():
    room, speed = by_topic(LAPTOP, "disk")
    assert room.status == speed.status == "PASS"
    full, _ = by_topic(laptop(disk={"free": GIB}), "disk")
    assert full.status == "WARN"
    assert "pagoda rm" in full.fix
    _, slow = by_topic(laptop(disk={"read_speed": 20e6}), "disk")
    assert slow.status == "WARN"
    assert "4 min 28 s" in slow.text  # 5 GiB at 20 MB/s
    _, mounted = by_topic(laptop(disk={"read_speed": 20e6}, software={"wsl": 2}), "disk")
    assert "/mnt/c" in mounted.fix
    assert len(by_topic(laptop(disk={"read_speed": None}), "disk")) == 1


def test_a_checkpoint_that_fits():
    weights, load = checkpoint_findings(LAPTOP, 5 * GIB)
    assert weights.status == load.status == "PASS"
    assert "2.1 s" in load.text  # at 2.5 GB/s


def test_19_gb_of_weights_in_9_gb_of_memory():
    weights, load = checkpoint_findings(laptop(memory={"available": 9 * GIB}), 19 * GIB)
    assert weights.status == "WARN"
    assert "9.00 GiB" in weights.text
    assert load.status == "PASS"


def test_a_checkpoint_beyond_all_memory():
    weights, _ = checkpoint_findings(LAPTOP, 40 * GIB)
    assert weights.status == "FAIL"
    limited, _ = checkpoint_findings(
        laptop(memory={"limit": 4 * GIB, "available": 3 * GIB}), 6 * GIB
    )
    assert limited.status == "FAIL"
    assert "docker run --memory" in limited.fix


def test_an_unmeasured_disk_promises_no_time():
    (weights,) = checkpoint_findings(laptop(disk={"read_speed": None}), GIB)
    assert weights.topic == "weights"


sizes = st.integers(min_value=0, max_value=1 << 44)
speeds = st.none() | st.floats(min_value=1e3, max_value=1e11)
disks = st.builds(Disk, st.text(), st.none() | sizes, speeds, st.none())


@given(st.builds(Machine, disk=disks), sizes)
def test_any_facts_give_findings_and_what_is_skipped_alarms_nobody(machine, nbytes):
    found = findings(machine) + checkpoint_findings(machine, nbytes)
    assert found
    for finding in found:
        assert finding.text
        if finding.status == "SKIP":
            assert not any(word in finding.text.lower() for word in ALARMING)
