"""Deterministic click samples with Criteo Kaggle's tables and skew, and a signal that a DLRM can learn.

Sample i is a function of (seed, i, table sizes) alone, so any position is reached without replay. Per sample:

- ids: a rank drawn from the measured skew (`skew.py`), spread over the rows by a bijection of each table; a
  missing value is row 0. Without the spread the first contiguous block of rows would get nearly all lookups.
- dense: normal values clamped at 0, already in the scale of `log(1 + x)`.
- label: 1 with probability `sigmoid(z)`; z sums a hidden effect of every looked-up row, products of hidden
  factors of 8 pairs of tables, and linear and quadratic terms of the dense features, scaled to one spread and
  shifted to Criteo's share of clicks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cpr_native.data.batch import ClickBatch, one_id_offsets
from cpr_native.data.skew import measured_skew, rank_quantiles
from cpr_native.data.tables import (
    CATEGORICAL_FEATURES,
    DENSE_FEATURES,
    checked_table_sizes,
    kaggle_table_sizes,
)

CLICK_RATE = 0.256  # Criteo Kaggle's share of label 1
LOGIT_SPREAD = 1.35  # standard deviation of z; the best possible AUC is then about 0.80

_SLOT_BITS = 14
_EFFECTS = 4096
_PAIRS = 8
_PROBE_SAMPLES = 16384
_BISECTIONS = 60
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LABEL_STREAM = CATEGORICAL_FEATURES + DENSE_FEATURES
_STREAMS = _LABEL_STREAM + 1
_NORMAL_SCALE = np.float32(math.sqrt(3.0) / 65536.0)
_NORMAL_MEAN = np.float32(2.0 * math.sqrt(3.0))


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a bijective hash of each element. Source: SplitMix64 (Steele et al., OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def _normal(bits: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Return the sum of the four 16-bit parts of each element, scaled to mean 0 and variance 1."""
    parts = np.uint64(0xFFFF)
    total = (
        (bits & parts)
        + (bits >> np.uint64(16) & parts)
        + (bits >> np.uint64(32) & parts)
        + (bits >> np.uint64(48))
    )
    normal: NDArray[np.float32] = (total.astype(np.float32) + np.float32(2.0)) * _NORMAL_SCALE - _NORMAL_MEAN
    return normal


