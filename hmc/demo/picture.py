"""The demo's picture: who sent how much to whom, by which path."""

from __future__ import annotations

import numpy as np

from hmc.cli.text import writing
from hmc.demo.results import Results, Row

__all__ = ["draw"]

# Above this many ranks a cell has no room for the speed, and a label below none for more than the rank.
ROOMY = 8


def draw(results: Results, file: str) -> str:
    """Draws ``file`` (.png or .svg): one panel per phase, a cell per (sender, receiver). Returns a line to print."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "no picture: matplotlib is not installed (pip install matplotlib)"
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    ranks = len(results.places)
    roomy = ranks <= ROOMY
    rows = results.rows()
    phases = list(dict.fromkeys(row.phase for row in rows))
    side = max(3.4, (0.85 if roomy else 0.45) * ranks)  # inches
    figure, panels = plt.subplots(
        1, len(phases), figsize=(side * len(phases) + 1.5, side + 1.6), squeeze=False, layout="constrained"
    )
    lines = [f"{rank}: {place.label}" for rank, place in enumerate(results.places)]
    labels = [line.replace(" (", "\n(") for line in lines] if roomy else lines
    for panel, phase in zip(panels[0], phases, strict=True):
        mine = [row for row in rows if row.phase == phase]
        amounts = np.full((ranks, ranks), np.nan)
        for row in mine:
            amounts[row.src, row.dst] = row.size / 2**20
        top = float(np.nanmax(amounts))
        panel.imshow(amounts, cmap="Blues", vmin=0, vmax=top * 1.25)
        for row in mine:
            dark = row.size / 2**20 > 0.75 * top
            panel.text(
                row.dst, row.src, _cell(row, roomy), ha="center", va="center",
                fontsize=7 if roomy else 6, color="white" if dark else "black",
            )  # fmt: skip
        panel.set_title(phase, fontsize=11)
        panel.set_xticks(range(ranks), labels if roomy else [str(rank) for rank in range(ranks)], fontsize=7)
        panel.set_yticks(range(ranks), labels if panel is panels[0][0] else [], fontsize=7)
        panel.set_xlabel("to")
        panel.set_xticks(np.arange(-0.5, ranks), minor=True)
        panel.set_yticks(np.arange(-0.5, ranks), minor=True)
        panel.grid(which="minor", color="0.85", linewidth=0.8)
        panel.tick_params(which="both", length=0)
    panels[0][0].set_ylabel("from")
    figure.suptitle("HMC demo: who sent how much to whom, by which path\n" + _subtitle(results, rows), fontsize=11)
    with writing(file):
        figure.savefig(file, dpi=130)
    plt.close(figure)
    return f"picture: {file}"


def _cell(row: Row, roomy: bool) -> str:
    amount = f"{row.size / 2**20:.1f}"
    return f"{amount} MiB\n{row.speed / 1e9:.2f} GB/s\n{row.transport}" if roomy else f"{amount}\n{row.transport}"


def _subtitle(results: Results, rows: list[Row]) -> str:
    paths = ", ".join(sorted({row.transport for row in rows}))
    memory = ", ".join(dict.fromkeys(place.name.partition(":")[0] for place in results.places))
    cells = "" if len(results.places) <= ROOMY else "; MiB"
    simulated = "; simulated devices: the speeds mean nothing" if results.simulated() else ""
    return f"memory: {memory}; paths: {paths}; amounts in each of {results.rounds} rounds{cells}{simulated}"
