"""``hmc doctor`` on what lies between cards: whether RDMA devices can reach their memory, and what the PCIe bridges do to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hmc.cli.accelerators import plugged_in
from hmc.cli.finding import GOOD, NOTE, Finding

__all__ = ["access_control", "peer_memory", "relaxed_ordering"]

EXPRESS = 0x10  # capability: PCI Express; its device control register is 8 bytes in
RELAXED_ORDERING = 1 << 4
ACCESS_CONTROL = 0x0D  # extended capability: ACS; its control register is 6 bytes in
REDIRECTS = 0b11100  # requests, completions, and upstream forwarding


def _word(config: bytes, at: int) -> int:
    return int.from_bytes(config[at : at + 2], "little")


def _capability(config: bytes, wanted: int) -> int | None:
    """Where a capability of the first 256 bytes begins."""
    at = config[0x34] & ~3 if len(config) > 0x34 else 0
    for _ in range(48):
        if at < 0x40 or at + 2 > len(config):
            return None
        if config[at] == wanted:
            return at
        at = config[at + 1] & ~3
    return None


def _extended(config: bytes, wanted: int) -> int | None:
    at = 0x100
    for _ in range(256):
        if at < 0x100 or at + 4 > len(config):
            return None
        head = int.from_bytes(config[at : at + 4], "little")
        if head & 0xFFFF == wanted:
            return at
        at = head >> 20
    return None


def _config(device: Path) -> bytes:
    """All that this user may read: 64 bytes, or all of it as root."""
    try:
        return (device / "config").read_bytes()
    except OSError:
        return b""


def _rdma_devices(sysfs: Path) -> list[str]:
    """PCI addresses."""
    links = sorted((sysfs / "class" / "infiniband").glob("*/device"))
    return [os.path.basename(os.path.realpath(link)) for link in links]


def _cards(sysfs: Path) -> list[str]:
    return sorted({address for cards in plugged_in(sysfs).values() for address in cards} | set(_rdma_devices(sysfs)))


def peer_memory(sysfs: Path = Path("/sys"), runtimes: list[dict[str, Any]] | None = None) -> list[Finding]:
    """Where there are RDMA devices: by which way each card's memory can be registered with them."""
    import hmc

    if not _rdma_devices(sysfs):
        return []
    clients = sorted(entry.name for entry in (sysfs / "kernel" / "mm" / "memory_peers").glob("*"))
    clients += sorted(entry.name for entry in (sysfs / "module").glob("*peermem*"))
    findings = []
    for runtime in hmc.info()["runtimes"] if runtimes is None else runtimes:
        for device in runtime["devices"]:
            if runtime["vendor"] == "cpu":
                continue
            name = f"{device['device']} and RDMA"
            if "dma-buf" in device["capabilities"]:
                findings.append(Finding(name, GOOD, "its driver exports dma-buf"))
            elif clients:
                findings.append(Finding(name, GOOD, f"no dma-buf; the kernel has {', '.join(clients)}"))
            else:
                fix = "load the vendor's peer-memory module (NVIDIA: `modprobe nvidia-peermem`), or a driver that exports dma-buf"
                findings.append(Finding(name, NOTE, "network cards cannot reach its memory: transfers go through host memory", fix))
    return findings


def relaxed_ordering(sysfs: Path = Path("/sys")) -> list[Finding]:
    """Cards whose writes may not overtake each other: up to half of the bandwidth on some hosts."""
    strict, unknown = [], []
    for address in _cards(sysfs):
        config = _config(sysfs / "bus" / "pci" / "devices" / address)
        at = _capability(config, EXPRESS)
        if at is None or at + 10 > len(config):
            unknown.append(address)
        elif not _word(config, at + 8) & RELAXED_ORDERING:
            strict.append(address)
    return _verdict(
        "PCIe relaxed ordering",
        sysfs,
        strict,
        unknown,
        "off for {}: transfers may be slower",
        "enable it in the BIOS (AMD: Relaxed Ordering; Intel: PCIe ordering) or by `setpci -s ADDRESS CAP_EXP+8.w=10:10`",
        "on for every card",
    )


def access_control(sysfs: Path = Path("/sys")) -> list[Finding]:
    """Bridges above cards that send traffic between them up to the root and back."""
    redirecting, unknown = set(), set()
    for address in _cards(sysfs):
        path = Path(os.path.realpath(sysfs / "bus" / "pci" / "devices" / address))
        for bridge in path.parents:
            if bridge.name.startswith("pci") or ":" not in bridge.name:
                break
            config = _config(bridge)
            at = _extended(config, ACCESS_CONTROL)
            if at is not None and at + 8 <= len(config):
                if _word(config, at + 6) & REDIRECTS:
                    redirecting.add(bridge.name)
            elif len(config) <= 256:
                unknown.add(bridge.name)
    return _verdict(
        "PCIe access control (ACS)",
        sysfs,
        sorted(redirecting),
        sorted(unknown),
        "on at {}: traffic between cards goes up to the root and back",
        "without virtual machines, switch ACS off in the BIOS or by `setpci -s BRIDGE ECAP_ACS+6.w=0:1c`",
        "no bridge above a card redirects",
    )


def _verdict(name: str, sysfs: Path, bad: list[str], unknown: list[str], what: str, fix: str, good: str) -> list[Finding]:
    if not _cards(sysfs):
        return []
    if bad:
        return [Finding(name, NOTE, what.format(_some(bad)), fix)]
    if unknown:
        return [
            Finding(name, NOTE, f"not known of {_some(unknown)}", "run `hmc doctor` as root: the kernel shows it to nobody else")
        ]
    return [Finding(name, GOOD, good)]


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
