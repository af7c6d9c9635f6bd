"""The blocks of a model: which elements of which parameter are saved and lost as one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Real = TypeVar("Real", np.float32, np.float64)
Blocks = Literal["rows", "tensors"] | int


@dataclass(frozen=True, kw_only=True)
class BlockTable:
    """Blocks of one size that are ranked together, as `cpr_native.attach` makes them.

    They are elements [begin, begin + rows * dim) of the flat parameter `name`, one after the other.
    """

    name: str
    begin: int
    rows: int
    dim: int

    @property
    def num_embeddings(self) -> int:
        """Number of blocks: what a policy reads of a table."""
        return self.rows

    def of(self, flat: NDArray[Real]) -> NDArray[Real]:
        """Return the blocks, [..., rows, dim], aliased, of an array [..., elements of the parameter]."""
        end = self.begin + self.rows * self.dim
        return flat[..., self.begin : end].reshape(*flat.shape[:-1], self.rows, self.dim)


def tables_of(shapes: Mapping[str, Sequence[int]], blocks: Blocks) -> tuple[BlockTable, ...]:
    """Return the tables of parameters of `shapes`, in their order."""
    return tuple(table for name, shape in shapes.items() for table in _tables(name, shape, blocks))


def _tables(name: str, shape: Sequence[int], blocks: Blocks) -> Iterator[BlockTable]:
    elements = int(np.prod(shape))
    if isinstance(blocks, int):
        whole, rest = divmod(elements, blocks)
        if whole:
            yield BlockTable(name=name, begin=0, rows=whole, dim=blocks)
        if rest:
            yield BlockTable(name=name, begin=elements - rest, rows=1, dim=rest)
        return
    rows = shape[0] if blocks == "rows" and len(shape) > 1 else 1
    yield BlockTable(name=name, begin=0, rows=rows, dim=elements // rows)


def bounds(tables: Sequence[BlockTable]) -> list[slice]:
    """Return where the blocks of each table are among all blocks."""
    ends = np.cumsum([0, *(table.rows for table in tables)])
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]


def draw_lost(
    tables: Sequence[BlockTable], shares: Sequence[float], seed: Sequence[int], *, aligned: bool
) -> dict[float, Mask]:
    """Return the blocks that are lost, drawn evenly, for each share of them; a larger share holds a smaller.

    `aligned`: what is lost is a row of every table, by its number. Masks are [all blocks].
    """
    rows = tables[0].rows if aligned else sum(table.rows for table in tables)
    order = np.random.default_rng(list(seed)).permutation(rows)
    lost = {}
    for share in shares:
        mask = np.zeros(rows, np.bool_)
        mask[order[: round(share * rows)]] = True
        lost[share] = np.tile(mask, len(tables)) if aligned else mask
    return lost
