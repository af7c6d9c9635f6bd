"""Nothing that the package reads can run code: no pickle, and every `torch.load` takes weights only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cpr_native

PACKAGE = Path(cpr_native.__file__).parent
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def problems(source: str) -> list[str]:
    """What of a module could load a pickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        found += [f"line {node.lineno}: {n}" for n in names if n.split(".")[0] in UNPICKLERS]  # type: ignore[attr-defined]
        found += [f"line {node.lineno}: {n}" for n in names if n in ("torch.load", "torch.serialization")]  # type: ignore[attr-defined]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        call = ast.unparse(node.func)
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if call.endswith("torch.load") and options.get("weights_only") != "True":
            found.append(f"line {node.lineno}: torch.load without weights_only=True")
        if call in ("np.load", "numpy.load") and options.get("allow_pickle", "False") != "False":
            found.append(f"line {node.lineno}: np.load of pickles")
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.relative_to(PACKAGE).as_posix()
)
def test_nothing_loads_a_pickle(path: Path) -> None:
    assert problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "from torch import load",
        "import torch\ntorch.load(f)",
        "import torch\ntorch.load(f, weights_only=False)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_the_check_finds_them(source: str) -> None:
    assert len(problems(source)) >= 1
