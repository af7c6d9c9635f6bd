"""The gamma distribution and the logarithmic derivative of the gamma function, without SciPy."""

from __future__ import annotations

import math

_TERMS = 10_000
_PRECISION = 1e-15
_TINY = 1e-300


def gamma_cdf(shape: float, x: float) -> float:
    """Return P(X <= x) of a gamma variable of `shape` and scale 1; shape > 0, x >= 0.

    Series below shape + 1, Lentz's continued fraction above (DLMF 8.11.4 and 8.9.2).
    """
    if x <= 0:
        return 0.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1.0 / shape
        for index in range(1, _TERMS):
            term *= x / (shape + index)
            total += term
            if term < total * _PRECISION:
                break
        return min(1.0, front * total)
    b = x + 1.0 - shape
    c, d = 1.0 / _TINY, 1.0 / b
    result = d
    for index in range(1, _TERMS):
        a = -index * (index - shape)
        b += 2.0
        d = 1.0 / _away_from_zero(a * d + b)
        c = _away_from_zero(b + a / c)
        result *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return max(0.0, 1.0 - front * result)


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def gamma_quantile(shape: float, q: float) -> float:
    """Return the `q`-quantile of a gamma variable of `shape` and scale 1; 0 < q < 1."""
    high = shape + 1.0
    while gamma_cdf(shape, high) < q:
        high *= 2.0
    low = 0.0
    while high - low > 1e-12 * high and high > _TINY:
        middle = (low + high) / 2.0
        low, high = (middle, high) if gamma_cdf(shape, middle) < q else (low, middle)
    return high


def digamma(x: float) -> float:
    """Return d/dx log Gamma(x) for x > 0 (DLMF 5.5.2 and 5.11.2)."""
    result = 0.0
    while x < 10.0:
        result -= 1.0 / x
        x += 1.0
    square = 1.0 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return result + math.log(x) - 0.5 / x - series
