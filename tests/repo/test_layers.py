"""The rules of the source tree: layers include only to their left, backends stay in their folders, files stay small."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "cpp" / "src"
LAYERS = ["base", "device", "memory", "progress", "control", "transport", "comm", "layout", "native", "collective"]
# control and transport stand side by side, and layout and native: neither sees the other.
ABREAST = (("control", "transport"), ("layout", "native"))
RANK = {layer: min(LAYERS.index(each) for pair in [(layer,), *ABREAST] if layer in pair for each in pair) for layer in LAYERS}
INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


def core_files() -> list[Path]:
    return sorted([*SOURCE.rglob("*.h"), *SOURCE.rglob("*.cc")])


def tracked(*patterns: str) -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def violations(path: Path, text: str) -> list[str]:
    """What `path` includes although its layer must not."""
    parts = path.relative_to(SOURCE).parts
    layer = parts[0]
    backend = parts[1] if layer == "transport" and len(parts) > 2 else None
    found = []
    for included in INCLUDE.findall(text):
        target = included.split("/")
        if target[0] == "hmc" or len(target) == 1:
            continue
        if target[0] not in RANK:
            found.append(f"{path.name}: unknown layer in {included}")
        elif target[0] != layer and RANK[target[0]] >= RANK[layer]:
            found.append(f"{path.relative_to(SOURCE)} includes {included}: {layer} must not see {target[0]}")
        elif target[0] == "transport" and target[1] == "kit" and backend is not None:
            continue
        elif target[0] == "transport" and len(target) > 2 and target[1] != backend:
            found.append(f"{path.relative_to(SOURCE)} includes {included}: transports never include one another")
    return found


def test_layers_include_only_to_their_left() -> None:
    found = [line for path in core_files() for line in violations(path, path.read_text())]
    assert not found, "\n".join(found)


def test_the_check_itself_sees_a_violation() -> None:
    assert violations(SOURCE / "base" / "x.h", '#include "comm/peer_state.h"\n')
    assert violations(SOURCE / "control" / "x.h", '#include "transport/transport.h"\n')
    assert violations(SOURCE / "transport" / "shm" / "x.h", '#include "transport/tcp/frames.h"\n')
    assert violations(SOURCE / "comm" / "x.h", '#include "transport/shm/ring.h"\n')
    assert violations(SOURCE / "comm" / "x.h", '#include "transport/kit/operations.h"\n')
    assert violations(SOURCE / "transport" / "kit" / "x.h", '#include "transport/tcp/frames.h"\n')
    assert not violations(SOURCE / "comm" / "x.h", '#include "transport/transport.h"\n#include "hmc/peer.h"\n')
    assert not violations(SOURCE / "transport" / "tcp" / "x.h", '#include "transport/kit/operations.h"\n')


def test_every_folder_of_the_core_is_a_layer() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.is_dir()} == set(LAYERS)


def test_public_headers_include_only_public_headers() -> None:
    for path in (ROOT / "cpp" / "include" / "hmc").glob("*.h"):
        for included in INCLUDE.findall(path.read_text()):
            assert included.startswith("hmc/"), f"{path.name} includes {included}"


def test_backend_names_stay_in_their_folders() -> None:
    backends = [path.name for path in (SOURCE / "transport").iterdir() if path.is_dir() and path.name != "kit"]
    assert len(backends) >= 3
    for path in core_files():
        parts = path.relative_to(SOURCE).parts
        if parts[0] == "transport" and len(parts) > 2:
            continue
        for name in backends:
            if name in ("local", "tcp"):  # ordinary words outside transports: Complete::local, tcp:// addresses
                continue
            assert f'"{name}"' not in path.read_text(), f"{path.relative_to(SOURCE)} names the backend {name}"


@pytest.mark.parametrize("pattern", ["cpp/*", "bindings/*", "hmc/*", "tests/*", "bench/*"])
def test_files_stay_small(pattern: str) -> None:
    limit = 450
    large = []
    for path in tracked(pattern):
        if path.suffix in {".cc", ".h", ".py", ".pyi"} and path.name != "_core.pyi":  # generated
            lines = len(path.read_text().splitlines())
            if lines > limit:
                large.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert not large, "split by concept: " + ", ".join(large)


def test_no_fences_and_no_exits_in_the_core() -> None:
    banned = ["atomic_thread_fence", "std::exit(", "_exit(", "std::abort(", "::abort(", "std::terminate("]
    # Two things end the program: a caller that uses an error as a value (Result in hmc/status.h), and keys that could be guessed.
    allowed = {(path, word) for path in ("base/status.cc", "base/random.cc") for word in ("std::abort(", "::abort(")}
    for path in core_files():
        text = re.sub(r"\b[A-Z]\w+::abort\(", "", path.read_text())  # a method of that name
        for word in banned:
            if (str(path.relative_to(SOURCE)), word) in allowed:
                continue
            assert word not in text, f"{path.relative_to(SOURCE)} uses {word}"
