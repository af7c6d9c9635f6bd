"""Records of finished units on disk, so that a study that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Records:
    """A JSON file a unit: `folder/experiment/cell/seed.json`, written whole or not at all.

    A record holds what it was made from; one made from anything else counts as missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, experiment: str, cell: str, seed: int) -> Path:
        """Return the file of a unit."""
        return self._folder / experiment / cell / f"{seed}.json"

    def read(self, experiment: str, cell: str, seed: int, made_from: str) -> dict[str, Any] | None:
        """Return a unit's record; None if there is none that was made from the same."""
        try:
            record: dict[str, Any] = json.loads(self.path(experiment, cell, seed).read_text("utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return record if record.get("made_from") == made_from else None

    def write(self, experiment: str, cell: str, seed: int, record: Mapping[str, Any]) -> None:
        """Write a unit's record."""
        path = self.path(experiment, cell, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(record), "utf-8")
        os.replace(part, path)

    def all(self, experiment: str) -> dict[str, list[dict[str, Any]]]:
        """Return the records of an experiment, ascending by seed, by cell."""
        found: dict[str, list[dict[str, Any]]] = {}
        for path in (self._folder / experiment).glob("*/*.json"):
            found.setdefault(path.parent.name, []).append(json.loads(path.read_text("utf-8")))
        return {cell: sorted(found[cell], key=lambda record: record["seed"]) for cell in sorted(found)}


def fingerprint(*parts: object) -> str:
    """Return a digest of the `repr` of `parts`."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:16]
