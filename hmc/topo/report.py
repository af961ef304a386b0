"""What ``hmc topo`` prints, and the same as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from hmc.cli.devices import SIMULATED
from hmc.cli.text import entry, paragraph, width

if TYPE_CHECKING:
    import hmc

__all__ = ["as_data", "nearest", "rate", "short_names", "show"]

CARD_FIELDS = (
    "name",
    "host",
    "device",
    "process",
    "model",
    "pci",
    "numa_node",
    "memory_bytes",
    "host_bandwidth",
    "provenance",
    "bus",
)
NIC_FIELDS = ("name", "host", "kind", "pci", "numa_node", "bandwidth", "bus")
# What Topology.distance() says, for people.
DISTANCES = {"switch": "by a PCIe switch", "root": "under one PCIe root", "node": "on one NUMA node"}
LINK_FIELDS = ("a", "b", "kind", "bandwidth")


def as_data(topology: hmc.Topology, paths: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Hosts, cards, network cards, links; ``paths[a][b]`` leads from the Member of rank a to that of rank b."""
    return {
        "hosts": topology.hosts,
        "cards": [{name: getattr(card, name) for name in CARD_FIELDS} for card in topology.cards],
        "nics": [
            {name: getattr(nic, name) for name in NIC_FIELDS} | dict(zip(("near", "distance"), nearest(topology, nic), strict=True))
            for nic in topology.nics
        ],
        "links": [{name: getattr(link, name) for name in LINK_FIELDS} for link in topology.links],
        "paths": paths,
    }


def nearest(topology: hmc.Topology, nic: hmc.TopologyNic) -> tuple[list[str], str]:
    """Names of the cards nearest to a network card, and how near they are; nothing where that is not known."""
    names = topology.near(nic)
    if not names:
        return [], ""
    return names, topology.distance(next(card for card in topology.cards if card.name == names[0]), nic)


def short_names(topology: hmc.Topology) -> dict[str, str]:
    """Names of cards without their host's, where the topology has one host."""
    if len(topology.hosts) != 1:
        return {card.name: card.name for card in topology.cards}
    return {card.name: card.name.removeprefix(topology.hosts[0] + "/") for card in topology.cards}


def rate(bandwidth: float) -> str:
    """Bytes per second for people."""
    return f"{bandwidth / 1e9:.3g} GB/s"


def show(topology: hmc.Topology, paths: list[list[dict[str, Any]]]) -> None:
    """Prints the card-level picture, and the matrix of paths where there is one."""
    names = short_names(topology)
    column = 3 + max([9, *(len(name) for name in [*names.values(), *(nic.name for nic in topology.nics)])])
    for host in topology.hosts:
        print(f"host {host}")
        for card in topology.cards:
            if card.host == host:
                print(entry(names[card.name], _card(card), column))
        for nic in topology.nics:
            if nic.host == host:
                facts = [nic.kind, rate(nic.bandwidth) if nic.bandwidth else "", nic.pci, _numa(nic.numa_node)]
                near, distance = nearest(topology, nic)
                if near:
                    facts.append(f"near {', '.join(names[name] for name in near)} ({DISTANCES[distance]})")
                print(entry(nic.name, ", ".join(fact for fact in facts if fact), column))
    if topology.links:
        print("links")
        for text in _links(topology, names):
            print(paragraph(text, "  ", "    "))
    if paths:
        _show_paths([names[card.name] for card in topology.members()], paths)
    if any(card.provenance == "simulated" for card in topology.cards):
        print(paragraph(f"{SIMULATED} Expected ones are placeholders."))


def _links(topology: hmc.Topology, names: dict[str, str]) -> list[str]:
    """A line per link; where all of a set of cards are joined alike, one for the set."""
    alike: dict[tuple[str, str], list[hmc.TopologyLink]] = {}
    for link in topology.links:
        host = next(card.host for card in topology.cards if card.name == link.a)
        alike.setdefault((host, link.kind + (f", {rate(link.bandwidth)}" if link.bandwidth else "")), []).append(link)
    lines = []
    for (_, what), links in alike.items():
        joined = [card.name for card in topology.cards if any(card.name in (link.a, link.b) for link in links)]
        if len(links) > 1 and len(links) == len(joined) * (len(joined) - 1) // 2:
            lines.append(f"every two of {', '.join(names[name] for name in joined)}: {what}")
        else:
            lines += [f"{names[link.a]} - {names[link.b]}: {what}" for link in links]
    return lines


def _numa(node: int | None) -> str:
    return "" if node is None else f"NUMA node {node}"


def _card(card: hmc.TopologyCard) -> str:
    facts = [
        f"{card.memory_bytes / 2**30:.1f} GiB" if card.memory_bytes else "",
        card.pci,
        _numa(card.numa_node),
        f"{rate(card.host_bandwidth)} to host memory" if card.host_bandwidth else "",
        f"process {card.process}" if card.process is not None else "",
        card.provenance,
    ]
    known = ", ".join(fact for fact in facts if fact)
    return f"{card.model} ({known})" if card.model and known else card.model or known


def _show_paths(names: list[str], paths: list[list[dict[str, Any]]]) -> None:
    print("\npaths, one process per card: from the row to the column, expected GB/s")
    reasons: dict[str, list[str]] = {}
    cells: list[list[str]] = []
    for name, row in zip(names, paths, strict=True):
        cells.append([])
        for other, path in zip(names, row, strict=True):
            cells[-1].append(path["transport"] if other == name else f"{path['transport']} {path['bandwidth'] / 1e9:.3g}")
            staged = "" if path["direct"] else ", staged through host memory"
            reasons.setdefault(f"{path['transport']} ({path['detail']}{staged})", []).append(f"{name} to {other}")
    for start, end in _column_groups(names, cells):
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("", no_wrap=True)
        for name in names[start:end]:
            table.add_column(name, justify="right", no_wrap=True)
        for name, row_cells in zip(names, cells, strict=True):
            table.add_row(name, *row_cells[start:end])
        Console(width=width(), highlight=False).print(table)
    for how, pairs in reasons.items():
        more = f" and {len(pairs) - 3} more" if len(pairs) > 3 else ""
        print(paragraph(f"{how}: {', '.join(pairs[:3])}{more}", "", "  "))


def _column_groups(names: list[str], cells: list[list[str]]) -> list[tuple[int, int]]:
    """Ranges of columns that fit beside each other; at least one column each."""
    widths = [max(len(names[column]), *(len(row[column]) for row in cells)) + 3 for column in range(len(names))]
    room = width() - max(len(name) for name in names) - 5
    groups, start = [], 0
    for end in range(1, len(names) + 1):
        if end == len(names) or sum(widths[start : end + 1]) > room:
            groups.append((start, end))
            start = end
    return groups
