"""`python -m quantised_study`: train through failures with exact and with quantised increments."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np
import torch
from cpr_study.setups import STRESS, Samples, read_samples
from cpr_study.trainee import Trainee
from study_common.inference import summary
from study_common.pages import machine
from torch.nn import functional

from cpr_native.policy import Delta, Mfu, Policy
from cpr_native.recovery import RecoveryManager, ResumableLoader
from cpr_native.store import CheckpointStore, TableSchema
from cpr_native.store.quantise import dequantise, quantise
from cpr_native.train import fit

ROOT = Path(__file__).resolve().parents[2]
BITS = (None, 8, 4)
FAILURES = 6
LOST = 4  # shards at a failure
POLICIES: dict[str, Policy] = {"delta, full recovery": Delta(), "mfu, partial recovery": Mfu()}


@click.command()
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="A file in the raw Criteo format; without it samples are generated.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--samples", type=click.IntRange(min=1000), default=60_000, show_default=True,
              help="How many are generated.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), show_default=True,
              default=ROOT / "docs" / "results" / "quantised.json")  # fmt: skip
def main(data: Path | None, seeds: int, samples: int, out: Path) -> None:
    """Run every policy with every number of bits and write areas under the curve, bytes and speeds."""
    torch.set_num_threads(1)
    read = read_samples(STRESS, data, samples)
    cases = {}
    for name, policy in POLICIES.items():
        runs = {bits: [_run(read, policy, bits, seed) for seed in range(1, seeds + 1)] for bits in BITS}
        exact = runs[None]
        cases[name] = {
            "exact" if bits is None else f"{bits} bits": _case(found, exact) for bits, found in runs.items()
        }
        click.echo(f"{name}: {json.dumps(cases[name], indent=1)}")
    results = {
        "command": "make quantised-study" + ("" if data is None else f" DATA={data.name}"),
        "data": read.described | ({} if data is None else {"source": data.name}),
        "machine": machine(),
        "failures": FAILURES,
        "shards_lost": LOST,
        "shards": STRESS.job.shards,
        "embedding_dim": STRESS.recipe.model.bottom[-1],
        "cases": cases,
        "speed_mb_per_second": {f"{bits} bits": _speed(bits) for bits in (8, 4)},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _case(runs: list[dict[str, Any]], exact: list[dict[str, Any]]) -> dict[str, Any]:
    increments = sum(run["bytes"] for run in runs) / sum(run["bytes"] for run in exact)
    areas = [run["auc"] - other["auc"] for run, other in zip(runs, exact, strict=True)]
    return {
        "auc": [run["auc"] for run in runs],
        "auc_less_exact": summary(areas),
        "bytes_of_increments": [run["bytes"] for run in runs],
        "bytes_to_exact": increments,
        "rows_quantised": [run["rows_quantised"] for run in runs],
    }


def _run(samples: Samples, policy: Policy, bits: int | None, seed: int) -> dict[str, Any]:
    """Train once through failures; the same seed has the same model, samples and failures with any bits."""
    trainee = Trainee(STRESS, samples.table_sizes, seed)
    torch.manual_seed(seed)
    shards = STRESS.job.shards
    random = np.random.default_rng(seed)
    lost = [sorted(random.choice(shards, min(LOST, shards), replace=False).tolist()) for _ in range(FAILURES)]
    strikes = [(k + 1) * samples.count // (FAILURES + 1) for k in range(FAILURES)]
    with tempfile.TemporaryDirectory(prefix="cpr-native-") as folder:
        manager = RecoveryManager(
            trainee.model,
            CheckpointStore(folder),
            policy=policy,
            job=STRESS.job,
            costs=STRESS.preset.costs,
            target_pls=STRESS.preset.target_pls,
            total_samples=samples.count,
            dense_optimizer=trainee.optimizer,
            background=False,
            quantise=bits,
        )

        def fail(step: int, loss: float) -> None:
            while strikes and manager.samples >= strikes[0]:
                strikes.pop(0)
                manager.recover(lost[len(strikes)])

        with manager:
            fit(
                trainee.model,
                ResumableLoader(samples.train),
                manager,
                loss_fn=_loss,
                dense_optimizer=trainee.optimizer,
                batch_size_of=len,
                callbacks=(fail,),
                resume=False,
            )
        saves = [save for save in manager.saves if save.kind != "base"]
        return {
            "auc": trainee.evaluate(samples)[0],
            "bytes": sum(save.bytes_written for save in saves),
            "rows_quantised": sum(report.rows_quantised for report in manager.recoveries),
        }


def _loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    logits = model(batch.dense, batch.ids, batch.offsets)
    return functional.binary_cross_entropy_with_logits(logits, batch.labels)


def _speed(bits: int) -> dict[str, float]:
    """Return megabytes of float32 weights that one core makes codes of, and back, in a second."""
    table = TableSchema(name="t", rows=1, dim=32, init_min=0.0, init_max=1.0)
    weight = np.random.default_rng(1).standard_normal((200_000, 32), np.float32)
    rows, _ = quantise(weight, table, bits)
    best = {"quantise": np.inf, "dequantise": np.inf}
    for _ in range(5):
        started = perf_counter()
        quantise(weight, table, bits)
        half = perf_counter()
        dequantise(rows, table, bits)
        best["quantise"] = min(best["quantise"], half - started)
        best["dequantise"] = min(best["dequantise"], perf_counter() - half)
    return {name: round(weight.nbytes / seconds / 1e6, 1) for name, seconds in best.items()}


if __name__ == "__main__":
    main()
