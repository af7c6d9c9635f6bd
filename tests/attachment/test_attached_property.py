"""Whatever happens in whatever order: base and deltas together are the rows in memory, weight and state."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from attachment.optimizer_cases import DIM, ROWS, initial_rows
from numpy.typing import NDArray
from torch import nn

from cpr_native._native import Selection
from cpr_native.attachment import attach

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")

KINDS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "sparse_adam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "decay": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1),
}
SPARSE = ("sgd", "adagrad", "sparse_adam")

# event -> how often.
EVENTS = {
    "backward": 8,
    "step": 8,
    "zero_grad": 3,
    "zero in place": 2,
    "delta": 5,
    "failed delta": 2,
    "write": 1,
    "announced write": 1,
    "move": 1,
    "load state": 1,
    "clip": 2,
    "look up": 2,
}


class Job:
    """A table with a norm limit, its optimizer, and what base and deltas of it hold."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.table = nn.Embedding(ROWS, DIM, sparse=name in SPARSE, max_norm=1.5)
        self.optimizer = KINDS[name](list(self.table.parameters()))
        self.attachment = attach(self.table, optimizer=self.optimizer)
        self.saved: NDArray[np.float32] = np.full((ROWS, self.memory().shape[1]), np.nan, np.float32)
        self.save(commit=True)

    def memory(self) -> NDArray[np.float32]:
        """Weight and state of every row, [rows, k], read by torch's names."""
        rows = initial_rows(self.optimizer, self.table.weight)
        columns = self.attachment._states[0].layout or ()
        tensors = [rows["weight"], *(rows[column.name] for column in columns)]
        return torch.cat(tensors, dim=1).numpy()

    def save(self, *, commit: bool) -> None:
        self.attachment.sync()
        snapshot = self.attachment.engine.begin([Selection.dirty()], clears_dirty=True, blocking=True)
        chunks = [(chunk.rows.copy(), chunk.weight.copy(), chunk.state) for chunk in snapshot]
        if not commit:
            snapshot.abort()
            return
        for rows, weight, state in chunks:
            self.saved[rows] = weight if state is None else np.concatenate([weight, state], axis=1)
        snapshot.commit()

    def do(self, event: str, rng: random.Random) -> None:
        weight = self.table.weight
        if event == "backward":
            ids = [rng.randrange(ROWS) for _ in range(rng.randrange(4))]
            self.table(torch.tensor(ids, dtype=torch.int64)).sin().sum().backward()
        elif event == "step":
            self.optimizer.step()
        elif event == "zero_grad":
            self.optimizer.zero_grad()
        elif event == "zero in place":
            self.optimizer.zero_grad(set_to_none=False)
        elif event in ("delta", "failed delta"):
            self.save(commit=event == "delta")
        elif event == "write":
            with torch.no_grad():
                weight[rng.randrange(ROWS)] += 0.5
        elif event == "announced write":
            row = rng.randrange(ROWS)
            weight.data[row] += 0.25
            self.attachment.mark_dirty("weight", [row])
        elif event == "move":
            weight.data = weight.data * 1.5
        elif event == "load state":
            state = self.optimizer.state_dict()
            doubled = {key: value * 2 for key, value in state["state"].get(0, {}).items()}
            self.optimizer.load_state_dict({**state, "state": {0: doubled} if doubled else {}})
        elif event == "clip" and weight.grad is not None:
            weight.grad.mul_(0.5)
        elif event == "look up":
            with torch.no_grad():
                self.table(torch.tensor([rng.randrange(ROWS)]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", KINDS)
def test_base_and_deltas_are_the_rows_in_memory(name: str, seed: int) -> None:
    job, rng = Job(name), random.Random(seed)
    for event in rng.choices(list(EVENTS), list(EVENTS.values()), k=120):
        job.do(event, rng)
        if event == "delta":
            assert job.saved.tobytes() == job.memory().tobytes()
