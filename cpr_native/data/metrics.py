"""Area under the ROC curve and log loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Return the area under the ROC curve; ties count half.

    The chance that a positive scores above a negative. Source: the Mann-Whitney statistic,
    `(R - P * (P + 1) / 2) / (P * N)`, R the sum of the positives' mean ranks.

    Args:
        labels: [n] of 0 and 1, any numeric dtype.
        scores: [n], any order-preserving score (logits or probabilities).

    Raises:
        ValueError: shapes differ, a label is not 0 or 1, a score is NaN, or one class is absent.
    """
    truth, score = _checked(labels, scores)
    positives = int(truth.sum())
    negatives = truth.size - positives
    if positives == 0 or negatives == 0:
        raise ValueError(f"AUC needs both classes, got {positives} positive and {negatives} negative labels")
    _, which, counts = np.unique(score, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2.0
    rank_sum = float(mean_rank[which[truth]].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


def log_loss(labels: ArrayLike, logits: ArrayLike) -> float:
    """Return the mean log loss, in nats: `log(1 + exp(-z))` of a positive, `log(1 + exp(z))` of a negative.

    Args:
        labels: [n] of 0 and 1, any numeric dtype; n at least 1.
        logits: [n], before the sigmoid.

    Raises:
        ValueError: shapes differ or are empty, a label is not 0 or 1, or a logit is NaN.
    """
    truth, logit = _checked(labels, logits)
    if truth.size == 0:
        raise ValueError("log loss needs at least one sample, got 0")
    return float(np.mean(np.logaddexp(0.0, np.where(truth, -logit, logit))))


def _checked(labels: ArrayLike, scores: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    truth, score = np.asarray(labels), np.asarray(scores, dtype=np.float64)
    if truth.ndim != 1 or truth.shape != score.shape:
        raise ValueError(
            f"labels and scores must be 1-D of one length, got shapes {truth.shape} and {score.shape}"
        )
    if not np.all((truth == 0) | (truth == 1)):
        raise ValueError("labels must be 0 or 1")
    if np.isnan(score).any():
        raise ValueError("scores must not be NaN")
    return truth == 1, score
