"""The engine runs on torch's threads and starts none of its own beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from cpr_native import EmbeddingBagCollection, EmbeddingBagConfig, RowWiseAdagrad
from cpr_native._native import Selection, share_openmp
from cpr_native.modules import share_torch_threads

COUNT_THREADS = """
import os, torch
torch.set_num_threads(3)
a = torch.randn(400, 400)
a @ a
torch.rand(1 << 20).sum()
before = len(os.listdir("/proc/self/task"))
from cpr_native import EmbeddingBagCollection, EmbeddingBagConfig, RowWiseAdagrad
bags = EmbeddingBagCollection(
    [EmbeddingBagConfig(name=f"t{t}", num_embeddings=1000, embedding_dim=8, feature_names=[f"f{t}"])
     for t in range(4)],
    optimizer=RowWiseAdagrad(lr=0.1),
)
threads = set()
for _ in range(20):
    bags(torch.randint(0, 1000, (40_000,)), torch.arange(40_001)).sum().backward()
    threads.add(len(os.listdir("/proc/self/task")))
print(before, max(threads))
"""


def collection() -> EmbeddingBagCollection:
    config = EmbeddingBagConfig(name="t", num_embeddings=50, embedding_dim=4, feature_names=["f"])
    return EmbeddingBagCollection([config], optimizer=RowWiseAdagrad(lr=0.1))


def test_no_threads_beside_torchs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS], capture_output=True, text=True, timeout=100, check=True
    )
    before, after = map(int, done.stdout.split())
    assert after == before


def test_a_library_that_is_not_loaded_is_refused(tmp_path: Path) -> None:
    assert not share_openmp(str(tmp_path / "libgomp.so.1"))
    assert not share_openmp("libm.so.6")  # loaded, but no OpenMP
    assert share_torch_threads()


class Ids(Dataset[torch.Tensor]):
    """Batches of ids; the worker holds the collection too, as a dataset made in a notebook would."""

    def __init__(self, bags: EmbeddingBagCollection) -> None:
        self._bags = bags

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():  # a worker may look up
            self._bags(torch.tensor([index]), torch.tensor([0, 1]))
        return torch.full((20_000,), index)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_data_loader_workers_beside_training_and_a_snapshot() -> None:
    bags = collection()
    offsets = torch.arange(20_001)
    bags(torch.zeros(20_000, dtype=torch.int64), offsets).sum().backward()  # starts the threads
    snapshot = bags.engine.begin([Selection.all()], clears_dirty=True)
    loader = DataLoader(Ids(bags), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
    seen = []
    for ids in loader:
        bags(ids, offsets).sum().backward()
        seen.append(int(ids[0]))
    assert seen == list(range(8))
    assert sum(len(chunk.rows) for chunk in snapshot) == 50
    snapshot.commit()
    assert bags.engine.counts(0)[:8].tolist() == [20_000] * 8


def test_a_forked_child_looks_up_although_torchs_threads_are_gone() -> None:
    bags = collection()
    ids = torch.randint(0, 50, (20_000,))
    offsets = torch.arange(20_001)
    bags(ids, offsets).sum().backward()  # starts the threads
    expected = bags.embedding_bags["t"].weight.detach()[ids]
    pid = os.fork()
    if pid == 0:  # no pytest in the child, whatever happens
        code = 1
        try:
            with torch.no_grad():
                code = 0 if bytes(bags(ids, offsets).numpy().data) == bytes(expected.numpy().data) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
