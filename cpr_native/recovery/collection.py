"""The engine module of a model, as the recovery manager needs it."""

from __future__ import annotations

import torch

from cpr_native.modules import EngineModule
from cpr_native.optim import Adagrad, RowWiseAdagrad
from cpr_native.policy import Policy, Ssu, prioritised_tables
from cpr_native.store import CollectionSchema, Placement, TableSchema


class TrainedCollection:
    """Finds the one engine module of a model and describes it.

    `module`, `engine`: the module and its native collection; `keys`: entries of `model.state_dict()` that
    are its tables; `features[f]`: table of feature f; `schema`: what a checkpoint of it is compared with.
    Raises ValueError when the model has no engine module or several.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        found = [(name, module) for name, module in model.named_modules() if isinstance(module, EngineModule)]
        if len(found) != 1:
            raise ValueError(
                "expected a model with exactly one EmbeddingBagCollection, EmbeddingBag or Embedding, got "
                f"{[name for name, _ in found]}; put all tables into one EmbeddingBagCollection"
            )
        name, self.module = found[0]
        self.engine = self.module.engine
        settings = self.module.plan
        prefix = f"{name}." if name else ""
        self.keys = frozenset(prefix + key for key in self.module.state_dict())
        self.features = settings.features
        self._trackers = settings.trackers
        tables = []
        for config in settings.tables:
            low, high = config.init_range
            tables.append(
                TableSchema(
                    name=config.name,
                    rows=config.num_embeddings,
                    dim=config.embedding_dim,
                    init_min=low,
                    init_max=high,
                )
            )
        optimizer, initial_state = settings.optimizer, 0.0
        if isinstance(optimizer, RowWiseAdagrad | Adagrad):
            initial_state = optimizer.initial_accumulator
        self.schema = CollectionSchema(
            tables=tuple(tables),
            optimizer="none" if optimizer is None else optimizer.name,
            seed=settings.seed,
            initial_state=initial_state,
        )

    def blocks(self, placement: Placement) -> list[int]:
        """Return the rows per shard of each table."""
        return [placement.blocks[table.name] for table in self.schema.tables]

    def check(self, policy: Policy) -> None:
        """Raise ValueError unless the tables' trackers and optimizer can do what `policy` needs."""
        for table, trackers in zip(self.schema.tables, self._trackers, strict=True):
            if not trackers.dirty:
                raise ValueError(f"table {table.name!r}: saving needs the dirty tracker, it is off")
            if policy.recovery == "partial" and not trackers.mfu:
                raise ValueError(f"table {table.name!r}: partial recovery needs the mfu tracker, it is off")
        if policy.recovery == "partial" and not self.module.fused:
            raise ValueError(
                f"policy {policy.name!r}: partial recovery restores a row with its optimizer state, which "
                "a torch optimizer keeps elsewhere; use a fused optimizer, or Full() or Delta()"
            )
        if isinstance(policy, Ssu):
            for index in prioritised_tables(self.engine.tables, policy.row_share):
                trackers = self._trackers[index]
                if not trackers.ssu or trackers.ssu_fraction != policy.fraction:
                    raise ValueError(
                        f"table {self.schema.tables[index].name!r}: Ssu(fraction={policy.fraction}) needs "
                        f"Trackers(ssu=True, ssu_fraction={policy.fraction}), got {trackers}"
                    )
