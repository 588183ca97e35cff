"""A crash at every write, sync and rename: the next start finds old or new contents, and new ones
where the writer was told that they are kept."""

import collections
import os
import subprocess
import sys
from pathlib import Path

from pagoda.base.whole import remove_partials
from tests.faults.crash import KINDS, LOSSES
from tests.faults.stores import BY_NAME

ROOT = Path(__file__).parents[2]
NEVER_CALLED = {("kv-disk", "rename")}
"""Its files are only ever appended to."""


def test_a_crash_at_every_call_leaves_old_or_new_contents(tmp_path, monkeypatch):
    command = [sys.executable, "-m", "tests.faults.crash", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    reached: collections.Counter[str] = collections.Counter()
    for folder in sorted(tmp_path.iterdir()):
        name, kind = folder.name.split(".")[:2]
        store = BY_NAME[name]
        found = store.read(folder)
        if folder.suffix == ".over":
            assert found == "new", folder.name
        else:
            assert found in ("old", "new"), folder.name
            reached[f"{name} {kind}"] += 1
        for inside in {path.parent for path in folder.rglob("*.partial")}:
            remove_partials(inside)
        assert not list(folder.rglob("*.partial")), "no process writes them any more"
        store.write(folder, "new")
        assert store.read(folder) == "new"
    for name in BY_NAME:
        kinds = [kind for kind in KINDS if (name, kind) not in NEVER_CALLED]
        assert all(reached[f"{name} {kind}"] >= len(LOSSES) for kind in kinds), name
