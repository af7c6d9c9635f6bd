"""What the soak would say of a job that lost something; `make reliability-small` runs it for a minute."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from campaigns.soak import Account
from campaigns.soaked import FaultySystem, Life

from cpr_native.store import system


def account(tmp_path: Path, text: str) -> Account:
    log = tmp_path / "log"
    log.write_text(text)
    found = Account(series=[[]])
    found.read(log)
    return found


def test_rows_that_differ_from_those_reported_are_seen(tmp_path: Path) -> None:
    assert account(tmp_path, "saved base 3 aa\nsaved delta 5 bb\nresumed 5 bb\n").problems == []
    found = account(tmp_path, "saved base 3 aa\nsaved delta 5 bb\nresumed 5 cc\n")
    assert found.problems == ["restored: other rows at step 5 than before"]
    found = account(tmp_path, "saved base 3 aa\nsaved delta 5 bb\nresumed 3 aa\n")
    assert found.problems == ["restored step 3, reported was 5"]


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    found = account(tmp_path, "saved base 3 aa\nsaved del")
    assert found.saves == {"base": 1}
    with (tmp_path / "log").open("a") as log:
        log.write("ta 5 bb\nfaults 2\nrefused 5\n")
    found.read(tmp_path / "log")
    assert (found.saves, found.faults, found.refused) == ({"base": 1, "delta": 1}, 2, 1)


def test_growth_is_of_a_life_after_its_beginning(tmp_path: Path) -> None:
    text = "".join(f"memory {mb} {files}\n" for mb, files in [(50, 9), (100, 5), (101, 6), (104.5, 7)])
    assert account(tmp_path, text).growth() == (4.5, 2)


def test_the_disk_fails_only_while_it_is_armed(tmp_path: Path) -> None:
    disk = FaultySystem(1.0, seed=0)
    disk.mkdir(str(tmp_path / "a"))
    disk.armed = True
    for number in range(5):
        with pytest.raises(OSError, match=r"space|Input|quota") as caught:
            disk.mkdir(str(tmp_path / f"b{number}"))
        assert caught.value.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT)
    assert disk.faults == 5
    assert os.listdir(tmp_path) == ["a"]


def test_a_life_on_a_disk_that_fails_reports_only_what_is_there(tmp_path: Path) -> None:
    life = Life(tmp_path, shards=2, rate=0.02, seed=1, options={})
    log = tmp_path / "log"

    def troubled() -> bool:
        return life.disk.faults > 0 and "refused" in log.read_text() and len(life.job.manager.saves) > 10

    with system.use(life.disk):
        life.resume()
        life.train(troubled)
        life.recover()
        life.close()
    found = account(tmp_path, log.read_text())
    found.check(tmp_path / "checkpoint", alone=True)
    assert found.problems == []
    assert found.faults > 0
    assert found.refused > 0
    assert found.trained is not None
    assert found.saves.total() > 10
    found.exact = found.trained[0] + 1
    found.check(tmp_path / "checkpoint", alone=True)
    assert len(found.problems) == 1
