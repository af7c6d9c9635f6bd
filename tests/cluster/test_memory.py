"""Memory of answers that is used again."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np

from cpr_native.cluster.memory import RecycledFloats


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_what_somebody_holds_is_not_given_again() -> None:
    memory = RecycledFloats()
    first = memory.take(1000)
    part = first[10:20]
    place = address(first)
    del first
    assert address(memory.take(900)) != place  # through the view
    del part
    buffers: list[pickle.PickleBuffer] = []
    again = memory.take(1000)
    pickle.dumps(again, protocol=5, buffer_callback=buffers.append)
    place = address(again)
    del again
    assert address(memory.take(1000)) != place  # through the buffer
    buffers.clear()
    given = [memory.take(1000) for _ in range(3)]
    assert place in [address(each) for each in given]
    assert len({address(each) for each in given}) == 3


def test_larger_arrays_take_the_place_of_smaller_ones() -> None:
    memory = RecycledFloats()
    for size in (10, 100, 1000, 10_000):
        assert len(memory.take(size)) == size
    assert sum(len(each) for each in memory._kept) <= 10_000 * 9 // 8
    assert len(memory.take(0)) == 0
    many = [memory.take(100) for _ in range(20)]
    assert len({address(each) for each in many}) == 20
    assert len(memory._kept) <= 8


def test_threads_never_share() -> None:
    memory = RecycledFloats()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(300):
            mine = memory.take(2000)
            mine[:] = number
            if not np.all(mine == number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
