"""``hmc doctor`` on RDMA: devices, their ports and addresses, and whether ``verbs`` can use them."""

from __future__ import annotations

import os
from pathlib import Path

from hmc.cli.finding import GOOD, NOTE, Finding

__all__ = ["rdma"]

# An interface carries RoCE packets of 4096 bytes from this MTU on: the RDMA headers come on top.
FULL_MTU = 4200
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _roce_addresses(port: Path) -> list[str]:
    """GIDs of RoCE version 2, as text."""
    gids = []
    for kind in sorted((port / "gid_attrs" / "types").glob("*"), key=lambda entry: int(entry.name)):
        gid = _line(port / "gids" / kind.name)
        if _line(kind) == "RoCE v2" and gid not in ("", EMPTY_GID):
            gids.append(gid)
    return gids


def _port(device: Path, port: Path) -> Finding:
    name = f"{device.name} port {port.name}"
    state = _line(port / "state").partition(": ")[2] or "unknown"
    layer = _line(port / "link_layer")
    found = f"{state}, {layer}, {_line(port / 'rate')}"
    if state != "ACTIVE":
        fix = (
            "`ip link set <interface> up`, and look at the cable"
            if layer == "Ethernet"
            else "look at the cable and at the subnet manager"
        )
        return Finding(name, NOTE, found, fix)
    if layer != "Ethernet":
        return Finding(name, GOOD, found)
    interface = _line(port / "gid_attrs" / "ndevs" / "0")
    gids = _roce_addresses(port)
    if not gids:
        return Finding(name, NOTE, f"{found}; no address of RoCE v2", f"give {interface or 'its interface'} an IP address")
    mtu = _line(device.parents[1] / "net" / interface / "mtu") if interface else ""
    if mtu.isdigit() and int(mtu) < FULL_MTU:
        fix = f"`ip link set {interface} mtu {FULL_MTU}` on every host and switch, where all of them can"
        return Finding(
            name, NOTE, f"{found}; {len(gids)} addresses of RoCE v2; packets are small: {interface} has an MTU of {mtu}", fix
        )
    return Finding(name, GOOD, f"{found}; {len(gids)} addresses of RoCE v2")


def rdma(sysfs: Path = Path("/sys"), devices: Path = Path("/dev/infiniband")) -> list[Finding]:
    """A finding per port, and one on what ``verbs`` makes of them."""
    import hmc

    found = sorted((sysfs / "class" / "infiniband").glob("*"))
    if not found:
        return [Finding("RDMA", GOOD, "no device here: hosts are reached by tcp")]
    findings = [_port(device, port) for device in found for port in sorted((device / "ports").glob("*"))]
    closed = [str(node) for node in sorted(devices.glob("uverbs*")) if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        fix = "containers: --device /dev/infiniband; else a udev rule or group that opens them (rdma-core brings one)"
        findings.append(Finding("RDMA", NOTE, f"this user may not open {', '.join(closed)}", fix))
        return findings
    verbs = next(row for row in hmc.info()["transports"] if row["name"] == "verbs")
    if verbs["available"]:
        findings.append(Finding("RDMA", GOOD, f"verbs: {verbs['reason']}"))
    else:
        fix = "apt-get install libibverbs1 ibverbs-providers (rdma-core on Red Hat); in a container, also --device /dev/infiniband"
        findings.append(Finding("RDMA", NOTE, f"verbs cannot use it: {verbs['reason']}", fix))
    return findings
