from __future__ import annotations

import os
import stat
from pathlib import Path
from random import Random

import pytest
from campaigns.memory_disk import MemoryDisk, Nodes, after_kill, after_power_loss, after_torn_writes

from cpr_native.store.system import System

CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL


def write(disk: System, path: str, data: bytes, *, sync: bool = True) -> None:
    fd = disk.open(path, CREATE)
    disk.pwrite(fd, data, 0)
    if sync:
        disk.fsync(fd)
    disk.close(fd)


def sync_folder(disk: System, path: str) -> None:
    fd = disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
    disk.fsync(fd)
    disk.close(fd)


def listing(disk: System, path: str) -> list[str]:
    fd = disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sorted(disk.listdir(fd))
    finally:
        disk.close(fd)


def read(disk: System, path: str) -> bytes:
    fd = disk.open(path, os.O_RDONLY)
    try:
        return disk.pread(fd, disk.fstat(fd).st_size, 0)
    finally:
        disk.close(fd)


def act(disk: System, root: str, random: Random) -> tuple[object, ...]:
    """One random call; what it returned or its error."""
    names = [f"{root}/{name}" for name in ("a", "b", "d/a", "d/b")]
    path, other = random.choice(names), random.choice(names)
    offset, size = random.randrange(4), random.randrange(6)
    try:
        match random.choice(
            ["write", "append", "read", "link", "rename", "unlink", "mkdir", "list", "cut", "stat"]
        ):
            case "write":
                write(disk, path, bytes([size] * size))
            case "append":
                fd = disk.open(path, os.O_RDWR)
                written = disk.pwrite(fd, b"xyz", offset)
                disk.close(fd)
                return ("append", written)
            case "read":
                return ("read", read(disk, path))
            case "link":
                disk.link(path, other)
            case "rename":
                disk.rename(path, other)
            case "unlink":
                disk.unlink(path)
            case "mkdir":
                disk.mkdir(random.choice([f"{root}/d", f"{root}/e"]))
            case "list":
                return ("list", listing(disk, random.choice([root, f"{root}/d"])))
            case "cut":
                fd = disk.open(path, os.O_RDWR)
                disk.ftruncate(fd, size)
                disk.close(fd)
            case "stat":
                status = disk.lstat(path)
                kind = stat.S_IFMT(status.st_mode)
                return ("stat", kind, status.st_size if stat.S_ISREG(kind) else 0)
    except OSError as error:
        return ("error", error.errno)
    return ("done",)


@pytest.mark.parametrize("seed", range(20))
def test_programs_see_what_a_real_file_system_shows(tmp_path: Path, seed: int) -> None:
    real, disk = System(), MemoryDisk()
    disk.mkdir("/r")
    ours, theirs = Random(seed), Random(seed)
    for _ in range(200):
        assert act(disk, "/r", ours) == act(real, str(tmp_path), theirs)
    assert disk.open_files == 0


def lost(nodes: Nodes) -> tuple[MemoryDisk, MemoryDisk]:
    return MemoryDisk(after_kill(nodes)), MemoryDisk(after_power_loss(nodes))


def test_without_power_only_what_was_synced_is_left() -> None:
    disk = MemoryDisk()
    disk.mkdir("/d")
    sync_folder(disk, "/")
    write(disk, "/d/unsynced", b"abc", sync=False)
    write(disk, "/d/synced", b"abc")
    killed, dark = lost(disk.nodes)
    assert listing(killed, "/d") == ["synced", "unsynced"]
    assert read(killed, "/d/unsynced") == b"abc"
    assert listing(dark, "/d") == []  # the directory was not synced

    sync_folder(disk, "/d")
    killed, dark = lost(disk.nodes)
    assert [read(dark, "/d/unsynced"), read(dark, "/d/synced")] == [b"", b"abc"]

    disk.unlink("/d/synced")
    killed, dark = lost(disk.nodes)
    assert listing(killed, "/d") == ["unsynced"]
    assert read(dark, "/d/synced") == b"abc"  # the removal was not synced


def test_torn_writes_are_mixtures_of_both() -> None:
    disk = MemoryDisk()
    write(disk, "/f", b"o" * 2000)
    sync_folder(disk, "/")
    fd = disk.open("/f", os.O_RDWR)
    disk.pwrite(fd, b"n" * 3000, 0)
    write(disk, "/g", b"x" * 10, sync=False)
    found = [MemoryDisk(after_torn_writes(disk.nodes, Random(seed))) for seed in range(50)]
    texts = {read(each, "/f") for each in found}
    assert len(texts) > 10
    assert all(len(text) in (2000, 3000) and set(text) <= set(b"on\0") for text in texts)
    assert {tuple(listing(each, "/")) for each in found} == {("f",), ("f", "g")}


def test_a_lock_holds_until_its_file_is_closed() -> None:
    disk = MemoryDisk()
    first, second = disk.open("/l", os.O_RDWR | os.O_CREAT), disk.open("/l", os.O_RDWR)
    disk.lock(first)
    with pytest.raises(BlockingIOError):
        disk.lock(second)
    disk.close(first)
    disk.lock(second)
