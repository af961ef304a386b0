"""The demo's terminal: live progress while it runs, then the table."""

from __future__ import annotations

from typing import IO, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from hmc.cli.devices import SIMULATED
from hmc.cli.text import mib, width
from hmc.demo.results import Results
from hmc.demo.workload import LAYERS, PAGE_BYTES, Shape

__all__ = ["Screen"]


class Screen:
    """Context manager around the run. Calls may come from several threads."""

    def __init__(self, results: Results, tokens: int, file: IO[str]) -> None:
        self.console = Console(file=file, width=width())
        self._results = results
        places, shape = results.places, Shape(tokens)
        self._print(
            f"{len(places)} processes in the roles of cards (memory: {', '.join(dict.fromkeys(place.label for place in places))}). "
            f"A prompt of {tokens} tokens has {mib(shape.cache_bytes)} of KV cache: {LAYERS} layers x {shape.pages} pages of "
            f"{PAGE_BYTES // 1024} KiB."
        )
        if results.simulated():
            self._print(SIMULATED)
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

    def table(self) -> None:
        """What moved between which devices, by which path and why, how fast, on the CPU against memcpy."""
        results = self._results
        table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        columns = ["phase", "from", "to", "MiB", "GB/s", *(["of memcpy"] if results.memcpy else []), "path"]
        for name in columns:
            words = name in ("from", "to", "path")
            table.add_column(name, justify="left" if words or name == "phase" else "right", no_wrap=not words, overflow="fold")
        reasons: dict[str, dict[str, None]] = {}  # path: its distinct reasons, in order
        for row in results.rows():
            cells = [row.phase, *(f"{rank}: {results.places[rank].label}" for rank in (row.src, row.dst))]
            cells += [f"{row.size / 2**20:.1f}", f"{row.speed / 1e9:.2f}"]
            if results.memcpy:
                cells.append("-" if row.memcpy is None else f"{row.memcpy:.2f}x")
            table.add_row(*cells, row.path)
            reasons.setdefault(row.transport + (f" ({row.detail})" if row.detail else ""), {})[row.reason] = None
        self.console.print(table, highlight=False)
        self._print(f"MiB: in each of {results.rounds} rounds; GB/s: the median round.")
        for path, why in reasons.items():
            self._print(f"why {path}: {'; '.join(why)}")
        if results.memcpy:
            self._print(f"memcpy here (one thread, all CPU ranks at once): {results.memcpy_speed() / 1e9:.2f} GB/s.")
        staged = results.bytes_staged()
        through = f"{mib(staged)} of them" if staged else "nothing"
        self._print(f"All rounds together moved {mib(results.bytes_moved())}, {through} through a stage in host memory.")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)
