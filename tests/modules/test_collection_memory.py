"""What a collection says it holds is what the process holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cpr_native import (
    SGD,
    Adam,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingConfig,
    RowWiseAdagrad,
    Trackers,
)
from cpr_native.modules import EmbeddingCollection
from cpr_native.optim import FusedOptimizer

ROWS, DIM = 1000, 16
TABLE = EmbeddingBagConfig(name="t", num_embeddings=ROWS, embedding_dim=DIM, feature_names=["f"])


@pytest.mark.parametrize("drift", [False, True])
@pytest.mark.parametrize(
    ("optimizer", "state"), [(SGD(lr=0.1), 0), (RowWiseAdagrad(lr=0.1), 0), (Adam(lr=0.1), 2 * DIM)]
)
def test_bytes_by_kind(optimizer: FusedOptimizer, state: int, drift: bool) -> None:
    trackers = Trackers(ssu=False, drift=drift)
    memory = EmbeddingBagCollection([TABLE], optimizer=optimizer, trackers=trackers).memory()
    assert memory == {
        "weight": 4 * ROWS * DIM,
        "metadata": (16 if drift else 8) * ROWS,
        "ssu": 0,
        "state": 4 * ROWS * state,
        "saved": 0,
        "staging": 0,
    }


def test_list_of_sampled_rows_is_bounded() -> None:
    for fraction in (0.125, 1.0):
        collection = EmbeddingBagCollection(
            [TABLE], optimizer=SGD(lr=0.1), trackers=Trackers(ssu_fraction=fraction)
        )
        assert 0 < collection.memory()["ssu"] <= 4 * fraction * ROWS
        assert collection.memory() == collection.engine.memory()


def test_embedding_collection_has_it_too() -> None:
    table = EmbeddingConfig(name="t", num_embeddings=ROWS, embedding_dim=DIM, feature_names=["f"])
    memory = EmbeddingCollection([table], optimizer=SGD(lr=0.1), trackers=Trackers(ssu=False)).memory()
    assert (memory["weight"], memory["metadata"]) == (4 * ROWS * DIM, 8 * ROWS)


PROGRAM = """
import re, sys, torch
from cpr_native import EmbeddingBagCollection, EmbeddingBagConfig, RowWiseAdagrad, Trackers

def resident():
    with open("/proc/self/status") as status:
        return 1024 * int(re.search(r"VmRSS:\\s+(\\d+) kB", status.read())[1])

def collection(rows, drift):
    table = EmbeddingBagConfig(name="t", num_embeddings=rows, embedding_dim=16, feature_names=["f"])
    made = EmbeddingBagCollection([table], optimizer=RowWiseAdagrad(lr=0.1), trackers=Trackers(drift=drift))
    made(torch.arange(0, rows, 3), torch.tensor([0, len(range(0, rows, 3))])).sum().backward()
    return made

warm = collection(1000, True)
for drift in (False, True):
    before = resident()
    made = collection(1_000_000, drift)
    print(resident() - before, sum(made.memory().values()))
    kept = made if drift else made.engine.close()
    del made
"""


def test_v9_process_grows_by_what_memory_says() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        grown, stated = map(int, line.split())
        # The batch, its gradient and the buffers of the step come on top: about 100 bytes an id.
        assert stated * 0.95 <= grown <= stated * 1.1 + 60e6, (grown, stated)
