"""A network of a process's own, with only loopback up: nothing outside reaches what it starts."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


@contextmanager
def loopback_only() -> Iterator[None]:
    """Move the calling thread, and what it starts meanwhile, to a new network namespace of Linux.

    Raises PermissionError unless the process may do so (root may), and nothing is changed then.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net", "rb") as before:
        if libc.unshare(_CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise PermissionError(number, f"a network namespace: {os.strerror(number)}")
        try:
            bring_up("lo")
            yield
        finally:
            if libc.setns(before.fileno(), _CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"back to the network namespace before: {os.strerror(number)}")


def bring_up(interface: str) -> None:
    """Bring an interface of the calling thread's network up; raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sH14x", interface.encode(), 0)
        flags = struct.unpack("16xH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))[0]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", interface.encode(), flags | _IFF_UP))
