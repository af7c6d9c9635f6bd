"""The Python blocks of README and docs run, page by page: a block may use what those above it have made."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def program(page: Path) -> str:
    """Join the page's Python blocks, each on the lines where it stands on the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        first = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def run(page: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    source = f"exec(compile({program(page)!r}, {page.name!r}, 'exec'))"
    command = [sys.executable, "-W", "error", *options, "-c", source]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_readme_runs_and_resumes(tmp_path: Path) -> None:
    first, second = run(ROOT / "README.md", tmp_path), run(ROOT / "README.md", tmp_path)
    assert [(done.returncode, done.stderr) for done in (first, second)] == [(0, "")] * 2
    assert "mode='partial'" in first.stdout
    assert "mode=" not in second.stdout, "all its steps are in the checkpoint"
    for updated in (r"^[1-9]\d* of the users' rows changed;", r"^[1-9]\d* rows updated;"):
        assert re.search(updated, second.stdout, re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES[1:] if program(page).strip()], ids=lambda p: p.name)
def test_pages_run(page: Path, tmp_path: Path) -> None:
    # TorchRec and FBGEMM warn of their own calls when they are imported, Lightning of one of its own.
    lightning = "ignore:`isinstance(treespec, LeafSpec)` is deprecated:FutureWarning"
    done = run(page, tmp_path, "-W", "ignore::DeprecationWarning", "-W", lightning)
    assert done.returncode == 0, done.stderr


def test_every_block_names_its_language() -> None:
    """A block of Python without its name would not be run."""
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) % 2 == 0
        assert set(fences[::2]) <= {"python", "json", ""}, page.name
        assert set(fences[1::2]) <= {""}, page.name
