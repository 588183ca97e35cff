"""A share of the tests in some files, where they run on a GPU: kernels are compiled, not
interpreted, and the models of tests/models lie there."""

import os
import time
from collections import Counter
from typing import Any

from tools.gpu_check.found import Clock, Found
from tools.gpu_check.plan import ROOT, TESTS

_EVERY = 1.0
"""Seconds between two writes of what was counted."""


def run(found: Found, clock: Clock, play: bool, share: str, shares: str, *paths: str) -> None:
    os.environ["PAGODA_TEST_DEVICE"] = "cpu" if play else "cuda"
    import pytest

    recorder = _Recorder(found, slice(int(share), None, int(shares)))
    # The project's settings name plugins that are not carried.
    command = [
        *(str(TESTS / path) for path in paths), "-q", "-c", "/dev/null", f"--rootdir={ROOT}",
        "--tb=short", "--import-mode=importlib", "-p", "no:cacheprovider", "-W", "ignore",
    ]  # fmt: skip
    if play:
        command += ["-k", "gated or given_embeddings"]
    status = pytest.main(command, plugins=[recorder])
    recorder.keep()
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        found.put("fault", f"pytest ended with {pytest.ExitCode(status).name}")


class _Recorder:
    """A plugin of pytest."""

    def __init__(self, found: Found, share: slice):
        self._found, self._share = found, share
        self._counts: Counter[str] = Counter()
        self._failed: dict[str, str] = {}
        self._last = ""
        self._kept = 0.0
        found.put("counts", {})

    def keep(self) -> None:
        """Write what is known."""
        self._kept = time.perf_counter()
        self._found.values["failed"] = self._failed
        self._found.values["running"] = self._last
        self._found.put("counts", dict(self._counts))

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = items[self._share]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._last = nodeid.rpartition("/")[2]
        if time.perf_counter() - self._kept > _EVERY:
            self.keep()

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._fail(report.nodeid or "collecting", report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._fail(report.nodeid, report)
        elif report.when == "call" or report.skipped:
            self._counts[report.outcome] += 1

    def _fail(self, name: str, report: Any) -> None:
        self._counts["failed"] += 1
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
        self._failed[name.rpartition("/")[2]] = " ".join(text.split())[:300]
        self.keep()
