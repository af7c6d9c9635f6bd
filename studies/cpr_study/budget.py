"""Priority saving against deltas without a limit, at the same bytes written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from study_common.inference import Floats, interval, resamples, summary

from cpr_study.quality import cases_of, column

Record = Mapping[str, Any]
DELTA = "delta_partial"


def points(cells: Mapping[str, Sequence[Record]]) -> list[dict[str, Any]]:
    """Return bytes written and progressive loss of every cell and policy, ascending by bytes."""
    found = []
    for cell, records in cells.items():
        for case in cases_of(records):
            if case == "noise":
                continue
            loss = summary(column(records, case, "progressive"))
            what, value = next(iter(records[0]["settings"].items()), ("", None))
            found.append({
                "cell": cell, "policy": case, "varied": what, "value": value,
                "bytes_written": float(column(records, case, "bytes_written").mean()),
                "saves": float(column(records, case, "saves").mean()),
                "progressive": loss["mean"], "progressive_ci95": loss["ci95"], "seeds": loss["seeds"],
            })  # fmt: skip
    return sorted(found, key=lambda point: (point["policy"], point["bytes_written"]))


def _columns(records: Sequence[Record], case: str, seeds: Sequence[int]) -> tuple[Floats, Floats]:
    own = {record["seed"]: record for record in records}
    kept = [own[seed] for seed in seeds]
    return column(kept, case, "bytes_written"), column(kept, case, "progressive")


def at_bytes(curve_bytes: Floats, curve_loss: Floats, wanted: Floats) -> Floats:
    """Interpolate a curve [draws, points] at `wanted` [draws], linear in the logarithm of the bytes.

    The points ascend by bytes. NaN outside of the curve.
    """
    x, at = np.log(curve_bytes), np.log(wanted)
    upper = (x < at[:, None]).sum(axis=1)
    inside = (upper > 0) & (upper < x.shape[1])
    upper = np.clip(upper, 1, x.shape[1] - 1)
    rows = np.arange(len(x))
    left, right = x[rows, upper - 1], x[rows, upper]
    width = np.where(right > left, right - left, 1.0)
    share = (at - left) / width
    loss = (1.0 - share) * curve_loss[rows, upper - 1] + share * curve_loss[rows, upper]
    exact = at == x[:, 0]
    return np.where(exact, curve_loss[:, 0], np.where(inside, loss, np.nan))


def equal_bytes(cells: Mapping[str, Sequence[Record]]) -> list[dict[str, Any]]:
    """Compare every priority point with the delta's loss at as many bytes, paired by seed.

    `difference` is the delta's loss less the priority policy's, above 0 where priority loses less; None where
    no two delta intervals of the study enclose the bytes (`place`: "cheaper" or "dearer" than all of them).
    Intervals by bootstrap over seeds, which moves the bytes of both as well.
    """
    deltas = {cell: records for cell, records in cells.items() if DELTA in cases_of(records)}
    others = {cell: records for cell, records in cells.items() if cell not in deltas}
    if not deltas or not others:
        return []
    seeds = sorted(set.intersection(*({r["seed"] for r in records} for records in cells.values())))
    if len(seeds) < 2:
        return []
    chosen = np.concatenate([np.arange(len(seeds))[None], resamples(len(seeds))])
    curve = [_columns(records, DELTA, seeds) for records in deltas.values()]
    # An interval longer than the job never saves: no bytes, so no place on the curve.
    curve = sorted((c for c in curve if c[0].mean() > 0), key=lambda c: float(c[0].mean()))
    if len(curve) < 2:
        return []
    curve_bytes, curve_loss = (
        np.stack([c[side][chosen].mean(axis=1) for c in curve], axis=1) for side in (0, 1)
    )
    found = []
    for records in others.values():
        for case in cases_of(records):
            if case == "noise":
                continue
            own_bytes, own_loss = (side[chosen].mean(axis=1) for side in _columns(records, case, seeds))
            draws = at_bytes(curve_bytes, curve_loss, own_bytes) - own_loss
            place = "cheaper" if own_bytes[0] < curve_bytes[0, 0] else "dearer"
            known = not np.isnan(draws[0])
            kept = draws[1:][~np.isnan(draws[1:])]
            found.append({
                "policy": case, **dict(records[0]["settings"]), "bytes_written": float(own_bytes[0]),
                "progressive": float(own_loss[0]), "difference": float(draws[0]) if known else None,
                "ci95": interval(kept) if known and len(kept) else None,
                "place": "between" if known else place, "seeds": len(seeds),
            })  # fmt: skip
    return sorted(found, key=lambda point: (point["policy"], point["bytes_written"]))
