"""Readers of the data sets in the form they are published in, and generated stand-ins of the same shape."""

from __future__ import annotations

import gzip
import itertools
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

Samples = tuple[Tensor, Tensor]
"""Features, float32 [samples, features], and classes, int64 [samples]."""


def read_mnist(folder: Path) -> Samples:
    """Return the images of `t10k-*-ubyte.gz` in `folder`, pixels in 0..1, and their digits."""
    images = _read_idx(folder / "t10k-images-idx3-ubyte.gz", 16)
    digits = _read_idx(folder / "t10k-labels-idx1-ubyte.gz", 8)
    pixels = torch.from_numpy(images.reshape(len(digits), -1).astype(np.float32) / 255)
    return pixels, torch.from_numpy(digits.astype(np.int64))


def _read_idx(path: Path, header: int) -> np.ndarray:
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


def read_covertype(path: Path) -> Samples:
    """Return UCI Covertype (a header, 54 features, Cover_Type 1..7), features standardised, classes 0..6."""
    rows = np.loadtxt(path, np.float32, delimiter=",", skiprows=1)
    return standardised(torch.from_numpy(rows[:, :-1])), torch.from_numpy(rows[:, -1].astype(np.int64) - 1)


def standardised(features: Tensor) -> Tensor:
    """Return `features` with mean 0 and variance 1; constant ones are 0."""
    return (features - features.mean(0)) / features.std(0, unbiased=False).clamp_min(1e-6)


def generated_images(samples: int = 10_000, seed: int = 0) -> Samples:
    """Return images of 28 x 28 pixels in 0..1: blurred prototypes of ten classes, shifted, with noise."""
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.rand(10, 1, 7, 7, generator=generator).gt(0.6).float()
    shapes = torch.nn.functional.interpolate(prototypes, size=(28, 28), mode="bilinear")[:, 0]
    classes = torch.randint(10, (samples,), generator=generator)
    shifts = torch.randint(-3, 4, (samples, 2), generator=generator)
    places = torch.arange(28)
    rows = (places + shifts[:, :1]) % 28
    columns = (places + shifts[:, 1:]) % 28
    images = shapes[classes[:, None, None], rows[:, :, None], columns[:, None, :]]
    frame = torch.zeros(28, 28)
    frame[4:24, 4:24] = 1  # the margin of most images is empty
    images = (images + 0.3 * torch.randn(samples, 28, 28, generator=generator)).clamp(0, 1) * frame
    return images.flatten(1), classes


def generated_table(samples: int = 25_000, seed: int = 0) -> Samples:
    """Return 10 numbers and 44 rare yes-or-no features of seven classes, standardised as Covertype."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(samples, 10, generator=generator)
    often = torch.rand(44, generator=generator) ** 3
    flags = (torch.rand(samples, 44, generator=generator) < often).float()
    features = standardised(torch.cat([numbers, flags], 1))
    scores = features @ torch.randn(54, 7, generator=generator)
    noise = -torch.rand(samples, 7, generator=generator).log().neg().log()  # Gumbel
    return features, (scores + 2 * noise).argmax(1)


class Ratings:
    """Known ratings: `users`, `items` int64 [ratings], `values` float32 [ratings], standardised.

    The same as matrices [users, items]: `known`, 1 or 0, and `table`, the values.
    """

    def __init__(self, users: Tensor, items: Tensor, values: Tensor) -> None:
        self.users, self.items = users, items
        self.values = (values - values.mean()) / values.std()
        self.shape = int(users.max()) + 1, int(items.max()) + 1
        self.described = f"{len(values):,} ratings of {self.shape[0]:,} users and {self.shape[1]:,} items"
        self.known, self.table = torch.zeros(self.shape), torch.zeros(self.shape)
        self.known[users, items] = 1.0
        self.table[users, items] = self.values


def read_movielens(path: Path) -> Ratings:
    """Return MovieLens 100k from `u.data.gz`: user, item, rating and time by tabs, numbers from 1."""
    columns = torch.from_numpy(np.loadtxt(path, np.int64, delimiter="\t", usecols=(0, 1, 2)))
    return Ratings(columns[:, 0] - 1, columns[:, 1] - 1, columns[:, 2].float())


def read_jester(path: Path, users: int = 1000) -> Ratings:
    """Return the first `users` users of `jester-data-1.zip`: 99 is a joke not rated; ratings in -10..10."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        lines = [line.decode("utf-8-sig") for line in itertools.islice(file, users)]
    table = torch.from_numpy(np.loadtxt(lines, np.float32, delimiter=",")[:, 1:])
    user, joke = torch.nonzero(table != 99, as_tuple=True)
    return Ratings(user, joke, table[user, joke])


