"""`hmc doctor` on accelerators (usable ones make a round trip, plugged-in ones that cannot be used say why) and on RDMA devices."""

from __future__ import annotations

import json
import os
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest
from commands import run_alone, run_hmc

import hmc.testing
from hmc.cli.accelerators import accelerators, plugged_in
from hmc.cli.doctor import _descriptors, _memlock
from hmc.cli.firewall import firewall
from hmc.cli.pcie import access_control, peer_memory, relaxed_ordering
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


@pytest.mark.parametrize("runtime", ["", "/absent", "own"])
def test_the_socket_directory_is_the_one_in_use(runtime: str) -> None:
    with tempfile.TemporaryDirectory() as own:
        environment = {"XDG_RUNTIME_DIR": own if runtime == "own" else runtime}
        [found] = [row["found"] for row in doctor(**environment) if row["name"] == "socket directory"]
        addresses = run_alone("print(*hmc.Context().addresses)", **environment).split()
        assert found in [os.path.dirname(address.removeprefix("unix:")) for address in addresses], addresses


def test_a_socket_directory_that_others_may_enter() -> None:
    with tempfile.TemporaryDirectory() as own:
        os.mkdir(f"{own}/hmc")
        os.chmod(f"{own}/hmc", 0o755)
        [row] = [row for row in doctor(expect=1, XDG_RUNTIME_DIR=own) if row["name"] == "socket directory"]
        assert row["level"] == "problem"
        assert f"chmod 700 {own}/hmc" in row["found"]


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
    rows = {finding.name: finding for finding in rdma(tmp_path, tmp_path, tmp_path)}
    assert rows["good port 1"].level == rows["ib port 1"].level == "ok"
    assert "100 Gb/sec" in rows["good port 1"].found
    assert "MTU of 1500" in rows["small port 1"].found
    assert "net_small" in rows["small port 1"].fix
    assert "IP address" in rows["bare port 1"].fix
    assert "link set" in rows["down port 1"].fix
    assert all(rows[name + " port 1"].level == "note" for name in ("small", "bare", "down"))
    assert rows["RDMA"].found.startswith("verbs")
    assert "net_good 9000" in rows["MTU of RDMA ports"].found
    assert "net_small 1500" in rows["MTU of RDMA ports"].found


def test_rdma_ports_without_a_route(tmp_path: Path) -> None:
    v2 = ("0000:0000:0000:0000:0000:ffff:0a63:0001", "RoCE v2")
    for device in ("one", "two"):
        rdma_port(tmp_path, device, "4: ACTIVE", "Ethernet", {0: v2})
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "route").write_text("Iface\tDestination\tGateway\nnet_one\t0000630A\t00000000\n")
    rows = {finding.name: finding for finding in rdma(tmp_path, tmp_path, tmp_path)}
    assert rows["route of RDMA ports"].found.endswith("net_two")
    assert "MTU of RDMA ports" not in rows


def test_no_rdma_device_is_no_fault(tmp_path: Path) -> None:
    [finding] = rdma(tmp_path, tmp_path)
    assert finding.level == "ok"
    assert "tcp" in finding.found


def config_space(relaxed: bool = True, redirect: bool | None = None, readable: int = 4096) -> bytes:
    """Of a PCI device with an Express capability at 0x80, and with access control at 0x200 where `redirect` is given."""
    config = bytearray(4096)
    config[0x34] = 0x40
    config[0x40:0x42] = bytes([0x05, 0x80])
    config[0x80:0x82] = bytes([0x10, 0x00])
    config[0x88] = 0x10 if relaxed else 0
    config[0x100:0x104] = (0x0001 | 0x200 << 20).to_bytes(4, "little")
    if redirect is not None:
        config[0x200:0x204] = (0x000D).to_bytes(4, "little")
        config[0x206] = 0b11100 if redirect else 0
    return bytes(config[:readable])


def bridged_card(sysfs: Path, address: str, bridge: bytes, card_config: bytes) -> None:
    above = sysfs / "devices" / "pci0000:37" / "0000:37:01.0"
    folder = above / address
    folder.mkdir(parents=True)
    (above / "config").write_bytes(bridge)
    for file, text in (("vendor", "0x10de\n"), ("class", "0x030200\n")):
        (folder / file).write_text(text)
    (folder / "config").write_bytes(card_config)
    (sysfs / "bus" / "pci" / "devices").mkdir(parents=True, exist_ok=True)
    (sysfs / "bus" / "pci" / "devices" / address).symlink_to(folder)


def test_pcie_settings_that_slow_cards_down(tmp_path: Path) -> None:
    bridged_card(tmp_path, "0000:3b:00.0", config_space(redirect=True), config_space(relaxed=False))
    bridged_card(tmp_path, "0000:3b:00.1", config_space(redirect=True), config_space())
    [ordering] = relaxed_ordering(tmp_path)
    assert ordering.level == "note"
    assert "0000:3b:00.0:" in ordering.found
    [control] = access_control(tmp_path)
    assert control.level == "note"
    assert "0000:37:01.0" in control.found
    assert "setpci" in control.fix


