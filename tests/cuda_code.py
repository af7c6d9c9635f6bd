"""Check of the compiled CUDA kernels, which needs no GPU: what nvcc made of them, read from the object files.

Of every kernel in the namespace cpr::cuda, in the machine code for sm_90:

- the hot ones (lookup, update) keep everything in registers: no stack, no access to local memory;
- those of them that read rows do it 16 bytes at a time;
- no two operations are fused: in PTX every addition and multiplication of floats says `.rn`, which no
  driver may contract, and no instruction is fused, approximate, flushing or an atomic of floats. Machine code
  has fused ones only in kernels whose PTX divides or takes a square root: NVIDIA's correctly rounded ones are
  made of them.

Registers, shared memory and the occupancy that they allow go into a table of docs/cuda.md.

    python tests/cuda_code.py BUILD_FOLDER...            checks, and compares the table
    python tests/cuda_code.py --write BUILD_FOLDER...    writes the table
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cuda_objects import ARCH, Kernel, read_kernels

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cuda.md"
BEGIN, END = "<!-- kernels: written by make cuda-code -->", "<!-- end of kernels -->"
HOT = re.compile(r"lookup|update")
WIDE = re.compile(r"lookup|update")  # those of the hot ones that read rows


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a multiprocessor of one generation holds (CUDA C++ Programming Guide, "Compute Capabilities")."""

    warps: int
    blocks: int
    shared: int  # bytes
    registers: int = 65536
    register_unit: int = 256  # of a warp
    shared_unit: int = 128
    schedulers: int = 4  # each has a quarter of warps and registers


LIMITS = {
    "sm_75": Limits(warps=32, blocks=16, shared=64 << 10, shared_unit=256),
    "sm_80": Limits(warps=64, blocks=32, shared=164 << 10),
    "sm_90": Limits(warps=64, blocks=32, shared=228 << 10),
    "sm_100": Limits(warps=64, blocks=32, shared=228 << 10),
    "sm_120": Limits(warps=48, blocks=24, shared=100 << 10),
}


def occupancy(threads: int, registers: int, shared: int, limits: Limits) -> float:
    """The part of a multiprocessor's warps that blocks of `threads` threads can occupy at once."""
    warps = -(-threads // 32)
    a_warp = -(-max(registers, 1) * 32 // limits.register_unit) * limits.register_unit
    by_registers = limits.registers // limits.schedulers // a_warp * limits.schedulers // warps
    a_block = -(-shared // limits.shared_unit) * limits.shared_unit
    by_shared = limits.shared // a_block if a_block else limits.blocks
    return min(limits.warps // warps, limits.blocks, by_registers, by_shared) * warps / limits.warps


def faults(kernel: Kernel) -> Iterator[str]:
    """What is wrong with a kernel, a sentence each."""
    if kernel.threads == 0:
        yield "no __launch_bounds__, so its occupancy isn't known"
    for instruction in kernel.bad_ptx:
        yield f"PTX has {instruction}, whose bits may differ from the CPU engine's"
    if kernel.fused and not kernel.divides:
        yield f"{kernel.fused} fused multiply-adds without a division or square root in its PTX"
    if HOT.match(kernel.name):
        if kernel.stack or kernel.local:
            yield f"{kernel.stack} bytes of stack, {kernel.local} accesses to local memory in a hot kernel"
        if WIDE.match(kernel.name) and not kernel.wide_loads:
            yield "no load of 16 bytes in a kernel that reads rows"


def table(kernels: list[Kernel], compiler: str) -> str:
    """The part of the page between its markers."""
    lines = [
        f"nvcc {compiler}, {ARCH}.",
        "",
        "| kernel | threads | registers | shared memory | occupancy | loads of 16 bytes | stack | divides |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for k in sorted(kernels, key=lambda kernel: kernel.name):
        share = occupancy(k.threads, k.registers, k.shared, LIMITS[ARCH])
        cells = [f"`{k.name}`", k.threads, k.registers, k.shared, f"{share:.0%}", k.wide_loads]
        cells += [k.stack, "yes" if k.divides else ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(line.rstrip() for line in lines)


def compiler_of(folder: Path) -> str:
    """Version of the nvcc that CMake used for a build folder."""
    for path in folder.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"):
        match = re.search(r'CMAKE_CUDA_COMPILER_VERSION "([^"]+)"', path.read_text(encoding="utf-8"))
        if match:
            return match[1]
    return "unknown"


def page_parts(page: str) -> tuple[str, str, str]:
    """The page before, between and after the markers."""
    head, begin, rest = page.partition(BEGIN)
    middle, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name}: expected the markers {BEGIN} and {END}")
    return head + begin, middle.strip("\n"), end + tail


def settle_page(new: str, compiler: str, *, write: bool) -> int:
    """Write the table, or compare it; 1 if it is another. That of another nvcc can't be compared."""
    head, old, tail = page_parts(PAGE.read_text(encoding="utf-8"))
    if write:
        PAGE.write_text(f"{head}\n{new}\n{tail}", encoding="utf-8")
        return 0
    version = re.match(r"nvcc (\S+),", old)
    if version and version[1] != compiler:
        print(f"{PAGE.name} has the table of nvcc {version[1]}; that of {compiler} isn't compared with it")
        return 0
    if old == new:
        return 0
    print(
        *difflib.unified_diff(old.splitlines(), new.splitlines(), PAGE.name, "this build", lineterm="", n=0),
        sep="\n",
    )
    print(f"the table in {PAGE.name} is out of date: make cuda-code ARGS=--write")
    return 1


def main(arguments: list[str]) -> int:
    """Print the faults of all kernels below the folders; 1 if there are any, or no hot kernel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args(arguments)
    objects = sorted({path for folder in options.folders for path in folder.glob("**/*.cu.o")})
    kernels = [kernel for path in objects for kernel in read_kernels(path)]
    bad = [f"{kernel.name}: {fault}" for kernel in kernels for fault in faults(kernel)]
    if not any(HOT.match(kernel.name) for kernel in kernels):
        bad.append(f"no lookup or update kernel for {ARCH} in {len(objects)} objects below {options.folders}")
    print(*bad, sep="\n", end="\n" if bad else "")
    if bad:
        return 1
    compiler = compiler_of(options.folders[-1])
    print(f"{len(kernels)} CUDA kernels of {len(objects)} objects without a fault (nvcc {compiler}, {ARCH})")
    return settle_page(table(kernels, compiler), compiler, write=options.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
