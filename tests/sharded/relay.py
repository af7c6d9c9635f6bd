"""Shards of another process, over a socket: each call has a thread of its own connection."""

from __future__ import annotations

import threading
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from cpr_native.cluster.local import LocalDirectory


class Relay:
    """Lets other processes call the shards of `directory`; `address`: where."""

    def __init__(self, directory: LocalDirectory, address: str) -> None:
        self._directory = directory
        self._listener = Listener(address, family="AF_UNIX")
        self._open: list[Connection] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                shard, method, args = connection.recv()
                handle = self._directory.life(shard)
                try:
                    if method == "incarnation":
                        answer: Any = handle.incarnation
                    else:
                        answer = handle.call(method, *args).result(60.0)
                except Exception as error:
                    answer = error
                connection.send(answer)

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()


class _Answer:
    def __init__(self, address: str, call: tuple[Any, ...]) -> None:
        self._connection: Connection | None = Client(address, family="AF_UNIX")
        self._connection.send(call)
        self._value: Any = None

    def result(self, timeout: float) -> Any:
        if self._connection is not None:
            if not self._connection.poll(timeout):
                raise TimeoutError
            self._value = self._connection.recv()
            self._connection.close()
            self._connection = None
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class RelayHandle:
    """A life of a shard of another process; calls may overtake each other."""

    def __init__(self, address: str, shard: int) -> None:
        self._address = address
        self.shard = shard
        self.incarnation = int(_Answer(address, (shard, "incarnation", ())).result(60.0))

    def call(self, method: str, *args: Any) -> _Answer:
        return _Answer(self._address, (self.shard, method, args))

    def lookup(self, *args: Any) -> _Answer:
        return self.call("lookup", *args)

    def update(self, *args: Any) -> _Answer:
        return self.call("update", *args)


class RelayDirectory:
    """The shards behind `address`."""

    def __init__(self, address: str, shards: int) -> None:
        self._address = address
        self.shards = shards

    def handle(self, shard: int) -> RelayHandle:
        return RelayHandle(self._address, shard)

    def reconnect(self, shard: int, timeout: float, *, after: int) -> RelayHandle:
        handle = self.handle(shard)
        assert handle.incarnation > after
        return handle
