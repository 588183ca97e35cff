"""`bench host-overhead`: every part of every step is there."""

from pagoda.bench.host_overhead import (
    PARTS,
    HostOverheadConfig,
    bench_host_overhead,
    host_overhead_table,
)


def test_parts_add_up():
    taken = bench_host_overhead(HostOverheadConfig(requests=5, steps=40))
    assert tuple(taken) == PARTS and all(len(seconds) == 40 for seconds in taken.values())
    for plan, launch, commit, send, step in zip(*taken.values(), strict=True):
        assert 0 < plan + launch + commit + send <= step
    header, rule, *rows = host_overhead_table(taken).splitlines()
    assert len({len(line) for line in (header, rule, *rows)}) == 1
    assert [row.split("|")[1].strip() for row in rows] == list(PARTS)
