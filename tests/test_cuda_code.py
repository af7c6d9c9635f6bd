"""The check of the compiled CUDA kernels finds what it is for, in an object compiled here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import cuda_code
import pytest
from cuda_code import LIMITS, faults, main, occupancy
from cuda_objects import Kernel, bad_instructions, read_kernels

pytestmark = pytest.mark.timeout(300)  # nvcc takes its time on a busy machine
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")

# The intrinsics are what -fmad=false makes of * and +; this file is compiled without it.
GOOD = """
#include <cstdint>
namespace cpr::cuda {
template <int kLanes>
__global__ void __launch_bounds__(256) lookup_rows(
    const float4* table, const int64_t* ids, float4* out, float a) {
  const int64_t item = (blockIdx.x * 256 + threadIdx.x) / kLanes;
  const float4 row = table[ids[item]];
  out[item] = {__fmul_rn(row.x, a), __fadd_rn(row.y, a), row.z, __fadd_rn(__fmul_rn(row.w, a), row.z)};
}
template __global__ void lookup_rows<8>(const float4*, const int64_t*, float4*, float);
__global__ void __launch_bounds__(128) update_root(float4* rows, float eps) {
  __shared__ float sums[128];
  float4 row = rows[threadIdx.x];
  sums[threadIdx.x] = row.y;
  __syncthreads();
  row.x = row.x / __fadd_rn(sqrtf(sums[127 - threadIdx.x]), eps);
  rows[threadIdx.x] = row;
}
}
namespace other {
__global__ void not_ours(float* x) { *x = *x * 3.0f + 1.0f; }
}
"""
BAD = """
namespace cpr::cuda {
__global__ void __launch_bounds__(64) update_stack(float4* rows, int n) {
  float kept[32];
  for (int i = 0; i < 32; ++i) kept[i] = rows[i].x;
  for (int i = 0; i < n; ++i) kept[i * 7 % 32] = __fadd_rn(kept[i * 7 % 32], rows[i].y);
  for (int i = 0; i < 32; ++i) rows[i] = {kept[i], 0, 0, 0};
}
__global__ void __launch_bounds__(64) update_narrow(float* rows) {
  rows[threadIdx.x] = __fadd_rn(rows[threadIdx.x], 1.0f);
}
__global__ void __launch_bounds__(64) scale_fused(float* x, float a, float b) { *x = *x * a + b; }
__global__ void __launch_bounds__(64) scale_approximately(float* x, float a) { *x = __fdividef(*x, a); }
__global__ void __launch_bounds__(64) add_atomically(float* x, float a) { atomicAdd(x, a); }
__global__ void unbounded(int* x) { *x = 1; }
}
"""
FAULTS = {
    "update_stack": r"\d+ bytes of stack, \d+ accesses to local memory in a hot kernel",
    "update_narrow": "no load of 16 bytes in a kernel that reads rows",
    "scale_fused": r"PTX has fma.rn.f32, whose bits may differ",
    "scale_approximately": r"PTX has div.approx.f32",
    "add_atomically": r"PTX has (atom|red)\S+add.f32",
    "unbounded": "no __launch_bounds__",
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    for name, source in (("good", GOOD), ("bad", BAD)):
        (folder / name).mkdir()
        path = folder / name / "kernels.cu"
        path.write_text(source, encoding="utf-8")
        target = "-gencode=arch=compute_90,code=[compute_90,sm_90]"
        subprocess.run(["nvcc", "-std=c++20", target, "-c", str(path), "-o", f"{path}.o"], check=True)
    return folder


@needs_nvcc
def test_good_kernels_have_no_fault(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = {kernel.name: kernel for kernel in read_kernels(compiled / "good" / "kernels.cu.o")}
    assert kernels.keys() == {"lookup_rows<8>", "update_root"}
    lookup, root = kernels["lookup_rows<8>"], kernels["update_root"]
    assert (lookup.threads, lookup.stack, lookup.fused, lookup.divides) == (256, 0, 0, False)
    assert lookup.wide_loads == 1
    assert (root.threads, root.divides) == (128, True)
    assert root.fused > 0
    assert root.shared >= 512
    assert [list(faults(kernel)) for kernel in kernels.values()] == [[], []]

    page = tmp_path / "cuda.md"
    page.write_text(f"above\n{cuda_code.BEGIN}\n{cuda_code.END}\nbelow\n", encoding="utf-8")
    monkeypatch.setattr(cuda_code, "PAGE", page)
    good = str(compiled / "good")
    assert main([good]) == 1, "the table isn't there yet"
    assert "make cuda-code ARGS=--write" in capsys.readouterr().out
    assert main(["--write", good]) == 0
    text = page.read_text(encoding="utf-8")
    assert re.match(
        rf"above\n{cuda_code.BEGIN}\nnvcc .*`update_root`.*\n{cuda_code.END}\nbelow\n", text, re.DOTALL
    )
    assert main([good]) == 0
    page.write_text(text.replace("| 256 |", "| 128 |"), encoding="utf-8")
    assert main([good]) == 1
    page.write_text(text.replace("nvcc unknown", "nvcc 1.2.3").replace("256", "128"), encoding="utf-8")
    capsys.readouterr()
    assert main([good]) == 0
    assert "the table of nvcc 1.2.3; that of unknown isn't compared" in capsys.readouterr().out


@needs_nvcc
def test_bad_kernels_are_found(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = read_kernels(compiled / "bad" / "kernels.cu.o")
    assert {kernel.name for kernel in kernels} == set(FAULTS)
    for kernel in kernels:
        assert re.search(FAULTS[kernel.name], "; ".join(faults(kernel))), kernel
    fused = next(kernel for kernel in kernels if kernel.name == "scale_fused")
    assert any("without a division" in fault for fault in faults(fused)), "in machine code too"
    assert main([str(compiled)]) == 1
    assert "update_stack: " in capsys.readouterr().out


def test_a_folder_without_hot_kernels_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "no lookup or update kernel" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("instruction", "bad"),
    [
        ("add.rn.f32 %f1, %f2, %f3;", False),
        ("add.f32 %f1, %f2, %f3;", True),
        ("@%p1 mul.f64 %fd1, %fd2, %fd3;", True),
        ("mul.rn.ftz.f32 %f1, %f2, %f3;", True),
        ("fma.rn.f64 %fd1, %fd2, %fd3, %fd4;", True),
        ("sqrt.approx.f32 %f1, %f2;", True),
        ("div.rn.f32 %f1, %f2, %f3;", False),
        ("ex2.approx.ftz.f32 %f1, %f2;", True),
        ("mad.lo.s32 %r1, %r2, %r3, %r4;", False),
        ("setp.lt.f32 %p1, %f1, %f2;", False),
        ("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];", False),
        ("cvt.rn.f32.s32 %f1, %r1;", False),
        ("red.global.add.f32 [%rd1], %f1;", True),
        ("atom.global.max.u32 %r1, [%rd1], %r2;", False),
        (".reg .f32 %f<3>;", False),
    ],
)
def test_instructions_with_other_bits(instruction: str, bad: bool) -> None:
    assert bool(list(bad_instructions(f"\n{instruction}\n"))) == bad


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "arch", "share"),
    [
        (256, 32, 0, "sm_90", 1.0),
        (256, 40, 0, "sm_90", 0.75),  # 48 of 64 warps: as NVIDIA's occupancy calculator
        (256, 64, 0, "sm_90", 0.5),
        (256, 255, 0, "sm_90", 0.125),
        (1024, 33, 0, "sm_90", 0.5),
        (32, 16, 0, "sm_90", 0.5),  # 32 blocks
        (128, 32, 48 << 10, "sm_90", 0.25),  # four blocks
        (256, 32, 0, "sm_75", 1.0),
        (512, 40, 0, "sm_120", 1.0),
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, arch: str, share: float) -> None:
    assert occupancy(threads, registers, shared, LIMITS[arch]) == share


def test_a_kernel_that_no_block_fits_has_none() -> None:
    assert occupancy(256, 32, 300 << 10, LIMITS["sm_90"]) == 0.0
    kernel = Kernel(
        symbol="s", name="clear", registers=8, stack=64, shared=0, threads=64, wide_loads=0, local=4, fused=0,
        divides=False, bad_ptx=(),
    )  # fmt: skip
    assert list(faults(kernel)) == [], "a stack matters in hot kernels alone"
