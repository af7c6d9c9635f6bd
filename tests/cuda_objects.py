"""What nvcc made of the CUDA kernels, read from object files with NVIDIA's cuobjdump and nvdisasm."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCH = "sm_90"  # whose machine code is read
# The names of `enum class Optimizer`, in order: c++filt has numbers.
_ENUM = re.search(r"enum class Optimizer[^{]*\{([^}]*)\}", (ROOT / "csrc/core/types.hpp").read_text("utf-8"))
OPTIMIZERS = re.findall(r"k(\w+)", _ENUM[1]) if _ENUM else []


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel of one object; bytes are those of a thread, shared memory is that of a block."""

    symbol: str
    name: str
    registers: int
    stack: int
    shared: int  # static, with what the system takes
    threads: int  # of a block, from __launch_bounds__; 0: it has none
    wide_loads: int  # 16 bytes from global memory
    local: int  # loads and stores of local memory
    fused: int
    divides: bool  # or takes a square root, in its PTX
    bad_ptx: tuple[str, ...]  # instructions whose result is not that of the CPU engine


def tool(name: str) -> str:
    """Where `name` is: of the packages nvidia-cuda-cuobjdump and -nvdisasm, or of a toolkit in PATH."""
    for folder in sys.path:
        for path in sorted(Path(folder or ".").glob(f"nvidia/*/bin/{name}")):
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} was not found: pip install nvidia-cuda-{name}")
    return found


def dump(option: str, path: Path, *more: str) -> str:
    """One part of an object file, as cuobjdump prints it; it runs nvdisasm from its PATH."""
    command = [tool("cuobjdump"), option, *more, str(path)]
    search = f"{Path(tool('nvdisasm')).parent}:/usr/bin:/bin"
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": search})
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def resources(text: str) -> dict[str, dict[str, int]]:
    """By symbol, what -res-usage says of each function."""
    return {
        symbol: {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", line)}
        for symbol, line in re.findall(r"^ Function (\S+):\n(.*)$", text, re.MULTILINE)
    }


def machine_code(text: str) -> dict[str, list[str]]:
    """By symbol, the instructions of each function as -sass lists them, without addresses and predicates."""
    code: dict[str, list[str]] = {}
    for part in re.split(r"^\s*Function : ", text, flags=re.MULTILINE)[1:]:
        symbol, _, body = part.partition("\n")
        code[symbol.strip()] = re.findall(
            r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(.+?)\s*;", body, re.MULTILINE
        )
    return code


def ptx_bodies(text: str) -> dict[str, str]:
    """By symbol, the PTX of each kernel with its directives; called functions count with every kernel."""
    parts = re.split(r"^((?:\.\w+ )*\.(?:entry|func)\b)", text, flags=re.MULTILINE)
    functions = list(zip(parts[1::2], parts[2::2], strict=True))
    called = "".join(body for head, body in functions if head.endswith(".func"))
    return {body.split("(")[0].strip(): body + called for head, body in functions if head.endswith(".entry")}


FLOATS = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?((\w+)\.[\w.:]*\b(?:f16|f16x2|bf16|bf16x2|f32|f64)\b[\w.]*)", re.MULTILINE
)


def bad_instructions(body: str) -> Iterator[str]:
    """The float instructions of PTX that may give other bits than the CPU engine's operation, each once."""
    seen = set()
    for instruction, operation in FLOATS.findall(body):
        parts = set(instruction.split("."))
        rounded = operation not in {"add", "sub", "mul", "div", "sqrt", "rcp"} or "rn" in parts
        if operation in {"fma", "mad", "atom", "red"} or {"approx", "ftz", "full"} & parts or not rounded:
            seen.add(instruction)
    yield from sorted(seen)


def block_threads(body: str) -> int:
    """Threads of a block by .maxntid; 0 where there is none."""
    match = re.search(r"\.(?:maxntid|reqntid) (\d+)(?:, (\d+))?(?:, (\d+))?", body)
    if match is None:
        return 0
    x, y, z = (int(number or 1) for number in match.groups())
    return x * y * z


def short_names(symbols: Iterable[str]) -> dict[str, str]:
    """By symbol, the kernel's name with template arguments, without namespaces, parameters and casts."""
    ordered = list(symbols)
    done = subprocess.run(["c++filt", *ordered], capture_output=True, text=True, check=True)
    names = {}
    for symbol, full in zip(ordered, done.stdout.splitlines(), strict=True):
        name = re.sub(
            r"\(anonymous namespace\)::|cpr::(?:cuda::)?|\((?:int|bool|unsigned int|long)\)", "", full
        )
        name = re.sub(r"^void ", "", name)
        name = re.sub(r"\(Optimizer\)(\d+)", lambda match: OPTIMIZERS[int(match[1])], name)
        depth = 0
        for at, letter in enumerate(name):
            depth += {"<": 1, ">": -1}.get(letter, 0)
            if letter == "(" and depth == 0:
                name = name[:at]
                break
        names[symbol] = name
    return names


def is_ours(symbol: str) -> bool:
    """Whether the outermost name is in cpr::cuda; CUB's kernels may have ours among their arguments."""
    return re.match(r"_ZN(?:12_GLOBAL__N_1|\d+_GLOBAL__N_\w+?)?3cpr4cuda", symbol) is not None


def read_kernels(path: Path) -> list[Kernel]:
    """The kernels of one object file that are ours and have machine code for ARCH."""
    used = {
        symbol: found
        for symbol, found in resources(dump("-res-usage", path, "-arch", ARCH)).items()
        if is_ours(symbol)
    }
    if not used:
        return []
    code = machine_code(dump("-sass", path, "-arch", ARCH, "-fun", ",".join(used)))
    bodies = ptx_bodies(dump("-ptx", path))
    names = short_names(used)
    kernels = []
    for symbol, found in used.items():
        if symbol not in bodies:
            raise SystemExit(
                f"{path}: no PTX of {names[symbol]}: build for a target with PTX (CPR_CUDA_ARCHITECTURES=90)"
            )
        body = bodies[symbol]
        operations = [line.split()[0] for line in code[symbol]]
        kernels.append(
            Kernel(
                symbol=symbol,
                name=names[symbol],
                registers=found["REG"],
                stack=found["STACK"],
                shared=found["SHARED"],
                threads=block_threads(body),
                wide_loads=sum(bool(re.match(r"LDG\.E(\.\w+)*\.128", name)) for name in operations),
                local=sum(bool(re.match(r"(LDL|STL)\b", name)) for name in operations),
                fused=sum(bool(re.match(r"(FFMA|DFMA)\b", name)) for name in operations),
                divides=re.search(r"^\s*(?:@\S+\s+)?(?:div|sqrt|rcp)\.[\w.]*f(?:32|64)", body, re.MULTILINE)
                is not None,
                bad_ptx=tuple(bad_instructions(body)),
            )
        )
    return kernels
