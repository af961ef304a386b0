"""The processes of ``hmc demo``, ``topo`` and ``bench``: they report to the command as JSON lines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hmc._job import Job
from hmc.cli.run import stopped_by_signals

__all__ = ["Ranks", "run_worker"]

ERROR = "hmc-error"


def run_worker(work: Callable[[], None]) -> None:
    """Runs the work of one rank and exits. Reports an HmcError or a lack of memory to the command, which prints it as one line."""
    import hmc

    try:
        work()
    except hmc.HmcError as error:
        usage = isinstance(error, (hmc.InvalidArgumentError, hmc.UnsupportedError))
        follows = isinstance(error, (hmc.PeerLostError, hmc.ClosedError))
        print(json.dumps({ERROR: str(error), "usage": usage, "follows": follows}), flush=True)
        sys.exit(1)
    except MemoryError as error:
        print(json.dumps({ERROR: f"out of memory: {error}", "usage": False, "follows": False}), flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@dataclass
class Ranks:
    """One job of a command. ``on_message`` gets what a rank reports, ``on_text`` every other line that it prints."""

    command: str
    worker: Path
    on_message: Callable[[int, dict[str, Any]], None]
    on_text: Callable[[str], None] = lambda line: print(line, file=sys.stderr)
    _errors: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def run(self, arguments: Sequence[str], processes: int, environment: dict[str, str]) -> int:
        """Returns 0, else prints one line that names the first cause and returns 1, or 2 where an argument was wrong."""
        failed: list[str] = []
        # Run as a file: -m would look into the working directory first, which may be a source tree that is not built.
        command = [sys.executable, str(self.worker), *arguments]
        job = Job(command, processes, environment=environment, output=self._on_line, report=failed.append)
        with stopped_by_signals(job):
            job.start()
            status = job.wait()
        if status == 0:
            return 0
        # That a peer died, or left, follows from another rank's error.
        for rank, error in sorted(self._errors, key=lambda item: item[1]["follows"]):
            # A list of reasons has a line for each.
            reason = re.sub(r"\n\s*", "; ", error[ERROR].strip()).replace(":;", ":")
            print(f"hmc {self.command}: rank {rank}: {reason}", file=sys.stderr)
            return 2 if error["usage"] else 1
        print(f"hmc {self.command}: {failed[0]}", file=sys.stderr)
        return 1

    def _on_line(self, rank: int, line: str) -> None:
        message = _parse(line)
        if message is None:
            self.on_text(f"[{rank}] {line.rstrip()}")
        elif ERROR in message:
            self._errors.append((rank, message))
        else:
            self.on_message(rank, message)


def _parse(line: str) -> dict[str, Any] | None:
    if not line.startswith('{"hmc-'):
        return None
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
