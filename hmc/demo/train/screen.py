"""The training demo's terminal: what is emulated, progress, then tables and checks."""

from __future__ import annotations

from typing import IO, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from hmc.cli.devices import SIMULATED
from hmc.cli.text import width
from hmc.demo.train.model import BATCH, Model
from hmc.demo.train.results import CLAIM, Run, Training

__all__ = ["Screen"]


class Screen:
    """Context manager around the run. Calls may come from several threads."""

    def __init__(self, training: Training, dilations: list[float], file: IO[str], notice: str) -> None:
        self.console = Console(file=file, width=width())
        self._training = training
        islands = " and ".join(f"{vendor} (ranks {', '.join(map(str, training.island(vendor)))})" for vendor in training.vendors)
        if notice:
            self._print(notice)
        self._print(
            f"Two islands train one model of {Model().weights.size} weights: {islands}. {training.steps} steps of {BATCH} samples; "
            "each rank takes a share of every batch in proportion to its measured speed, and all_reduce adds up the gradients in "
            "device memory."
        )
        if training.simulated:
            self._print(SIMULATED)
        first, second = training.vendors
        self._print(
            f"Emulated: the speed of the cards. NumPy computes on the CPU, then sleeps until a card of {first} would have finished "
            f"({1e3 * dilations[0]:.2f} ms a sample, time-dilated) or one of {second} ({1e3 * dilations[1]:.2f} ms). Not emulated: "
            "gradients, losses, and the all_reduce, whose time is that of this machine."
        )
        self._progress = Progress(
            TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=self.console
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def text(self, line: str) -> None:
        """A line that a process printed."""
        self._print(line)

    def update(self, message: dict[str, Any]) -> None:
        """Moves the bar of a run by a step."""
        if message["hmc-demo"] == "step":
            run = message["run"]
            if run not in self._tasks:
                self._tasks[run] = self._progress.add_task(run, total=self._training.steps)
            self._progress.advance(self._tasks[run])

    def report(self) -> None:
        """Tables of runs and losses, bytes per link, throughput, checks."""
        training = self._training
        self.console.print(self._runs(), highlight=False)
        self._print("reduced in: of the best step on the slowest rank. samples/s: of the median step.")
        self.console.print(self._losses(), highlight=False)
        self.console.print(self._links(), highlight=False)
        self._print(f"One all_reduce: {training.algorithm}.")
        late = sum(run.late for run in training.runs.values())
        if late:
            self._print(f"NumPy took longer than the emulated card {late} times: this machine was busy, speeds are off.")
        total = sum(training.runs[vendor].throughput for vendor in training.vendors)
        verdict = "reached" if training.ratio >= CLAIM else "not reached in this run"
        self._print(
            f"Throughput on both islands: {training.runs['both'].throughput:.0f} samples/s, {training.ratio:.3f} of the sum of the "
            f"islands alone ({total:.0f}). The best published for two vendors is {CLAIM} (HetCCL, arXiv 2601.22585): {verdict}, "
            "with emulated cards."
        )
        for text, good in training.checks():
            self._print(f"{'ok' if good else 'FAILED'}: {text}")

    def _table(self, *columns: str, words: int) -> Table:
        table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for number, name in enumerate(columns):
            table.add_column(name, justify="left" if number < words else "right", overflow="fold")
        return table

    def _runs(self) -> Table:
        table = self._table("trained on", "samples per rank", "samples/s", "ms a step", "reduced in", "last loss", words=2)
        for name in ["both", *self._training.vendors]:
            run: Run = self._training.runs[name]
            shares = "  ".join(f"{rank}: {report['share']}" for rank, report in sorted(run.ranks.items()))
            reducing = max(report["reducing"] for report in run.ranks.values())
            step = f"{1e3 * run.step_seconds:.1f}"
            table.add_row(
                name if name == "both" else f"{name} alone", shares, f"{run.throughput:.0f}", step, f"{1e3 * reducing:.2f} ms",
                f"{run.losses[-1]:.6f}",
            )  # fmt: skip
        return table

    def _losses(self) -> Table:
        training = self._training
        columns = ["both", *training.vendors]
        table = self._table("loss at step", *(name if name == "both" else f"{name} alone" for name in columns), words=0)
        shown = sorted({*range(0, training.steps, max(1, training.steps // 6)), training.steps - 1})
        for step in shown:
            table.add_row(str(step), *(f"{training.runs[name].losses[step]:.6f}" for name in columns))
        return table

    def _links(self) -> Table:
        training = self._training
        table = self._table("from", "to", "path", "KiB a step", "MiB in all", words=3)
        for (source, target), size in sorted(training.links.items()):
            labels = [f"{rank}: {training.places[rank].label}" for rank in (source, target)]
            table.add_row(*labels, training.paths[source, target], f"{size / 2**10:.1f}", f"{size * training.steps / 2**20:.2f}")
        return table

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)
