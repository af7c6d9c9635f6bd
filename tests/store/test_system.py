from __future__ import annotations

import errno
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from store_cases import PLACEMENT, SCHEMA, Model, restored

import cpr_native.store
from cpr_native.store import CheckpointStore, system, verify
from cpr_native.store.system import System

STORE = Path(cpr_native.store.__file__).parent


class Counting(System):
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str):  # type: ignore[no-untyped-def]
        if name in vars(System):
            object.__getattribute__(self, "calls")[name] += 1
        return object.__getattribute__(self, name)


class Broken(System):
    def __init__(self, code: int) -> None:
        self.code = code

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        raise OSError(self.code, os.strerror(self.code))

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        if size > 1000:
            raise OSError(self.code, os.strerror(self.code))
        return super().pread(fd, size, offset)


class Short(System):
    """Writes and reads at most 7 bytes a call."""

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return super().pwrite(fd, data[:7], offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return super().pread(fd, min(size, 7), offset)


def save(path: Path) -> Model:
    model = Model()
    with CheckpointStore(path).writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
    return model


def test_nothing_of_the_store_calls_the_operating_system_by_another_way() -> None:
    calls = "|".join(name for name in vars(System) if not name.startswith("_") and name != "lock")
    for path in sorted(STORE.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != "system.py":
            assert re.findall(rf"\bos\.(?:{calls}|replace|remove|makedirs|scandir|write|read)\(", text) == []
            assert (
                re.findall(r"(?<!\w)open\(\s*(?:path|self\.path)|\.(?:exists|is_file|read_bytes)\(\)", text)
                == []
            )


def test_every_call_of_a_save_and_a_restore_is_made_through_the_system(tmp_path: Path) -> None:
    counting = Counting()
    with system.use(counting):
        model = save(tmp_path / "c")
        assert restored(CheckpointStore(tmp_path / "c")) == model.rows()
    # 4 chains: 3 shards and the global one. Each has an epoch and a base, each with one segment.
    assert counting.calls["link"] == 8
    assert counting.calls["fdatasync"] == 4
    assert counting.calls["lock"] == 4
    assert counting.calls["pread"] > 12
    assert verify(tmp_path / "c") == []
    assert system.for_native() is None


def test_short_writes_and_reads_are_gone_on_with(tmp_path: Path) -> None:
    with system.use(Short()):
        model = save(tmp_path / "short")
        assert restored(CheckpointStore(tmp_path / "short")) == model.rows()
    assert restored(CheckpointStore(tmp_path / "short")) == model.rows()
    assert verify(tmp_path / "short") == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_an_error_of_native_code_has_number_and_path(tmp_path: Path, code: int) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        with system.use(Broken(code)), pytest.raises(OSError, match="000000000002") as caught:
            model.save(writer, "base")
        assert caught.value.errno == code
        assert caught.value.filename.startswith(str(tmp_path))
        model.save(writer, "base")
    assert restored(CheckpointStore(tmp_path)) == model.rows()


def test_what_is_no_error_of_the_system_counts_as_a_broken_disk(tmp_path: Path) -> None:
    class Odd(System):
        def fdatasync(self, fd: int) -> None:
            raise ZeroDivisionError

    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        with system.use(Odd()), pytest.raises(OSError) as caught:  # noqa: PT011
            model.save(writer, "base")
        assert caught.value.errno == errno.EIO
