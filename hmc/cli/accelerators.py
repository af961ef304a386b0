"""``hmc doctor`` on accelerators: what is plugged in, whether HMC can use it, and a round trip through the memory of each card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hmc.cli.finding import BAD, GOOD, NOTE, Finding

__all__ = ["accelerators", "plugged_in"]

# PCI vendor numbers, and HMC's names for the vendors.
PCI_VENDORS = {0x10DE: "cuda", 0x1002: "rocm", 0x1D94: "hygon", 0xCABC: "mlu", 0x1ED5: "musa"}
# PCI classes: 3D controllers and other display controllers without a screen, processing accelerators, and those with a screen.
PCI_CLASSES = (0x0302, 0x0380, 0x1200, 0x0300)
SAMPLE_BYTES = 1_000_003


def plugged_in(sysfs: Path = Path("/sys")) -> dict[str, list[str]]:
    """PCI addresses of accelerators, by vendor, as the kernel sees them: with or without a driver."""
    cards: dict[str, list[str]] = {}
    for device in sorted((sysfs / "bus" / "pci" / "devices").glob("*")):
        try:
            vendor = int((device / "vendor").read_text(), 16)
            kind = int((device / "class").read_text(), 16) >> 8
        except (OSError, ValueError):
            continue
        if vendor in PCI_VENDORS and kind in PCI_CLASSES:
            cards.setdefault(PCI_VENDORS[vendor], []).append(device.name)
    return cards


def accelerators(sysfs: Path = Path("/sys")) -> list[Finding]:
    """A finding per vendor that is usable here, or plugged in and not usable; one that says so where there is none."""
    import hmc

    cards = plugged_in(sysfs)
    findings = []
    for runtime in hmc.info()["runtimes"]:
        vendor = runtime["vendor"]
        if vendor == "cpu":
            continue
        if runtime["available"]:
            findings += [_round_trip(device) for device in runtime["devices"]]
        elif vendor in cards:
            where = ", ".join(cards[vendor])
            findings.append(
                Finding(
                    vendor,
                    NOTE,
                    f"plugged in ({where}) and not usable: {runtime['reason']}",
                    f"install the vendor's driver and runtime; HMC_{vendor.upper()}_LIBRARY names a library that is elsewhere",
                )
            )
    if not findings:
        findings.append(Finding("accelerators", GOOD, "none here: CPU memory only (`--simulate` tries the others)"))
    return findings


def _round_trip(device: dict[str, Any]) -> Finding:
    import numpy as np

    import hmc

    name = device["device"]
    what = f"{device['name']} ({device['provenance']})"
    sent = np.random.default_rng(7).integers(0, 256, SAMPLE_BYTES, dtype=np.uint8)
    back = np.zeros_like(sent)
    try:
        memory = hmc.Memory(SAMPLE_BYTES, device=name)
        memory.copy_from(sent)
        memory.copy_to(back)
    except hmc.HmcError as error:
        return Finding(
            name, BAD, f"{what}: {error}", "the message names the vendor's call and code; is another process using it all?"
        )
    if not np.array_equal(sent, back):
        return Finding(name, BAD, f"{what}: wrong bytes came back", "please report this")
    rate = device["host_bandwidth"]
    return Finding(name, GOOD, what + (f", {rate / 1e9:.3g} GB/s to host memory expected" if rate else ""))