def generated_ratings(
    users: int = 943, items: int = 1682, ratings: int = 100_000, rank: int = 30, seed: int = 0
) -> Ratings:
    """Return ratings with noise, made of factors that matter less and less.

    Some users and items have many, most have few.
    """
    generator = torch.Generator().manual_seed(seed)
    often = torch.outer(
        torch.rand(users, generator=generator) ** 2, torch.rand(items, generator=generator) ** 3
    )
    cells = torch.multinomial((often + 1e-3).flatten(), min(ratings, users * items // 2), generator=generator)
    user, item = cells // items, cells % items
    less = 1.0 / torch.arange(1, rank + 1).sqrt()  # no end of the factors is sharp
    left = torch.randn(users, rank, generator=generator) * less
    right = torch.randn(items, rank, generator=generator)
    values = (left[user] * right[item]).sum(1) / 2.0
    return Ratings(user, item, values + 0.5 * torch.randn(len(values), generator=generator))


class Documents:
    """Words of documents: int32 [documents, longest], -1 behind the last one; `terms`: how many there are."""

    def __init__(self, documents: list[np.ndarray]) -> None:
        documents = [words for words in documents if len(words)]
        self.words = np.full((len(documents), max(map(len, documents))), -1, np.int32)
        for row, words in zip(self.words, documents, strict=True):
            row[: len(words)] = words
        self.terms = int(self.words.max()) + 1

    @property
    def tokens(self) -> int:
        return int((self.words >= 0).sum())


def read_ldac(path: Path, documents: int | None = None, frequent: int = 0) -> Documents:
    """Return documents in LDA-C's format (`N id:count ...` a line), gzipped or not.

    `documents` of them, evenly spaced (they may be in the order of their classes), all for None; without the
    `frequent` terms that most documents have.
    """
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = text.decode("ascii").splitlines()
    if documents is not None:
        lines = lines[:: max(1, len(lines) // documents)][:documents]
    pairs = [
        np.array([pair.split(":") for pair in line.split()[1:]], np.int64).reshape(-1, 2) for line in lines
    ]
    seen = np.bincount(np.concatenate([pair[:, 0] for pair in pairs]))
    place = np.cumsum(seen > 0) - 1
    dropped = np.argsort(-seen, kind="stable")[:frequent]
    kept = [pair[~np.isin(pair[:, 0], dropped)] for pair in pairs]
    return Documents([place[np.repeat(pair[:, 0], pair[:, 1])] for pair in kept])


def generated_documents(
    documents: int = 395, terms: int = 4000, words: int = 200, topics: int = 20, seed: int = 0
) -> Documents:
    """Return documents drawn from LDA's model, of different lengths."""
    generator = np.random.default_rng(seed)
    by_topic = generator.dirichlet(np.full(terms, 0.05), topics)
    made = []
    for length in generator.geometric(1 / words, documents) + 10:
        drawn = generator.choice(topics, length, p=generator.dirichlet(np.full(topics, 0.1)))
        made.append(
            np.concatenate(
                [generator.choice(terms, n, p=by_topic[t]) for t, n in enumerate(np.bincount(drawn))]
            )
        )
    return Documents([generator.permutation(words) for words in made])
