"""LDA by collapsed Gibbs sampling (Reuters, 20 Newsgroups), a block for each document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

import cpr_native as cpr
from cpr_native._native import Selection
from cpr_native.policy import Policy, Ranking, SaveKind, Table
from scar import datasets
from scar.run import command
from scar.workload import Workload, stacked


class Assignments(nn.Module):
    """topics [documents, topics]: words of each topic; drawn [documents, longest]: the topic of each word.

    With forks one of each before. Not trained by gradients; numbers of topics are exact in float32.
    """

    def __init__(self, topics: Tensor, drawn: Tensor, forks: int | None) -> None:
        super().__init__()
        self.topics = stacked(topics, forks).requires_grad_(False)
        self.drawn = stacked(drawn, forks).requires_grad_(False)


@dataclass(frozen=True, kw_only=True)
class ByDocument(cpr.Scar):
    """Saves documents: those whose distribution of topics changed most, with the topics of their words."""

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return the same rows of both tables."""
        if kind != "priority":
            return super().selections(tables, kind, ranking)
        chosen = super().selections(tables[:1], kind, ranking)
        return [*chosen, *chosen]


class LDA(Workload):
    """A step draws the topic of every word once, document by document, given all the others."""

    name = "lda"
    stochastic = True
    aligned = True
    distance = "tv"

    def __init__(
        self, documents: datasets.Documents, data: str, *, iterations: int, topics: int = 20,
        alpha: float = 0.1, beta: float = 0.05,
    ) -> None:  # fmt: skip
        self.data, self.iterations = data, iterations
        self.size = (
            f"{documents.tokens:,} words of {documents.terms:,} terms in {len(documents.words)} documents"
        )
        self._documents, self._topics, self._alpha, self._beta = documents, topics, alpha, beta
        words = documents.words
        drawn = np.random.default_rng(1).integers(topics, size=words.shape).astype(np.float32)
        drawn[words < 0] = -1.0
        self._drawn = torch.from_numpy(drawn)
        counted = [np.bincount(row[row >= 0].astype(np.int64), minlength=topics) for row in drawn]
        self._counted = torch.from_numpy(np.stack(counted).astype(np.float32))

    def policy(self, fraction: float) -> Policy:
        return ByDocument(fraction=fraction, distance="tv")

    def model(self, forks: int | None = None) -> Assignments:
        return Assignments(self._counted, self._drawn, forks)

    @torch.no_grad()
    def step(self, model: nn.Module, optimizer: Optimizer | None, number: int) -> None:
        assert isinstance(model, Assignments)
        for topics, drawn in _runs(model):
            _sweep(
                self._documents.words, drawn, topics, self._documents.terms, self._alpha, self._beta, number
            )
        model.topics.add_(0.0)  # tells torch of the write
        model.drawn.add_(0.0)

    @torch.no_grad()
    def objective(self, model: nn.Module) -> Tensor:
        """Return the mean negative log likelihood of a word in its document: [] or [forks]."""
        assert isinstance(model, Assignments)
        settings = self._documents.terms, self._alpha, self._beta
        values = [
            _surprise(self._documents.words, drawn, topics, *settings) for topics, drawn in _runs(model)
        ]
        return torch.tensor(values, dtype=torch.float64).reshape(model.topics.shape[:-2])


def _runs(model: Assignments) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    topics, drawn = model.topics.detach().numpy(), model.drawn.detach().numpy()
    return [(topics, drawn)] if topics.ndim == 2 else list(zip(topics, drawn, strict=True))


@numba.njit(cache=True)
def _word_topics(words, drawn, terms, topics):  # type: ignore[no-untyped-def]
    by_word = np.zeros((terms, topics), np.float32)
    by_topic = np.zeros(topics, np.float32)
    for document in range(words.shape[0]):
        for place in range(words.shape[1]):
            word = words[document, place]
            if word < 0:
                break
            topic = int(drawn[document, place])
            by_word[word, topic] += 1.0
            by_topic[topic] += 1.0
    return by_word, by_topic


@numba.njit(cache=True)
def _uniform(number, document, place):  # type: ignore[no-untyped-def]
    """A number in [0, 1) that depends on the arguments alone: splitmix64 (Steele et al., 2014)."""
    z = np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(document) * np.uint64(0xD1342543DE82EF95) + np.uint64(place) * np.uint64(
        0xF1357AEA2E62A9C5
    )
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return np.float32(z >> np.uint64(40)) * np.float32(2.0**-24)


@numba.njit(cache=True)
def _sweep(words, drawn, counted, terms, alpha, beta, number):  # type: ignore[no-untyped-def]
    """Draw every word's topic, in place of `drawn` and `counted`."""
    topics = counted.shape[1]
    by_word, by_topic = _word_topics(words, drawn, terms, topics)
    sums = np.empty(topics, np.float32)
    alpha, beta = np.float32(alpha), np.float32(beta)
    smooth = beta * np.float32(terms)
    for document in range(words.shape[0]):
        own = counted[document]
        for place in range(words.shape[1]):
            word = words[document, place]
            if word < 0:
                break
            row = by_word[word]
            topic = int(drawn[document, place])
            own[topic] -= np.float32(1)
            row[topic] -= np.float32(1)
            by_topic[topic] -= np.float32(1)
            total = np.float32(0)
            for k in range(topics):
                total += (own[k] + alpha) * (row[k] + beta) / (by_topic[k] + smooth)
                sums[k] = total
            wanted = _uniform(number, document, place) * total
            topic = 0
            while topic < topics - 1 and sums[topic] <= wanted:
                topic += 1
            own[topic] += np.float32(1)
            row[topic] += np.float32(1)
            by_topic[topic] += np.float32(1)
            drawn[document, place] = topic


@numba.njit(cache=True)
def _surprise(words, drawn, counted, terms, alpha, beta):  # type: ignore[no-untyped-def]
    topics = counted.shape[1]
    by_word, by_topic = _word_topics(words, drawn, terms, topics)
    scale = 1.0 / (by_topic + beta * terms)
    total, tokens = 0.0, 0
    for document in range(words.shape[0]):
        weights = (counted[document] + alpha) * scale
        length = counted[document].sum() + alpha * topics
        for place in range(words.shape[1]):
            word = words[document, place]
            if word < 0:
                break
            chance = 0.0
            for k in range(topics):
                chance += weights[k] * (by_word[word, k] + beta)
            total -= np.log(chance / length)
            tokens += 1
    return total / tokens


def reuters(path: Path | None) -> LDA:
    """Return the workload on Reuters, or on generated documents without a file."""
    documents = datasets.generated_documents() if path is None else datasets.read_ldac(path)
    return LDA(documents, "reuters", iterations=30)


def newsgroups(path: Path | None) -> LDA:
    """Return the workload on documents of 20 Newsgroups, or on generated ones without a file."""
    if path is None:
        documents = datasets.generated_documents(600, 8000, 120)
    else:
        documents = datasets.read_ldac(path, documents=600, frequent=100)
    return LDA(documents, "newsgroups", iterations=30)


if __name__ == "__main__":
    command({"reuters": reuters, "newsgroups": newsgroups})()
