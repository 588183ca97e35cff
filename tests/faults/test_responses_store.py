"""The file of responses when its disk is full, and when a crash cut off what SQLite wrote."""

import shutil
from pathlib import Path

import pytest

from pagoda.base.errors import CapacityError
from pagoda.server.responses.store import ResponseStore, Stored


def response(text: str, size: int = 0) -> Stored:
    body = b'{"text": "%s"}' % text.encode()
    return Stored(id="resp_1", previous_id=None, response=body, input=b"x" * size)


def pragma(store: ResponseStore, words: str) -> int:
    def run() -> int:
        assert store._database is not None
        return int(store._database.execute(f"PRAGMA {words}").fetchone()[0])

    return store._thread.submit(run).result()


async def test_a_disk_that_becomes_full_at_any_page(tmp_path):
    store = ResponseStore(str(tmp_path / "responses.db"))
    await store.put(response("old"))
    failed = 0
    for pages in range(pragma(store, "page_count"), 1000):
        pragma(store, f"max_page_count = {pages}")
        try:
            await store.put(response("new", 40_000))
            break
        except CapacityError as error:
            assert "Make room" in str(error)
            found = await store.get("resp_1")
            assert found is not None and found.response == b'{"text": "old"}'
            failed += 1
    assert failed > 3
    found = await store.get("resp_1")
    assert found is not None and found.response == b'{"text": "new"}'
    store.close()


async def test_what_is_stored_is_read_where_nothing_can_be_written(tmp_path):
    store = ResponseStore(str(tmp_path / "responses.db"))
    await store.put(response("old"))
    store._thread.submit(lambda: store._open().execute("PRAGMA query_only = 1")).result()
    found = await store.get("resp_1")
    assert found is not None and found.response == b'{"text": "old"}'
    for change in (store.put(response("new")), store.delete("resp_1")):
        with pytest.raises(CapacityError, match="cannot be read or changed"):
            await change
    store.close()


async def test_what_is_told_is_kept_is_synced(tmp_path):
    store = ResponseStore(str(tmp_path / "responses.db"))
    assert pragma(store, "synchronous") == 2  # FULL: each commit waits for the disk
    store.close()


@pytest.mark.parametrize("zeros", [False, True])
async def test_a_crash_at_any_byte_of_the_log(tmp_path: Path, zeros: bool):
    path = tmp_path / "responses.db"
    store = ResponseStore(str(path))
    await store.put(response("old"))
    store.close()
    store = ResponseStore(str(path))
    await store.put(response("new", 9000))
    log = Path(f"{path}-wal").read_bytes()
    seen = set()
    for length in [*range(0, len(log), 1500), len(log)]:
        crashed = tmp_path / f"{length}.db"
        shutil.copy(path, crashed)
        rest = bytes(len(log) - length) if zeros else b""
        Path(f"{crashed}-wal").write_bytes(log[:length] + rest)
        again = ResponseStore(str(crashed))
        found = await again.get("resp_1")
        assert found is not None
        seen.add(found.response)
        again.close()
    store.close()
    assert seen == {b'{"text": "old"}', b'{"text": "new"}'}
