"""Speeds measured beside other programs say so."""

from pagoda.doctor.machine import load
from pagoda.doctor.machine.load import Ticks, load_findings, others_share, ticks


def test_the_counters_are_those_of_proc_stat(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    # user nice system idle iowait irq softirq steal guest guest_nice
    stat.write_text("cpu  100 20 30 800 40 1 2 7 90 9\ncpu0 1 2 3\n")
    monkeypatch.setattr(load, "_STAT", stat)
    found = ticks(0.01)
    assert (round(found.total, 2), round(found.busy, 2)) == (10.0, 1.6)
    monkeypatch.setattr(load, "_STAT", tmp_path / "nothing")
    assert ticks(0.01) is None


def test_what_others_use_is_what_is_not_ours():
    before = Ticks(100.0, 50.0, 1.0)
    assert others_share(before, Ticks(102.0, 51.5, 2.0)) == 0.25
    assert others_share(before, Ticks(102.0, 50.5, 2.0)) == 0.0
    assert others_share(before, before) == others_share(None, before) == 0.0


def test_a_quiet_machine_needs_no_word():
    assert load_findings(0.05) == ()
    (found,) = load_findings(0.63)
    assert "63% of the CPU" in found.text and found.fix
