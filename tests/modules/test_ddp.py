"""`DistributedDataParallel` over gloo in two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

_RANK = r"""
import json, sys, warnings
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from cpr_native import SGD, EmbeddingBag

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

def model(bag):
    torch.manual_seed(rank)
    return nn.Sequential(bag, nn.Linear(4, 1))

def train(module):
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(4):
        ids = torch.randint(0, 10, (6, 3), generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        module(ids).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().flatten().tolist() for parameter in parameters]

found = {}
for name, sparse in (("dense", False), ("sparse", True)):
    for side, kind in (("theirs", nn.EmbeddingBag), ("ours", EmbeddingBag)):
        torch.manual_seed(rank)
        wrapped = DistributedDataParallel(model(kind(10, 4, mode="sum", sparse=sparse)))
        found[f"{name} {side}"] = train(wrapped)

torch.manual_seed(7)
undeclared = DistributedDataParallel(model(EmbeddingBag(10, 4, optimizer=SGD(lr=0.1))))
before = undeclared.module[0].weight.detach().clone()
try:
    undeclared(torch.tensor([[1, 2]])).sum().backward()
    found["undeclared"] = "no error"
except RuntimeError as error:
    found["undeclared"] = str(error)
found["untouched"] = torch.equal(before, undeclared.module[0].weight)

local = model(EmbeddingBag(10, 4, mode="sum", optimizer=SGD(lr=1.0), rank_local=True))
start = local[0].weight.detach().clone()
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(local, ["0.weight"])
wrapped = DistributedDataParallel(local)
for _ in range(2):
    wrapped(torch.tensor([[rank, rank]])).sum().backward()
found["moved"] = (local[0].weight != start).any(dim=1).nonzero().flatten().tolist()
found["same head"] = local[1].weight.detach().flatten().tolist()
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(found, file)
torch.distributed.destroy_process_group()
"""


def ranks(folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "error", "-c", _RANK]
    running = [
        subprocess.Popen([*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for process in running:
            _, errors = process.communicate(timeout=90)
            assert process.returncode == 0, errors
    finally:
        for process in running:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks(tmp_path: Path) -> None:
    both = ranks(tmp_path)
    for layout in ("dense", "sparse"):
        assert both[0][f"{layout} ours"] == both[1][f"{layout} ours"]
        for ours, theirs in zip(both[0][f"{layout} ours"], both[0][f"{layout} theirs"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    for rank, found in enumerate(both):
        assert "rank_local=True" in found["undeclared"]
        assert found["untouched"]
        assert found["moved"] == [rank]
    assert both[0]["same head"] == both[1]["same head"]
