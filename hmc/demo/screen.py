"""The demo's terminal: live progress while it runs, then the table."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from hmc.demo.results import Results
from hmc.demo.workload import LAYERS, PAGE_BYTES, Shape

__all__ = ["Screen"]


class Screen:
    """Context manager around the run. Calls may come from several threads."""

    def __init__(self, ranks: int, tokens: int) -> None:
        self.console = Console()
        shape = Shape(tokens)
        cache = LAYERS * shape.pages * PAGE_BYTES / 2**20
        self.console.print(
            f"{ranks} processes in the roles of cards (memory: CPU). A prompt of {tokens} tokens has {cache:.0f} MiB of "
            f"KV cache: {LAYERS} layers x {shape.pages} pages of {PAGE_BYTES // 1024} KiB."
        )
        self._progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def text(self, line: str) -> None:
        """A line that a process printed."""
        self.console.print(line, markup=False, highlight=False)

    def update(self, message: dict[str, Any]) -> None:
        """Moves the phase's bar: one step per rank and round."""
        if message["hmc-demo"] == "moved":
            phase = message["phase"]
            if phase not in self._tasks:
                self._tasks[phase] = self._progress.add_task(phase, total=None)
            self._progress.advance(self._tasks[phase])
        elif message["hmc-demo"] == "finished":
            for task in self._tasks.values():
                done = self._progress.tasks[self._progress.task_ids.index(task)].completed
                self._progress.update(task, total=done)

    def table(self, results: Results) -> None:
        """What moved, by which path and why, how fast, against memcpy."""
        yardstick = results.memcpy_speed()
        table = Table(box=box.SIMPLE_HEAD, title=None)
        for name, justify in (
            ("phase", "left"), ("from", "right"), ("to", "right"), ("MiB", "right"), ("GB/s", "right"), ("of memcpy", "right"),
            ("path", "left"),
        ):  # fmt: skip
            table.add_column(name, justify="right" if justify == "right" else "left", no_wrap=name != "path")
        reasons: dict[str, str] = {}
        for row in results.rows():
            share = f"{row.speed / yardstick:.2f}x" if yardstick else "-"
            table.add_row(
                row.phase,
                str(row.src),
                str(row.dst),
                f"{row.size / 2**20:.1f}",
                f"{row.speed / 1e9:.2f}",
                share,
                row.path.split(" ")[0],
            )
            reasons[row.path] = row.reason
        self.console.print(table)
        for path, reason in reasons.items():
            self.console.print(f"why {path}: {reason}", markup=False, highlight=False)
        staged = sum(counters.get("bytes_staged", 0) for counters in results.counters.values())
        self.console.print(
            f"memcpy here (one thread, all processes at once): {yardstick / 1e9:.2f} GB/s. Bytes copied through a stage: {staged}.",
            highlight=False,
        )
