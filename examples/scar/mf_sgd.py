"""Matrix factorisation by stochastic gradient descent (MovieLens, Jester), a block for each user and item."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from scar import datasets
from scar.mf_als import Factors, predictions, squared_error
from scar.run import command
from scar.workload import GradientWorkload


class MFSGD(GradientWorkload):
    """A step follows the gradient of a part of the ratings, which takes its turn in an order of the pass."""

    name = "mf_sgd"

    def __init__(
        self, ratings: datasets.Ratings, data: str, *, iterations: int, lr: float, momentum: float = 0.0,
        rank: int = 5, penalty: float = 0.02, parts: int = 5,
    ) -> None:  # fmt: skip
        self.data, self.iterations = data, iterations
        self.size = ratings.described
        self._ratings, self._rank, self._penalty, self._parts = ratings, rank, penalty, parts
        self._lr, self._momentum = lr, momentum

    def model(self, forks: int | None = None) -> Factors:
        return Factors(self._ratings.shape, self._rank, forks)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=self._lr, momentum=self._momentum)

    def loss(self, model: nn.Module, number: int) -> Tensor:
        assert isinstance(model, Factors)
        turn, part = divmod(number, self._parts)
        order = torch.randperm(len(self._ratings.values), generator=torch.Generator().manual_seed(turn))
        chosen = order.tensor_split(self._parts)[part]
        predicted = predictions(model, self._ratings.users[chosen], self._ratings.items[chosen])
        errors = predicted - self._ratings.values[chosen].view(-1, *[1] * (predicted.dim() - 1))
        return errors.square().mean(0) + self._weight(model)

    def _weight(self, model: Factors) -> Tensor:
        rows = sum(self._ratings.shape)
        return (
            self._penalty / rows * (model.users.square().sum((-2, -1)) + model.items.square().sum((-2, -1)))
        )

    def objective(self, model: nn.Module) -> Tensor:
        assert isinstance(model, Factors)
        return squared_error(model, self._ratings) + self._weight(model)


def movielens(path: Path | None) -> MFSGD:
    """Return the workload on MovieLens 100k, or on generated ratings without a file."""
    ratings = datasets.generated_ratings() if path is None else datasets.read_movielens(path)
    return MFSGD(ratings, "movielens", iterations=60, lr=100.0)


def jester(path: Path | None) -> MFSGD:
    """Return the workload on users of Jester, or on generated ratings without a file."""
    ratings = datasets.generated_ratings(1000, 100, 70_000) if path is None else datasets.read_jester(path)
    return MFSGD(ratings, "jester", iterations=100, lr=20.0)


if __name__ == "__main__":
    command({"movielens": movielens, "jester": jester})()
