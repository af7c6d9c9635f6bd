"""Several trainers of one model over shards, in one process and as DDP ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import ReferenceCollection, add_counts, mark_rows, row_gradients
from sharded.rank_processes import run_ranks
from sharded.sharded_jobs import (
    Bags,
    bags_of,
    gradient_for,
    local_of,
    settle,
    sharded_of,
    shards_of,
    spec_of,
    table_state,
    tables_of,
)

from cpr_native import SGD, EmbeddingBagCollection


def reference_of(local: EmbeddingBagCollection, poolings: tuple[str, ...]) -> ReferenceCollection:
    features = [n for n, table in enumerate(local.embedding_bag_configs()) for _ in table.feature_names]
    return ReferenceCollection(
        [local.engine.weight(table) for table in range(3)],
        features,
        optimizer="row_wise_adagrad",
        lr=0.1,
        poolings=[pooling.lower() for pooling in poolings],
    )


def step_together(
    slow: ReferenceCollection, bags: list[Bags], grads: list[torch.Tensor], scale: float
) -> None:
    """One step: the ranks' sums of a row are added up in the order of ranks."""
    for table in range(3):
        parts = [
            slow.gradients(table, b.ids.numpy(), b.offsets.numpy(), grad.numpy(), grad_scale=scale)
            for b, grad in zip(bags, grads, strict=True)
        ]
        ids = np.concatenate([part[0] for part in parts])
        rows, sums = row_gradients(
            np.concatenate([part[1] for part in parts]), np.concatenate([part[2] for part in parts])
        )
        slow._optimise(table, rows, sums)
        add_counts(slow.counts[table], ids)
        mark_rows(slow.dirty[table], ids)
    slow.steps += 1


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mean", [True, False])
def test_sums_of_ranks_are_added_in_their_order(tmp_path: Path, ranks: int, mean: bool) -> None:
    poolings = ("SUM", "MEAN", "SUM")
    tables = tables_of(*poolings)
    spec = spec_of(tmp_path, tables, ranks=ranks)
    slow = reference_of(local_of(spec), poolings)
    scale = float(np.float32(1 / ranks)) if mean else 1.0
    with shards_of(spec) as directory:
        trainers = [
            sharded_of(directory, spec, rank=rank, ranks=ranks, mean_over_ranks=mean) for rank in range(ranks)
        ]
        for step in range(5):
            # The last rank has nothing in step 2, and no batch at all in step 3.
            bags = [
                bags_of(tables, 10 * step + rank, batch=0 if step in (2, 3) and rank == ranks - 1 else 5)
                for rank in range(ranks)
            ]
            outs, grads = [], []
            for rank, (trainer, mine) in enumerate(zip(trainers, bags, strict=True)):
                if step == 3 and rank == ranks - 1:
                    outs.append(None)
                    grads.append(torch.zeros(0, trainer.output_dim))
                    continue
                out = trainer(mine.ids, mine.offsets)
                expected = slow.lookup(mine.ids.numpy(), mine.offsets.numpy())
                assert out.detach().numpy().tobytes() == expected.tobytes()
                outs.append(out)
                grads.append(gradient_for(out, rank))
            for at in np.random.default_rng(step).permutation(ranks):  # whoever comes first
                out = outs[at]
                if out is None:
                    trainers[at].empty_step()
                else:
                    out.backward(grads[at])
            step_together(slow, bags, grads, scale)
        settle(*trainers)
        for number, table in enumerate(tables):
            got = table_state(directory, table.name)
            assert got["weight"].tobytes() == slow.weights[number].tobytes()
            assert got["state"].tobytes() == slow.states[number].tobytes()
            np.testing.assert_array_equal(got["count"], slow.counts[number])
            np.testing.assert_array_equal(got["dirty"], slow.dirty[number])


def test_mean_losses_of_ranks_are_that_of_the_whole_batch(tmp_path: Path) -> None:
    """As far as rounding permits. With SGD two local steps of one forward's rows are a step of their sum."""
    tables = tables_of()
    spec = spec_of(tmp_path, tables, ranks=2, optimizer=SGD(lr=0.5))
    local = local_of(spec)
    with shards_of(spec) as directory:
        trainers = [sharded_of(directory, spec, rank=rank, ranks=2) for rank in range(2)]
        for step in range(4):
            bags = [bags_of(tables, 2 * step + rank) for rank in range(2)]
            outs = [trainer(b.ids, b.offsets) for trainer, b in zip(trainers, bags, strict=True)]
            for out in outs:
                out.pow(2).mean().backward()
            torch.cat([local(b.ids, b.offsets) for b in bags]).pow(2).mean().backward()
        settle(*trainers)
        for number, table in enumerate(tables):
            rows = table_state(directory, table.name)["weight"]
            np.testing.assert_allclose(rows, local.engine.weight(number), rtol=1e-5, atol=1e-7)
            assert (rows != local_of(spec).engine.weight(number)).any()


