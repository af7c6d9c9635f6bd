"""What the workloads share: a training whose step is a function of its state and its number alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import cpr_native as cpr
from cpr_native.policy import Policy


class Workload(ABC):
    """An iterative-convergent training: what it trains, its step and its objective.

    Any number of runs can be stacked in one model: with `forks` every parameter begins with a dimension of
    that size, a step is the same step of each of them, and `objective` returns one number for each. Order of
    the data and random numbers depend on the number of the step and on nothing else, so that runs which
    meet different failures see the same.

    `name`, `data`, `variant`, `size` (of the data, in words): for results; `iterations`: after how many the
    objective is good enough (K); `blocks`: as `cpr_native.attach` takes them; `distance`: of a block from its
    last saved copy; `stochastic`: the objective isn't monotone even without a failure; `aligned`: block i of
    each table is part of one thing and is lost and saved with it; `second`: of two parameters that a step
    computes one from the other, the second.
    """

    name: str
    data: str
    variant = ""
    size = ""
    iterations: int
    blocks: Literal["rows", "tensors"] | int = "rows"
    distance: Literal["l2", "l1", "tv"] = "l2"
    stochastic = False
    aligned = False
    second = ""

    @abstractmethod
    def model(self, forks: int | None = None) -> nn.Module:
        """Return the parameters that every run begins with."""

    @abstractmethod
    def step(self, model: nn.Module, optimizer: Optimizer | None, number: int) -> Tensor | None:
        """Do the step `number`, from 0, in place; return the objective before it if it is a by-product."""

    @abstractmethod
    def objective(self, model: nn.Module) -> Tensor:
        """Return the objective on all data, above 0: [] or [forks]."""

    def policy(self, fraction: float) -> Policy:
        """Return what saves the `fraction` of the blocks that are farthest from their last saved copy."""
        return cpr.Scar(fraction=fraction, distance=self.distance)

    def optimizer(self, model: nn.Module) -> Optimizer | None:
        """Return a new optimizer of `model`'s parameters; None where the step needs none."""
        return None


class GradientWorkload(Workload):
    """A workload whose step follows the gradient of a loss.

    `full`: the loss of every step is the objective.
    """

    full = False

    @abstractmethod
    def loss(self, model: nn.Module, number: int) -> Tensor:
        """Return the loss of the step `number`: [] or [forks]."""

    def step(self, model: nn.Module, optimizer: Optimizer | None, number: int) -> Tensor | None:
        """Do one step of `optimizer`; runs that are stacked have gradients of their own."""
        assert optimizer is not None
        optimizer.zero_grad()
        loss = self.loss(model, number)
        torch.autograd.backward(loss.sum())
        optimizer.step()
        return loss.detach() if self.full else None


def stacked(start: Tensor, forks: int | None) -> nn.Parameter:
    """Return `start` as a parameter, repeated for each of `forks`."""
    values = start if forks is None else start.expand(forks, *start.shape)
    return nn.Parameter(values.clone(memory_format=torch.contiguous_format))