def test_pcie_settings_that_are_as_they_should_be(tmp_path: Path) -> None:
    bridged_card(tmp_path, "0000:3b:00.0", config_space(redirect=False), config_space())
    assert [finding.level for finding in relaxed_ordering(tmp_path) + access_control(tmp_path)] == ["ok", "ok"]
    assert relaxed_ordering(tmp_path / "none") == access_control(tmp_path / "none") == []


@pytest.mark.parametrize("bytes_shown", [0, 64])
def test_pcie_settings_that_only_root_sees(tmp_path: Path, bytes_shown: int) -> None:
    bridged_card(tmp_path, "0000:3b:00.0", config_space(redirect=True, readable=bytes_shown), config_space(readable=bytes_shown))
    for [finding] in (relaxed_ordering(tmp_path), access_control(tmp_path)):
        assert "not known" in finding.found
        assert "root" in finding.fix


def test_garbage_in_config_space_ends_the_search(tmp_path: Path) -> None:
    loop = bytearray(config_space(redirect=False))
    loop[0x41] = 0x40  # a capability that is its own next
    loop[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    bridged_card(tmp_path, "0000:3b:00.0", bytes(loop), bytes(loop))
    assert relaxed_ordering(tmp_path)[0].level == "note"
    access_control(tmp_path)


def test_how_rdma_reaches_the_memory_of_cards(tmp_path: Path) -> None:
    def runtime(*capabilities: str) -> list[dict[str, Any]]:
        return [{"vendor": "cuda", "devices": [{"device": "cuda:0", "capabilities": list(capabilities)}]}]

    assert peer_memory(tmp_path, runtime("dma-buf")) == []  # no RDMA device
    (tmp_path / "devices" / "0000:18:00.0").mkdir(parents=True)
    (tmp_path / "class" / "infiniband" / "mlx5_0").mkdir(parents=True)
    (tmp_path / "class" / "infiniband" / "mlx5_0" / "device").symlink_to(tmp_path / "devices" / "0000:18:00.0")
    assert "dma-buf" in peer_memory(tmp_path, runtime("dma-buf"))[0].found
    [closed] = peer_memory(tmp_path, runtime())
    assert closed.level == "note"
    assert "peermem" in closed.fix
    (tmp_path / "module" / "nvidia_peermem").mkdir(parents=True)
    [opened] = peer_memory(tmp_path, runtime())
    assert opened.level == "ok"
    assert "nvidia_peermem" in opened.found


@pytest.mark.parametrize(
    ("rules", "level"),
    [
        ("table inet filter {\n chain input {\n type filter hook input priority 0; policy drop;\n}}", "note"),
        ("-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n", "note"),
        (
            "-P INPUT ACCEPT\n-A INPUT -i lo -j ACCEPT\n-A INPUT -j REJECT --reject-with icmp-host-prohibited",
            "note",
        ),
        ("-P INPUT ACCEPT\n-A INPUT -s 192.0.2.7/32 -j DROP\n", "ok"),
        ("", "ok"),
    ],
)
def test_firewalls_are_found_by_their_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: str, level: str) -> None:
    monkeypatch.setenv("HMC_RENDEZVOUS", "tcp://192.0.2.1:7000")
    found = firewall(tmp_path, tmp_path, rules)
    assert found.level == level
    assert level == "ok" or "port 7000" in found.found


@pytest.mark.parametrize("nft", ["#!/bin/sh\nexec /bin/sleep 60\n", "no program", ""], ids=["slow", "broken", "absent"])
def test_a_firewall_that_does_not_show_its_rules_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nft: str) -> None:
    if nft:
        (tmp_path / "nft").write_text(nft)
        (tmp_path / "nft").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("hmc.cli.firewall.TIMEOUT", 0.2, raising=False)
    found = firewall(tmp_path, tmp_path)
    assert (found.level, "not shown" in found.found) == ("ok", True)


def test_firewalls_are_found_by_their_services(tmp_path: Path) -> None:
    (tmp_path / "ufw").mkdir()
    (tmp_path / "ufw" / "ufw.conf").write_text("# /etc/ufw/ufw.conf\nENABLED=no\n")
    assert firewall(tmp_path, tmp_path, "").level == "ok"
    (tmp_path / "ufw" / "ufw.conf").write_text("ENABLED=yes\n")
    assert "ufw" in firewall(tmp_path, tmp_path, "").found
    (tmp_path / "firewalld").mkdir()
    assert "firewalld" in firewall(tmp_path / "none", tmp_path, "").found


@pytest.mark.parametrize(
    ("soft", "hard", "fix"),
    [
        (40, 40, "as root, set `nofile 4096`"),
        (40, 8192, "`ulimit -n 4096`"),
        (1024, resource.RLIM_INFINITY, "`ulimit -n 4096`"),
        (4096, 4096, ""),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, ""),
    ],
)
def test_descriptors_are_fixed_by_what_helps(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, fix: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (soft, hard))
    finding = _descriptors()
    assert finding.level == ("note" if fix else "ok")
    assert fix in finding.fix


def test_locked_memory_is_fixed_by_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (65536, 65536))
    assert "as root, set `memlock unlimited`" in _memlock().fix
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (65536, resource.RLIM_INFINITY))
    assert "`ulimit -l unlimited`" in _memlock().fix
