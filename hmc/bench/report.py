"""The benchmark's table and plot."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hmc.bench.sizes import format_size

__all__ = ["draw", "table"]


def _baseline(points: list[dict[str, Any]], operation: str) -> dict[int, float]:
    return {point["size"]: point["seconds"] for point in points if point["hmc-bench"] == operation}


def table(points: list[dict[str, Any]]) -> None:
    """Prints every point with its ratio: to the raw flag up to 64 bytes (time), to memcpy above (bandwidth)."""
    flag, memcpy = _baseline(points, "raw flag"), _baseline(points, "memcpy")
    result = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name in ("operation", "transport", "size", "time", "GB/s", "ratio"):
        result.add_column(name, justify="left" if name in ("operation", "transport") else "right", no_wrap=True)
    for point in points:
        size, seconds = point["size"], point["seconds"]
        ratio = "-"
        if size <= 64 and 8 in flag and point["hmc-bench"] not in ("raw flag", "memcpy"):
            ratio = f"{seconds / flag[8]:.2f}x flag"
        elif size in memcpy and point["hmc-bench"] != "memcpy":
            ratio = f"{memcpy[size] / seconds:.2f}x memcpy"
        time_text = f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
        transport = point["transport"] if point["hmc-bench"] not in ("raw flag", "memcpy") else "-"
        result.add_row(point["hmc-bench"], transport, format_size(size), time_text, f"{size / seconds / 1e9:.2f}", ratio)
    Console().print(result)


def draw(points: list[dict[str, Any]], file: str, simulated: bool) -> str:
    """Draws bandwidth over size, one line per operation and transport. Returns a line to print."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "no plot: matplotlib is not installed (pip install 'hmc-sdk[plot]')"
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(8, 5), layout="constrained")
    lines: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        if point["hmc-bench"] in ("raw flag", "put+notify") or point["hmc-bench"].startswith("blocks"):
            continue
        label = point["hmc-bench"] if point["hmc-bench"] == "memcpy" else f"{point['hmc-bench']} ({point['transport']})"
        lines.setdefault(label, []).append((point["size"], point["size"] / point["seconds"] / 1e9))
    for label, line in lines.items():
        xs, ys = zip(*sorted(line), strict=True)
        style: dict[str, Any] = {"color": "0.4", "linestyle": "--"} if label == "memcpy" else {"marker": "o", "markersize": 3}
        panel.plot(xs, ys, label=label, **style)
    panel.set_xscale("log", base=2)
    ticks = sorted({point["size"] for point in points})
    panel.set_xticks(ticks, [format_size(tick) for tick in ticks], rotation=45, ha="right", fontsize=8)
    panel.set_xlabel("bytes per operation")
    panel.set_ylabel("GB/s, one way")
    panel.set_ylim(bottom=0)
    panel.grid(color="0.9")
    panel.legend(frameon=False)
    title = "HMC between two processes on this machine"
    panel.set_title(title + ("\nsimulated devices: the speeds mean nothing" if simulated else ""))
    figure.savefig(file, dpi=130)
    plt.close(figure)
    return f"plot: {file}"
