"""A model with nested and tied tables."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from cpr_native.attachment import Attachment

ROWS, DIM = 12, 3
IDS = torch.tensor([[1, 2], [2, 5]])


class Nested(nn.Module):
    """Several tables, one of them deep down, one tied to the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, DIM))
        self.bag = nn.EmbeddingBag(30, DIM, mode="sum")
        self.again = nn.EmbeddingBag(30, DIM, mode="sum")
        self.again.weight = self.bag.weight
        self.out = nn.Linear(DIM, ROWS, bias=False)
        self.out.weight = self.tower[0].weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.tower(ids).sum(1) + self.bag(ids) + self.again(ids + 6))
        return logits


def train(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor = IDS) -> None:
    optimizer.zero_grad()
    model(ids).sum().backward()
    optimizer.step()


def clean(attachment: Attachment) -> None:
    attachment.sync()
    for table, spec in enumerate(attachment.engine.tables):
        attachment.engine.clear_trackers(table, 0, spec.num_embeddings, dirty=True)


def dirty_rows(attachment: Attachment, table: int = 0) -> list[int]:
    return list(attachment.engine.dirty(table).nonzero()[0])


def global_hooks() -> int:
    hooks = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    return sum(len(each) for each in hooks)
