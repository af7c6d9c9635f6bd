"""Check of the kernels' object files: nothing in them can be taken by the linker for another instruction set.

The kernels are one source compiled once per level (base, avx2, avx512). An inline function of a shared
header that is not inlined becomes a weak symbol, of which the linker keeps one: compiled for AVX-512, say,
and called on every machine. So an object exports its table of kernels and nothing else (its other code is
static), defines no weak symbol and uses no C++ function of another object.

    python tests/kernel_symbols.py BUILD_FOLDER...
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def level_of(path: Path) -> str:
    """The level that an object was compiled for, from the name of its CMake target's folder."""
    match = re.search(r"cpr_kernels_(\w+)\.dir", path.as_posix())
    if match is None:
        raise ValueError(f"expected an object of a target cpr_kernels_<level>, got {path}")
    return match[1]


def faults(path: Path, level: str) -> list[str]:
    """What is wrong with the symbols of one object, one sentence each."""
    listing = subprocess.run(["nm", "-P", str(path)], check=True, capture_output=True, text=True).stdout
    table = f"_ZN3cpr3cpu{len(level)}{level}5tableE"
    found = []
    for line in listing.splitlines():
        name, kind = line.split()[:2]
        if kind in "WVu":
            found.append(f"weak symbol {name}")
        elif kind == "U":
            if name.startswith("_Z"):
                found.append(f"use of the C++ symbol {name} of another object")
        elif kind.isupper() and name != table:
            found.append(f"exported symbol {name}")
    if f"{table} " not in listing:
        found.append(f"no table {table}")
    return found


def main(folders: list[str]) -> int:
    """Print the faults of all kernel objects below `folders`; 1 if there are any, or no object."""
    objects = sorted(path for folder in folders for path in Path(folder).glob("**/cpr_kernels_*.dir/**/*.o"))
    if not objects:
        print(f"no object of a target cpr_kernels_<level> below {folders}")
        return 1
    bad = 0
    for path in objects:
        for fault in faults(path, level_of(path)):
            print(f"{path}: {fault}")
            bad = 1
    if not bad:
        print("kernel objects without a fault:", ", ".join(level_of(path) for path in objects))
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
