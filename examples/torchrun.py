"""Train a DLRM in two processes, each with half of the tables, and lose one: no Ray, torchrun alone.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc-per-node 2 --max-restarts 3 \
        examples/torchrun.py --folder /tmp/job --kill-at 60

torchrun starts all processes again when one is killed. Those whose shared memory is still there go on with
it; with --lose-memory the killed one loses its own, as a lost machine does, and loads its shard.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import cpr_native as cpr
from cpr_native.data import SyntheticClicks, kaggle_table_sizes
from cpr_native.models import DLRM, DLRMConfig

DIM = 16
TABLES = 26
BATCH = 256  # of all processes together


class Exchange(torch.autograd.Function):
    """Pooled rows of this process's tables for the whole batch -> those of all tables for its part of it."""

    @staticmethod
    def forward(ctx: Any, pooled: Tensor) -> Tensor:
        received = torch.empty_like(pooled)
        dist.all_to_all_single(received, pooled.contiguous())
        parts = received.view(dist.get_world_size(), -1, pooled.shape[1])
        return parts.transpose(0, 1).reshape(parts.shape[1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        world = dist.get_world_size()
        parts = gradient.view(gradient.shape[0], world, -1).transpose(0, 1).contiguous()
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts)
        # Each process's loss is a mean over its part of the batch: DDP averages the dense gradients too.
        return received.view(-1, parts.shape[2]) / world


class ShardedTables(nn.Module):
    """All tables of the model, of which this process holds its share."""

    def __init__(self, sizes: list[int], rank: int, world: int) -> None:
        super().__init__()
        share = len(sizes) // world
        self._own = slice(rank * share, (rank + 1) * share)
        self.bags = cpr.EmbeddingBagCollection(
            [
                cpr.EmbeddingBagConfig(
                    name=f"t{i}", num_embeddings=sizes[i], embedding_dim=DIM, feature_names=[f"f{i}"]
                )
                for i in range(rank * share, (rank + 1) * share)
            ],
            optimizer=cpr.RowWiseAdagrad(lr=0.02),
            rank_local=True,
        )

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """ids [26 * B] of the whole batch, an id a bag -> this process's part, [B / world, 26 * dim]."""
        own = ids.view(TABLES, -1)[self._own]
        exchanged: Tensor = Exchange.apply(self.bags(own.reshape(-1), offsets[: own.numel() + 1]))
        return exchanged


def dlrm(rank: int, world: int) -> tuple[DLRM, nn.Module]:
    """Return the model, and the same for `forward`: its dense gradients are averaged over the processes."""
    sizes = list(kaggle_table_sizes(0.001))
    tables = ShardedTables(sizes, rank, world)
    model = DLRM(DLRMConfig(bottom=(32, DIM), top=(32, 1)), tables, features=TABLES)
    fused = [name for name, _ in model.named_parameters() if name.startswith("embeddings.")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, fused)
    return model, DistributedDataParallel(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="checkpoint, shared memory and a marker")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--policy", choices=("delta", "mfu"), default="mfu")
    parser.add_argument("--kill-at", type=int, default=0, help="step at which the last process kills itself")
    parser.add_argument("--lose-memory", action="store_true", help="with it goes its shared memory")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    path = options.folder / f"memory-{rank}"
    memory = cpr.SharedMemory(path, discard=True)
    with memory:
        model, parallel = dlrm(rank, world)
    optimizer = torch.optim.Adagrad(model.dense_parameters(), lr=0.01)
    clicks = SyntheticClicks(
        begin=0, end=options.steps * BATCH, batch_size=BATCH, table_sizes=kaggle_table_sizes(0.001)
    )
    manager = cpr.RecoveryManager(
        model,
        cpr.CheckpointStore(options.folder / "checkpoint"),
        policy=cpr.Delta() if options.policy == "delta" else cpr.Mfu(fraction=0.125),
        job=cpr.Job(total_hours=10.0, mtbf_hours=5.0, shards=world),
        costs=cpr.Costs(save=0.05, load=0.02, reschedule=0.02, load_partial=0.01, reschedule_partial=0.0),
        total_samples=options.steps * BATCH,
        dense_optimizer=optimizer,
        loader=clicks,
        shared=memory,
        shard=rank,
        shards=world,
    )
    with manager:
        report = manager.resume()
        if report is not None:
            loaded = f"{report.rows_restored} rows loaded, shards {report.shards}, PLS {report.pls:.5f}"
            print(
                f"rank {rank}: {report.mode} at step {report.step}, {loaded}, {report.seconds:.3f} s",
                flush=True,
            )
        manager.start()
        part = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        for batch in clicks:
            logits = parallel(batch.dense[part], batch.ids, batch.offsets)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels[part])
            optimizer.zero_grad()
            loss.backward()
            if rank == world - 1 and manager.steps + 1 == options.kill_at:
                die_once(options.folder / "killed", path if options.lose_memory else None)
            optimizer.step()
            manager.step(BATCH)
    print(
        f"rank {rank}: {manager.steps} steps, {len(manager.saves)} saves, loss {loss.item():.4f}", flush=True
    )
    dist.destroy_process_group()


def die_once(marker: Path, memory: Path | None) -> None:
    """Kill this process, the first time; its shared memory goes too if it is named."""
    if not marker.exists():
        marker.touch()
        if memory is not None:
            memory.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
