"""The check of the kernels' object files finds what it is for, in objects compiled here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from kernel_symbols import faults, level_of, main

GOOD = """
extern "C" void* memcpy(void*, const void*, unsigned long);
namespace cpr::cpu::avx2 {
static float twice(float x) { return 2 * x; }
template <int N> static int add(int x) { memcpy(&x, &x, 4); return x + N; }
struct Table { float (*f)(float); int (*g)(int); };
extern const Table table;
const Table table = {twice, add<3>};
}
"""
BAD = {
    "weak symbol .*shared": "namespace cpr { inline float shared(float x) { return x; } }\n"
    "namespace cpr::cpu::avx2 { static float f(float x) { return cpr::shared(x); }\n"
    "struct Table { float (*f)(float); }; extern const Table table; const Table table = {f}; }",
    "weak symbol .*add": GOOD.replace("template <int N> static", "template <int N>"),
    "exported symbol .*apart": GOOD + "int apart() { return 1; }",
    "exported symbol .*twice": GOOD.replace("static float twice", "float twice"),
    "use of the C.. symbol .*elsewhere": "int elsewhere(int);\n" + GOOD.replace("x + N", "elsewhere(x)"),
    "no table": GOOD.replace("table", "tables"),
    "exported symbol .*counter": GOOD + "int counter = 0;",
    "exported symbol .*avx2_other": GOOD.replace("avx2", "avx2_other"),
}


def compiled(source: str, folder: Path) -> Path:
    path = folder / "CMakeFiles" / "cpr_kernels_avx2.dir" / "kernels.cpp.o"
    path.parent.mkdir(parents=True)
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", "-O0", "-x", "c++", "-c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def test_a_good_object_has_no_fault(tmp_path: Path) -> None:
    path = compiled(GOOD, tmp_path)
    assert faults(path, level_of(path)) == []
    assert main([str(tmp_path)]) == 0


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_object_is_found(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(BAD[fault], tmp_path)
    assert main([str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert re.search(fault, output), output


def test_a_folder_without_objects_is_a_fault(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
    with pytest.raises(ValueError, match="expected an object of a target"):
        level_of(tmp_path / "kernels.o")
