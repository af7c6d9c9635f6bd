from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from scale_study.__main__ import main
from scale_study.page import write_page
from scale_study.units import FAILURES, SHARD_BYTES, Measured, job_of

CLUSTER = {
    "failures": {
        "shard_bytes": 2.0**28,
        "kill": {"restore": {"median": 0.4}, "without_restore": {"median": 0.9}},
    },
    # Ten lookups beside each save, each 5 s slower.
    "training": {
        "ray": {
            "save": {"lookup_ms": 10.0, "lookup_beside_save_ms": 5010.0, "saves": 4, "lookups_beside": 40}
        }
    },
}


def test_costs_that_grow_with_the_bytes_are_taken_for_larger_shards() -> None:
    costs = Measured.read(CLUSTER).costs()
    assert costs.save == pytest.approx(50 * SHARD_BYTES / 2**28 / 3600)
    assert costs.load == pytest.approx(0.4 * SHARD_BYTES / 2**28 / 3600)
    assert costs.reschedule == pytest.approx(0.9 / 3600)


def test_more_shards_fail_more_often() -> None:
    few, many = job_of(4), job_of(256)
    assert few.mtbf_hours == 64 * many.mtbf_hours
    assert few.total_hours / few.mtbf_hours == many.total_hours / many.mtbf_hours == FAILURES


def test_study_runs_and_its_page_is_made_from_its_file(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps(CLUSTER))
    arguments = ["--cluster", str(cluster), "--seeds", "1", "--samples", "3000", "--most", "4"]
    arguments += ["--records", str(tmp_path / "records"), "--docs", str(tmp_path / "docs")]
    for _ in range(2):  # the second finds the records
        done = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert done.exit_code == 0
    found = tmp_path / "docs" / "results"
    results = json.loads((found / "scale.json").read_text())
    full, partial, mfu = results["cells"]
    assert full["pls"]["mean"] == 0 < partial["pls"]["mean"]
    assert full["parts_percent"]["lost"] > 0 == partial["parts_percent"]["lost"]
    assert mfu["saves"] > partial["saves"]
    text = (found / "scale.md").read_text()
    assert f"| 4 | mfu | {mfu['overhead_percent']['mean']:.3f} |" in text
    before = (found / "plots" / "scale_shards.svg").read_bytes()
    write_page(results, tmp_path / "docs")
    assert (found / "scale.md").read_text() == text
    assert (found / "plots" / "scale_shards.svg").read_bytes() == before
