"""`hmc doctor` on accelerators: usable ones make a round trip, plugged-in ones that cannot be used say why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import run_hmc

import hmc.testing
from hmc.cli.accelerators import accelerators, plugged_in


def card(sysfs: Path, address: str, vendor: str, kind: str) -> None:
    folder = sysfs / "bus" / "pci" / "devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "class").write_text(kind + "\n")


def doctor(expect: int = 0, **environment: str) -> list[dict[str, Any]]:
    result = run_hmc("doctor", "--json", environment=environment)
    assert result.returncode == expect, result.stdout + result.stderr
    return json.loads(result.stdout)


def test_cards_are_found_by_what_the_kernel_says(tmp_path: Path) -> None:
    card(tmp_path, "0000:3b:00.0", "0x10de", "0x030200")
    card(tmp_path, "0000:3c:00.0", "0x10de", "0x068000")  # a bridge of the same vendor
    card(tmp_path, "0000:86:00.0", "0xcabc", "0x120000")
    card(tmp_path, "0000:00:1f.0", "0x8086", "0x030000")
    card(tmp_path, "0000:00:02.0", "garbage", "0x030000")
    assert plugged_in(tmp_path) == {"cuda": ["0000:3b:00.0"], "mlu": ["0000:86:00.0"]}
    assert plugged_in(tmp_path / "absent") == {}


def test_a_card_without_its_runtime_says_why(tmp_path: Path) -> None:
    usable = {runtime["vendor"] for runtime in hmc.info()["runtimes"] if runtime["available"]}
    card(tmp_path, "0000:86:00.0", "0xcabc", "0x120000")
    if "mlu" not in usable:
        [finding] = [finding for finding in accelerators(tmp_path) if finding.name == "mlu"]
        assert finding.level == "note"
        assert "0000:86:00.0" in finding.found
        assert "libcnrt" in finding.found
        assert "HMC_MLU_LIBRARY" in finding.fix


def test_every_usable_card_makes_a_round_trip() -> None:
    rows = {row["name"]: row for row in doctor(**hmc.testing.environment())}
    for name in (f"{vendor}:{index}" for vendor in hmc.testing.VENDORS for index in range(2)):
        assert rows[name]["level"] == "ok"
        assert "simulated" in rows[name]["found"]


def test_a_card_that_fails_is_a_problem() -> None:
    rows = doctor(1, **hmc.testing.environment("rocm"), HMC_SIM_FAIL="hipMalloc:1=2")
    [bad] = [row for row in rows if row["level"] == "problem"]
    assert bad["name"] == "rocm:0"
    assert "hipErrorOutOfMemory" in bad["found"]
