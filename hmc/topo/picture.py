"""The picture of ``hmc topo``: hosts with their cards and links, and a cell per pair of Members with the path between them."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hmc.cli.text import writing
from hmc.topo.report import nearest, short_names

if TYPE_CHECKING:
    import hmc

__all__ = ["draw"]

COLUMNS = 4  # cards side by side in a host
LINK_COLORS = {"nvlink": "tab:green", "xgmi": "tab:red", "peer": "tab:orange", "same card": "0.6"}
# Of a network card to the cards nearest to it, by what they share.
NIC_STYLES: dict[str, Literal["-", "--", ":"]] = {"switch": "-", "root": "--", "node": ":"}
NIC_LABELS = {"switch": "one PCIe switch", "root": "one PCIe root", "node": "one NUMA node"}
PATH_COLORS = {
    "local": "#cfe8cf",
    "shm": "#bfe3d6",
    "ipc": "#a8d5a2",
    "verbs": "#b9cdf0",
    "ucx": "#d5c8ec",
    "staging": "#f6d9a8",
    "tcp": "#f3c4bd",
}


def draw(topology: hmc.Topology, paths: list[list[dict[str, Any]]], file: str) -> str:
    """Draws ``file`` (.png or .svg). Returns a line to print."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "no picture: matplotlib is not installed (pip install matplotlib)"
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = sum(_rows(topology, host) for host in topology.hosts)
    height = max(3.2, 1.5 * rows + 0.9 * len(topology.hosts), 0.42 * len(paths) + 2.2)
    widths = [6.4, max(4.0, 0.78 * len(paths) + 1.6)] if paths else [6.4]
    figure, panels = plt.subplots(
        1, len(widths), figsize=(sum(widths), height), squeeze=False, layout="constrained", width_ratios=widths
    )
    _draw_hosts(panels[0][0], topology)
    if paths:
        _draw_paths(panels[0][1], topology, paths)
    simulated = any(card.provenance == "simulated" for card in topology.cards)
    note = " (simulated cards: no such hardware is here, expected speeds are placeholders)" if simulated else ""
    figure.suptitle(f"HMC topology{note}", fontsize=10)
    with writing(file):
        figure.savefig(file, dpi=130)
    plt.close(figure)
    return f"picture: {file}"


def _accelerators(topology: hmc.Topology, host: str) -> list[hmc.TopologyCard]:
    return [card for card in topology.cards if card.host == host and card.device != "cpu"]


def _rows(topology: hmc.Topology, host: str) -> int:
    return 1 + math.ceil(len(_accelerators(topology, host)) / COLUMNS) + math.ceil(len(_near_nics(topology, host)) / COLUMNS)


def _near_nics(topology: hmc.Topology, host: str) -> list[hmc.TopologyNic]:
    """Those of which is known which cards they are near; the others are only counted."""
    return [nic for nic in topology.nics if nic.host == host and topology.near(nic)]


def _column(index: int, count: int) -> float:
    """Where the item stands in its row, which is in the middle also where it is not full."""
    row = index // COLUMNS
    return index % COLUMNS + (COLUMNS - min(COLUMNS, count - row * COLUMNS)) / 2


