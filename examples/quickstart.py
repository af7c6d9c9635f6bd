"""Train a small click model whose tables survive the loss of a shard: `python examples/quickstart.py`."""

from __future__ import annotations

import tempfile

import torch
from torch import nn

import cpr_native as cpr


class ClickModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [
            cpr.EmbeddingBagConfig(name="users", num_embeddings=800, embedding_dim=8, feature_names=["user"]),
            cpr.EmbeddingBagConfig(name="items", num_embeddings=400, embedding_dim=8, feature_names=["item"]),
        ]
        trackers = cpr.Trackers(ssu_fraction=0.125)
        self.bags = cpr.EmbeddingBagCollection(
            tables, optimizer=cpr.RowWiseAdagrad(lr=0.1), trackers=trackers
        )
        self.top = nn.Linear(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [2, batch]: one user and one item a sample -> logits [batch]."""
        bounds = torch.arange(ids.numel() + 1)
        logits: torch.Tensor = self.top(self.bags(ids.reshape(-1), bounds))
        return logits.squeeze(1)


def main(steps: int = 300, batch: int = 128) -> None:
    torch.manual_seed(0)
    model = ClickModel()
    optimizer = torch.optim.Adagrad(model.top.parameters(), lr=0.05)
    job = cpr.Job(total_hours=56.0, mtbf_hours=28.0, shards=8)
    costs = cpr.Costs(save=0.094, load=0.042, reschedule=0.042, load_partial=0.005, reschedule_partial=0.005)
    with (
        tempfile.TemporaryDirectory() as folder,
        cpr.RecoveryManager(
            model,
            cpr.CheckpointStore(folder),
            policy=cpr.Ssu(fraction=0.125),
            job=job,
            costs=costs,
            total_samples=steps * batch,
            dense_optimizer=optimizer,
        ) as manager,
    ):
        manager.start()
        for step in range(steps):
            ids = torch.stack([torch.randint(0, 800, (batch,)), torch.randint(0, 400, (batch,))])
            clicked = (ids % 3 == 0).any(dim=0).float()
            loss = nn.functional.binary_cross_entropy_with_logits(model(ids), clicked)
            optimizer.zero_grad()
            loss.backward()  # updates the tables as well
            optimizer.step()
            manager.step(batch)  # saves when due, in the background
            if step == steps // 2:
                print(manager.recover(failed_shards=[3]))
        print(f"loss {loss.item():.3f}, {len(manager.saves)} saves, PLS {manager.pls:.4f}")


if __name__ == "__main__":
    main()
