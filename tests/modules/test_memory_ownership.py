"""The parameter and the engine stay one memory, whoever moves, writes, copies or loads it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cpr_native import SGD, EmbeddingBag, EmbeddingBagCollection, EmbeddingBagConfig, RowWiseAdagrad
from cpr_native.modules import EngineModule

IDS, OFFSETS = torch.tensor([1, 2, 2, 0]), torch.tensor([0, 2, 3, 4, 4])


def collection(**options: Any) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=6, embedding_dim=3, feature_names=[f"{name}_id"])
        for name in ("users", "items")
    ]
    return EmbeddingBagCollection(tables, **{"optimizer": RowWiseAdagrad(lr=0.1), **options})


def train(module: EngineModule) -> torch.Tensor:
    out: torch.Tensor = module(IDS, OFFSETS)
    out.pow(2).sum().backward()
    return out.detach()


def weight_of(module: EmbeddingBagCollection, table: str = "users") -> nn.Parameter:
    return module.get_parameter(f"embedding_bags.{table}.weight")


def dirty(module: EngineModule) -> list[list[int]]:
    return [module.engine.dirty(table).nonzero()[0].tolist() for table in range(2)]


ALL = list(range(6))


def test_new_collection_is_clean_and_a_drop_in_is_dirty() -> None:
    assert dirty(collection()) == [[], []]
    assert EmbeddingBag(6, 3).engine.dirty(0).all()


def test_own_updates_are_expected() -> None:
    module = collection()
    train(module)
    train(module)
    module.sync()
    assert dirty(module) == [[1, 2], [0]]


def test_the_version_moves_with_every_update() -> None:
    module = collection()
    before = weight_of(module)._version
    train(module)
    assert weight_of(module)._version == before + 1


@pytest.mark.parametrize("when", ["forward", "backward", "sync"])
def test_in_place_write_marks_the_table(when: str) -> None:
    module = collection()
    out = module(IDS, OFFSETS) if when == "backward" else None
    with torch.no_grad():
        weight_of(module)[5] = 1.0
    if out is not None:
        out.sum().backward()
    elif when == "forward":
        module.eval()(IDS, OFFSETS)
    else:
        module.sync()
    assert dirty(module)[0] == ALL
    assert dirty(module)[1] == ([0] if when == "backward" else [])


def moved(module: EmbeddingBagCollection) -> None:
    module.half().float()


def replaced(module: EmbeddingBagCollection) -> None:
    for table in ("users", "items"):
        holder = module.embedding_bags[table]
        holder.weight = nn.Parameter(weight_of(module, table).detach().clone())


def assigned(module: EmbeddingBagCollection) -> None:
    state = {key: weight.clone() for key, weight in module.state_dict().items()}
    module.load_state_dict(state, strict=True, assign=True)


def swapped_data(module: EmbeddingBagCollection) -> None:
    for weight in module.parameters():
        weight.data = weight.data.clone()


def shared(module: EmbeddingBagCollection) -> None:
    module.share_memory()


@pytest.mark.parametrize("move", [moved, replaced, assigned, swapped_data, shared])
def test_moved_storage_is_bound_and_dirty(move: Callable[[EmbeddingBagCollection], None]) -> None:
    module, control = collection(), collection()
    move(module)
    control.load_state_dict(module.state_dict())
    train(module)
    train(control)
    assert dirty(module) == [ALL, ALL]
    for table, weight in enumerate(module.parameters()):
        assert weight.data_ptr() == module.engine.weight(table).ctypes.data
    assert torch.equal(weight_of(module), weight_of(control))


def test_load_state_dict_copies_in_place_and_marks_at_once() -> None:
    source, module = collection(seed=1), collection(seed=2)
    address = weight_of(module).data_ptr()
    model = nn.Sequential(module)
    model.load_state_dict({f"0.{key}": weight for key, weight in source.state_dict().items()}, strict=True)
    assert dirty(module) == [ALL, ALL]
    assert weight_of(module).data_ptr() == address
    np.testing.assert_array_equal(module.engine.weight(0), source.engine.weight(0))


@pytest.mark.parametrize(
    ("move", "error", "message"),
    [
        (lambda module: module.double(), TypeError, "users.*float32.*float64"),
        (lambda module: module.to("meta"), ValueError, "users.*device meta"),
    ],
)
def test_weights_that_the_engine_cannot_use(
    move: Callable[[nn.Module], Any], error: type[Exception], message: str
) -> None:
    module = collection()
    move(module)
    with pytest.raises(error, match=message):
        module(IDS, OFFSETS)


def test_weight_of_another_shape() -> None:
    module = collection()
    module.embedding_bags["items"].weight = nn.Parameter(torch.zeros(7, 3))
    with pytest.raises(ValueError, match=r"items.*\(6, 3\).*\(7, 3\)"):
        module(IDS, OFFSETS)


def copies(module: EngineModule) -> dict[str, EngineModule]:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return {
        "deepcopy": copy.deepcopy(module),
        "pickle": pickle.loads(pickle.dumps(module)),
        "torch.save": torch.load(buffer, weights_only=False),
    }


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), RowWiseAdagrad(lr=0.1), None])
def test_v18_copies_carry_rows_state_and_trackers_and_are_independent(optimizer: Any, way: str) -> None:
    module = collection(optimizer=optimizer)
    for _ in range(5):
        train(module)
    module.engine.clear_trackers(1, 0, 6, dirty=True)
    module.grad_scale = 0.5
    twin = copies(module)[way]
    assert isinstance(twin, EmbeddingBagCollection)
    for table in range(2):
        for read in ("weight", "state", "counts", "dirty", "sampled_rows", "trackers"):
            np.testing.assert_array_equal(
                getattr(twin.engine, read)(table), getattr(module.engine, read)(table)
            )
        assert twin.engine.weight(table).ctypes.data != module.engine.weight(table).ctypes.data
        assert list(twin.parameters())[table].data_ptr() == twin.engine.weight(table).ctypes.data
    assert (twin.engine.step, twin.grad_scale) == (module.engine.step, 0.5)
    before = weight_of(module).detach().clone()
    train(twin)
    assert torch.equal(weight_of(module), before)
    train(module)
    assert torch.equal(weight_of(module), weight_of(twin))
    np.testing.assert_array_equal(module.engine.trackers(0), twin.engine.trackers(0))


def test_deepcopy_of_a_drop_in_inside_a_model() -> None:
    model = nn.Sequential(EmbeddingBag(6, 3, optimizer=SGD(lr=1.0)), nn.Linear(3, 1))
    twin = copy.deepcopy(model)
    before = model[0].weight.detach().clone()
    twin(torch.tensor([[1, 2]])).sum().backward()
    assert torch.equal(model[0].weight, before)
    assert not torch.equal(twin[0].weight, before)


def test_shallow_copy_is_refused() -> None:
    with pytest.raises(TypeError, match="deepcopy"):
        copy.copy(collection())


def test_tied_modules_see_each_others_writes() -> None:
    first, second = EmbeddingBag(6, 3, optimizer=SGD(lr=1.0)), EmbeddingBag(6, 3, optimizer=SGD(lr=1.0))
    second.weight = first.weight
    second.sync()
    second.engine.clear_trackers(0, 0, 6, dirty=True)
    first(torch.tensor([[1, 2]])).sum().backward()
    torch.testing.assert_close(second(torch.tensor([[1]])), first.weight[1:2])
    assert second.engine.dirty(0).all()


def test_module_made_under_inference_mode_trains() -> None:
    with torch.inference_mode():
        module = collection()
        module(IDS, OFFSETS)
    train(module)
    assert dirty(module) == [[1, 2], [0]]
