"""DLRM: bottom MLP, embedding tables, dot interaction, top MLP.

Source: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
arXiv 1906.00091, section 2, and its public PyTorch code (initial weights of the MLPs, lower triangle of the
dots).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from cpr_native.config import EmbeddingBagConfig, Trackers
from cpr_native.modules import EmbeddingBagCollection
from cpr_native.optim import FusedOptimizer


@dataclass(frozen=True, kw_only=True)
class DLRMConfig:
    """Shape of a DLRM.

    Args:
        dense_features: width of the dense input, at least 1.
        embedding_dim: floats a row in every table, at least 1.
        bottom: widths of the bottom MLP's layers; the last is `embedding_dim`.
        top: widths of the top MLP's layers; the last is 1, the logit.

    Raises:
        ValueError: a width is below 1, or a last width is not as said.
    """

    dense_features: int = 13
    embedding_dim: int = 16
    bottom: Sequence[int] = (512, 256, 64, 16)
    top: Sequence[int] = (512, 256, 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bottom", tuple(self.bottom))
        object.__setattr__(self, "top", tuple(self.top))
        for name, widths in (
            ("dense_features", (self.dense_features,)),
            ("embedding_dim", (self.embedding_dim,)),
            ("bottom", self.bottom),
            ("top", self.top),
        ):
            if not widths or min(widths) < 1:
                raise ValueError(f"{name}: expected widths of at least 1, got {widths}")
        if self.bottom[-1] != self.embedding_dim:
            raise ValueError(
                f"bottom: expected a last width of embedding_dim = {self.embedding_dim}, got {self.bottom}"
            )
        if self.top[-1] != 1:
            raise ValueError(f"top: expected a last width of 1, got {self.top}")


class DLRM(nn.Module):
    """Click model over a collection of tables; parameters `bottom.*`, `top.*` and the collection's own."""

    def __init__(self, config: DLRMConfig, embeddings: nn.Module, *, features: int, seed: int = 0) -> None:
        """Build the MLPs around `embeddings`.

        Args:
            config: widths.
            embeddings: called as `embeddings(ids, offsets)`, returns float32 [B, features * embedding_dim];
                kept as `self.embeddings`, not copied.
            features: number of categorical features, at least 1.
            seed: of the MLPs' initial weights; torch's global random state is neither read nor changed.

        Raises:
            ValueError: `features` is below 1.
        """
        super().__init__()
        if features < 1:
            raise ValueError(f"features: expected at least 1, got {features}")
        generator = torch.Generator().manual_seed(seed)
        vectors = features + 1
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        interactions = rows.numel() + config.embedding_dim
        self.config = config
        self._vectors = vectors
        self.embeddings = embeddings
        self.bottom = _mlp((config.dense_features, *config.bottom), generator, last_relu=True)
        self.top = _mlp((interactions, *config.top), generator, last_relu=False)
        self.register_buffer("_pairs", rows * vectors + columns, persistent=False)
        self._pairs: Tensor

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return the logits, float32 [B].

        Args:
            dense: float32 [B, dense_features].
            ids: int64 or int32 [any], feature-major.
            offsets: int64 or int32 [features * B + 1].

        Raises:
            ValueError: `dense` has another shape or number of samples. The collection checks ids and offsets.
        """
        if dense.ndim != 2 or dense.shape[1] != self.config.dense_features:
            raise ValueError(
                f"dense: expected shape [B, {self.config.dense_features}], got {list(dense.shape)}"
            )
        pooled = self.embeddings(ids, offsets)
        if pooled.shape[0] != dense.shape[0]:
            raise ValueError(f"dense has {dense.shape[0]} samples, ids and offsets have {pooled.shape[0]}")
        bottom = self.bottom(dense)
        shape = (dense.shape[0], self._vectors, self.config.embedding_dim)
        vectors = torch.cat((bottom, pooled), dim=1).view(shape)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        logits: Tensor = self.top(torch.cat((bottom, dots.index_select(1, self._pairs)), dim=1))
        return logits.squeeze(1)

    def dense_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of both MLPs, for the dense optimizer; the tables are not among them."""
        return [*self.bottom.parameters(), *self.top.parameters()]


def build_dlrm(
    config: DLRMConfig,
    table_sizes: Sequence[int],
    *,
    optimizer: FusedOptimizer | None,
    trackers: Trackers | None = None,
    seed: int = 0,
) -> DLRM:
    """Return a DLRM over one table per feature, named C1, C2, ...

    Args:
        config: widths.
        table_sizes: rows of each table.
        optimizer: the tables' fused optimizer; None for a torch optimizer over sparse gradients.
        trackers: of every table; `Trackers()` when None.
        seed: of the tables' and the MLPs' initial weights.

    Raises:
        ValueError: a size is below 1.
    """
    tables = [
        EmbeddingBagConfig(
            name=f"C{table}",
            num_embeddings=size,
            embedding_dim=config.embedding_dim,
            feature_names=(f"C{table}",),
        )
        for table, size in enumerate(table_sizes, start=1)
    ]
    collection = EmbeddingBagCollection(
        tables, optimizer=optimizer, trackers=trackers or Trackers(), seed=seed
    )
    return DLRM(config, collection, features=len(tables), seed=seed)


def _mlp(widths: Sequence[int], generator: torch.Generator, *, last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        linear = nn.Linear(fan_in, fan_out, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            linear.weight.normal_(0.0, math.sqrt(2.0 / (fan_in + fan_out)), generator=generator)
            linear.bias.normal_(0.0, math.sqrt(1.0 / fan_out), generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))
