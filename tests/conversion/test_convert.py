"""`convert` keeps everything of a model but how its embeddings are computed."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from cpr_native import SGD, Embedding, EmbeddingBag, RowWiseAdagrad, Trackers, convert
from cpr_native.modules import EngineModule

IDS, WORDS = torch.tensor([[1, 2, 3], [4, 9, 2]]), torch.tensor([1, 4])


class Model(nn.Module):
    """A bag with padding, and one Embedding in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 3, mode="sum", padding_idx=2)
        self.towers = nn.ModuleDict({"left": nn.Embedding(5, 3)})
        self.towers["right"] = self.towers["left"]
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 1)

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        rows = self.bag(ids) + self.towers["left"](words) - 0.5 * self.towers["right"](words.flip(0))
        out: Tensor = self.head(self.norm(rows))
        return out


def model(seed: int = 1) -> Model:
    torch.manual_seed(seed)
    return Model()


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        module(IDS, WORDS).square().sum().backward()
        optimizer.step()


def assert_same_parameters(ours: nn.Module, theirs: nn.Module) -> None:
    state, expected = ours.state_dict(), theirs.state_dict()
    assert list(state) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(state[key], value, msg=key)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    ],
)
def test_trains_as_before_with_an_optimizer_made_before(make: Any) -> None:
    ours, theirs = model(), model()
    optimizer, expected = make(ours.parameters()), make(theirs.parameters())
    train(ours, optimizer, 1)
    train(theirs, expected, 1)
    assert convert(ours) is ours
    train(ours, optimizer)
    train(theirs, expected)
    assert_same_parameters(ours, theirs)


def test_everything_else_stays() -> None:
    ours = model()
    ours.bag.eval()
    ours.bag.note = "mine"
    ours.towers["left"].weight.requires_grad = False
    modules, parameters = dict(ours.named_modules()), dict(ours.named_parameters())
    addresses = [parameter.data_ptr() for parameter in parameters.values()]
    keys, description = list(ours.state_dict()), repr(ours.bag)
    convert(ours)
    assert all(module is modules[name] for name, module in ours.named_modules())
    assert all(parameter is parameters[name] for name, parameter in ours.named_parameters())
    assert [parameter.data_ptr() for parameter in ours.parameters()] == addresses
    assert (type(ours.bag), type(ours.towers["left"])) == (EmbeddingBag, Embedding)
    assert ours.towers["left"] is ours.towers["right"]
    assert (list(ours.state_dict()), repr(ours.bag)) == (keys, description)
    assert (ours.bag.training, ours.towers["left"].training, ours.bag.note) == (False, True, "mine")
    assert (ours.bag.mode, ours.bag.padding_idx, ours.bag.num_embeddings) == ("sum", 2, 10)
    assert not ours.towers["left"].weight.requires_grad
    assert type(ours.head) is nn.Linear


def test_engine_works_on_the_same_memory() -> None:
    ours = convert(model())
    assert ours.bag.engine.weight(0).ctypes.data == ours.bag.weight.data_ptr()
    assert ours.bag.engine.num_dirty(0) == 10, "no checkpoint has these rows yet"
    with torch.no_grad():
        ours.bag.weight.fill_(2.0)
    assert (ours.bag.engine.weight(0) == 2.0).all()


# torch's word on any hook of a module whose inputs have no gradient.
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_hooks_stay_and_their_handles_remove_them() -> None:
    ours, calls = model(), []
    handles = [
        ours.bag.register_forward_hook(lambda *_: calls.append("forward")),
        ours.bag.register_forward_pre_hook(lambda *_: calls.append("before")),
        ours.bag.register_full_backward_pre_hook(lambda *_: calls.append("backward")),
        ours.bag.weight.register_hook(lambda _: calls.append("gradient")),
        ours.bag.register_load_state_dict_post_hook(lambda *_: calls.append("load")),
    ]
    convert(ours)
    ours(IDS, WORDS).sum().backward()
    ours.load_state_dict(ours.state_dict())
    assert sorted(calls) == ["backward", "before", "forward", "gradient", "load"]
    for handle in handles:
        handle.remove()
    ours(IDS, WORDS).sum().backward()
    ours.load_state_dict(ours.state_dict())
    assert len(calls) == 5


def test_strict_loads_work_both_ways() -> None:
    ours, theirs = convert(model(1)), model(2)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    assert_same_parameters(ours, theirs)
    fresh = model(3)
    fresh.load_state_dict(ours.state_dict(), strict=True)
    assert_same_parameters(fresh, theirs)


