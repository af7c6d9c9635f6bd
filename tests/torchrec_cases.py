"""TorchRec's collections beside ours, with the same tables, weights and batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.modules import embedding_configs
from torchrec.modules.embedding_modules import EmbeddingBagCollection as TorchRecBags
from torchrec.modules.embedding_modules import EmbeddingCollection as TorchRecRows
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from cpr_native import EmbeddingBagConfig, EmbeddingConfig


def torchrec_bags(tables: Sequence[EmbeddingBagConfig], *, weighted: bool = False) -> TorchRecBags:
    """TorchRec's EmbeddingBagCollection of the same tables."""
    return TorchRecBags(
        [
            embedding_configs.EmbeddingBagConfig(
                name=table.name,
                num_embeddings=table.num_embeddings,
                embedding_dim=table.embedding_dim,
                feature_names=list(table.feature_names),
                pooling=embedding_configs.PoolingType(table.pooling.value),
                data_type=embedding_configs.DataType(table.data_type.value),
                weight_init_min=table.weight_init_min,
                weight_init_max=table.weight_init_max,
            )
            for table in tables
        ],
        is_weighted=weighted,
    )


def torchrec_rows(tables: Sequence[EmbeddingConfig], *, need_indices: bool = False) -> TorchRecRows:
    """TorchRec's EmbeddingCollection of the same tables."""
    return TorchRecRows(
        [
            embedding_configs.EmbeddingConfig(
                name=table.name,
                num_embeddings=table.num_embeddings,
                embedding_dim=table.embedding_dim,
                feature_names=list(table.feature_names),
            )
            for table in tables
        ],
        need_indices=need_indices,
    )


def jagged(
    sizes: dict[str, int], batch: int, *, weighted: bool = False, longest: int = 5, seed: int = 1
) -> KeyedJaggedTensor:
    """Bags of 0 to `longest` ids below `sizes[key]` for each key."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (len(sizes), batch), generator=generator)
    ids = [
        torch.randint(0, rows, (int(own.sum()),), generator=generator)
        for rows, own in zip(sizes.values(), lengths, strict=True)
    ]
    values = torch.cat(ids)
    weights = torch.rand(values.shape, generator=generator) if weighted else None
    return KeyedJaggedTensor(keys=list(sizes), values=values, lengths=lengths.reshape(-1), weights=weights)


def share_weights(source: nn.Module, target: nn.Module) -> None:
    """Give `target` a copy of the weights of `source`; their keys must be the same."""
    target.load_state_dict({key: value.clone() for key, value in source.state_dict().items()}, strict=True)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """The gradient of every parameter, dense; zeros without one."""
    found = {}
    for name, parameter in module.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found[name] = grad.to_dense() if grad.is_sparse else grad
    return found
