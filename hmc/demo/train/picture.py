"""The training demo's picture: losses, throughput, and the bytes that each link carried."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmc.cli.text import writing
from hmc.demo.train.model import BATCH
from hmc.demo.train.results import Training

__all__ = ["draw"]

# Distinct in hue and in lightness, on the white that the picture brings along.
BOTH, FIRST, SECOND = "#1864ab", "#e8590c", "#2b8a3e"
# Above this many ranks a cell has no room for the path.
ROOMY = 8


def draw(training: Training, file: str) -> str:
    """Draws ``file`` (.png or .svg). Returns a line to print."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "no picture: matplotlib is not installed (pip install matplotlib)"
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    side = max(3.6, 0.75 * len(training.places))
    figure, panels = plt.subplots(
        1, 3, figsize=(8.2 + side, side + 1.6), width_ratios=[4.2, 3.2, side], layout="constrained", facecolor="white"
    )
    _draw_losses(panels[0], training)
    _draw_throughput(panels[1], training)
    _draw_links(panels[2], training)
    simulated = ", simulated devices" if training.simulated else ""
    figure.suptitle(
        f"HMC demo: islands of {' and '.join(training.vendors)} train one model ({training.steps} steps of {BATCH} samples)\n"
        f"emulated speed of cards{simulated}",
        fontsize=11,
    )
    with writing(file):
        figure.savefig(file, dpi=130, facecolor="white")
    plt.close(figure)
    return f"picture: {file}"


def _draw_losses(panel: Any, training: Training) -> None:
    # The three curves lie on each other: the widest goes below.
    styles = [("both", BOTH, 5.0, "-"), (training.vendors[0], FIRST, 2.2, "-"), (training.vendors[1], SECOND, 2.2, (0, (3, 3)))]
    for name, color, line_width, style in styles:
        label = "both islands" if name == "both" else f"{name} alone"
        panel.plot(training.runs[name].losses, color=color, linewidth=line_width, linestyle=style, label=label)
    worst = max(training.difference(vendor) for vendor in training.vendors)
    panel.set_title(f"loss (the runs differ by {worst:.0e} at most)", fontsize=10)
    panel.set_xlabel("step", fontsize=9)
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=9, frameon=False)
    _plain(panel)


def _draw_throughput(panel: Any, training: Training) -> None:
    first, second = training.vendors
    amounts = [training.runs[name].throughput for name in (first, second, "both")]
    sides: dict[str, Any] = {"width": 0.6, "edgecolor": "white"}
    panel.bar(0, amounts[0], color=FIRST, **sides)
    panel.bar(0, amounts[1], bottom=amounts[0], color=SECOND, **sides)
    panel.bar(1, amounts[2], color=BOTH, **sides)
    for x, middle, text in [
        (0, amounts[0] / 2, f"{first} alone\n{amounts[0]:.0f}"),
        (0, amounts[0] + amounts[1] / 2, f"{second} alone\n{amounts[1]:.0f}"),
        (1, amounts[2] / 2, f"{amounts[2]:.0f}\n\n{training.ratio:.3f}\nof the sum"),
    ]:
        panel.text(x, middle, text, ha="center", va="center", color="white", fontsize=9)
    panel.set_xticks([0, 1], ["sum of islands", "both islands"], fontsize=9)
    panel.set_title("samples per second", fontsize=10)
    _plain(panel)


def _draw_links(panel: Any, training: Training) -> None:
    """A cell per sender and receiver, the ranks of an island beside each other, a line between the islands."""
    order = [rank for vendor in training.vendors for rank in training.island(vendor)]
    at = {rank: place for place, rank in enumerate(order)}
    amounts = np.full((len(order), len(order)), np.nan)
    for (source, target), size in training.links.items():
        amounts[at[source], at[target]] = size * training.steps / 2**20
    top = float(np.nanmax(amounts))
    panel.imshow(amounts, cmap="Blues", vmin=0, vmax=top * 1.25)
    for (source, target), size in training.links.items():
        amount = size * training.steps / 2**20
        text = f"{amount:.2f}\n{training.paths[source, target]}" if len(order) <= ROOMY else f"{amount:.1f}"
        color = "white" if amount > 0.75 * top else "black"
        panel.text(at[target], at[source], text, ha="center", va="center", fontsize=8, color=color)
    border = len(training.island(training.vendors[0])) - 0.5
    panel.axhline(border, color=FIRST, linewidth=2)
    panel.axvline(border, color=FIRST, linewidth=2)
    labels = [f"{rank}: {training.places[rank].name}" for rank in order]
    panel.set_xticks(range(len(order)), labels if len(order) <= ROOMY else [str(rank) for rank in order], fontsize=8)
    panel.set_yticks(range(len(order)), labels, fontsize=8)
    panel.set_xlabel("to", fontsize=9)
    panel.set_ylabel("from", fontsize=9)
    panel.set_title("MiB per link (line: between the islands)", fontsize=10)
    panel.tick_params(length=0)
    for edge in panel.spines.values():
        edge.set_visible(False)


def _plain(panel: Any) -> None:
    panel.tick_params(labelsize=9)
    for edge in ("top", "right"):
        panel.spines[edge].set_visible(False)