def test_lookups_run_ahead_by_the_staleness_and_no_more(tmp_path: Path) -> None:
    tables = tables_of()
    batches = [bags_of(tables, seed) for seed in range(3)]
    for staleness in (0, 1):
        spec = spec_of(tmp_path / str(staleness), tables, staleness=staleness, lookup_seconds=0.3)
        with shards_of(spec) as directory:
            sharded = sharded_of(directory, spec)
            out = sharded(batches[0].ids, batches[0].offsets)
            sharded.prefetch(batches[1].ids, batches[1].offsets)
            ahead = sharded._ahead
            assert ahead is not None
            if staleness:
                ahead.land(1)
            else:
                with pytest.raises(TimeoutError, match="a lookup of step 2 waited"):
                    ahead.land(1)
            out.sum().backward()


PROGRAM = r"""
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from sharded.relay import Relay, RelayDirectory
from sharded.sharded_jobs import bags_of, settle, sharded_of, shards_of, spec_of, table_state, tables_of

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(1)
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2
)
tables = tables_of("SUM", "MEAN", "SUM")
spec = spec_of(folder / "store", tables, ranks=2)

class Model(nn.Module):
    def __init__(self, tables, columns):
        super().__init__()
        self.tables = tables
        self.top = nn.Linear(columns, 1)

    def forward(self, ids, offsets):
        return self.top(self.tables(ids, offsets))

def train(directory):
    sharded = sharded_of(directory, spec, rank=rank, ranks=2)
    torch.manual_seed(rank)  # DDP takes rank 0's
    model = DistributedDataParallel(Model(sharded, sharded.output_dim))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [bags_of(tables, 2 * step + rank, batch=4) for step in range(5)]
    losses = []
    for step, bags in enumerate(batches):
        optimizer.zero_grad()
        loss = model(bags.ids, bags.offsets).pow(2).mean()
        if step + 1 < len(batches):
            sharded.prefetch(batches[step + 1].ids, batches[step + 1].offsets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    settle(sharded)
    return losses, [p.detach().flatten().tolist() for p in model.parameters()]

address = str(folder / "shards")
if rank == 0:
    with shards_of(spec) as directory:
        relay = Relay(directory, address)
        torch.distributed.barrier()
        losses, dense = train(directory)
        torch.distributed.barrier()
        rows = {table.name: table_state(directory, table.name)["weight"].tolist() for table in tables}
        relay.close()
else:
    torch.distributed.barrier()
    losses, dense = train(RelayDirectory(address, 3))
    torch.distributed.barrier()
    rows = None
print(json.dumps({"losses": losses, "dense": dense, "rows": rows}))
torch.distributed.destroy_process_group()
"""


def test_two_ddp_processes(tmp_path: Path) -> None:
    """As two trainers in one process whose dense gradients are averaged by hand."""
    found = run_ranks(PROGRAM, tmp_path)
    assert found[0]["dense"] == found[1]["dense"]
    expected = trained_by_hand(tmp_path / "by hand")
    for rank in range(2):
        np.testing.assert_allclose(found[rank]["losses"], expected["losses"][rank], rtol=1e-5)
    for mine, other in zip(found[0]["dense"], expected["dense"], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    for name, rows in found[0]["rows"].items():
        np.testing.assert_allclose(rows, expected["rows"][name], rtol=1e-4, atol=1e-6)


def trained_by_hand(path: Path) -> dict[str, Any]:
    tables = tables_of("SUM", "MEAN", "SUM")
    spec = spec_of(path, tables, ranks=2)
    losses: list[list[float]] = [[], []]
    with shards_of(spec) as directory:
        trainers = [sharded_of(directory, spec, rank=rank, ranks=2) for rank in range(2)]
        torch.manual_seed(0)
        top = torch.nn.Linear(trainers[0].output_dim, 1)
        optimizer = torch.optim.SGD(top.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            bags = [bags_of(tables, 2 * step + rank, batch=4) for rank in range(2)]
            parts = [top(t(b.ids, b.offsets)).pow(2).mean() for t, b in zip(trainers, bags, strict=True)]
            for rank, loss in enumerate(parts):
                losses[rank].append(loss.item())
                loss.backward()
            for parameter in top.parameters():
                assert parameter.grad is not None
                parameter.grad /= 2
            optimizer.step()
        settle(*trainers)
        rows = {table.name: table_state(directory, table.name)["weight"] for table in tables}
    return {
        "losses": losses,
        "dense": [p.detach().flatten().tolist() for p in top.parameters()],
        "rows": rows,
    }