def test_an_embedding_module_itself() -> None:
    bag = nn.EmbeddingBag(6, 2, mode="mean", include_last_offset=True, sparse=True)
    expected = copy.deepcopy(bag)
    ids, offsets = torch.tensor([1, 2, 5]), torch.tensor([0, 2, 3])
    assert convert(bag, trackers={"": Trackers(ssu=False)}) is bag
    assert isinstance(bag, EmbeddingBag)
    torch.testing.assert_close(bag(ids, offsets), expected(ids, offsets))
    bag(ids, offsets).sum().backward()
    assert bag.weight.grad is not None
    assert bag.weight.grad.is_sparse
    assert bag.engine.memory()["ssu"] == 0


def test_fused_optimizer_updates_in_backward() -> None:
    ours = convert(model(), optimizer=SGD(lr=0.1))
    theirs = model()
    expected = torch.optim.SGD(theirs.parameters(), lr=0.1)
    dense = torch.optim.SGD([*ours.norm.parameters(), *ours.head.parameters()], lr=0.1)
    train(ours, dense, 2)
    train(theirs, expected, 2)
    assert ours.bag.weight.grad is None
    assert ours.bag.engine.step == 2
    assert ours.bag.engine.counts(0).tolist() == [0, 2, 0, 2, 2, 0, 0, 0, 0, 2]
    torch.testing.assert_close(ours.bag.weight, theirs.bag.weight)


def test_schedulers_drive_the_fused_optimizer() -> None:
    ours = convert(model(), optimizer=SGD(lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(ours.bag.fused_optimizer, step_size=1, gamma=0.5)
    before = ours.bag.weight.detach().clone()
    ours(IDS, WORDS).square().sum().backward()
    ours.bag.fused_optimizer.step()
    scheduler.step()
    assert ours.bag.learning_rate == pytest.approx(0.05)
    assert not torch.equal(ours.bag.weight, before)


def test_compiles_after_the_conversion() -> None:
    bag = convert(nn.EmbeddingBag(10, 3, mode="sum"), optimizer=SGD(lr=0.1))
    eager = copy.deepcopy(bag)
    for module in (torch.compile(bag, fullgraph=True, backend="aot_eager"), eager):
        for _ in range(2):
            module(IDS).square().sum().backward()
    assert bag.engine.step == 2
    torch.testing.assert_close(bag.weight, eager.weight)


def test_what_was_converted_is_left_alone() -> None:
    ours = convert(model(), optimizer=SGD(lr=0.1))
    engine = ours.bag.engine
    ours.extra = nn.Embedding(4, 2)
    convert(ours)
    assert ours.bag.engine is engine
    assert ours.bag.fused
    assert isinstance(ours.extra, Embedding)
    assert convert(ours) is ours


def test_v18_copies_of_a_converted_model() -> None:
    ours = convert(model(), optimizer=RowWiseAdagrad(lr=0.1))
    nothing = torch.optim.SGD(ours.head.parameters(), lr=0.0)
    train(ours, nothing)
    copies = (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)))
    train(ours, nothing)
    for other in copies:
        assert other.bag.weight.data_ptr() != ours.bag.weight.data_ptr()
        train(other, torch.optim.SGD(other.head.parameters(), lr=0.0))
        assert_same_parameters(other, ours)
        assert (other.bag.engine.counts(0) == ours.bag.engine.counts(0)).all()


def test_trackers_by_module() -> None:
    ours = convert(model(), optimizer=SGD(lr=0.1), trackers={"bag": Trackers(mfu=False)})
    ours(IDS, WORDS).sum().backward()
    assert not ours.bag.engine.counts(0).any()
    assert ours.towers["left"].engine.counts(0).any()


def test_skipped_modules_stay_torchs() -> None:
    ours = convert(model(), skip=["towers.right"])
    assert type(ours.towers["left"]) is nn.Embedding, "the same object has two names"
    assert type(ours.bag) is EmbeddingBag
    whole = convert(model(), skip=["towers"])
    assert type(whole.towers["left"]) is nn.Embedding


def test_reference_elsewhere_is_the_converted_module() -> None:
    ours = model()
    ours.__dict__["plain_list"] = [ours.bag]
    convert(ours)
    assert isinstance(ours.__dict__["plain_list"][0], EngineModule)


def test_watching_ends_with_the_model() -> None:
    gc.collect()
    before = len(torch_optimizer._global_optimizer_post_hooks)
    ours = convert(model())
    assert len(torch_optimizer._global_optimizer_post_hooks) == before + 2
    del ours
    gc.collect()
    assert len(torch_optimizer._global_optimizer_post_hooks) == before
