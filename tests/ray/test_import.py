"""Ray is an extra: nothing but `cpr_native.ray` imports it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def imported(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["cpr_native", "cpr_native.cluster", "cpr_native.cluster.server", "cpr_native.cli.cluster"]
)
def test_the_core_does_not_import_ray(module: str) -> None:
    names = "[n for n in sys.modules if n.split('.')[0] in ('ray', 'torch')]"
    assert imported(f"import sys, {module}; print({names})") == "[]"


def test_shards_need_no_torch() -> None:
    assert imported("import sys, cpr_native.ray; print('torch' in sys.modules)") == "False"


def test_without_ray_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules["ray"] = None
try:
    import cpr_native.ray
except ModuleNotFoundError as error:
    print(error)
"""
    assert imported(program) == "cpr_native.ray needs Ray: pip install 'cpr-native[ray]'"
