"""Job: the processes of one job on this host, as ``hmc run`` and ``hmc.spawn`` start them."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from hmc._folder import MeetingFolder
from hmc._interrupts import delayed
from hmc._ports import reserved_port

__all__ = ["Job", "describe_exit", "end_with_parent", "with_rank"]

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
#: Characters of a line of output; a longer one is passed on in parts.
LONGEST_LINE = 1 << 20


def end_with_parent(parent: int) -> None:
    """In a new process: it is killed when the process that started it, whose id is ``parent``, ends in whatever way."""
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def describe_exit(code: int) -> str:
    """What became of a process, from its exit status as ``subprocess`` has it."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # most real-time signals have no name
        name = f"signal {-code}"
    return f"was killed by {name}"


def with_rank(rank: int, line: str) -> str:
    """A line of a process as a line of the job."""
    end = "\r\n"
    return f"[{rank}] {line.rstrip(end)}\n"


def _inherited() -> dict[str, str]:
    """The environment of this process; where it is a rank of another job, without the place of that job's store."""
    inherited = dict(os.environ)
    if "RANK" in inherited or "HMC_RANK" in inherited:
        for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
            inherited.pop(name, None)
    return inherited


def _print_failure(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed
        print(f"hmc run: {text}", file=sys.stderr)


@dataclass
class Job:
    """Processes of one job on this host, ranks ``first_rank`` onwards.

    Started by :meth:`start` with the environment that ``hmc.init()`` reads, and that of ``torch.distributed``. When one process
    fails, the others get ``grace`` seconds to notice (they see its death as ``PeerLostError``) before they are terminated, then
    killed. Killed, this process takes the others with it; a command with ``ties_itself`` calls :func:`end_with_parent` by itself.
    ``report`` gets a line for every process that failed. ``descriptors`` are what each process inherits, by local rank.
    ``output`` gets lines with their ends ("\\n", "\\r\\n", "\\r"); the last one of a process, and parts of one of more than a MiB,
    may have none. ``encoding`` of the lines: that of the locale; "latin-1" has a character for every byte.
    """

    command: Sequence[str]
    processes: int
    first_rank: int = 0
    size: int | None = None
    rendezvous: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 5.0
    output: Callable[[int, str], None] | None = None
    report: Callable[[str], None] = _print_failure
    descriptors: Sequence[Sequence[int]] = ()
    ties_itself: bool = False
    encoding: str | None = None
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _readers: list[tuple[threading.Thread, IO[str]]] = field(default_factory=list)
    _folder: MeetingFolder | None = None
    _port: socket.socket | None = None  # holds that of torch's store
    _stopped: set[int] = field(default_factory=set)
    #: What ``output`` raised first. From then on the output of all processes is discarded, so that none blocks in a write.
    output_error: Exception | None = field(default=None, init=False)

    def start(self) -> None:
        """Starts every process; each has its own process group so that terminating reaches its children."""
        rendezvous = self.rendezvous
        if not rendezvous:
            self._folder = MeetingFolder()
            rendezvous = f"unix:{self._folder.name}/rendezvous"
        store = self._torch_store(rendezvous)
        for local_rank in range(self.processes):
            environment = {
                **store,
                **_inherited(),
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
            with delayed():  # a process that has started is in the list
                process = subprocess.Popen(
                    list(self.command),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=piped,
                    stderr=subprocess.STDOUT if self.output else None,
                    start_new_session=True,
                    pass_fds=self.descriptors[local_rank] if self.descriptors else (),
                    preexec_fn=None if self.ties_itself else partial(end_with_parent, os.getpid()),
                )
                self._running.append(process)
            if self.output and process.stdout:
                lines = io.TextIOWrapper(process.stdout, encoding=self.encoding, errors="backslashreplace", newline="")
                reader = threading.Thread(target=self._forward, args=(self.first_rank + local_rank, lines), daemon=True)
                reader.start()
                self._readers.append((reader, lines))

    def ended(self) -> dict[int, int]:
        """Exit statuses of the processes that have ended, by local rank; -n where signal n killed one."""
        codes = ((index, process.poll()) for index, process in enumerate(self._running))
        return {index: code for index, code in codes if code is not None}

    def wait(self) -> int:
        """Waits for all. Returns the first failing exit status (128 + signal for a killed process), else 0.

        Reports every rank that failed. An error of ``output`` stops the job and is raised here.
        """
        status = 0
        deadline: float | None = None
        waiting = set(range(len(self._running)))
        while waiting and self.output_error is None:
            for index, code in self.ended().items():
                if index not in waiting:
                    continue
                waiting.discard(index)
                if code == 0:
                    continue
                stopped = f"had not ended {self.grace:g} s later and was stopped"
                how = stopped if index in self._stopped else describe_exit(code)
                self.report(f"rank {self.first_rank + index} {how}")
                if status == 0:
                    status = code if code > 0 else 128 - code
                    deadline = time.monotonic() + self.grace
            if waiting and deadline is not None and time.monotonic() > deadline:
                self.stop()
                deadline = None
            if waiting:
                time.sleep(0.01)
        if waiting:
            self.stop()
        self.close()
        if self.output_error is not None and status == 0:
            raise self.output_error
        return status

    def stop(self, patience: float = 2.0) -> None:
        """Terminates what still runs; kills what has not ended ``patience`` seconds later, or at once where this is interrupted."""
        self._stopped = {index for index, process in enumerate(self._running) if process.poll() is None}
        try:
            self._signal(signal.SIGTERM, patience)
        finally:
            self._signal(signal.SIGKILL, patience)

    def _signal(self, number: signal.Signals, patience: float) -> None:
        alive = [process for process in self._running if process.poll() is None]
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        end = time.monotonic() + patience
        while time.monotonic() < end and any(process.poll() is None for process in alive):
            time.sleep(0.01)

    def close(self, until: float | None = None) -> None:
        """After the end of every process: passes on the rest of their output, removes the folder of the rendezvous, and frees
        the port of torch's store.

        ``until``, of time.monotonic(): when to stop waiting for ``output`` to take what is left.
        """
        # A process that a rank left behind may hold the stream open, and write nothing, or for ever. Without one (POLLHUP) what
        # is left has an end, and ``output`` may take long: a paused reader may still read it.
        end = time.monotonic() + 60
        for reader, stream in self._readers:
            if stream.closed:
                continue
            more = select.poll()
            more.register(stream, select.POLLIN)
            while reader.is_alive() and (events := more.poll(2000)):
                now = time.monotonic()
                if (until is not None and now > until) or (now > end and not events[0][1] & select.POLLHUP):
                    break
                reader.join(timeout=0.05)
            if not reader.is_alive():
                stream.close()
        if self._port is not None:
            self._port.close()
        if self._folder:
            self._folder.close()

    def _torch_store(self, rendezvous: str) -> dict[str, str]:
        """Where the job's processes find torch's store: the port beside that of the rendezvous, or one reserved on this host."""
        if rendezvous.startswith("tcp://"):
            host, _, port = rendezvous.removeprefix("tcp://").rpartition(":")
            number = int(port) if port.isdecimal() else 0
            if not 0 < number < 1 << 16:  # hmc.init() of the processes raises the error
                return {}
            return {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": str(number + 1 if number < (1 << 16) - 1 else number - 1)}
        self._port = reserved_port()
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port.getsockname()[1])}

    def _forward(self, rank: int, stream: IO[str]) -> None:
        assert self.output is not None
        for line in iter(partial(stream.readline, LONGEST_LINE), ""):
            if self.output_error is not None:
                continue
            try:
                self.output(rank, line)
            except Exception as error:
                self.output_error = self.output_error or error
