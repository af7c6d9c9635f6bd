from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from cpr_native.recovery import dense
from cpr_native.recovery.dense import DenseState, decode, encode, rng_state, set_rng_state
from cpr_native.recovery.gang import Agreement


class Position:
    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.at = state_dict["at"]


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.rand(8, 3)).square().mean().backward()
    optimizer.step()


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def test_round_trip_is_bit_equal_with_pointers_kept() -> None:
    net, position = model(), Position()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    dense = DenseState(net, (), optimizer=optimizer, loader=position)
    train(net, optimizer)
    position.at = 7
    data = encode(dense.capture())
    at_save = {key: value.clone() for key, value in net.state_dict().items()}
    drawn = draw()
    train(net, optimizer)
    after = {key: value.clone() for key, value in net.state_dict().items()}
    position.at = 9
    pointers = [value.data_ptr() for value in net.state_dict().values()]
    dense.restore(decode(data))
    assert position.at == 7
    assert [value.data_ptr() for value in net.state_dict().values()] == pointers
    assert all(torch.equal(value, at_save[key]) for key, value in net.state_dict().items())
    assert draw() == drawn
    train(net, optimizer)
    assert all(torch.equal(value, after[key]) for key, value in net.state_dict().items())


class OfTwo(Agreement):
    """A process of two; `others`: what the other one gives."""

    shards = 2

    def __init__(self, shard: int, others: Any = None) -> None:
        self.shard, self._others = shard, others

    def gather(self, value: Any) -> list[Any]:
        return [value, self._others] if self.shard == 0 else [self._others, value]


def test_each_process_takes_its_own_position_and_random_numbers() -> None:
    net, position = model(), Position()
    position.at = 3
    random.seed(5)
    others = {"rng": rng_state(), "position": {"at": 4}}
    numbers = draw()
    dense = DenseState(net, (), optimizer=None, loader=position, gang=OfTwo(0, others))
    state = decode(encode(dense.capture()))
    at = {}
    for shard in (0, 1):
        again = DenseState(net, (), optimizer=None, loader=position, gang=OfTwo(shard))
        again.restore(again.own(state))
        at[shard] = position.at
    assert at == {0: 3, 1: 4}
    assert draw() == numbers


def test_a_process_more_than_the_checkpoint_has_is_refused() -> None:
    state = DenseState(model(), (), optimizer=None, loader=None).capture()
    assert "shards" not in state
    first, second = (DenseState(model(), (), optimizer=None, loader=None, gang=OfTwo(n)) for n in (0, 1))
    assert first.own(state) == state
    with pytest.raises(ValueError, match="position of 1 processes, this one is number 1"):
        second.own(state)


def test_capture_aliases_nothing() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    train(net, optimizer)
    captured = DenseState(net, (), optimizer=optimizer, loader=None).capture()
    before = encode(captured)
    train(net, optimizer)
    assert encode(captured) == before


def test_generators_are_all_covered() -> None:
    state = rng_state()
    first = draw()
    set_rng_state(state)
    assert draw() == first


def test_table_keys_are_left_out() -> None:
    dense = DenseState(model(), ["0.weight", "0.bias"], optimizer=None, loader=None)
    assert not {"0.weight", "0.bias"} & set(dense.capture()["model"])


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (torch.nn.Sequential(torch.nn.Linear(3, 4)), "dense entries"),
        (
            torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)),
            "0.weight is",
        ),
    ],
)
def test_another_model_is_refused_and_nothing_changes(other: torch.nn.Module, match: str) -> None:
    data = encode(DenseState(model(), (), optimizer=None, loader=None).capture())
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(ValueError, match=match):
        DenseState(other, (), optimizer=None, loader=None).restore(decode(data))
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())


def test_missing_optimizer_or_position_is_refused() -> None:
    net = model()
    data = decode(encode(DenseState(net, (), optimizer=None, loader=None).capture()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="manager has a dense optimizer but the checkpoint has none"):
        DenseState(net, (), optimizer=optimizer, loader=None).restore(data)
    with pytest.raises(ValueError, match="manager has a dense position but the checkpoint has none"):
        DenseState(net, (), optimizer=None, loader=Position()).restore(data)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda net: torch.optim.SGD(net.parameters(), lr=0.1), "is a torch.optim.sgd.SGD here, a torch"),
        (lambda net: torch.optim.Adam(net[0].parameters(), lr=0.1), r"\[2\] parameters here, \[6\]"),
        (lambda net: torch.optim.Adam([{"params": [p]} for p in net.parameters()]), r"\[1, 1, 1, 1, 1, 1\]"),
    ],
)
def test_another_dense_optimizer_is_refused_and_nothing_changes(make: Any, match: str) -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    train(net, optimizer)
    data = decode(encode(DenseState(net, (), optimizer=optimizer, loader=Position()).capture()))
    train(net, optimizer)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    position = Position()
    position.at = 5
    with pytest.raises(ValueError, match=match):
        DenseState(net, (), optimizer=make(net), loader=position).restore(data)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert position.at == 5


@pytest.mark.parametrize(
    "odd",
    [
        random.Random(3),
        [{"a": (1, random.Random(3))}],
        {random.Random(3): 1},
        OrderedDict(a=[random.Random(3)]),
        10**1000,
    ],
    ids=["itself", "nested", "key", "ordered", "long"],
)
def test_state_that_could_not_be_read_back_is_refused_when_saved(odd: object) -> None:
    with pytest.raises(TypeError, match="weights_only"):
        encode({"position": odd})


def test_plain_state_is_what_can_be_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read back to find out."""
    state: dict[str, Any] = {
        "model": OrderedDict(a=torch.ones(2, 3)[:, 1:], b=torch.zeros((), dtype=torch.bfloat16)),
        "values": [1, -(2**63), 2**63 - 1, 0.5, float("inf"), "\u00e9\n", True, None, (), {}, (1, [2, (3,)])],
        "rng": rng_state(),
    }
    with monkeypatch.context() as patch:
        patch.delattr(dense, "decode")
        data = encode(state)
    got = decode(data)
    assert got["values"] == state["values"]
    assert list(got) == list(state)
    assert torch.equal(got["model"]["a"], state["model"]["a"])
    assert got["model"]["b"].dtype is torch.bfloat16
    assert got["rng"]["python"] == state["rng"]["python"]


def test_tensors_that_are_not_on_the_host_are_copied_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own stand for those of a GPU."""
    shared, kept = torch.arange(3.0), torch.ones(2)
    state = {"a": [shared, (shared, kept)], "b": OrderedDict(c={"d": shared}), "e": "text"}
    monkeypatch.setattr(dense, "_on_host", lambda tensor: tensor is kept)
    copied: list[torch.Tensor] = []
    to = torch.Tensor.to

    def counted(tensor: torch.Tensor, where: str) -> torch.Tensor:
        assert where == "cpu"
        copied.append(tensor)
        return to(tensor, where, copy=True)

    monkeypatch.setattr(torch.Tensor, "to", counted)
    found = dense.host_copy(state)
    one = found["a"][0]
    assert found["a"][1][0] is one
    assert found["b"]["c"]["d"] is one
    assert len(copied) == 1
    assert type(found["b"]) is OrderedDict
    shared.zero_()
    kept.zero_()
    assert one.tolist() == [0.0, 1.0, 2.0]
    assert found["a"][1][1].tolist() == [1.0, 1.0]
