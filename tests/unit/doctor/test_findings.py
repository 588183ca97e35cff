import pytest

from pagoda.doctor.findings import Finding, failed


@pytest.mark.parametrize("status", ["WARN", "FAIL"])
def test_a_fault_comes_with_its_fix(status):
    assert Finding("disk", status, "full", "pagoda rm MODEL").fix
    with pytest.raises(ValueError, match="a fix"):
        Finding("disk", status, "full")


@pytest.mark.parametrize("status", ["PASS", "SKIP"])
def test_what_is_no_fault_has_nothing_to_fix(status):
    with pytest.raises(ValueError, match="a fix"):
        Finding("disk", status, "fine", "do something")


def test_other_statuses_are_refused():
    with pytest.raises(ValueError, match="no status"):
        Finding("disk", "OK", "fine")


def test_only_a_fail_fails():
    warned = Finding("disk", "WARN", "slow", "buy one")
    assert not failed([warned, Finding("gpu", "SKIP", "none here")])
    assert failed([warned, Finding("memory", "FAIL", "none left", "buy some")])
