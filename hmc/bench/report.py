"""The benchmark's table and plot."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hmc.bench.sizes import format_size
from hmc.cli.text import width, writing

__all__ = ["draw", "table"]

# What the other points are compared with.
BASELINES = ("raw flag", "memcpy")
# What is measured for its latency alone.
LATENCIES = ("raw flag", "put+notify")


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
        if size <= 64 and 8 in flag and point["hmc-bench"] not in BASELINES:
            ratio = f"{seconds / flag[8]:.2f}x flag"
        elif size in memcpy and point["hmc-bench"] != "memcpy":
            ratio = f"{memcpy[size] / seconds:.2f}x memcpy"
        time_text = f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
        transport = point["transport"] if point["hmc-bench"] not in BASELINES else "-"
        result.add_row(point["hmc-bench"], transport, format_size(size), time_text, f"{size / seconds / 1e9:.2f}", ratio)
    Console(width=width()).print(result)


def draw(points: list[dict[str, Any]], file: str, simulated: bool) -> str:
    """Draws time and bandwidth over size, a line per operation and transport, all axes logarithmic. Returns a line to print."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "no plot: matplotlib is not installed (pip install matplotlib)"
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (latency, bandwidth) = plt.subplots(1, 2, figsize=(12, 5.2), layout="constrained")
    times = _times(points)
    for label, line in times.items():
        sizes, seconds = zip(*line, strict=True)
        style: dict[str, Any] = {"marker": "o", "markersize": 3}
        if label in BASELINES:
            style = {"color": "0.4", **({"linestyle": "--"} if len(line) > 1 else {"linestyle": "none", "marker": "x"})}
        (drawn,) = latency.plot(sizes, [value * 1e6 for value in seconds], label=label, **style)
        if not label.startswith(LATENCIES):
            rates = [size / value / 1e9 for size, value in line]
            bandwidth.plot(sizes, rates, **{**style, "color": drawn.get_color()})
    _axes(latency, points, "time, us")
    _axes(bandwidth, points, "bandwidth, GB/s")
    figure.legend(loc="outside lower center", ncols=min(5, max(1, len(times))), frameon=False, fontsize=9)
    title = "HMC between processes on this machine: time of one operation, one way, and bandwidth"
    figure.suptitle(title + ("\nsimulated devices: the speeds mean nothing" if simulated else ""), fontsize=11)
    with writing(file):
        figure.savefig(file, dpi=130)
    plt.close(figure)
    return f"plot: {file}"


def _times(points: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """(bytes, seconds) by the name of a line, by size. Blocks are as many bytes as all of them."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        name = point["hmc-bench"]
        lines.setdefault(name if name in BASELINES else f"{name} ({point['transport']})", []).append(
            (point["size"], point["seconds"])
        )
    return {name: sorted(dict(line).items()) for name, line in lines.items()}


def _axes(panel: Any, points: list[dict[str, Any]], unit: str) -> None:
    """Both logarithmic; at most about ten sizes are named, so that the names do not touch."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    sizes = sorted({point["size"] for point in points})
    ticks = sizes[:: -(-len(sizes) // 12)]
    # Sizes closer than a factor of 1.5 would print over each other.
    ticks = [size for index, size in enumerate(ticks) if index == 0 or size >= 1.5 * ticks[index - 1]]
    panel.set_xticks(ticks, [format_size(tick) for tick in ticks], rotation=45, ha="right", fontsize=8)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_locator(LogLocator(numticks=12))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("bytes per operation")
    panel.set_ylabel(unit)
    panel.grid(color="0.9", which="both", linewidth=0.6)
