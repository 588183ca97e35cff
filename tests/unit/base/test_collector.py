"""What the garbage collector leaves alone."""

import gc

import pytest

from pagoda.base.collector import no_collections


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def test_nothing_is_collected_inside_and_what_is_there_is_left_alone():
    with no_collections():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(kept)


def test_collections_go_on_behind_an_error():
    with pytest.raises(ImportError), no_collections():
        raise ImportError
    assert gc.isenabled()
