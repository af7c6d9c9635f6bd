"""Reads `results.json` back, strictly: a field too many, too few or of another type is named."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from cpr_native.emulate.results import VERSION, Results

_Record = TypeVar("_Record")
_NEEDED = {"total_hours": float, "target_pls": float}


def read_results(path: str | os.PathLike[str]) -> Results:
    """The results in a file that `write_results` wrote.

    Raises:
        ValueError: it is not such a file; the message names file and place.
        OSError: it can't be read.
    """
    try:
        content = json.loads(Path(path).read_bytes().decode("utf-8"), parse_constant=_no_constant)
        return parse_results(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def parse_results(content: object) -> Results:
    """The results whose `to_dict` is `content`.

    Raises:
        ValueError: there are none; the message names the place.
    """
    if not isinstance(content, dict):
        raise ValueError(f"expected an object, got {type(content).__name__}")
    version = content.get("version")
    if type(version) is not int or version != VERSION:
        found = "no version" if version is None else f"version {version!r}"
        raise ValueError(f"this release reads results of version {VERSION}, got {found}; run it again")
    fields = {name: value for name, value in content.items() if name != "version"}
    results = _record(Results, fields, "")
    for name, kind in _NEEDED.items():
        if name not in results.config:
            raise ValueError(f"config.{name} is missing")
        _value(kind, results.config[name], f"config.{name}")
    if results.config["total_hours"] <= 0:
        raise ValueError(f"config.total_hours must be positive, got {results.config['total_hours']}")
    return results


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _record(kind: type[_Record], value: object, where: str) -> _Record:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got {type(value).__name__}")
    types = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    dot = f"{where}." if where else ""
    for name in names:
        if name not in value:
            raise ValueError(f"{dot}{name} is missing")
    for name in value:
        if name not in names:
            raise ValueError(f"{dot}{name} is unknown")
    parsed = {name: _value(types[name], value[name], dot + name) for name in names}
    try:
        return kind(**parsed)
    except ValueError as error:
        raise ValueError(f"{where or 'results'}: {error}") from None


def _value(kind: Any, value: object, where: str) -> Any:
    """Return `value`, a JSON value, as `kind` wants it: a record, a tuple, a number, text or a mapping."""
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)  # type: ignore[arg-type]
    origin = get_origin(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: expected a list, got {type(value).__name__}")
        member = get_args(kind)[0]
        return tuple(_value(member, part, f"{where}[{index}]") for index, part in enumerate(value))
    if origin is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{where}: expected one of {', '.join(get_args(kind))}, got {value!r}")
        return value
    expected = {float: (int, float), int: (int,), str: (str,)}.get(kind, (dict,))
    if not isinstance(value, expected) or isinstance(value, bool):
        wanted = {float: "a number", int: "a whole number", str: "a text"}.get(kind, "an object")
        raise ValueError(f"{where}: expected {wanted}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: expected a finite number, got {value!r}")
    return value
