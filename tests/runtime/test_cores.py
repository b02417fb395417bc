"""How many threads are used."""

import os

import pytest

from pippin.runtime import cores


def test_at_least_one_and_no_more_than_there_are():
    assert 1 <= cores.physical_cores() <= os.cpu_count()


@pytest.mark.parametrize(
    ("limit", "cpus"), [("200000 100000\n", 2), ("50000 100000\n", 0), ("350000 100000\n", 3)]
)
def test_a_cpu_quota_of_a_container(tmp_path, limit, cpus):
    (tmp_path / "cpu.max").write_text(limit)
    assert cores._linux_quota(tmp_path / "cpu.max") == cpus


def test_no_quota(tmp_path):
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores._linux_quota(tmp_path / "cpu.max") > 1000
    assert cores._linux_quota(tmp_path / "nowhere") > 1000


def test_a_quota_below_one_cpu_still_gives_a_thread(monkeypatch):
    monkeypatch.setattr(cores.sys, "platform", "linux")
    monkeypatch.setattr(cores, "_linux_cores", lambda: 8)
    monkeypatch.setattr(cores, "_linux_quota", lambda: 0)
    assert cores.physical_cores() == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_only_the_cores_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert cores.physical_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
