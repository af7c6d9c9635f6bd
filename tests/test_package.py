"""What the built and installed package contains."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import cpr_native
from cpr_native import _native

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = Path(cpr_native.__file__).resolve().parent


def readelf(option: str) -> str:
    """Print one part of the compiled module (readelf comes with every compiler that can build it)."""
    command = ["readelf", "--wide", option, str(_native.__file__)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_v28_module_needs_no_torch_library() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("--dynamic"))
    assert any(name.startswith("libc.") for name in needed)
    assert [name for name in needed if re.search(r"torch|c10|cuda|python", name)] == []


def test_v28_module_has_no_torch_symbol() -> None:
    rows = [line.split() for line in readelf("--dyn-syms").splitlines()]
    names = [row[7] for row in rows if len(row) > 7]
    assert "PyInit__native" in names
    mangled = r"(?<!\d)(?:3c10|2at|5torch)(?=[\dNEL])|THPVariable|aoti_torch"  # c10::, at::, torch::
    assert [name for name in names if re.search(mangled, name)] == []


def test_module_exports_none_of_its_functions() -> None:
    """An exported kernel could be taken for another library's, or for that of another instruction set."""
    rows = [line.split() for line in readelf("--dyn-syms").splitlines()]
    defined = [row[7] for row in rows if len(row) > 7 and row[6].isdigit()]
    assert "PyInit__native" in defined
    assert [name for name in defined if re.match(r"_Z(?:T[ISV])?NK?(?:3cpr|8pybind11)", name)] == []


def test_tests_run_against_the_installed_package() -> None:
    distribution = metadata.distribution("cpr-native")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    expected = ROOT if editable else Path(str(distribution.locate_file("")))
    assert (expected / "cpr_native").resolve() == INSTALLED


def test_package_ships_every_source_file() -> None:
    source = ROOT / "cpr_native"
    names = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
    shipped = [name for name in names if name.suffix not in {".so", ".pyc"}]
    assert {"py.typed", "_native.pyi"} <= {name.as_posix() for name in shipped}
    assert [name for name in shipped if not (INSTALLED / name).is_file()] == []


def test_command_is_installed() -> None:
    (command,) = metadata.distribution("cpr-native").entry_points.select(name="cpr-native")
    assert command.group == "console_scripts"
    assert callable(command.load())


def test_requirements_are_ranges() -> None:
    requirements = metadata.requires("cpr-native")
    assert requirements is not None
    assert [name for name in requirements if re.match(r"torch\b", name)] != []
    assert [name for name in requirements if "==" in name.split(";")[0]] == []


@pytest.mark.parametrize("name", ["__version__", *cpr_native.__all__])
def test_every_public_name_loads(name: str) -> None:
    assert getattr(cpr_native, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = cpr_native.no_such_name
