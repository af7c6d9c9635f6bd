"""The tables of a model, native or attached, as the recovery manager needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cpr_native.attachment import Attachment
from cpr_native.policy import Drift, Mfu, Policy, Ssu, prioritised_tables
from cpr_native.recovery.gang import Gang
from cpr_native.recovery.group import ModuleGroup
from cpr_native.recovery.parts import Part, Tracked, check_parts, find_parts, optimizer_of, seed_of
from cpr_native.store import CollectionSchema, Placement, ShardRows, TableSchema


class TrainedCollection:
    """Finds the tables of a model and describes them.

    `parts`: its engine modules, or its attachment; `module`: the one, or several as one; `engine`: the
    native collection, or several as one; `keys`: entries of `model.state_dict()` that are its tables;
    `own`: of these tables; `schema`: what a checkpoint of it is compared with, with the tables of all
    processes of a `gang`; `row_states`: the attachment, None without;
    `looked_up`: which tables have lookups, so that the trackers of use know their rows. Raises ValueError
    when the model has none, or some that one checkpoint cannot hold.
    """

    def __init__(self, model: torch.nn.Module, gang: Gang | None = None) -> None:
        self._model = model
        self._gang = gang
        self.parts = find_parts(model)
        check_parts(self.parts)
        only = self.parts[0].module
        self.module: Tracked | ModuleGroup = only if len(self.parts) == 1 else ModuleGroup(self.parts)
        self.engine = self.module.engine
        self.keys = frozenset(key for part in self.parts for key in part.keys)
        self.row_states = only if isinstance(only, Attachment) else None
        self._trackers = [trackers for part in self.parts for trackers in part.module.plan.trackers]
        states = self.row_states
        self.looked_up = [True] * len(self._trackers) if states is None else states.looked_up
        optimizer, initial_state = optimizer_of(only.plan.optimizer)
        self.own = CollectionSchema(
            tables=tuple(schema for part in self.parts for schema in _schemas(part)),
            optimizer=optimizer,
            seed=seed_of(self.parts),
            initial_state=initial_state,
        )
        self._of_shards = [self.own] if gang is None else gang.gather(self.own)
        self.schema = joined(self._of_shards)

    def sync(self) -> None:
        """Take the parameters as they are now; ValueError when the model's engines are not those of then."""
        self.module.sync()
        now = find_parts(self._model)
        if [(part.path, part.engine) for part in now] == [(part.path, part.engine) for part in self.parts]:
            return
        raise ValueError(
            "the embedding modules are not those that the manager was made with: expected "
            f"{[part.path for part in self.parts]}, got {[part.path for part in now]}, or one has another "
            "engine (a dtype or device that changed); make the manager after all changes"
        )

    def placement(self, shards: int) -> Placement:
        """Return which shard has which rows: of embeddings alone equal blocks, else about as many numbers."""
        if self._gang is not None:
            homes = enumerate(self._of_shards)
            of_tables = {table.name: shard for shard, schema in homes for table in schema.tables}
            return Placement(strategy="table_wise", shards=shards, first=of_tables)
        if all(self.looked_up):
            return Placement.contiguous(self.schema, shards)
        return Placement.balanced(self.schema, shards)

    def blocks(self, placement: Placement) -> list[ShardRows]:
        """Return where the rows of each table lie, for the engine and the ledger."""
        return [placement.shard_rows(self.schema, table.name) for table in self.own.tables]

    def check(self, policy: Policy) -> None:
        """Raise ValueError unless the tables' trackers and optimizer can do what `policy` needs."""
        for table, trackers, counted in zip(self.own.tables, self._trackers, self.looked_up, strict=True):
            if not trackers.dirty:
                raise ValueError(f"table {table.name!r}: saving needs the dirty tracker, it is off")
            if policy.recovery == "partial" and counted and not trackers.mfu:
                raise ValueError(f"table {table.name!r}: partial recovery needs the mfu tracker, it is off")
        if policy.recovery == "partial":
            self._check_rows(policy)
        if isinstance(policy, Mfu | Ssu | Drift):
            for index in prioritised_tables(self.engine.tables, policy.row_share):
                if not self.looked_up[index]:
                    raise ValueError(
                        f"table {self.own.tables[index].name!r}: {type(policy).__name__}() ranks rows by "
                        f"their lookups or fused steps, and it has none: use Scar(fraction={policy.fraction})"
                    )
        if isinstance(policy, Drift):
            for index in prioritised_tables(self.engine.tables, policy.row_share):
                if not self._trackers[index].drift:
                    raise ValueError(
                        f"table {self.own.tables[index].name!r}: Drift() needs Trackers(drift=True), got "
                        f"{self._trackers[index]}"
                    )
        if isinstance(policy, Ssu):
            for index in prioritised_tables(self.engine.tables, policy.row_share):
                trackers = self._trackers[index]
                if not trackers.ssu or trackers.ssu_fraction != policy.fraction:
                    raise ValueError(
                        f"table {self.own.tables[index].name!r}: Ssu(fraction={policy.fraction}) needs "
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


def joined(schemas: Sequence[CollectionSchema]) -> CollectionSchema:
    """Return the schema of the tables of all shards; ValueError where no checkpoint can hold them."""
    first = schemas[0]
    for shard, schema in enumerate(schemas):
        for name in ("optimizer", "seed", "initial_state"):
            expected, got = getattr(first, name), getattr(schema, name)
            if expected != got:
                raise ValueError(f"{name} of the tables of shard {shard}: expected {expected}, got {got}")
    return replace(first, tables=tuple(table for schema in schemas for table in schema.tables))


def _schemas(part: Part) -> list[TableSchema]:
    schemas = []
    for index, (name, config) in enumerate(zip(part.names, part.module.plan.tables, strict=True)):
        low, high = config.init_range
        schemas.append(
            TableSchema(
                name=name,
                rows=config.num_embeddings,
                dim=config.embedding_dim,
                init_min=low,
                init_max=high,
                dtype=config.data_type.dtype,
                state_columns=part.engine.state_columns(index),
            )
        )
    return schemas
