from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from campaigns import kills
from campaigns.killed import Kill, train
from campaigns.processes import exit_code, processes
from campaigns.tiny import files_of, tiny_directory
from campaigns.training import Training, digest, undisturbed


@pytest.fixture(autouse=True)
def _same_threads_after() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_v11_v13_killed_ten_times_training_ends_as_if_it_never_was() -> None:
    """Real processes; each restart goes on from the newest commit that was reported."""
    found = kills.run(times=10, steps=30)
    assert found["problems"] == []
    assert (found["tried"], found["lost"], found["unequal"]) == (10, 0, 0)
    assert found["jobs"] >= 1


def test_what_is_lost_is_seen(tmp_path: Path) -> None:
    job = tiny_directory(tmp_path / "checkpoint")
    log = tmp_path / "log"
    log.write_text("resuming\nresumed -1\nsaved base 1\nsaved delta 2\n")
    assert kills.problems_of(tmp_path) == []
    log.write_text("saved base 1\nsaved delta 2\nsaved priority 3\n")
    assert kills.problems_of(tmp_path) == ["running: step 2 is there, reported was 3"]
    log.write_text("saved base 1\nsaved delta 2\nresuming\nresumed 1\n")
    assert kills.problems_of(tmp_path) == ["resumed from step 1, reported was 2"]
    files_of(job.path)[-1].write_bytes(b"")
    log.write_text("saved base 1\nsaved delta 2\n")
    assert any("exact: step 1 is there" in problem for problem in kills.problems_of(tmp_path))


def test_a_process_kills_itself_where_it_is_told_to(tmp_path: Path) -> None:
    context = processes()
    for kill, code in ((Kill(phase="open", number=5), -9), (Kill(phase="none"), 0)):
        assert exit_code(context.Process(target=train, args=(tmp_path, 20, 1, 1, kill, {})), None) == code
    told = kills.Told.read(tmp_path / "log")
    assert told.exact == 20
    torch.set_num_threads(1)
    assert told.trained == undisturbed(20)


def test_digests_tell_states_apart(tmp_path: Path) -> None:
    job = Training(tmp_path, steps=4, shards=1)
    with job.manager:
        job.manager.start()
        seen = [job.digest()]
        for batch in job.loader:
            job.step(batch)
            seen.append(digest(job.model, job.dense))
    assert len(set(seen)) == 5
    assert seen[-1] == undisturbed(4)
