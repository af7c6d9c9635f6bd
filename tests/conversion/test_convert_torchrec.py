"""TorchRec's unsharded collections, and a model of TorchRec's over one, converted in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface
from torchrec_cases import jagged, torchrec_bags, torchrec_rows

from cpr_native import (
    SGD,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    PoolingType,
    Trackers,
    convert,
)

SIZES = {"viewer": 50, "owner": 50, "item": 9}
MIXED = {"item": 9, "unused": 4, "viewer": 50, "owner": 50}


def bag_tables(**item: Any) -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(
            name="users", num_embeddings=50, embedding_dim=8, feature_names=["viewer", "owner"]
        ),
        EmbeddingBagConfig(
            name="products", num_embeddings=9, embedding_dim=8, **{"feature_names": ["item"], **item}
        ),
    ]


ROW_TABLES = [
    EmbeddingConfig(name="users", num_embeddings=50, embedding_dim=8, feature_names=["viewer", "owner"]),
    EmbeddingConfig(name="products", num_embeddings=9, embedding_dim=8, feature_names=["item"]),
]


def dlrm() -> DLRM:
    return DLRM(torchrec_bags(bag_tables()), 4, dense_arch_layer_sizes=[5, 8], over_arch_layer_sizes=[6, 1])


def train(model: DLRM, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    generator = torch.Generator().manual_seed(7)
    for step in range(steps):
        optimizer.zero_grad()
        dense = torch.randn((6, 4), generator=generator)
        model(dense, jagged(MIXED, 6, seed=step)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    ],
)
def test_torchrecs_dlrm_trains_as_before(make: Any) -> None:
    theirs = dlrm()
    ours = copy.deepcopy(theirs)
    optimizer = make(ours.parameters())
    parameters, keys = dict(ours.named_parameters()), list(ours.state_dict())
    collection = ours.sparse_arch.embedding_bag_collection
    convert(ours)
    assert ours.sparse_arch.embedding_bag_collection is collection
    assert type(collection) is EmbeddingBagCollection
    assert all(parameter is parameters[name] for name, parameter in ours.named_parameters())
    assert list(ours.state_dict()) == keys
    train(ours, optimizer)
    train(theirs, make(theirs.parameters()))
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, msg=name)
    fresh = dlrm()
    fresh.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(theirs.state_dict(), strict=True)


def test_fused() -> None:
    theirs = dlrm()
    ours = convert(copy.deepcopy(theirs), optimizer=SGD(lr=0.05))
    others = [weight for name, weight in ours.named_parameters() if "embedding_bags" not in name]
    train(ours, torch.optim.SGD(others, lr=0.05))
    train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.05))
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, msg=name)
    assert ours.sparse_arch.embedding_bag_collection.engine.step == 3


@pytest.mark.parametrize(
    ("weighted", "pooling"), [(False, PoolingType.SUM), (False, PoolingType.MEAN), (True, PoolingType.SUM)]
)
def test_settings_of_the_collection(weighted: bool, pooling: PoolingType) -> None:
    theirs = torchrec_bags(bag_tables(pooling=pooling, weight_init_min=-2.0), weighted=weighted)
    ours = convert(copy.deepcopy(theirs))
    assert isinstance(ours, EmbeddingBagCollection)
    assert ours.is_weighted() is theirs.is_weighted()
    assert ours.device == theirs.device
    for own, config in zip(ours.embedding_bag_configs(), theirs.embedding_bag_configs(), strict=True):
        assert (own.name, own.num_embeddings, own.embedding_dim) == (
            config.name,
            config.num_embeddings,
            config.embedding_dim,
        )
        assert list(own.feature_names) == config.feature_names
        assert own.pooling.value == config.pooling.value
        assert own.init_range == (config.get_weight_init_min(), config.get_weight_init_max())
    batch = jagged(MIXED, 5, weighted=True)
    assert ours(batch).keys() == theirs(batch).keys()
    torch.testing.assert_close(ours(batch).values(), theirs(batch).values())


def test_shared_feature_keeps_its_names() -> None:
    theirs = torchrec_bags(bag_tables(feature_names=["item", "viewer"]))
    ours = convert(copy.deepcopy(theirs))
    batch = jagged({**MIXED, "viewer": 9}, 5)
    assert ours(batch).keys() == theirs(batch).keys() == ["viewer@users", "owner", "item", "viewer@products"]
    torch.testing.assert_close(ours(batch).values(), theirs(batch).values())


@pytest.mark.parametrize("need_indices", [False, True])
def test_embedding_collection(need_indices: bool) -> None:
    theirs = torchrec_rows(ROW_TABLES, need_indices=need_indices)
    ours = copy.deepcopy(theirs)
    weights = list(ours.parameters())
    assert convert(ours) is ours
    assert isinstance(ours, EmbeddingCollection)
    assert all(a is b for a, b in zip(ours.parameters(), weights, strict=True))
    assert ours.need_indices() is need_indices
    batch = jagged(MIXED, 5)
    out, expected = ours(batch), theirs(batch)
    assert list(out) == list(expected)
    assert all(torch.equal(out[name].values(), expected[name].values()) for name in expected)
    torch.stack([value.values().sum() for value in out.values()]).sum().backward()
    assert weights[0].grad is not None
    assert not weights[0].grad.is_sparse, "the layout it had"


def test_trackers_of_one_table() -> None:
    model = nn.ModuleDict({"sparse": torchrec_bags(bag_tables())})
    path = "sparse.embedding_bags.products"
    convert(model, optimizer=SGD(lr=0.1), trackers={path: Trackers(mfu=False), "sparse": Trackers(ssu=False)})
    ours: Any = model["sparse"]
    ours(jagged(SIZES, 5)).values().sum().backward()
    assert ours.engine.counts(0).any()
    assert not ours.engine.counts(1).any()
    assert ours.plan.trackers == (Trackers(ssu=False), Trackers(mfu=False))


class Own(EmbeddingBagCollectionInterface):
    """Somebody's own collection."""

    def forward(self, features: Any) -> Any:
        return features

    def embedding_bag_configs(self) -> Any:
        return []

    def is_weighted(self) -> bool:
        return False


def hooked() -> nn.Module:
    collection = torchrec_bags(bag_tables())
    collection.embedding_bags["users"].register_forward_hook(lambda *_: None)
    return collection


def normed() -> nn.Module:
    collection = torchrec_bags(bag_tables())
    collection.embedding_bags["users"].max_norm = 1.0
    return collection


def renamed(name: str) -> nn.Module:
    collection = torchrec_bags(bag_tables())
    collection.embedding_bag_configs()[0].name = name
    return collection


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Own, "Own"),
        (hooked, "embedding_bags.users.*hooks"),
        (normed, "embedding_bags.users.*max_norm"),
        (lambda: renamed("a table"), "second.*table name.*'a table'"),
    ],
)
def test_refused_and_nothing_has_changed(make: Any, message: str) -> None:
    model = nn.ModuleDict({"first": torchrec_bags(bag_tables()), "second": make()})
    classes = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=message):
        convert(model)
    assert [type(module) for module in model.modules()] == classes
    convert(model, skip=["second"])
    assert type(model["first"]) is EmbeddingBagCollection
