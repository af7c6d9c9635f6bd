"""Under every torch optimizer, attached or not trains the same, and no changed row is missed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attachment.optimizer_cases import (
    CASES,
    EXACT,
    ROWS,
    STEPS,
    changed_rows,
    clean,
    dirty_rows,
    initial_rows,
    make_optimizers,
    rows_of,
    step,
    twins,
)
from torch.optim import Optimizer

from cpr_native.attachment import attach

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")


@pytest.mark.parametrize(("kind", "options", "sparse"), CASES)
def test_trains_as_unattached_and_never_misses_a_changed_row(
    kind: type[Optimizer], options: dict[str, Any], sparse: bool
) -> None:
    alone, model = twins(sparse)
    unattached, optimizers = (make_optimizers(each, kind, options) for each in (alone, model))
    attachment = attach(model, optimizer=optimizers)
    weight = model.table.weight
    for ids in STEPS:
        clean(attachment)
        before = initial_rows(optimizers[0], weight)
        step(alone, unattached, ids)
        step(model, optimizers, ids)
        assert torch.equal(weight, alone.table.weight)
        changed = changed_rows(before, rows_of(optimizers[0], weight))
        assert changed <= dirty_rows(attachment)
        if kind in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam) and set(options) <= EXACT:
            assert dirty_rows(attachment) == set(ids.reshape(-1).tolist())
        dirty = dirty_rows(attachment)
        attachment.sync()
        assert dirty_rows(attachment) == dirty, "nothing is found changed afterwards"
        assert attachment.engine.counts(0).tolist() == [int((ids == row).sum()) for row in range(ROWS)]
