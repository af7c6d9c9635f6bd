"""Which measure of a failure, known when it happens, orders failures as their loss does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from study_common.inference import Floats, correlations, interval, ranks, resamples

from cpr_study.quality import cases_of

Record = Mapping[str, Any]

# What each candidate is made of, and whether someone who trains on knows it once the shard is dead.
CANDIDATES = {
    "pls": ("portion of lost samples", True),
    "lookups": ("lost lookups / all lookups of the run", True),
    "lookups_so_far": ("lost lookups / lookups so far", True),
    "drift": ("drift of the lost rows since their save", False),
    "distance": ("distance of the lost rows from their saved copies", False),
    "count_distance": ("sum of count x distance over the lost rows", False),
}
TARGETS = ("progressive", "excess", "auc_loss")
# Shares of the run; the last is no weight at all.
TAUS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, np.inf)
FOLDS = 5
_WEIGHTED = "_weighted"


@dataclass(frozen=True)
class Failures:
    """One failure a seed and policy: arrays [seeds, policies]; `remaining` [seeds], in shares of the run."""

    policies: tuple[str, ...]
    candidates: dict[str, Floats]
    targets: dict[str, Floats]
    remaining: Floats


def read(records: Sequence[Record]) -> Failures:
    """Collect candidates and targets of runs with one failure each.

    Targets: `progressive` (mean excess log loss over the samples since the failure), `excess` (the same as a
    sum over them, in samples of the run) and `auc_loss` (final).
    """
    policies = tuple(case for case in cases_of(records) if case != "noise")
    total = np.array([record["train_samples"] for record in records], np.float64)[:, None]

    def of(name: str) -> Floats:
        return np.array(
            [[record["cases"][case]["failures"][0][name] for case in policies] for record in records],
            np.float64,
        )

    def result(name: str) -> Floats:
        return np.array([[record["cases"][case][name] for case in policies] for record in records])

    so_far, samples, lookups = of("lookups_so_far"), of("samples"), of("lookups")
    candidates = {name: of(name) for name in ("pls", "drift", "distance", "count_distance")}
    candidates |= {
        "lookups": lookups / (so_far / samples * total),
        "lookups_so_far": lookups / so_far,
    }
    remaining = (total - samples) / total
    progressive = result("progressive")
    plain = np.array([[record["cases"]["none"]["auc"]] for record in records])
    targets = {
        "progressive": progressive,
        "excess": progressive * remaining,
        "auc_loss": plain - result("auc"),
    }
    ordered = {name: candidates[name] for name in CANDIDATES}
    return Failures(policies, ordered, targets, remaining[:, 0])


def weights(remaining: Floats, tau: float) -> Floats:
    """Return what a loss counts by time: exp(-remaining / tau), [seeds, 1]; 1 for an infinite tau."""
    return np.exp(-remaining / tau)[:, None]


def cross_fitted(values: Floats, target: Floats, remaining: Floats) -> tuple[Floats, list[float]]:
    """Return the candidate weighted by time of loss, and the tau of each fold.

    Each fold's tau is the one that orders the *other* folds' failures best.
    """
    fold = np.arange(len(values)) % FOLDS
    weighted, taus = np.array(values), []
    for number in range(FOLDS):
        others, own = fold != number, fold == number
        if not own.any() or not others.any():
            continue
        scores = [_pooled(values[others] * weights(remaining[others], tau), target[others]) for tau in TAUS]
        tau = TAUS[int(np.argmax(scores))]
        weighted[own] *= weights(remaining[own], tau)
        taus.append(tau)
    return weighted, taus


def _pooled(x: Floats, y: Floats) -> float:
    return float(correlations(ranks(x.reshape(-1)), ranks(y.reshape(-1))))


@dataclass(frozen=True)
class _Draws:
    """Ranks of one measure in every bootstrap draw.

    `pooled` [draws, seeds * policies]; `within` [draws, policies, seeds].
    """

    pooled: Floats
    within: Floats


def _draws(values: Floats, chosen: NDArray[np.int64]) -> _Draws:
    drawn = values[chosen]
    return _Draws(ranks(drawn.reshape(len(chosen), -1)), ranks(drawn.transpose(0, 2, 1)))


def _correlated(x: _Draws, y: _Draws) -> tuple[Floats, Floats]:
    """Return the pooled rank correlation and the mean of those within each policy, of every draw."""
    return correlations(x.pooled, y.pooled), correlations(x.within, y.within).mean(axis=-1)


def evaluate(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return each candidate's rank correlation with each target, pooled and within policies.

    Intervals by bootstrap over seeds, of the difference to PLS too. The first target is the one of the
    entry itself; the others are under `targets`.
    """
    failures = read(records)
    seeds = len(records)
    # The first draw is the sample itself: its correlations are the estimates.
    chosen = np.concatenate([np.arange(seeds)[None], resamples(seeds)])
    targets = {name: _draws(failures.targets[name], chosen) for name in TARGETS}
    entries: list[dict[str, Any]] = []
    reference: dict[str, tuple[Floats, Floats]] = {}
    for name, values in failures.candidates.items():
        plain = _draws(values, chosen)
        for weighted in (False, True):
            by_target = {}
            taus: list[float]
            for target, drawn in targets.items():
                used, taus = plain, []
                if weighted:
                    fitted, taus = cross_fitted(values, failures.targets[target], failures.remaining)
                    used = _draws(fitted, chosen)
                found = _correlated(used, drawn)
                reference.setdefault(target, found)
                by_target[target] = _figures(found, reference[target]) | {
                    "tau": [None if np.isinf(tau) else tau for tau in taus],
                    "by_policy": dict(
                        zip(
                            failures.policies,
                            correlations(used.within[0], drawn.within[0]).tolist(),
                            strict=True,
                        )
                    ),
                }
            meaning, known = CANDIDATES[name]
            first = by_target.pop(TARGETS[0])
            entries.append({
                "name": name + (_WEIGHTED if weighted else ""), "meaning": meaning, "known_after_loss": known,
                "weighted": weighted, **first, "targets": by_target, "seeds": seeds,
            })  # fmt: skip
    return entries


def _figures(found: tuple[Floats, Floats], reference: tuple[Floats, Floats]) -> dict[str, Any]:
    """Return estimates (draw 0) and intervals (the other draws) of a candidate, and of its lead over PLS."""
    figures: dict[str, Any] = {}
    for prefix, own, other in zip(("", "within_"), found, reference, strict=True):
        lead = own - other
        figures |= {
            f"{prefix}rank_correlation": float(own[0]), f"{prefix}ci95": interval(own[1:]),
            f"{prefix}above_pls": float(lead[0]), f"{prefix}above_pls_ci95": interval(lead[1:]),
        }  # fmt: skip
    return figures


def verdict(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Judge whether the planner should leave PLS.

    `better`: candidates whose lead over PLS excludes 0 pooled *and* within policies; `planner`: the best of
    those that are known after a shard died, None to stay with PLS.
    """
    better = [
        entry
        for entry in entries
        if entry["name"] != "pls" and entry["above_pls_ci95"][0] > 0 and entry["within_above_pls_ci95"][0] > 0
    ]
    better.sort(key=lambda entry: -entry["rank_correlation"])
    usable = [entry["name"] for entry in better if entry["known_after_loss"]]
    best = max(entries, key=lambda entry: entry["rank_correlation"])["name"] if entries else None
    return {
        "best": best,
        "better": [entry["name"] for entry in better],
        "worse": [entry["name"] for entry in entries if entry["above_pls_ci95"][1] < 0],
        "planner": usable[0] if usable else None,
    }
