"""`cpr_native.cuda` on a machine with no driver, an old one, or no GPU: it says why there is none.

The drivers are libraries made here (`fake_driver.c`); CUDA's run-time library loads them as it would
the real one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cpr_native import _native, cuda

BUILT = pytest.mark.skipif(not cuda.is_built(), reason="a build without the CUDA engine")
ASK = "from cpr_native import cuda; print(cuda.device_count(), cuda.is_available(), cuda.why_not(), sep='|')"
NO_DEVICE, UNKNOWN = 100, 999  # values of CUresult


def answer_under(folder: Path, *, version: int, init: int) -> tuple[str, str, str]:
    """What a process says whose driver supports CUDA `version` and initialises with the result `init`."""
    source = Path(__file__).with_name("fake_driver.c")
    command = ["gcc", "-shared", "-fPIC", f"-DVERSION={version}", f"-DINIT={init}", str(source)]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    count, available, reason = done.stdout.strip().split("|")
    return count, available, reason


def test_a_build_without_the_engine_says_so() -> None:
    version, targets = _native.cuda_build()
    assert cuda.is_built() == (version != 0) == bool(targets)
    if not cuda.is_built():
        assert (cuda.device_count(), cuda.is_available(), cuda.get_arch_list()) == (0, False, [])
        assert "no CUDA engine" in str(cuda.why_not())


@BUILT
def test_a_build_with_the_engine_names_its_targets() -> None:
    assert _native.cuda_build()[0] >= 12000
    assert all(re.fullmatch(r"(sm|compute)_\d{2,3}", target) for target in cuda.get_arch_list())


def test_every_answer_agrees_on_whether_there_is_a_gpu() -> None:
    assert cuda.is_available() == (cuda.why_not() is None)
    assert not cuda.is_available() or cuda.device_count() > 0
    if cuda.device_count() == 0:
        reason = cuda.why_not()
        assert reason
        assert cuda.why_not(0) == reason
        with pytest.raises(RuntimeError, match=re.escape(reason)):
            cuda.get_device_name()
        with pytest.raises(RuntimeError, match=re.escape(reason)):
            cuda.get_device_capability()
    else:
        index = cuda.device_count()
        assert "expected an index below" in str(cuda.why_not(index))
        with pytest.raises(IndexError, match="expected an index below"):
            cuda.get_device_name(index)


@BUILT
def test_without_a_driver_there_are_no_devices() -> None:
    if _native.cuda_driver()[0] != 0:
        pytest.skip("this machine has a driver")
    assert (cuda.device_count(), cuda.is_available()) == (0, False)
    assert cuda.why_not() == "no NVIDIA driver: libcuda.so.1 was not found"


@BUILT
def test_an_old_driver_is_named_with_what_is_needed(tmp_path: Path) -> None:
    major = _native.cuda_build()[0] // 1000
    count, available, reason = answer_under(tmp_path, version=(major - 1) * 1000 + 20, init=0)
    assert (count, available) == ("0", "False")
    assert (
        f"driver is too old: it supports CUDA {major - 1}.2, this build needs one for CUDA {major}" in reason
    )


@BUILT
def test_a_driver_without_a_gpu(tmp_path: Path) -> None:
    count, available, reason = answer_under(tmp_path, version=_native.cuda_build()[0], init=NO_DEVICE)
    assert (count, available) == ("0", "False")
    assert "shows no GPU" in reason


@BUILT
def test_any_other_failure_is_cudas_own_words(tmp_path: Path) -> None:
    count, available, reason = answer_under(tmp_path, version=_native.cuda_build()[0], init=UNKNOWN)
    assert (count, available) == ("0", "False")
    assert "CUDA can't be used: unknown error (cudaErrorUnknown)" in reason


RELEASE = ["75-real", "80-real", "90-real", "100-real", "120-real", "120-virtual"]


@pytest.mark.parametrize(
    "capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1), (13, 0)]
)
def test_a_release_runs_on(capability: tuple[int, int]) -> None:
    assert _native.cuda_missing_code(RELEASE, *capability) == ""


@pytest.mark.parametrize(
    ("targets", "capability", "reason"),
    [
        (
            RELEASE,
            (7, 0),
            "7.0 has no code in this build, which is for 7.5, 8.0, 9.0, 10.0, 12.0, 12.0 and newer",
        ),
        (RELEASE, (11, 0), "11.0 has no code"),
        (["90-real"], (10, 0), "10.0 has no code in this build, which is for 9.0"),
        (["86-real"], (8, 0), "8.0 has no code in this build, which is for 8.6"),
        (["90-virtual"], (8, 9), "8.9 has no code in this build, which is for 9.0 and newer"),
        ([], (9, 0), "which is for none"),
    ],
)
def test_a_gpu_without_code_is_named(targets: list[str], capability: tuple[int, int], reason: str) -> None:
    assert reason in _native.cuda_missing_code(targets, *capability)


@pytest.mark.parametrize("capability", [(7, 5), (9, 0), (12, 0)])
def test_ptx_runs_on_all_newer_gpus(capability: tuple[int, int]) -> None:
    assert _native.cuda_missing_code(["75-virtual"], *capability) == ""
