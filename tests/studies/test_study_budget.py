from __future__ import annotations

import numpy as np
import pytest
import torch
from cpr_study import budget, sensitivity, touched
from cpr_study.setups import Samples
from study_records import budget_records, sensitivity_records

from cpr_native.data import ClickBatch
from cpr_native.data.batch import one_id_offsets


@pytest.mark.parametrize(("loss", "sign"), [(1e-4, 1), (2e-4, 0), (3e-4, -1)])
def test_equal_bytes(loss: float, sign: int) -> None:
    """The delta loses 8e-4 / 4 = 2e-4 at MFU's 4 MB."""
    (entry,) = budget.equal_bytes(budget_records(12, loss))
    assert entry["difference"] == pytest.approx(2e-4 - loss, abs=2e-6)
    low, high = entry["ci95"]
    assert (low > 0) - (high < 0) == sign
    assert (entry["policy"], entry["fraction"], entry["place"]) == ("mfu", 0.125, "between")


def test_bytes_outside_of_the_deltas_are_not_compared() -> None:
    cells = budget_records(4, 1e-4)
    for name, bytes_written in (("cheaper", 5e5), ("dearer", 1e8)):
        for record in cells["fraction-0.125"]:
            record["cases"]["mfu"]["bytes_written"] = bytes_written
        (entry,) = budget.equal_bytes(cells)
        assert (entry["difference"], entry["ci95"], entry["place"]) == (None, None, name)


def test_interpolation_is_exact_on_the_points_and_linear_in_the_logarithm() -> None:
    curve_bytes, curve_loss = np.array([[1.0, 4.0, 16.0]] * 5), np.array([[3.0, 2.0, 0.0]] * 5)
    found = budget.at_bytes(curve_bytes, curve_loss, np.array([1.0, 2.0, 4.0, 16.0, 17.0]))
    assert found[:4] == pytest.approx([3.0, 2.5, 2.0, 0.0])
    assert np.isnan(found[4])


def test_points_ascend_by_bytes_and_keep_what_never_saved() -> None:
    points = [p for p in budget.points(budget_records(3, 1e-4)) if p["policy"] == "delta_partial"]
    assert [p["value"] for p in points] == [2.0, 1.0, 0.5, 0.25, 0.125, 0.0625]
    assert points[0]["bytes_written"] == 0


def test_points_of_what_is_varied_ascend() -> None:
    found = sensitivity.sensitivity(sensitivity_records(3))
    assert list(found) == ["failures", "times", "shards_constant", "shards_inverse"]
    assert [point["value"] for point in found["failures"]] == [2, 20]
    assert found["failures"][1]["cases"]["partial"]["progressive"] == pytest.approx(2e-3, abs=1e-4)
    assert found["failures"][0]["cases"]["mfu"]["pls"] == pytest.approx(1e5 / (26 * 100_000))
    assert [point["value"] for point in found["times"]] == ["exponential-1", "gamma-0.5"]


def test_scaling_marks_jobs_that_end_before_a_save() -> None:
    """T_save = 0.2 * N * T_fail: 44.8 h at 8 shards; of 64, capped to 56 h at one MTBF, else 44.8 h."""
    rows = {(row["law"], row["shards"]): row for row in sensitivity.scaling(sensitivity_records(2))}
    assert list(rows) == [("constant", 8), ("constant", 64), ("inverse", 8), ("inverse", 64)]
    assert [row["interval_hours"] for row in rows.values()] == pytest.approx([44.8, 56.0, 44.8, 44.8])
    assert [row["saves_before_end"] for row in rows.values()] == [True, False, True, True]
    assert rows["constant", 64]["overhead_formula_percent"] < rows["constant", 8]["overhead_formula_percent"]
    assert rows["inverse", 64]["overhead_formula_percent"] > rows["inverse", 8]["overhead_formula_percent"]


def samples(ids: list[list[int]], table_sizes: tuple[int, ...], batch: int) -> Samples:
    """`ids` by table."""
    batches = []
    for start in range(0, len(ids[0]), batch):
        part = torch.tensor([column[start : start + batch] for column in ids])
        batches.append(
            ClickBatch(
                dense=torch.zeros(part.shape[1], 13), ids=part.reshape(-1),
                offsets=one_id_offsets(part.numel()), labels=torch.zeros(part.shape[1]),
            )
        )  # fmt: skip
    return Samples(table_sizes, tuple(batches), (), {})


def test_rows_touched_by_hand() -> None:
    """4 and 8 different rows in the two whole intervals of 8 samples, for budgets of 2 and 4 rows."""
    ids = [[1, 1, 2, 2, 3, 3, 4, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0] * 17]
    found = touched.touched(samples(ids, (1000, 2), 4), every=8, fraction=0.002)
    assert (found["rows_touched"], found["budget_rows"], found["tables"]) == (6.0, 2, 1)
    assert (found["ratio"], found["void"]) == (3.0, False)
    found = touched.touched(samples(ids, (1000, 2), 4), every=8, fraction=0.004)
    assert (found["ratio"], found["least_of_a_table"], found["void"]) == (1.5, 1.5, True)
    assert found["tables_binding"] == 0
