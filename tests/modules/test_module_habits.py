"""What users do with any `nn.Module`: hooks, `requires_grad_`, `torch.jit`, parameter lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpr_native import SGD, Embedding, EmbeddingBag, EmbeddingBagCollection, EmbeddingBagConfig
from cpr_native.modules import EngineModule

IDS = torch.tensor([[1, 2], [2, 3]])


def modules(optimizer: Any = None) -> list[EngineModule]:
    table = EmbeddingBagConfig(name="a", num_embeddings=8, embedding_dim=2, feature_names=["a"])
    return [
        EmbeddingBag(8, 2, mode="sum", optimizer=optimizer),
        Embedding(8, 2, optimizer=optimizer),
        EmbeddingBagCollection([table], optimizer=optimizer),
    ]


@pytest.mark.parametrize("optimizer", [None, SGD(lr=1.0)])
def test_module_hooks(optimizer: Any) -> None:
    heard = list[str]()
    bag = modules(optimizer)[0]
    bag.register_forward_pre_hook(lambda _module, inputs: heard.append("before") or inputs)
    bag.register_forward_hook(lambda _module, _inputs, out: heard.append("after") or out * 2)
    bag.register_full_backward_hook(lambda _module, _in, out: heard.append(f"backward {out[0][0, 0]:.0f}"))
    before = bag.get_parameter("weight").detach().clone()
    out = bag(IDS, None, torch.ones(2, 2, requires_grad=True))
    torch.testing.assert_close(out, 2 * before[IDS].sum(dim=1))
    out.sum().backward()
    assert heard == ["before", "after", "backward 1"]


def test_parameter_hooks_without_a_fused_optimizer() -> None:
    heard = list[Tensor]()
    weight = modules()[0].get_parameter("weight")
    weight.register_hook(lambda grad: heard.append(grad) or grad * 3)
    weight.register_post_accumulate_grad_hook(lambda parameter: heard.append(parameter.grad))
    bag = modules()[0]
    bag.weight = weight
    bag(IDS).sum().backward()
    assert [grad[2, 0].item() for grad in heard] == [2.0, 6.0]


def test_requires_grad_and_parameters() -> None:
    for module in modules():
        names = [name for name, _ in module.named_parameters()]
        assert names in (["weight"], ["embedding_bags.a.weight"])
        assert module.requires_grad_(False) is module
        assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_jit_is_refused() -> None:
    for module, inputs in zip(modules(SGD(lr=1.0)), [(IDS,), (IDS,), (IDS[0], torch.arange(3))], strict=True):
        with pytest.raises(RuntimeError, match=r"torch\.jit\.script.*torch\.compile"):
            torch.jit.script(nn.Sequential(module))
        with pytest.raises(RuntimeError, match=r"torch\.jit\.trace.*torch\.compile"):
            torch.jit.trace(module, inputs)
        module(*inputs).sum().backward()
        assert module.engine.step == 1
