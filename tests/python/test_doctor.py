"""`hmc doctor` on accelerators (usable ones make a round trip, plugged-in ones that cannot be used say why) and on RDMA devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import run_hmc

import hmc.testing
from hmc.cli.accelerators import accelerators, plugged_in
from hmc.cli.rdma import rdma


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


def rdma_port(sysfs: Path, device: str, state: str, layer: str, gids: dict[int, tuple[str, str]], mtu: int = 9000) -> None:
    port = sysfs / "class" / "infiniband" / device / "ports" / "1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    for file, text in (
        ("state", state),
        ("link_layer", layer),
        ("rate", "100 Gb/sec (4X EDR)"),
        ("gid_attrs/ndevs/0", f"net_{device}"),
    ):
        (port / file).write_text(text + "\n")
    for index, (gid, kind) in gids.items():
        (port / "gids" / str(index)).write_text(gid + "\n")
        (port / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
    interface = sysfs / "class" / "net" / f"net_{device}"
    interface.mkdir(parents=True)
    (interface / "mtu").write_text(f"{mtu}\n")


def test_rdma_ports_say_what_keeps_them_from_being_used(tmp_path: Path) -> None:
    v2 = ("0000:0000:0000:0000:0000:ffff:0a63:0001", "RoCE v2")
    rdma_port(tmp_path, "good", "4: ACTIVE", "Ethernet", {0: ("fe80::1", "IB/RoCE v1"), 1: v2})
    rdma_port(tmp_path, "small", "4: ACTIVE", "Ethernet", {0: v2}, mtu=1500)
    rdma_port(tmp_path, "bare", "4: ACTIVE", "Ethernet", {0: ("fe80::1", "IB/RoCE v1")})
    rdma_port(tmp_path, "down", "1: DOWN", "Ethernet", {0: v2})
    rdma_port(tmp_path, "ib", "4: ACTIVE", "InfiniBand", {})
    rows = {finding.name: finding for finding in rdma(tmp_path, tmp_path)}
    assert rows["good port 1"].level == rows["ib port 1"].level == "ok"
    assert "100 Gb/sec" in rows["good port 1"].found
    assert "MTU of 1500" in rows["small port 1"].found
    assert "net_small" in rows["small port 1"].fix
    assert "IP address" in rows["bare port 1"].fix
    assert "link set" in rows["down port 1"].fix
    assert all(rows[name + " port 1"].level == "note" for name in ("small", "bare", "down"))
    assert rows["RDMA"].found.startswith("verbs")


def test_no_rdma_device_is_no_fault(tmp_path: Path) -> None:
    [finding] = rdma(tmp_path, tmp_path)
    assert finding.level == "ok"
    assert "tcp" in finding.found
