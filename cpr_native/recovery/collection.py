"""The tables of a model, native or attached, as the recovery manager needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cpr_native._native import Collection
from cpr_native.attachment import Attachment, attachments_of
from cpr_native.modules import EngineModule
from cpr_native.optim import Adagrad, RowWiseAdagrad
from cpr_native.policy import Policy, Ssu, prioritised_tables
from cpr_native.store import CollectionSchema, Placement, TableSchema

if TYPE_CHECKING:
    from cpr_native.modules._base import UpdateObserver
    from cpr_native.modules._plan import EnginePlan


class Tracked(Protocol):
    """What an `EngineModule` and an `Attachment` have in common."""

    @property
    def engine(self) -> Collection:
        """The native collection."""
        ...

    @property
    def plan(self) -> EnginePlan:
        """Its settings."""
        ...

    @property
    def fused(self) -> bool:
        """Whether the engine itself writes the rows, so that it can copy them beside training."""
        ...

    def sync(self) -> None:
        """Take the parameters as they are now."""
        ...

    def observe_updates(self, observer: UpdateObserver | None) -> None:
        """Call `observer` for each update."""
        ...

    def optimizer_scalars(self) -> dict[str, Any]:
        """Return what the update depends on and is not of one row, as JSON values."""
        ...

    def load_optimizer_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Put back what `optimizer_scalars` returned."""
        ...


class TrainedCollection:
    """Finds the tables of a model and describes them.

    `module`, `engine`: the one engine module or attachment and its native collection; `keys`: entries of
    `model.state_dict()` that are its tables; `features[f]`: table of feature f; `schema`: what a checkpoint
    of it is compared with; `row_states`: the attachment, None without. Raises ValueError when the model has
    none or several.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.module, self.keys = _find(model)
        self.row_states = self.module if isinstance(self.module, Attachment) else None
        self.engine = self.module.engine
        settings = self.module.plan
        self.features = settings.features
        self._trackers = settings.trackers
        tables = []
        for index, config in enumerate(settings.tables):
            low, high = config.init_range
            tables.append(
                TableSchema(
                    name=config.name,
                    rows=config.num_embeddings,
                    dim=config.embedding_dim,
                    init_min=low,
                    init_max=high,
                    dtype=config.data_type.dtype,
                    state_columns=self.engine.state_columns(index),
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
        if policy.recovery == "partial":
            self._check_rows(policy)
        if isinstance(policy, Ssu):
            for index in prioritised_tables(self.engine.tables, policy.row_share):
                trackers = self._trackers[index]
                if not trackers.ssu or trackers.ssu_fraction != policy.fraction:
                    raise ValueError(
                        f"table {self.schema.tables[index].name!r}: Ssu(fraction={policy.fraction}) needs "
                        f"Trackers(ssu=True, ssu_fraction={policy.fraction}), got {trackers}"
                    )

    def _check_rows(self, policy: Policy) -> None:
        """Raise ValueError unless a row's record, weight and optimizer state, is whole in the engine."""
        missing = None if self.module.fused else "a torch optimizer keeps it elsewhere"
        if self.row_states is not None:
            missing = self.row_states.incomplete_rows()
        if missing is not None:
            raise ValueError(
                f"policy {policy.name!r}: partial recovery restores a row with its optimizer state, but "
                f"{missing}; use a fused optimizer or attach(model, optimizer=...), or Full() or Delta()"
            )


def _find(model: torch.nn.Module) -> tuple[Tracked, frozenset[str]]:
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, EngineModule)]
    attached = attachments_of(model)
    found = [name for name, _ in modules] + [f"attached {each.table_names}" for each in attached]
    if len(found) != 1:
        raise ValueError(
            "expected a model with exactly one EmbeddingBagCollection, EmbeddingBag or Embedding, or "
            f"attached as a whole, got {found}; put all tables into one EmbeddingBagCollection, or "
            "attach the model"
        )
    if attached:
        return attached[0], attached[0].keys(model)
    name, module = modules[0]
    prefix = f"{name}." if name else ""
    return module, frozenset(prefix + key for key in module.state_dict())
