#!/usr/bin/env python3
"""Makes a CUDA build of torch run on the CPU without the CUDA libraries, which are three times its size: `make test-torch`.

Usage: torch_without_cuda.py ENVIRONMENT. For each library that torch's own are linked with and that is not here, puts one of that
name beside them, whose functions all return "no device". Needs nm and readelf (binutils) and a C compiler. Does nothing for a CPU
build, and nothing the second time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
FOREIGN = ("libcu", "libnv", "libnccl")  # how the names of CUDA's libraries begin


def lines_of(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()


def needed(library: Path) -> set[str]:
    names = {line.split("[")[1].rstrip("]") for line in lines_of("readelf", "-dW", str(library)) if "(NEEDED)" in line}
    return {name for name in names if name.startswith(FOREIGN)}


def versions_needed(library: Path) -> Iterator[tuple[str, str]]:
    """Of each library that this one is linked with, the versions of symbols that it asks for."""
    file = ""
    for line in lines_of("readelf", "-VW", str(library)):
        words = line.replace(":", ": ").split()
        if "File:" in words:
            file = words[words.index("File:") + 1]
        elif file and "Name:" in words:
            yield file, words[words.index("Name:") + 1]


def symbols(library: Path) -> tuple[set[str], set[str]]:
    """Those that it defines, and those that it must find elsewhere, these as name or name@version."""
    found = [line.split()[-2:] for line in lines_of("nm", "-D", str(library))]
    return {name.split("@")[0] for kind, name in found if kind not in "Uvw"}, {name for kind, name in found if kind == "U"}


def main() -> None:
    folder = next(Path(sys.argv[1]).glob("lib/python*/site-packages/torch/lib"))
    libraries = [path for path in folder.glob("*.so") if not path.is_symlink()]
    users = [library for library in libraries if needed(library)]
    absent = {name for library in users for name in needed(library) if not (folder / name).exists()}
    if not absent:
        return
    linked = {Path(line.split()[2]) for line in lines_of("ldd", sys.executable, *map(str, libraries)) if "=> /" in line}
    present = {path for path in linked if not path.name.startswith(FOREIGN)}.union(libraries)
    defined = {name for library in present for name in symbols(library)[0]}
    of_version: dict[str, list[str]] = defaultdict(list)
    for wanted in sorted({name for library in users for name in symbols(library)[1]}):
        name, _, version = wanted.partition("@")
        if name not in defined:
            of_version[version].append(name)
    functions = sorted({name for names in of_version.values() for name in names})
    versions: dict[str, set[str]] = defaultdict(set)
    for library in users:
        for file, version in versions_needed(library):
            versions[file].add(version)
    with tempfile.TemporaryDirectory() as scratch:
        source, code, script = (Path(scratch) / name for name in ("absent.c", "absent.o", "absent.map"))
        source.write_text("".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in functions))
        subprocess.run(["cc", "-c", "-fPIC", "-w", "-fno-builtin", "-o", str(code), str(source)], check=True, timeout=120)
        for name in absent:
            nodes = {version: "".join(f"{one};" for one in of_version[version]) for version in sorted(versions[name])}
            script.write_text("".join(f"{version} {{ {members} }};\n" for version, members in nodes.items()))
            options = [f"-Wl,--version-script={script}"] if nodes else []
            command = ["cc", "-shared", f"-Wl,-soname,{name}", *options, "-o", str(folder / name), str(code)]
            subprocess.run(command, check=True, timeout=120)
    print(f"{folder}: {len(absent)} CUDA libraries are stood in for, with {len(functions)} functions that find no device")


if __name__ == "__main__":
    main()
