"""A convolutional network trained by Adam (MNIST), a block for each 16 parameters of a tensor."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer

from scar import datasets
from scar.run import command
from scar.workload import GradientWorkload, stacked


class Network(nn.Module):
    """Two convolutions and a linear layer; with forks one of each tensor before."""

    def __init__(self, forks: int | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)

        def drawn(*shape: int) -> nn.Parameter:
            inputs = shape[0] if len(shape) == 2 else shape[1] * shape[2] * shape[3]
            return stacked(torch.randn(shape, generator=generator) * (2 / inputs) ** 0.5, forks)

        self.first = drawn(8, 1, 5, 5)
        self.first_bias = stacked(torch.zeros(8), forks)
        self.second = drawn(16, 8, 3, 3)
        self.second_bias = stacked(torch.zeros(16), forks)
        self.last = drawn(400, 10)
        self.last_bias = stacked(torch.zeros(10), forks)

    def forward(self, images: Tensor) -> Tensor:
        """images [samples, 1, 28, 28] -> logits [(forks,) samples, classes]."""
        forks = 1 if self.last.dim() == 2 else len(self.last)
        x = functional.conv2d(images, self.first.reshape(-1, 1, 5, 5), self.first_bias.flatten(), stride=2)
        x = functional.conv2d(
            x.relu(), self.second.reshape(-1, 8, 3, 3), self.second_bias.flatten(), stride=2, groups=forks
        ).relu()
        if self.last.dim() == 2:
            return x.flatten(1) @ self.last + self.last_bias
        by_fork = x.view(len(x), forks, -1).movedim(1, 0)
        return by_fork @ self.last + self.last_bias.unsqueeze(1)


class CNN(GradientWorkload):
    """A step of Adam on a batch; each pass has an order of its own."""

    name = "cnn"
    stochastic = True
    blocks = 16

    def __init__(
        self, samples: datasets.Samples, data: str, *, iterations: int, lr: float = 2e-3, batch: int = 100
    ) -> None:
        self.data, self.iterations = data, iterations
        self.size = f"{len(samples[0]):,} images"
        self._images = samples[0].view(-1, 1, 28, 28)
        self._digits = samples[1]
        self._lr, self._batch = lr, batch

    def model(self, forks: int | None = None) -> Network:
        return Network(forks)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adam(model.parameters(), lr=self._lr)

    def loss(self, model: nn.Module, number: int) -> Tensor:
        turn, part = divmod(number, len(self._digits) // self._batch)
        order = torch.randperm(len(self._digits), generator=torch.Generator().manual_seed(turn))
        return self._mean(model, order[part * self._batch : (part + 1) * self._batch])

    def objective(self, model: nn.Module) -> Tensor:
        parts = torch.split(torch.arange(len(self._digits)), self._batch)
        return torch.stack([self._mean(model, part) for part in parts]).mean(0)

    def _mean(self, model: nn.Module, chosen: Tensor) -> Tensor:
        logits = model(self._images[chosen])
        digits = self._digits[chosen].expand(logits.shape[:-1])
        losses = functional.cross_entropy(logits.flatten(0, -2), digits.flatten(), reduction="none")
        return losses.view(digits.shape).mean(-1)


def mnist(folder: Path | None, images: int = 1000) -> CNN:
    """Return the workload on the first `images` of MNIST, or on generated ones without a folder."""
    features, digits = datasets.generated_images(images) if folder is None else datasets.read_mnist(folder)
    return CNN((features[:images], digits[:images]), "mnist", iterations=60)


if __name__ == "__main__":
    command({"mnist": mnist})()
