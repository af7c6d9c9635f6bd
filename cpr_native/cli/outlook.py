"""What `cpr-native inspect --recovery` prints: every kind of recovery, and the ages of rows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from cpr_native.cli.output import console, new_table
from cpr_native.emulate.units import human_bytes
from cpr_native.store.outlook import Outlook

_BAR = 40  # characters of the longest bar


def recovery_dict(recoveries: Sequence[Outlook], ages: Mapping[int | None, int]) -> dict[str, Any]:
    """Both as JSON values; the age of rows that were never saved is null."""
    return {
        "recoveries": [dataclasses.asdict(each) for each in recoveries],
        "row_ages": [{"steps": age, "rows": rows} for age, rows in ages.items()],
    }


def print_recovery(recoveries: Sequence[Outlook], ages: Mapping[int | None, int]) -> None:
    """Print both as tables."""
    table = new_table("\nWhat a recovery would restore")
    for name in ("recovery", "to step", "commits", "rows read", "bytes"):
        table.add_column(name, justify="left" if name in ("recovery", "commits") else "right")
    for each in recoveries:
        if each.problem is None:
            kinds = ", ".join(f"{len(list(same))} {kind}" for kind, same in groupby(each.commits))
            table.add_row(each.recovery, f"{each.step:,}", kinds, f"{each.rows:,}", human_bytes(each.bytes))
        else:
            table.add_row(each.recovery, "-", each.problem, "-", "-")
    console().print(table)
    console().print(_histogram(ages))


def _histogram(ages: Mapping[int | None, int]) -> Any:
    """Rows by age, in classes that double; an age of 0 and rows never saved have one of their own."""
    classes: Counter[tuple[int, str]] = Counter()
    for age, rows in ages.items():
        classes[_age_class(age)] += rows
    table = new_table("\nRows by steps since their newest copy was taken, at the newest save")
    for name in ("steps", "rows"):
        table.add_column(name, justify="right")
    table.add_column("")
    most = max(classes.values(), default=1)
    for (_, label), rows in sorted(classes.items()):
        table.add_row(label, f"{rows:,}", "#" * max(1, round(_BAR * rows / most)))
    return table


def _age_class(age: int | None) -> tuple[int, str]:
    if age is None:
        return 2**62, "never saved"
    if age == 0:
        return 0, "0"
    least = 1 << (age.bit_length() - 1)
    return least, f"{least:,}" if least == 1 else f"{least:,}-{2 * least - 1:,}"
