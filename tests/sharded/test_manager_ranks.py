"""`ClusterManager` in two DDP processes: they save together and go back together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sharded.rank_processes import run_ranks

from cpr_native.store import CheckpointStore, verify

PROGRAM = r"""
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from sharded.relay import Relay, RelayDirectory
from sharded.sharded_jobs import bags_of, sharded_of, shards_of, spec_of, table_state, tables_of
from cpr_native.overhead import Costs, Job
from cpr_native.policy import Delta
from cpr_native.recovery import ResumableLoader
from cpr_native.sharded import ClusterManager

rank, folder, back = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
tables = tables_of()
spec = spec_of(folder / "store", tables, ranks=2)
STEPS = 12

class Model(nn.Module):
    def __init__(self, bags):
        super().__init__()
        self.bags = bags
        self.top = nn.Sequential(nn.Linear(bags.output_dim, 4), nn.Dropout(0.2), nn.Linear(4, 1))

    def forward(self, ids, offsets):
        return self.top(self.bags(ids, offsets))

def train(directory):
    torch.manual_seed(rank)
    model = Model(sharded_of(directory, spec, rank=rank, ranks=2))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adagrad(model.top.parameters(), lr=0.1)
    loader = ResumableLoader([bags_of(tables, 2 * step + rank, batch=4) for step in range(STEPS)])
    manager = ClusterManager(
        model, spec, policy=Delta(), costs=Costs(save=0.02, load=0.01, reschedule=0.01),
        job=Job(total_hours=float(STEPS), mtbf_hours=200.0, shards=spec.shards), total_samples=8 * STEPS,
        dense_optimizer=optimizer, loader=loader, patience=30.0,
    )
    with manager:
        manager.start()
        gone = not back
        for bags in loader:
            optimizer.zero_grad()
            parallel(bags.ids, bags.offsets).pow(2).mean().backward()
            optimizer.step()
            manager.step(8)
            if manager.steps == back and not gone:
                gone = True
                manager.recover()
    dense = [p.detach().flatten().tolist() for p in model.parameters()]
    reports = [(r.mode, r.step, r.lost_samples) for r in manager.recoveries]
    return {"dense": dense, "reports": reports, "saves": [save.step for save in manager.saves]}

address = str(folder / "shards")
rows = None
if rank == 0:
    with shards_of(spec) as directory:
        relay = Relay(directory, address)
        torch.distributed.barrier()
        found = train(directory)
        torch.distributed.barrier()
        rows = {table.name: table_state(directory, table.name)["weight"].tolist() for table in tables}
        relay.close()
else:
    torch.distributed.barrier()
    found = train(RelayDirectory(address, 3))
    torch.distributed.barrier()
print(json.dumps({**found, "rows": rows}))
torch.distributed.destroy_process_group()
"""


def trained(folder: Path, back: int) -> list[dict[str, Any]]:
    """What each of two processes found; at step `back` they go back to the newest point, 0: they do not."""
    folder.mkdir()
    return run_ranks(PROGRAM, folder, back)


def test_ranks_save_and_go_back_together(tmp_path: Path) -> None:
    plain, disturbed = trained(tmp_path / "plain", 0), trained(tmp_path / "disturbed", 8)
    for rank in range(2):
        assert disturbed[rank]["dense"] == plain[rank]["dense"]
        ((mode, step, lost),) = disturbed[rank]["reports"]
        assert (mode, lost) == ("full", 8 * (8 - step))
    assert disturbed[0]["rows"] == plain[0]["rows"]
    assert disturbed[0]["reports"] == disturbed[1]["reports"]
    assert plain[0]["saves"][0] == 0
    assert len(plain[0]["saves"]) > 2
    for name in ("plain", "disturbed"):
        store = tmp_path / name / "store"
        assert verify(store) == []
        assert CheckpointStore(store).latest().step == 12
