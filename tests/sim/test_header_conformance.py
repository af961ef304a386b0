"""What the device layer declares of the vendors' calls, compared by a compiler with the vendors' own headers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = Path(__file__).parent / "header_conformance"
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
# Where each header may be: system folders, packages of PyPI, and what tools/bootstrap.sh unpacks into the environment.
PLACES = {
    "cuda": ("cuda.h", ["/usr/local/cuda*/include", "/usr/include"], ["nvidia/*/include"]),
    "hip": ("hip/hip_runtime_api.h", ["/opt/rocm*/include", "/usr/include"], ["triton/backends/amd/include"]),
}
UNPACKED = Path(sys.prefix) / "share" / "vendor-headers" / "usr" / "include"


def include_folders(vendor: str) -> Iterator[Path]:
    header, system, packaged = PLACES[vendor]
    folders = [folder for pattern in system for folder in sorted(Path("/").glob(pattern.lstrip("/")))]
    folders.append(UNPACKED)
    for entry in dict.fromkeys(sys.path):
        folders += [folder for pattern in packaged for folder in sorted(Path(entry or ".").glob(pattern))]
    seen = set()
    for folder in folders:
        if (folder / header).exists() and (folder / header).resolve() not in seen:
            seen.add((folder / header).resolve())
            yield folder


FOUND = [(vendor, folder) for vendor in PLACES for folder in include_folders(vendor)]
MISSING = [
    pytest.param(vendor, None, marks=pytest.mark.skip(reason=f"{PLACES[vendor][0]} is not on this machine"))
    for vendor in PLACES
    if vendor not in dict(FOUND)
]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(("vendor", "folder"), [*FOUND, *MISSING], ids=str)
def test_our_declarations_are_the_vendors(vendor: str, folder: Path) -> None:
    own = [f"-I{ROOT / 'cpp' / 'src'}", f"-I{ROOT / 'cpp' / 'include'}", f"-I{CHECKS}"]
    command = [str(COMPILER), "-std=c++20", "-fsyntax-only", *own, "-isystem", str(folder), str(CHECKS / f"{vendor}.cc")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
