"""One slow function for each optimizer: rows of the batch, in place, in the engine's order of operations."""

from __future__ import annotations

import numpy as np

from reference.arithmetic import FloatArray, IntArray, sum_of_squares


def initial_states(optimizer: str, weight: FloatArray, initial_state: float) -> FloatArray | None:
    """The state of rows never updated, in the engine's shape: None, [n], or [n, columns]."""
    rows, dim = weight.shape
    if optimizer == "row_wise_adagrad":
        return np.full(rows, initial_state, dtype=np.float32)
    columns = {"adagrad": dim, "adam": 2 * dim, "partial_row_wise_adam": dim + 1}.get(optimizer)
    return None if columns is None else np.full((rows, columns), initial_state, dtype=np.float32)


def decayed(weight: FloatArray, rows: IntArray, gradients: FloatArray, *, weight_decay: float) -> FloatArray:
    """The gradients with the L2 term: g + weight_decay * w."""
    if weight_decay == 0.0:
        return gradients
    return gradients + weight[rows] * np.float32(weight_decay)


def sgd(weight: FloatArray, rows: IntArray, gradients: FloatArray, *, lr: float) -> None:
    """Update `weight` ([n, dim]) in place: w = w - lr * g for each of `rows`."""
    for row, gradient in zip(rows, gradients, strict=True):
        weight[row] = weight[row] - np.float32(lr) * gradient


def row_wise_adagrad(
    weight: FloatArray,
    accumulator: FloatArray,
    rows: IntArray,
    gradients: FloatArray,
    *,
    lr: float,
    eps: float = 1e-8,
) -> None:
    """Update `weight` and `accumulator` ([n]): a += sum(g^2) / dim; w = w - lr / (sqrt(a) + eps) * g."""
    dim = np.float32(weight.shape[1])
    for row, gradient in zip(rows, gradients, strict=True):
        accumulator[row] = accumulator[row] + sum_of_squares(gradient) / dim
        multiplier = np.float32(lr) / (np.sqrt(accumulator[row]) + np.float32(eps))
        weight[row] = weight[row] - multiplier * gradient


def adagrad(
    weight: FloatArray, state: FloatArray, rows: IntArray, gradients: FloatArray, *, lr: float, eps: float
) -> None:
    """Update `weight` and `state` ([n, dim]): a += g^2; w = w - lr * g / (sqrt(a) + eps)."""
    for row, gradient in zip(rows, gradients, strict=True):
        state[row] = state[row] + gradient * gradient
        weight[row] = weight[row] - np.float32(lr) * gradient / (np.sqrt(state[row]) + np.float32(eps))


def _bias_corrections(betas: tuple[float, float], t: int) -> list[np.float32]:
    """1 - beta^t in float64, the power by squaring, rounded once."""
    return [np.float32(1.0 - _power(beta, t)) for beta in betas]


def _power(base: float, exponent: int) -> float:
    power = 1.0
    while exponent:
        if exponent & 1:
            power *= base
        base *= base
        exponent >>= 1
    return power


def adam(
    weight: FloatArray,
    state: FloatArray,
    rows: IntArray,
    gradients: FloatArray,
    *,
    lr: float,
    eps: float,
    betas: tuple[float, float],
    t: int,
) -> None:
    """Update `weight` and `state` ([n, 2 * dim]: m and v): w = w - lr * (m / c1) / (sqrt(v / c2) + eps)."""
    dim = weight.shape[1]
    beta1, beta2 = np.float32(betas)
    gain1, gain2 = np.float32(1.0 - betas[0]), np.float32(1.0 - betas[1])
    correction1, correction2 = _bias_corrections(betas, t)
    for row, gradient in zip(rows, gradients, strict=True):
        m, v = state[row, :dim], state[row, dim:]
        m[:] = beta1 * m + gain1 * gradient
        v[:] = beta2 * v + gain2 * (gradient * gradient)
        step = np.float32(lr) * (m / correction1) / (np.sqrt(v / correction2) + np.float32(eps))
        weight[row] = weight[row] - step


def partial_row_wise_adam(
    weight: FloatArray,
    state: FloatArray,
    rows: IntArray,
    gradients: FloatArray,
    *,
    lr: float,
    eps: float,
    betas: tuple[float, float],
    t: int,
) -> None:
    """As `adam` with one v a row, of sum(g^2) / dim: `state` is [n, dim + 1]."""
    dim = weight.shape[1]
    beta1, beta2 = np.float32(betas)
    gain1, gain2 = np.float32(1.0 - betas[0]), np.float32(1.0 - betas[1])
    correction1, correction2 = _bias_corrections(betas, t)
    for row, gradient in zip(rows, gradients, strict=True):
        m = state[row, :dim]
        v = beta2 * state[row, dim] + gain2 * (sum_of_squares(gradient) / np.float32(dim))
        m[:] = beta1 * m + gain1 * gradient
        state[row, dim] = v
        denominator = np.sqrt(v / correction2) + np.float32(eps)
        weight[row] = weight[row] - np.float32(lr) * (m / correction1) / denominator
