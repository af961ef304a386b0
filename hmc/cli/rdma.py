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
    interface = _interface(port)
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


def _interface(port: Path) -> str:
    return _line(port / "gid_attrs" / "ndevs" / "0")


def _mtus(device: Path, ports: list[Path]) -> list[Finding]:
    """Packets of a connection are as large as both ends can: ports that differ slow each other down."""
    sizes = {_interface(port): _line(device.parents[1] / "net" / _interface(port) / "mtu") for port in ports if _interface(port)}
    known = {name: size for name, size in sizes.items() if size.isdigit()}
    if len(set(known.values())) < 2:
        return []
    found = ", ".join(f"{name} {size}" for name, size in sorted(known.items()))
    return [Finding("MTU of RDMA ports", NOTE, f"they differ: {found}", "give all of them, and the switches between, the same MTU")]


def _routes(ports: list[Path], proc: Path) -> list[Finding]:
    """Interfaces of RoCE ports over which no route leads."""
    table = _line_table(proc / "net" / "route")
    if table is None:
        return []
    lost = sorted({_interface(port) for port in ports if _interface(port)} - {row[0] for row in table})
    if not lost:
        return []
    fix = f"give {lost[0]} an IPv4 address in the subnet of the other hosts (`ip address add 192.0.2.1/24 dev {lost[0]}`)"
    return [Finding("route of RDMA ports", NOTE, f"no IPv4 route leads over {', '.join(lost)}", fix)]


def _line_table(file: Path) -> list[list[str]] | None:
    try:
        return [line.split() for line in file.read_text().splitlines()[1:] if line.split()]
    except OSError:
        return None


def rdma(sysfs: Path = Path("/sys"), devices: Path = Path("/dev/infiniband"), proc: Path = Path("/proc")) -> list[Finding]:
    """A finding per port, on what does not fit between them, and one on what ``verbs`` makes of them."""
    import hmc

    found = sorted((sysfs / "class" / "infiniband").glob("*"))
    if not found:
        return [Finding("RDMA", GOOD, "no device here: hosts are reached by tcp")]
    findings = [_port(device, port) for device in found for port in sorted((device / "ports").glob("*"))]
    active = [port for device in found for port in sorted((device / "ports").glob("*")) if "ACTIVE" in _line(port / "state")]
    roce = [port for port in active if _line(port / "link_layer") == "Ethernet"]
    findings += _mtus(found[0], roce) + _routes(roce, proc)
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
