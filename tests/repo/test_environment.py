"""Environment variables: one table in the core, the same in the documentation, and nothing is read beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hmc

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "cpp" / "src" / "base" / "env.cc"
PAGE = ROOT / "docs" / "reference" / "environment.md"
ROW = re.compile(r'^\s*\{"(HMC_\w+)", "([^"]*)", "([^"]*)"\},$', re.MULTILINE)
NAME = re.compile(r'["\'](HMC_[A-Z0-9_]+)["\']')
GETENV = re.compile(r"\b(?:secure_)?getenv\(")


def rows() -> list[tuple[str, str, str]]:
    """(name, default, meaning) of every row of the core's table, in order."""
    return ROW.findall(TABLE.read_text())


def sources(*folders: str) -> list[Path]:
    """C++ and Python files that the package is made of."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".cc", ".h", ".py"}]
    assert files
    return files


def names_in(path: Path) -> set[str]:
    return set(NAME.findall(path.read_text()))


def test_every_line_of_the_table_is_a_row() -> None:
    body = TABLE.read_text().partition("to_array<EnvVariable>({")[2].partition("});")[0]
    assert len(rows()) == sum(1 for line in body.splitlines() if line.strip())
    assert [name for name, _, _ in rows()] == sorted(name for name, _, _ in rows())


def test_the_documentation_lists_exactly_the_table() -> None:
    cells = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in PAGE.read_text().splitlines() if "`HMC_" in line
    ]
    assert [tuple(row) for row in cells] == [(f"`{name}`", default or "(unset)", meaning) for name, default, meaning in rows()]


def test_the_installed_package_shows_the_table() -> None:
    assert [(row["name"], row["default"], row["help"]) for row in hmc.info()["settings"]] == rows()


def test_what_the_sources_name_is_in_the_table() -> None:
    known = {name for name, _, _ in rows()}
    found = {name: path for path in sources("cpp", "bindings", "hmc") for name in names_in(path)}
    unknown = {name: str(path.relative_to(ROOT)) for name, path in found.items() if name not in known}
    assert not unknown, "read but not a row of cpp/src/base/env.cc"


def test_every_row_is_read_somewhere() -> None:
    read = {name for path in sources("cpp", "bindings", "hmc") if path != TABLE for name in names_in(path)}
    assert {name for name, _, _ in rows()} - read == set()


def test_the_core_reads_the_environment_in_one_place() -> None:
    # launch.cc reads the launchers' variables itself, and its own by way of the table; ucx/api.cc looks whether UCX's are set.
    allowed = {"base/env.cc", "collective/launch.cc", "transport/ucx/api.cc"}
    found = {str(path.relative_to(ROOT / "cpp" / "src")) for path in sources("cpp/src") if GETENV.search(path.read_text())}
    found |= {str(path.relative_to(ROOT)) for path in sources("bindings") if GETENV.search(path.read_text())}
    # Folders that the system names: XDG_RUNTIME_DIR; XDG_CACHE_HOME and HOME.
    allowed |= {"progress/private_directory.cc", "collective/figure_cache.cc"}
    assert found <= allowed, "getenv outside the table"


@pytest.mark.parametrize(("text", "expected"), [('env_text("HMC_NEW")', {"HMC_NEW"}), ("os.environ['HMC_X2']", {"HMC_X2"})])
def test_the_check_itself_sees_a_name(tmp_path: Path, text: str, expected: set[str]) -> None:
    (tmp_path / "x.cc").write_text(text)
    assert names_in(tmp_path / "x.cc") == expected
