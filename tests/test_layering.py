"""The arrows of docs/design.md section 1, and rules for every file of the repository."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cpr_native

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "cpr_native"
CSRC = ROOT / "csrc"
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")

CODE = sorted(
    path
    for folder in ("cpr_native", "csrc", "tests", "bench", "examples", "studies", "reliability")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".pyi", ".cpp", ".hpp", ".inl", ".cu", ".cuh"}
)
PYTHON = [path for path in CODE if path.is_relative_to(PACKAGE)]
CPP = [path for path in CODE if path.is_relative_to(CSRC)]
TEXT = sorted(
    {
        *CODE,
        *(path for path in ROOT.iterdir() if path.is_file() and path.suffix not in {".html", ".json"}),
        *(ROOT / ".ci").iterdir(),
        *(ROOT / "cmake").iterdir(),
        *(ROOT / "docs").rglob("*.md"),
    }
)
MARKDOWN = [path for path in TEXT if path.suffix == ".md"]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def arrows(folder: str) -> dict[str, set[str]]:
    """Read from the diagram of design.md what each part of `folder` may use, directly or through others."""
    match = re.search(rf"^{folder}/ +(.*(?:\n +.*)*)", DESIGN, re.MULTILINE)
    assert match, f"design.md has no diagram of {folder}/"
    direct: dict[str, set[str]] = {}
    for line in re.sub(r"\(.*?\)", "", match[1]).splitlines():
        levels = [re.findall(r"\w+", level) for level in line.split("->")]
        for upper, lower in itertools.pairwise(levels):
            for name in upper:
                direct.setdefault(name, set()).update(lower)
        for name in levels[-1]:
            direct.setdefault(name, set())
    return {name: reachable(direct, name) for name in direct}


def reachable(direct: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    pending = list(direct[start])
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(direct[name])
    return found


def area(path: Path, root: Path) -> str:
    """Name the part of the design that a file belongs to: its folder under `root`, or its own name."""
    first = path.relative_to(root).parts[0]
    return first.split(".")[0]


def imported_areas(path: Path) -> set[str]:
    """List the parts of the package that a module imports anywhere in it; "" is the package itself."""
    module = ("cpr_native", *path.relative_to(PACKAGE).with_suffix("").parts)
    package = module[:-1]
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{source}.{alias.name}" if source == "cpr_native" else source for alias in node.names]
    parts = [name.split(".") for name in names]
    known = {area(other, PACKAGE) for other in PYTHON}
    used = [part[1] if len(part) > 1 else "" for part in parts if part[0] == "cpr_native"]
    return {name if name in known else "" for name in used if name != "__version__"}


PYTHON_ARROWS = arrows("cpr_native")
CPP_ARROWS = arrows("csrc")


def test_design_names_every_part() -> None:
    assert {area(path, PACKAGE) for path in PYTHON} - {"__init__"} == set(PYTHON_ARROWS)
    assert {area(path, CSRC) for path in CPP} == set(CPP_ARROWS)


def test_arrows_have_no_cycle() -> None:
    for parts in (PYTHON_ARROWS, CPP_ARROWS):
        assert [name for name, lower in parts.items() if name in lower] == []
    assert "store" not in CPP_ARROWS["table"]
    assert "table" not in CPP_ARROWS["store"]


@pytest.mark.parametrize("path", [path for path in PYTHON if path != PACKAGE / "__init__.py"], ids=relative)
def test_imports_go_down(path: Path) -> None:
    own = area(path, PACKAGE)
    assert imported_areas(path) - {own} <= PYTHON_ARROWS[own]


@pytest.mark.parametrize("path", CPP, ids=relative)
def test_includes_go_down(path: Path) -> None:
    own = area(path, CSRC)
    includes = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    missing = [name for name in includes if not (CSRC / name).is_file()]
    assert missing == [], 'quoted includes are written from csrc/: "core/types.hpp"'
    assert {area(CSRC / name, CSRC) for name in includes} - {own} <= CPP_ARROWS[own]


def torch_free_parts() -> list[str]:
    sentence = re.search(r"^(`[^.]*?) import without torch", DESIGN, re.MULTILINE)
    assert sentence, "design.md does not say which parts import without torch"
    return re.findall(r"`(\w+)`", sentence[1])


@pytest.mark.parametrize("part", ["", *torch_free_parts()])
def test_imports_without_torch(part: str) -> None:
    program = f"""
import importlib, pkgutil, sys
module = importlib.import_module({f"cpr_native.{part}".rstrip(".")!r})
if {bool(part)} and hasattr(module, "__path__"):
    for found in pkgutil.walk_packages(module.__path__, module.__name__ + "."):
        importlib.import_module(found.name)
print(sorted(name for name in sys.modules if name.split(".")[0] == "torch"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_torch_free_parts_are_those_of_the_store_side() -> None:
    assert {"_native", "store", "policy", "overhead", "shard", "config", "optim"} <= set(torch_free_parts())


# The stub of the one compiled module.
LONG_FILES = {"cpr_native/_native.pyi"}


def test_files_are_short() -> None:
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in CODE}
    assert {name: lines for name, lines in lengths.items() if lines > 300}.keys() == LONG_FILES


@pytest.mark.parametrize("path", TEXT, ids=relative)
def test_names_no_registry_and_no_place_of_one_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    registries = r"https?://[\w.-]*(?:pypi|pythonhosted|npmjs|debian|anaconda|pytorch)\.\w+"
    places = r"(?<![\w.~/-])/(?:home|root|work|opt|mnt|Users)/\w+"
    assert re.findall(rf"{registries}|{places}", text) == []


@pytest.mark.parametrize("path", MARKDOWN, ids=relative)
def test_links_of_the_documents_exist(path: Path) -> None:
    prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", prose)
    assert [target for target in targets if not (path.parent / target).exists()] == []
    assert all((path.parent / target).resolve().is_relative_to(ROOT) for target in targets)


def test_version_is_the_one_of_the_project_file() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.search(r'^version = "([^"]+)"', project, re.MULTILINE)
    assert declared
    assert cpr_native.__version__ == declared[1]
