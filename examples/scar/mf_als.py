"""Matrix factorisation by alternating least squares (MovieLens, Jester), a block for each user and item."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from scar import datasets
from scar.run import command
from scar.workload import Workload, stacked


class Factors(nn.Module):
    """users [users, rank], items [items, rank]; with forks one of each before."""

    def __init__(self, shape: tuple[int, int], rank: int, forks: int | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        starts = [torch.randn(rows, rank, generator=generator) / rank**0.5 for rows in shape]
        self.users = stacked(starts[0], forks)
        self.items = stacked(starts[1], forks)


class MFALS(Workload):
    """Each step solves the items' factors given the users', then the users' given the items'.

    So the items' factors are free to lose: the next step computes them from the users' alone."""

    name = "mf_als"
    second = "users"

    def __init__(
        self, ratings: datasets.Ratings, data: str, *, iterations: int, rank: int = 5, penalty: float = 0.02
    ) -> None:
        self.data, self.iterations = data, iterations
        self.size = ratings.described
        self._ratings, self._rank, self._penalty = ratings, rank, penalty
        known, values = ratings.known, ratings.table
        self._known, self._values = known, values
        self._upper = torch.triu_indices(rank, rank)
        i, j = torch.meshgrid(torch.arange(rank), torch.arange(rank), indexing="ij")
        low, high = torch.minimum(i, j).flatten(), torch.maximum(i, j).flatten()
        self._place = low * rank - low * (low - 1) // 2 + high - low
        self._transposed = known.T.contiguous(), values.T.contiguous()

    def model(self, forks: int | None = None) -> Factors:
        return Factors(self._ratings.shape, self._rank, forks)

    @torch.no_grad()
    def step(self, model: nn.Module, optimizer: Optimizer | None, number: int) -> None:
        assert isinstance(model, Factors)
        model.items.copy_(self._solved(model.users, *self._transposed))
        model.users.copy_(self._solved(model.items, self._known, self._values))

    def _solved(self, other: Tensor, known: Tensor, values: Tensor) -> Tensor:
        """Return the factors, [(forks,) rows, rank], that fit best; `known`, `values` [rows, others]."""
        rank = self._rank
        by_other = other.movedim(-2, 0)
        i, j = self._upper
        squares = (by_other[..., i] * by_other[..., j]).flatten(1)
        left = (
            (known @ squares).view(len(known), -1, len(i))[..., self._place].view(len(known), -1, rank, rank)
        )
        right = (values @ by_other.flatten(1)).view(len(known), -1, rank, 1)
        often = known.sum(1).clamp_min(1.0).view(-1, 1, 1, 1)
        left = left + self._penalty * often * torch.eye(rank)
        factor = torch.linalg.cholesky(left)
        solved = torch.cholesky_solve(right, factor).squeeze(-1)
        return solved.movedim(0, 1).reshape(*other.shape[:-2], len(known), rank)

    def objective(self, model: nn.Module) -> Tensor:
        assert isinstance(model, Factors)
        return squared_error(model, self._ratings) + self._penalty_of(model)

    def _penalty_of(self, model: Factors) -> Tensor:
        users = (model.users.square().sum(-1) * self._known.sum(1)).sum(-1)
        items = (model.items.square().sum(-1) * self._known.sum(0)).sum(-1)
        return self._penalty * (users + items) / len(self._ratings.values)


def squared_error(model: Factors, ratings: datasets.Ratings) -> Tensor:
    """Return the mean square of what the factors don't explain: [] or [forks]."""
    if 4 * len(ratings.values) > ratings.known.numel():
        errors = model.users @ model.items.transpose(-1, -2) - ratings.table
        return errors.mul(ratings.known).square().sum((-2, -1)) / len(ratings.values)
    predicted = predictions(model, ratings.users, ratings.items)
    return (predicted - ratings.values.view(-1, *[1] * (predicted.dim() - 1))).square().mean(0)


def predictions(model: Factors, users: Tensor, items: Tensor) -> Tensor:
    """Return the ratings that the factors give: [ratings] or [ratings, forks]."""
    if model.users.dim() == 2:
        return (model.users[users] * model.items[items]).sum(1)
    left = model.users.permute(1, 2, 0).contiguous()
    right = model.items.permute(1, 2, 0).contiguous()
    chosen = functional.embedding(users, left.flatten(1)) * functional.embedding(items, right.flatten(1))
    return chosen.view(len(users), *left.shape[1:]).sum(1)


def movielens(path: Path | None) -> MFALS:
    """Return the workload on MovieLens 100k, or on generated ratings without a file."""
    ratings = datasets.generated_ratings() if path is None else datasets.read_movielens(path)
    return MFALS(ratings, "movielens", iterations=30, rank=5, penalty=0.02)


def jester(path: Path | None) -> MFALS:
    """Return the workload on users of Jester, or on generated ratings without a file."""
    ratings = datasets.generated_ratings(1000, 100, 70_000) if path is None else datasets.read_jester(path)
    return MFALS(ratings, "jester", iterations=30, rank=8, penalty=0.01)


if __name__ == "__main__":
    command({"movielens": movielens, "jester": jester})()
