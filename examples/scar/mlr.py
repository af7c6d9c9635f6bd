"""Multinomial logistic regression (MNIST, CoverType), a block for each feature."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from scar import datasets
from scar.run import command
from scar.workload import GradientWorkload, stacked


class Regression(nn.Module):
    """weight [features, classes], of which the last feature is always 1; with forks one of them each."""

    def __init__(self, features: int, classes: int, forks: int | None) -> None:
        super().__init__()
        self.weight = stacked(torch.zeros(features, classes), forks)

    def forward(self, x: Tensor) -> Tensor:
        """x [features, samples] -> logits [classes, samples] or [forks, classes, samples]."""
        by_class = self.weight.transpose(-1, -2)
        return (by_class.flatten(0, -2) @ x).view(*by_class.shape[:-1], -1)


class MLR(GradientWorkload):
    """Gradient descent on the mean log loss of all samples and a quadratic penalty."""

    name = "mlr"
    full = True

    def __init__(
        self, samples: datasets.Samples, data: str, *, iterations: int, lr: float, momentum: float = 0.0,
        penalty: float = 1e-3,
    ) -> None:  # fmt: skip
        self.data = data
        self.iterations = iterations
        features, self._classes = samples
        self.size = f"{len(features):,} samples of {features.shape[1]} features"
        self._x = torch.cat([features.T, torch.ones(1, len(features))])
        self._lr, self._momentum, self._penalty = lr, momentum, penalty

    def model(self, forks: int | None = None) -> Regression:
        return Regression(len(self._x), int(self._classes.max()) + 1, forks)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=self._lr, momentum=self._momentum)

    def loss(self, model: nn.Module, number: int) -> Tensor:
        return self.objective(model)

    def objective(self, model: nn.Module) -> Tensor:
        assert isinstance(model, Regression)
        scores = functional.log_softmax(model(self._x), -2)
        right = self._classes.expand(*scores.shape[:-2], 1, -1)
        loss = -scores.gather(-2, right).squeeze(-2).mean(-1)
        return loss + self._penalty / 2 * model.weight.square().sum((-2, -1))


def mnist(folder: Path | None) -> MLR:
    """Return the workload on MNIST, or on generated images without a folder."""
    samples = datasets.generated_images() if folder is None else datasets.read_mnist(folder)
    return MLR(samples, "mnist", iterations=60, lr=0.1)


def covertype(path: Path | None, momentum: float = 0.0) -> MLR:
    """Return the workload on CoverType, or on a generated table without a file."""
    samples = datasets.generated_table() if path is None else datasets.read_covertype(path)
    return MLR(samples, "covertype", iterations=60, lr=0.5 * (1.0 - momentum), momentum=momentum)


if __name__ == "__main__":
    command({"mnist": mnist, "covertype": covertype})()