class SyntheticClicks:
    """Iterable over the batches of samples `begin` .. `end`; resumes bit-exactly.

    `iter(clicks)` starts a pass at `begin`, or where a state loaded since the last `iter` says.
    `state_dict()` is the position after the batch yielded last. One pass at a time: a second `iter` takes
    over the position.
    """

    def __init__(
        self,
        *,
        end: int,
        begin: int = 0,
        batch_size: int,
        table_sizes: Sequence[int] | None = None,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """Prepare the distributions; takes some tens of milliseconds.

        Args:
            end: sample to stop before.
            begin: first sample; train and test are two ranges of one seed.
            batch_size: samples per batch; the last batch of a pass may be shorter.
            table_sizes: rows of each of the 26 tables, at least 2; `kaggle_table_sizes()` when None.
            seed: of everything, the hidden effects included; at least 0.
            drop_last: leave out a last batch that is shorter.

        Raises:
            ValueError: an argument is out of its range.
        """
        if begin < 0 or end <= begin:
            raise ValueError(f"begin and end must be 0 <= begin < end, got {begin} and {end}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed must be in 0 .. 2**63 - 1, got {seed}")
        sizes = kaggle_table_sizes() if table_sizes is None else tuple(table_sizes)
        self._table_sizes = checked_table_sizes(sizes)
        self._begin, self._end = begin, end
        self._batch_size = batch_size
        self._seed = seed
        self._drop_last = drop_last
        self._position = begin
        self._resume: int | None = None
        self._prepare_ids()
        self._prepare_signal()

    @property
    def table_sizes(self) -> tuple[int, ...]:
        """Rows of each of the 26 tables."""
        return self._table_sizes

    @property
    def samples(self) -> int:
        """Samples of one pass."""
        return self._end - self._begin

    def state_dict(self) -> dict[str, int]:
        """Return the position after the batch yielded last, and the seed: numbers, safe to store as JSON."""
        return {"sample": self._position, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next `iter` start at the position of `state`.

        Raises:
            ValueError: keys or values are not those of `state_dict()`, the seed differs, or the sample is
                outside `begin` .. `end`. Nothing changed then.
        """
        if set(state) != {"sample", "seed"}:
            raise ValueError(f"state must have the keys ['sample', 'seed'], got {sorted(state)}")
        if state["seed"] != self._seed:
            raise ValueError(f"state is of seed {state['seed']}, this generator has {self._seed}")
        sample = state["sample"]
        if not (isinstance(sample, int) and self._begin <= sample <= self._end):
            raise ValueError(f"state['sample'] must be in {self._begin} .. {self._end}, got {sample!r}")
        self._position = self._resume = sample

    def __iter__(self) -> Iterator[ClickBatch]:
        """Yield the batches from the position on."""
        self._position = self._begin if self._resume is None else self._resume
        self._resume = None
        return self._batches()

    def _batches(self) -> Iterator[ClickBatch]:
        while self._position < self._end:
            first, last = self._position, min(self._position + self._batch_size, self._end)
            self._position = last
            if last - first == self._batch_size or not self._drop_last:
                yield self.batch(first, last)

    def batch(self, begin: int, end: int) -> ClickBatch:
        """Return samples `begin` .. `end` of the seed, whatever range this generator iterates over."""
        bits = self._bits(begin, end)
        dense = self._dense(bits)
        ranks = self._ranks(bits)
        uniform = (bits[_LABEL_STREAM] >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
        labels = np.log(uniform) - np.log1p(-uniform) < self._logits(dense, ranks)
        ids = self._rows(ranks).reshape(-1)
        return ClickBatch(
            dense=torch.from_numpy(np.ascontiguousarray(dense.T)),
            ids=torch.from_numpy(ids),
            offsets=one_id_offsets(ids.size),
            labels=torch.from_numpy(labels.astype(np.float32)),
        )

    def true_logits(self, begin: int, end: int) -> NDArray[np.float64]:
        """Return z of samples `begin` .. `end`: float64 [end - begin]. No model ranks better on average."""
        bits = self._bits(begin, end)
        return self._logits(self._dense(bits), self._ranks(bits))

    def _prepare_ids(self) -> None:
        slots = 1 << _SLOT_BITS
        curves = [
            rank_quantiles(counts, rows, slots)
            for counts, rows in zip(measured_skew(), self._table_sizes, strict=True)
        ]
        self._quantiles = np.concatenate(curves)
        self._curve_start = (np.arange(CATEGORICAL_FEATURES, dtype=np.int64) * (slots + 1))[:, None]
        column = (CATEGORICAL_FEATURES, 1)
        has_missing = np.array([counts.missing > 0 for counts in measured_skew()]).reshape(column)
        self._first_value_row = has_missing.astype(np.int64)
        self._values = np.array(self._table_sizes, dtype=np.int64).reshape(column) - self._first_value_row
        self._multiplier = np.array([_coprime_near_golden(int(n)) for n in self._values[:, 0]]).reshape(
            column
        )
        self._shift = (self._hidden(0, CATEGORICAL_FEATURES) >> np.uint64(1)).astype(np.int64).reshape(column)
        self._shift %= self._values
        self._missing_rank = 1 - self._first_value_row  # where values are never missing, no rank is 0

    def _prepare_signal(self) -> None:
        tables = CATEGORICAL_FEATURES
        self._effects = _normal(self._hidden(1, tables * _EFFECTS))
        self._factors = _normal(self._hidden(2, tables * _EFFECTS))
        self._effect_start = (np.arange(tables, dtype=np.int64) * _EFFECTS)[:, None]
        order = np.argsort(self._hidden(3, tables), kind="stable")
        self._pairs = order[: 2 * _PAIRS].reshape(2, _PAIRS)
        self._dense_weights = _normal(self._hidden(4, 2 * DENSE_FEATURES)).reshape(2, DENSE_FEATURES, 1)
        self._dense_mean = np.linspace(0.5, 2.5, DENSE_FEATURES, dtype=np.float32)[:, None]
        self._scale, self._intercept = 1.0, 0.0
        probe = self.true_logits(0, _PROBE_SAMPLES)
        self._scale = LOGIT_SPREAD / float(probe.std())
        self._intercept = _intercept(probe * self._scale, CLICK_RATE)

    def _hidden(self, stream: int, count: int) -> NDArray[np.uint64]:
        """Return `count` hash values that depend on the seed, the stream and the index only."""
        key = mix64(np.array([self._seed, stream + 1], dtype=np.uint64) * _GOLDEN)
        return mix64((np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN) ^ key[0] ^ (key[1] >> np.uint64(1)))

    def _bits(self, begin: int, end: int) -> NDArray[np.uint64]:
        """Return the random bits of the samples: uint64 [40, end - begin], a row per stream."""
        keys = self._hidden(5, _STREAMS)[:, None]
        return mix64(np.arange(begin + 1, end + 1, dtype=np.uint64) * _GOLDEN + keys)

    def _ranks(self, bits: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the rank of every lookup: int64 [26, samples], 0 where the value is missing."""
        bits = bits[:CATEGORICAL_FEATURES]
        slot = (bits >> np.uint64(64 - _SLOT_BITS)).astype(np.int64) + self._curve_start
        within = (bits << np.uint64(_SLOT_BITS) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        low = self._quantiles[slot]
        ranks = (low + within * (self._quantiles[slot + 1] - low)).astype(np.int64)
        inside: NDArray[np.int64] = np.clip(ranks, self._missing_rank, self._values)
        return inside

    def _rows(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of every rank: a bijection of each table, row 0 for a missing value."""
        spread = (ranks * self._multiplier + self._shift) % self._values + self._first_value_row
        return np.where(ranks == 0, 0, spread)

    def _dense(self, bits: NDArray[np.uint64]) -> NDArray[np.float32]:
        normal = _normal(bits[CATEGORICAL_FEATURES:_LABEL_STREAM])
        dense: NDArray[np.float32] = np.maximum(normal + self._dense_mean, np.float32(0.0))
        return dense

    def _logits(self, dense: NDArray[np.float32], ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        which = (ranks & (_EFFECTS - 1)) + self._effect_start
        z: NDArray[np.float64] = self._effects[which].sum(axis=0, dtype=np.float64)
        left, right = self._factors[which[self._pairs]]
        z += (left * right).sum(axis=0, dtype=np.float64)
        centred = dense - self._dense_mean
        linear, quadratic = self._dense_weights
        z += (0.5 * centred * (linear + 0.5 * quadratic * centred)).sum(axis=0, dtype=np.float64)
        z *= self._scale
        z += self._intercept
        return z


def _coprime_near_golden(n: int) -> int:
    """Return a multiplier coprime to n near n / golden ratio: ranks 1, 2, 3, ... land far apart."""
    multiplier = max(round(n * (math.sqrt(5.0) - 1.0) / 2.0), 1)
    while math.gcd(multiplier, n) != 1:
        multiplier += 1
    return multiplier


def _intercept(logits: NDArray[np.float64], rate: float) -> float:
    """Return the shift that makes the mean of `sigmoid(logits + shift)` equal `rate`."""
    low, high = -20.0, 20.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if float(np.mean(1.0 / (1.0 + np.exp(-(logits + middle))))) < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
