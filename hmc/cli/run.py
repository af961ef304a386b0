"""``hmc run``: starts the processes of a job and keeps them together."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from hmc.cli.devices import simulation

__all__ = ["Job", "run_command", "stopped_by_signals"]

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def _end_with_parent(parent: int) -> None:
    """In a new process: it is killed when the process that started it ends in whatever way."""
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _torch_store(rendezvous: str) -> dict[str, str]:
    """Where the processes of one job find torch's store: the port after that of the rendezvous, or a free one of this host."""
    if rendezvous.startswith("tcp://"):
        host, _, port = rendezvous.removeprefix("tcp://").rpartition(":")
        return {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": str(int(port) + 1)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}


def _print_failure(text: str) -> None:
    print(f"hmc run: {text}", file=sys.stderr)


@dataclass
class Job:
    """Processes of one job on this host, ranks ``first_rank`` onwards.

    Started by :meth:`start` with the environment that ``hmc.init()`` reads, and that of ``torch.distributed``. When one process
    fails, the others get ``grace`` seconds to notice (they see its death as ``PeerLostError``) before they are terminated, then
    killed. Killed, this process takes the others with it. ``report`` gets a line for every process that failed.
    """

    command: Sequence[str]
    processes: int
    first_rank: int = 0
    size: int | None = None
    rendezvous: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    grace: float = 5.0
    output: Callable[[int, str], None] | None = None
    report: Callable[[str], None] = _print_failure
    _running: list[subprocess.Popen[str]] = field(default_factory=list)
    _readers: list[threading.Thread] = field(default_factory=list)
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _stopped: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Starts every process; each has its own process group so that terminating reaches its children."""
        rendezvous = self.rendezvous
        if not rendezvous:
            self._folder = tempfile.TemporaryDirectory(prefix="hmc-run-")
            rendezvous = f"unix:{self._folder.name}/rendezvous"
        store = _torch_store(rendezvous)
        for local_rank in range(self.processes):
            environment = {
                **store,
                **os.environ,
                **self.environment,
                "RANK": str(self.first_rank + local_rank),
                "WORLD_SIZE": str(self.size or self.processes),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(self.processes),
                "HMC_RANK": str(self.first_rank + local_rank),
                "HMC_SIZE": str(self.size or self.processes),
                "HMC_LOCAL_RANK": str(local_rank),
                "HMC_LOCAL_SIZE": str(self.processes),
                "HMC_RENDEZVOUS": rendezvous,
            }
            environment.setdefault("PYTHONUNBUFFERED", "1")
            piped = subprocess.PIPE if self.output else None
            process = subprocess.Popen(
                list(self.command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=piped,
                stderr=subprocess.STDOUT if self.output else None,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=partial(_end_with_parent, os.getpid()),
            )
            self._running.append(process)
            if self.output and process.stdout:
                reader = threading.Thread(target=self._forward, args=(self.first_rank + local_rank, process.stdout), daemon=True)
                reader.start()
                self._readers.append(reader)

    def wait(self) -> int:
        """Waits for all. Returns the first failing exit status (128 + signal for a killed process), else 0.

        Reports every rank that failed.
        """
        status = 0
        deadline: float | None = None
        waiting = set(range(len(self._running)))
        while waiting:
            for index in sorted(waiting):
                code = self._running[index].poll()
                if code is None:
                    continue
                waiting.discard(index)
                if code == 0:
                    continue
                if index in self._stopped:
                    how = f"had not ended {self.grace:g} s later and was stopped"
                else:
                    how = f"exited with status {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
                self.report(f"rank {self.first_rank + index} {how}")
                if status == 0:
                    status = code if code > 0 else 128 - code
                    deadline = time.monotonic() + self.grace
            if waiting and deadline is not None and time.monotonic() > deadline:
                self.stop()
                deadline = None
            if waiting:
                time.sleep(0.01)
        for reader in self._readers:
            reader.join(timeout=2)
        if self._folder:
            self._folder.cleanup()
        return status

    def stop(self, patience: float = 2.0) -> None:
        """Terminates what still runs; kills what has not ended ``patience`` seconds later."""
        self._stopped = {index for index, process in enumerate(self._running) if process.poll() is None}
        for number in (signal.SIGTERM, signal.SIGKILL):
            alive = [process for process in self._running if process.poll() is None]
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            end = time.monotonic() + patience
            while time.monotonic() < end and any(process.poll() is None for process in alive):
                time.sleep(0.01)

    def _forward(self, rank: int, stream: IO[str]) -> None:
        assert self.output is not None
        for line in stream:
            self.output(rank, line)


def _command_for(script: str, arguments: Sequence[str]) -> list[str]:
    if script.endswith(".py"):
        return [sys.executable, script, *arguments]
    return [script, *arguments]


@contextlib.contextmanager
def stopped_by_signals(job: Job) -> Iterator[None]:
    """Stops the job before this process ends by a signal: SIGTERM, SIGHUP, SIGQUIT, Ctrl-C."""

    def on_signal(number: int, _frame: object) -> None:
        job.stop()
        raise SystemExit(128 + number)

    old = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    try:
        yield
    except KeyboardInterrupt:
        job.stop()
        raise
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def run_command(options: argparse.Namespace) -> int:
    """``hmc run``: one job of ``nodes * processes`` ranks, this host's share of it."""
    if options.processes < 1 or options.nodes < 1 or not 0 <= options.node_rank < options.nodes:
        print("hmc run: -n and --nodes must be at least 1, --node-rank from 0 to nodes - 1", file=sys.stderr)
        return 2
    if options.nodes > 1 and not options.rendezvous.startswith("tcp://"):
        print("hmc run: --nodes needs --rendezvous tcp://HOST:PORT, an address of the first host", file=sys.stderr)
        return 2
    if options.nodes > 1 and "HMC_JOB_KEY" not in os.environ:
        print(
            "hmc run: --nodes needs a job key: export HMC_JOB_KEY=$(hmc keygen), the same on every host",
            file=sys.stderr,
        )
        return 2
    if bool(options.script) == bool(options.module):
        print("hmc run: give a script to run, such as `hmc run -n 4 script.py`, or `-m MODULE`", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", *options.module] if options.module else _command_for(options.script, options.arguments)
    if options.script.endswith(".py") and not Path(options.script).exists():
        print(f"hmc run: no such file: {options.script}", file=sys.stderr)
        return 2

    lock = threading.Lock()

    def show(rank: int, line: str) -> None:
        with lock:
            sys.stdout.write(line if options.no_prefix else f"[{rank}] {line}")
            sys.stdout.flush()

    job = Job(
        command=command,
        processes=options.processes,
        first_rank=options.node_rank * options.processes,
        size=options.nodes * options.processes,
        rendezvous=options.rendezvous,
        environment=simulation(options.simulate, options.processes),
        grace=options.grace,
        output=show,
    )
    with stopped_by_signals(job):
        try:
            job.start()
        except OSError as error:
            job.stop()
            print(f"hmc run: cannot start {shlex.join(command)}: {error}", file=sys.stderr)
            return 2
        return job.wait()
