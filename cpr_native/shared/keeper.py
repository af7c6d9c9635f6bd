"""The keeper: a small process that holds memory by name and hands its descriptor to who asks.

It listens on an abstract socket of its user. A client is sent one message: the descriptor of the memory, or,
if it sent `stop`, nothing before its name is free.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import sys
import time
from contextlib import suppress

from cpr_native.errors import CprError

_START_SECONDS = 20.0
_KEEP, _STOP = b"keep", b"stop"


def _address(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError(f"name: expected 1 to 64 letters, digits or any of -_., got {name!r}")
    return f"\0cpr-native-keeper-{os.getuid()}-{name}"


def _is_own(connection: socket.socket) -> bool:
    """Whether the other end is of this user: anyone may connect to, or listen on, an abstract name."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", peer)[1]
    return user == os.getuid()


def _connect(name: str) -> socket.socket | None:
    """Return a connection to the keeper of `name`, None if none runs; raises CprError for another user's."""
    address = _address(name)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
    except ConnectionRefusedError:
        connection.close()
        return None
    if not _is_own(connection):
        connection.close()
        raise CprError(f"keeper {name}: expected one of user {os.getuid()}, got another user's")
    return connection


def _start(name: str) -> None:
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "cpr_native.shared.keeper", name],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)],
        setsid=True,  # what ends this process's group or terminal leaves it alone
    )


def descriptor(name: str) -> int:
    """Return a descriptor of the memory called `name`; starts its keeper unless it runs.

    Raises ValueError for a bad name, OSError when the process can't be started or this one has no descriptor
    left, TimeoutError when no keeper answers.
    """
    deadline = time.monotonic() + _START_SECONDS
    starting = False
    while True:
        connection = _connect(name)
        if connection is not None:
            starting = False
            with connection, suppress(ConnectionError):  # of one that was about to end
                connection.sendall(_KEEP)
                sent, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
                if descriptors:
                    os.set_inheritable(descriptors[0], False)
                    return descriptors[0]
                if sent:
                    raise OSError(f"keeper {name}: expected a descriptor, got none: too many are open here")
        elif not starting:
            _start(name)
            starting = True
        if time.monotonic() > deadline:
            raise TimeoutError(f"keeper {name}: no process answers {_START_SECONDS} s after its start")
        time.sleep(0.01)


def stop(name: str) -> bool:
    """End the keeper of `name`; False if none runs. Who has attached keeps the memory until it ends."""
    while (connection := _connect(name)) is not None:
        with connection, suppress(ConnectionError):  # of one that was about to end
            connection.sendall(_STOP)
            connection.recv(1)
            return True
    return False


def keep(name: str) -> bool:
    """Hold memory called `name` until `stop`; False, at once, if another process does.

    Raises ValueError for a bad name.
    """
    address = _address(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            listening.bind(address)
        except OSError:
            return False
        memory = os.memfd_create(f"cpr-native {name}", os.MFD_CLOEXEC)
        listening.listen()
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(5.0)
                try:
                    if not _is_own(connection):
                        continue
                    wanted = connection.recv(len(_KEEP))
                    if wanted == _STOP:
                        listening.close()  # before this client hears of it: the next one finds none
                        return True
                    socket.send_fds(connection, [b"m"], [memory])
                except OSError:
                    continue  # that client is gone


if __name__ == "__main__":
    # Whoever waits for the end of the process that started this one would wait for its inherited pipes, too.
    os.closerange(3, max(os.sysconf("SC_OPEN_MAX"), 4096))
    keep(sys.argv[1])
