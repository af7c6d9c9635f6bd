from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cpr_native.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    assert main(["demo", "--samples", "1500", "--strategies", "none,mfu", "--out", str(out)]) == 0
    return out


def test_report_is_written_again(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (folder / "report.html").read_text("utf-8")
    target = tmp_path / "again.html"
    assert main(["report", str(folder / "results.json"), "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"Written: {target}\n"
    assert target.read_text("utf-8") == page
    (folder / "report.html").unlink()
    assert main(["report", str(folder / "results.json")]) == 0
    assert (folder / "report.html").read_text("utf-8") == page


def test_report_needs_no_torch(folder: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from cpr_native.cli import main; sys.exit(main())"
    arguments = ["report", str(folder / "results.json"), "-o", str(tmp_path / "page.html")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_other_files_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert main(["report", str(other)]) == 1
    assert f"{other}: this release reads results of version 2, got no version" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent.json")]) == 2
    assert main(["report", str(folder / "results.json"), "-o", str(tmp_path / "no" / "page.html")]) == 1
    assert f"{tmp_path / 'no'}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [other]
