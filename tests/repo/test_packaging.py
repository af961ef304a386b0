"""What a user of the package gets: a library that CMake finds, linked with nothing but the runtimes and OpenSSL."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import hmc

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
HMC = str(BIN / "hmc")
PACKAGE = Path(hmc.__file__).parent
LIBRARY = PACKAGE / "lib" / "libhmc.so"
EXTENSION = Path(hmc._core.__file__)
PATH = f"{BIN}:{os.environ['PATH']}"

# The C and C++ runtime, pthreads and OpenSSL. Older glibc keeps pthreads and dl in libraries of their own.
ALLOWED = {"libstdc++", "libgcc_s", "libm", "libc", "libpthread", "libdl", "librt", "libssl", "libcrypto"}


def tool(name: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Output of a command that must succeed."""
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=110, env={**os.environ, "PATH": PATH}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def needed(library: Path) -> set[str]:
    """Names of the libraries that the loader brings in, without their versions."""
    names = {name.partition(".so")[0] for name in re.findall(r"\(NEEDED\).*\[(.+)\]", run(tool("readelf"), "-d", library))}
    return {name for name in names if not name.startswith("ld-linux")}  # the loader itself, named after the machine


def build_example(cmake_package: Path, build: Path) -> None:
    """Configures examples/cpp by itself against a CMake package, and builds and runs one of its programs."""
    cmake = tool("cmake")
    run(cmake, "-S", ROOT / "examples" / "cpp", "-B", build, f"-Dhmc_DIR={cmake_package}", "-DCMAKE_BUILD_TYPE=None")
    run(cmake, "--build", build, "--target", "example_first_transfer")
    assert "1 MiB arrived" in run(build / "example_first_transfer")
    linked = run(tool("ldd"), build / "example_first_transfer")
    used = re.search(r"libhmc\.so\S* => (\S+)", linked)
    assert used, linked
    assert cmake_package.resolve().is_relative_to(Path(used[1]).resolve().parent), "another libhmc.so than the package's"


def test_where_the_headers_and_the_cmake_package_are() -> None:
    include = Path(run(HMC, "--includedir").strip())
    assert {path.name for path in (include / "hmc").iterdir()} == {
        path.name for path in (ROOT / "cpp" / "include" / "hmc").iterdir()
    }
    assert (Path(run(HMC, "--cmakedir").strip()) / "hmcConfig.cmake").is_file()


def test_the_examples_build_against_the_installed_package(tmp_path: Path) -> None:
    build_example(Path(run(HMC, "--cmakedir").strip()), tmp_path)


def test_another_minor_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\nproject(wants LANGUAGES NONE)\n"
        'find_package(hmc ${version} CONFIG)\nmessage(STATUS "found: ${hmc_FOUND}")\n'
    )
    major, minor, _ = hmc.__version__.split(".")
    for version, found in ((f"{major}.{minor}", "1"), (f"{major}.{int(minor) + 1}", "0"), ("99.0", "0")):
        where = [f"-Dhmc_DIR={run(HMC, '--cmakedir').strip()}", f"-Dversion={version}"]
        assert f"found: {found}" in run(tool("cmake"), "-S", tmp_path, "-B", tmp_path / version, *where)


# build/package is the wheel's layout, as the Makefile keeps it; the others that of a plain `cmake --install`.
@pytest.mark.parametrize("folder", ["package", "dev"])
def test_the_examples_build_after_cmake_install(tmp_path: Path, folder: str) -> None:
    build = ROOT / "build" / folder
    if not (build / "cmake_install.cmake").exists():
        pytest.skip(
            f"build/{folder} does not exist: " + ("make test makes it" if folder == "package" else "cmake --preset dev makes it")
        )
    prefix = tmp_path / "prefix"
    run(tool("cmake"), "--install", build, "--prefix", prefix)
    [config] = prefix.rglob("hmcConfig.cmake")
    build_example(config.parent, tmp_path / "build")
    if folder == "dev":
        assert (prefix / "include" / "hmc" / "hmc.h").is_file()
        assert len(list(config.parents[2].glob("libhmc.so*"))) == 3, "libhmc.so, its major version, its version"


def test_nothing_foreign_is_linked() -> None:
    assert needed(LIBRARY) - ALLOWED == set()
    assert {"libssl", "libcrypto"} & needed(LIBRARY)
    assert needed(EXTENSION) - ALLOWED == {"libhmc"}


def test_nothing_but_the_api_is_exported() -> None:
    # `T name` and the like; w, V, u, W are what every C++ library instantiates of the standard library.
    lines = run(tool("nm"), "-D", "--defined-only", LIBRARY).splitlines()
    symbols = [(line.split()[-2], line.split()[-1].partition("@")[0]) for line in lines]
    # _ZN[K]3hmc: functions; _ZT[VISTC]N3hmc: tables and names of types.
    own = re.compile(r"_Z(?:T[VISTC])?N?K?N?K?3hmc\d*")
    standard = re.compile(r"_Z(?:T[VISTC]|GV|Z)?[PFRKN]*(?:S[tabsiod]|9__gnu_cxx)")
    foreign = [name for kind, name in symbols if not own.match(name) and not (kind in "WVuw" and standard.match(name))]
    assert not foreign, foreign
    # Of HMC's names only those that a public header declares.
    declared = set(re.findall(r"\w+", "".join(path.read_text() for path in (ROOT / "cpp" / "include" / "hmc").glob("*.h"))))
    first = re.compile(r"3hmc(\d+)")
    for kind, name in symbols:
        found = first.search(name)
        if own.match(name) and found and kind in "TBDR":
            word = name[found.end() : found.end() + int(found[1])]
            assert word in declared, f"{name} is exported, and no public header names {word}"


def test_the_extension_exports_its_init_alone() -> None:
    lines = run(tool("nm"), "-D", "--defined-only", EXTENSION).splitlines()
    names = [line.split()[-1] for line in lines if line.split()[-2] == "T"]
    # What the headers instantiate of the standard library is visible in every extension.
    assert [name for name in names if not name.startswith(("_ZZNSt", "_ZNSt"))] == ["PyInit__core"]


def test_the_source_distribution_is_whole(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    code = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    run(sys.executable, "-c", code, cwd=ROOT)
    [archive] = tmp_path.glob("hmc_sdk-*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    tracked = run(
        "git", "ls-files", "cpp", "bindings", "hmc", "cmake", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT
    )
    missing = {name for name in tracked.splitlines() if (ROOT / name).exists()} - held
    assert not missing
    strangers = {
        name for name in held if name.split("/")[0] in {"build", ".venv", "out", ".git"} or name.endswith((".so", ".o", ".pyc"))
    }
    assert not strangers


def test_a_users_compiler_may_warn() -> None:
    # Warnings are errors for us (the presets), never for who installs or builds by plain CMake: a newer compiler has new ones.
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    ours = {preset["name"] for preset in presets if preset["cacheVariables"].get("HMC_WERROR") == "ON"}
    assert ours == {"dev", "sanitize"}
    assert re.search(r'^option\(HMC_WERROR ".*" OFF\)$', (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert "HMC_WERROR" not in (ROOT / "pyproject.toml").read_text()
    cache = ROOT / "build" / "package" / "CMakeCache.txt"
    if cache.exists():
        assert re.search(r"^HMC_WERROR:\w+=OFF$", cache.read_text(), re.MULTILINE)
