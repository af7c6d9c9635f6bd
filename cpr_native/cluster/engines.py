"""The native collections that hold a shard's rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection, Region, TableSpec
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.optim import Adagrad, RowWiseAdagrad, native_scalars


def build_engine(
    spec: ClusterSpec,
    members: Sequence[int],
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    region: Region | None,
) -> Collection:
    """Return a collection of the tables `members` (numbers in `spec`) with all rows at their initial values.

    `begins`, `sizes`: int64 [tables of the spec], the global rows that it holds of each. `region`: shared
    memory to build it in, whose rows it has as they are if an earlier process left some.
    """
    specs = []
    for index in members:
        config, trackers = spec.tables[index], spec.trackers[index]
        low, high = config.init_range
        specs.append(
            TableSpec(
                name=config.name,
                num_embeddings=int(sizes[index]),
                embedding_dim=config.embedding_dim,
                pooling="none",
                row_offset=int(begins[index]),
                init_min=low,
                init_max=high,
                dirty=trackers.dirty,
                mfu=trackers.mfu,
                ssu=trackers.ssu,
                drift=trackers.drift,
                ssu_fraction=trackers.ssu_fraction,
                ssu_period=trackers.ssu_period,
                dtype=config.data_type.dtype,
            )
        )
    settings = native_scalars(spec.optimizer)
    if isinstance(spec.optimizer, RowWiseAdagrad | Adagrad):
        settings["initial_state"] = spec.optimizer.initial_accumulator
    return Collection(
        specs,
        range(len(specs)),
        optimizer=spec.optimizer.name,
        **settings,
        seed=spec.seed,
        max_staging_bytes=spec.max_staging_bytes,
        region=region,
    )
