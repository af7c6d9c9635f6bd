"""What a checkpoint is of: tables and optimizer; written into every manifest, compared at open."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cpr_native.errors import SchemaMismatchError
from cpr_native.store.checks import check_count, check_float, check_text, exact_fields

# dtype of the weights -> dtype of the NumPy arrays that hold them.
WEIGHT_ARRAYS = {"float32": "float32", "float16": "float16", "bfloat16": "uint16", "float64": "float64"}
OPTIMIZERS = ("none", "sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam")


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """One embedding table: `rows` x `dim` weights, initial rows uniform in [`init_min`, `init_max`).

    dtype: of the weights, "float32", "float16", "bfloat16" or "float64"; NumPy has no bfloat16, arrays of it
    are uint16 bit patterns. state_columns: float32 values of optimizer state a row; None, until a
    `CollectionSchema` replaces it, for those of the collection's optimizer. They differ only under "none":
    state of torch's optimizers that is saved with the rows.
    """

    name: str
    rows: int
    dim: int
    init_min: float
    init_max: float
    dtype: str = "float32"
    state_columns: int | None = None

    def __post_init__(self) -> None:
        check_text("table name", self.name)
        check_count(f"table {self.name!r}: rows", self.rows, 1)
        check_count(f"table {self.name!r}: dim", self.dim, 1)
        check_float(f"table {self.name!r}: init_min", self.init_min)
        check_float(f"table {self.name!r}: init_max", self.init_max)
        if self.dtype not in WEIGHT_ARRAYS:
            raise ValueError(
                f"table {self.name!r}: dtype: expected one of {list(WEIGHT_ARRAYS)}, got {self.dtype!r}"
            )
        if self.state_columns is not None:
            check_count(f"table {self.name!r}: state_columns", self.state_columns, 0)

    @property
    def weight_array(self) -> str:
        """NumPy's dtype of arrays of weights."""
        return WEIGHT_ARRAYS[self.dtype]

    def state_shape(self, rows: int) -> tuple[int, ...] | None:
        """Returns the shape of the state of `rows` rows: [rows] for one column, [rows, columns], or None."""
        if not self.state_columns:
            return None
        return (rows,) if self.state_columns == 1 else (rows, self.state_columns)


def _columns(optimizer: str, dim: int) -> int:
    """Returns the float32 values of state that a fused optimizer keeps of a row."""
    return {"row_wise_adagrad": 1, "adagrad": dim, "adam": 2 * dim, "partial_row_wise_adam": dim + 1}.get(
        optimizer, 0
    )


@dataclass(frozen=True, kw_only=True)
class CollectionSchema:
    """The tables of a collection, the name of its optimizer, and what its initial rows are a function of.

    `optimizer` is "none" or that of the engine: "sgd", "row_wise_adagrad", "adagrad", "adam" or
    "partial_row_wise_adam"; `initial_state` is what each value of a row's state is at first.
    """

    tables: tuple[TableSchema, ...]
    optimizer: str
    seed: int = 0
    initial_state: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.tables, tuple) or not self.tables:
            raise ValueError(f"tables: expected a tuple of at least one TableSchema, got {self.tables!r}")
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names):
            raise ValueError(f"tables: names must differ, got {names}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer: expected one of {list(OPTIMIZERS)}, got {self.optimizer!r}")
        object.__setattr__(self, "tables", tuple(self._completed(table) for table in self.tables))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed: expected an int, got {type(self.seed).__name__}")
        check_float("initial_state", self.initial_state)

    def _completed(self, table: TableSchema) -> TableSchema:
        columns = _columns(self.optimizer, table.dim)
        if table.state_columns is None:
            table = replace(table, state_columns=columns)
        if self.optimizer != "none" and table.state_columns != columns:
            raise ValueError(
                f"table {table.name!r}: state_columns: expected {columns} under {self.optimizer}, got "
                f"{table.state_columns}"
            )
        if self.optimizer != "none" and table.dtype == "float64":
            raise ValueError(f"table {table.name!r}: float64: expected optimizer none, got {self.optimizer}")
        return table

    def table(self, name: str) -> TableSchema:
        """Returns the table called `name`; raises KeyError."""
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Returns the schema as JSON values; `from_json` gives an equal schema."""
        data = asdict(self)
        data["tables"] = list(data["tables"])
        return data

    @functools.cached_property
    def json_text(self) -> str:
        """`to_json` as a manifest has it: every commit has the same."""
        return json_text(self.to_json())

    @classmethod
    def from_json(cls, data: object, *, typed: bool = True) -> CollectionSchema:
        """Returns the schema that `to_json` wrote; raises ValueError or TypeError for anything else.

        typed: whether the tables say dtype and state columns, which those of the first version do not.
        """
        values = dict(exact_fields("schema", data, [field.name for field in fields(cls)]))
        if not isinstance(values["tables"], list):
            raise TypeError("schema: tables must be a list")
        untyped = () if typed else ("dtype", "state_columns")
        names = [field.name for field in fields(TableSchema) if field.name not in untyped]
        values["tables"] = tuple(
            TableSchema(**exact_fields("schema table", table, names)) for table in values["tables"]
        )
        return cls(**values)

    def check_same(self, other: CollectionSchema, where: str) -> None:
        """Raises SchemaMismatchError naming table and field unless `other`, read from `where`, is equal."""
        ours, theirs = [t.name for t in self.tables], [t.name for t in other.tables]
        if ours != theirs:
            raise SchemaMismatchError(f"{where}: tables: expected {ours}, got {theirs}")
        for name in ("optimizer", "seed", "initial_state"):
            expected, got = getattr(self, name), getattr(other, name)
            if expected != got:
                raise SchemaMismatchError(f"{where}: {name}: expected {expected}, got {got}")
        for mine, table in zip(self.tables, other.tables, strict=True):
            for field in fields(TableSchema):
                expected, got = getattr(mine, field.name), getattr(table, field.name)
                if expected != got:
                    raise SchemaMismatchError(
                        f"{where}: table {mine.name!r}: {field.name}: expected {expected}, got {got}"
                    )


def json_text(value: object) -> str:
    """Returns JSON values as text inside a manifest: sorted keys, a space a level, one level in."""
    plain = not isinstance(value, dict | list)  # which the encoder in C takes
    return json.dumps(value, sort_keys=True, indent=None if plain else 1, allow_nan=False).replace(
        "\n", "\n "
    )
