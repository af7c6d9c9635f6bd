"""`describe` gives native code the address, shape and dtype, or says what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cpr_native._tensor import describe


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_tensor_and_array_of_one_memory(dtype: str) -> None:
    array = np.zeros((3, 2), dtype=dtype)
    tensor = torch.from_numpy(array)
    assert describe(array) == describe(tensor) == (array.ctypes.data, (3, 2), dtype)


def test_half_types_have_names() -> None:
    assert describe(torch.zeros(2, dtype=torch.bfloat16))[2] == "bfloat16"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(4, 4).t()[1:], "contiguous"),
        (torch.zeros(4)[::2], "contiguous"),
        (np.zeros((4, 4))[:, ::2], "contiguous"),
        (torch.zeros(2, device="meta"), "device meta"),
        (np.zeros(2, dtype=">f4"), "byte order"),
    ],
)
def test_unusable_memory(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe(value)


def test_sparse_tensor() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2,), check_invariants=True)
    with pytest.raises(ValueError, match="sparse_coo"):
        describe(sparse)


@pytest.mark.parametrize("value", [[1, 2], None, 3])
def test_neither_tensor_nor_array(value: Any) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        describe(value)