def _draw_hosts(axes: Any, topology: hmc.Topology) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyBboxPatch

    names = short_names(topology)
    places: dict[str, tuple[float, float]] = {}
    distances: dict[str, None] = {}
    top = 0.0
    for host in topology.hosts:
        rows = _rows(topology, host)
        axes.add_patch(
            FancyBboxPatch((-0.62, top - rows - 0.1), COLUMNS + 0.24, rows + 0.3, boxstyle="round,pad=0.06", fc="0.97", ec="0.6")
        )
        nics = Counter(nic.kind or "of unknown kind" for nic in topology.nics if nic.host == host)
        network = ", ".join(f"{count} {kind}" for kind, count in nics.items())
        axes.text(-0.55, top + 0.08, f"host {host}" + (f"   network cards: {network}" if nics else ""), fontsize=8, va="center")
        middle = (COLUMNS - 1) / 2
        for card in topology.cards:
            if card.host == host and card.device == "cpu":
                places[card.name] = (middle, top - 0.5)
        cards = _accelerators(topology, host)
        for index, card in enumerate(cards):
            places[card.name] = (_column(index, len(cards)), top - 1.5 - index // COLUMNS)
            axes.plot([middle, places[card.name][0]], [top - 0.5, places[card.name][1]], color="0.85", linewidth=1, zorder=1)
        below = top - 1.5 - math.ceil(len(cards) / COLUMNS)
        near_nics = _near_nics(topology, host)
        for index, nic in enumerate(near_nics):
            place = (_column(index, len(near_nics)), below - index // COLUMNS)
            near, distance = nearest(topology, nic)
            distances[distance] = None
            for name in near:
                ends = zip(place, places[name], strict=True)
                axes.plot(*ends, color="tab:purple", linestyle=NIC_STYLES[distance], linewidth=1, zorder=1)
            _box(axes, place, nic.name, nic.kind, "#eee3f5")
        # Every host has one; it takes part only where it is listed.
        cpus = sum(card.device == "cpu" and card.host == host for card in topology.cards)
        _box(axes, (middle, top - 0.5), "cpu" + (f" x {cpus}" if cpus > 1 else ""), "", "#e8e8f4" if cpus else "white")
        top -= rows + 0.75
    kinds = list(dict.fromkeys(link.kind for link in topology.links))
    for link in topology.links:
        (x1, y1), (x2, y2) = places[link.a], places[link.b]
        bend = 0.25 if y1 == y2 else 0.0
        xs = np.linspace(0, 1, 20)
        axes.plot(
            x1 + (x2 - x1) * xs, y1 + (y2 - y1) * xs - bend * np.sin(np.pi * xs) * abs(x2 - x1) ** 0.5,
            color=LINK_COLORS.get(link.kind, "tab:blue"), linewidth=1.3, zorder=2,
        )  # fmt: skip
    for card in topology.cards:
        if card.device != "cpu":
            who = "" if card.process is None else f"process {card.process}"
            _box(axes, places[card.name], names[card.name].split("/")[-1], who, "#dfeaf7")
    lines = [Line2D([], [], color=LINK_COLORS.get(kind, "tab:blue"), label=kind) for kind in kinds]
    lines += [
        Line2D([], [], color="tab:purple", linestyle=style, label=NIC_LABELS[distance])
        for distance, style in NIC_STYLES.items()
        if distance in distances
    ]
    if lines:
        axes.legend(handles=lines, loc="lower right", fontsize=7, frameon=False, ncols=len(lines), bbox_to_anchor=(1, -0.04))
    axes.set_xlim(-0.8, COLUMNS - 0.2)
    axes.set_ylim(top + 0.2, 0.45)
    axes.axis("off")


def _box(axes: Any, place: tuple[float, float], name: str, below: str, color: str) -> None:
    text = name + (f"\n{below}" if below else "")
    axes.text(
        *place, text, ha="center", va="center", fontsize=8, zorder=3,
        bbox={"boxstyle": "round,pad=0.4", "facecolor": color, "edgecolor": "0.4"},
    )  # fmt: skip


def _draw_paths(axes: Any, topology: hmc.Topology, paths: list[list[dict[str, Any]]]) -> None:
    from matplotlib.colors import to_rgb

    names = [short_names(topology)[card.name] for card in topology.members()]
    cells = np.array([[to_rgb(PATH_COLORS.get(path["transport"], "white")) for path in row] for row in paths])
    axes.imshow(cells)
    for i, row in enumerate(paths):
        for j, path in enumerate(row):
            speed = "" if i == j else f"\n{path['bandwidth'] / 1e9:.3g}"
            axes.text(j, i, path["transport"] + speed, ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(names)), names, fontsize=7, rotation=45, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_xlabel("chosen path, and GB/s expected of a large transfer; from the row to the column", fontsize=8)
