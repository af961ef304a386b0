"""What the documentation says of names, codes, options and headers is what there is; and it builds without a warning."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hmc
from hmc import errors
from hmc.cli import _parser

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HEADERS = ROOT / "cpp" / "include" / "hmc"


def cells(page: str, mark: str) -> list[list[str]]:
    """Rows of the tables of a page that start with ``mark``."""
    lines = (DOCS / page).read_text().splitlines()
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines if line.startswith(f"| {mark}")]


def test_every_error_code_is_in_the_table() -> None:
    rows = {row[0]: row[1:] for row in cells("explanation/errors.md", "`")}
    codes = dict(re.findall(r"^  (\w+) = (\d+),", (HEADERS / "status.h").read_text(), re.MULTILINE))
    internal = {"ok", "would_block"}
    assert set(rows) == set(codes) - internal
    for code, (name, builtin, meaning) in rows.items():
        kind = errors.BY_CODE[int(codes[code])]
        assert kind.__name__ == name
        assert kind.code == code
        others = [base.__name__ for base in kind.__bases__ if base is not errors.HmcError]
        assert others == ([builtin] if builtin else [])
        assert meaning


def test_every_public_header_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "cpp.md").read_text()
    for header in HEADERS.glob("*.h"):
        if header.name not in {"hmc.h", "export.h"}:
            assert f"literalinclude}} ../../cpp/include/hmc/{header.name}" in page, header.name
    everything = (HEADERS / "hmc.h").read_text()
    assert {f"hmc/{header.name}" for header in HEADERS.glob("*.h")} - {"hmc/hmc.h", "hmc/export.h"} == set(
        re.findall(r'#include "([^"]+)"', everything)
    )


def test_every_public_class_says_its_thread_rules() -> None:
    for header in HEADERS.glob("*.h"):
        text = header.read_text()
        if "Thread rules" in text.partition("#pragma once")[0]:  # of the whole header
            continue
        for found in re.finditer(r"((?:^//.*\n)+)class (?:\[\[nodiscard\]\] )?(?:HMC_API )?(\w+) ", text, re.MULTILINE):
            comment, name = found[1], found[2]
            assert re.search(r"[Tt]hread", comment), f"{header.name}: {name} does not say from which threads it may be used"


def test_every_command_and_option_is_documented() -> None:
    page = (DOCS / "reference" / "command_line.md").read_text()
    sections = dict(re.findall(r"^## hmc (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    parser = _parser()
    [commands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    assert set(sections) == set(commands.choices)
    for place, known in [(page, parser), *((sections[name], command) for name, command in commands.choices.items())]:
        for action in known._actions:
            for option in action.option_strings:
                if option not in {"-h", "--help"}:
                    assert f"{option}`" in place or f"{option} " in place, f"{known.prog} {option}"


def test_every_transport_is_in_the_support_matrix() -> None:
    known = {row[0]: row[1] for row in cells("support.md", "`")}
    for transport in hmc.info()["transports"]:
        assert known[transport["name"]] == "yes", transport["name"]


def test_the_api_reference_is_whole() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    for name in hmc.__all__:
        assert re.search(rf"hmc\.{name}\b|^   {name}$", page, re.MULTILINE), name


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; make docs brings it")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    # Not from the source tree: its hmc/ has no extension.
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
