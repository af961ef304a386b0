"""The demo's picture: who sent how much to whom, by which path."""

from __future__ import annotations

import numpy as np

from hmc.demo.results import Results

__all__ = ["draw"]


def draw(results: Results, ranks: int, file: str) -> str:
    """Draws ``file`` (.png or .svg): one panel per phase, a cell per (sender, receiver). Returns a line to print."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "no picture: matplotlib is not installed (pip install 'hmc-sdk[plot]')"
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = results.rows()
    phases = list(dict.fromkeys(row.phase for row in rows))
    figure, panels = plt.subplots(1, len(phases), figsize=(3.6 * len(phases) + 1, 4.4), squeeze=False, layout="constrained")
    for panel, phase in zip(panels[0], phases, strict=True):
        amounts = np.full((ranks, ranks), np.nan)
        for row in rows:
            if row.phase == phase:
                amounts[row.src, row.dst] = row.size / 2**20
        top = float(np.nanmax(amounts))
        panel.imshow(amounts, cmap="Blues", vmin=0, vmax=top * 1.25)
        for row in rows:
            if row.phase == phase:
                amount = row.size / 2**20
                panel.text(
                    row.dst, row.src, f"{amount:.1f} MiB\n{row.speed / 1e9:.2f} GB/s\n{row.path.split(' ')[0]}",
                    ha="center", va="center", fontsize=8, color="white" if amount > 0.75 * top else "black",
                )  # fmt: skip
        panel.set_title(phase, fontsize=11)
        panel.set_xticks(range(ranks), [f"card {rank}" for rank in range(ranks)], fontsize=8)
        panel.set_yticks(range(ranks), [f"card {rank}" for rank in range(ranks)] if panel is panels[0][0] else [], fontsize=8)
        panel.set_xlabel("to")
        panel.set_xticks(np.arange(-0.5, ranks), minor=True)
        panel.set_yticks(np.arange(-0.5, ranks), minor=True)
        panel.grid(which="minor", color="0.85", linewidth=0.8)
        panel.tick_params(which="both", length=0)
    panels[0][0].set_ylabel("from")
    paths = ", ".join(sorted({row.path.split(" ")[0] for row in rows}))
    figure.suptitle(f"HMC demo: who sent how much to whom, by which path ({paths}); CPU memory", fontsize=11)
    figure.savefig(file, dpi=130)
    plt.close(figure)
    return f"picture: {file}"
