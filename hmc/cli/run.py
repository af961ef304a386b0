"""``hmc run``: starts the processes of a job and keeps them together."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hmc._job import Job, with_rank
from hmc.cli.devices import simulation

__all__ = ["run_command", "stopped_by_signals"]

# Has a character for every byte: lines that the ranks print are passed on whatever their encoding and that of the output.
BYTES = "latin-1"
#: Seconds to pass on what stopped ranks have printed.
LAST_OUTPUT = 2.0


def _command_for(script: str, arguments: Sequence[str]) -> list[str]:
    if script.endswith(".py"):
        return [sys.executable, script, *arguments]
    return [script, *arguments]


def _is_rendezvous(text: str) -> bool:
    """Whether ranks would take it: "unix:/path", "tcp://host:port", "tcp://[ipv6]:port"."""
    match = re.fullmatch(r"unix:.+|tcp://(?:\[[^\[\]]+\]|[^\[\]]+):([0-9]{1,5})", text)
    return match is not None and (match[1] is None or 1 <= int(match[1]) <= 65535)


@contextlib.contextmanager
def stopped_by_signals(job: Job) -> Iterator[None]:
    """Stops the job before this process ends by a signal: SIGTERM, SIGHUP, SIGQUIT, Ctrl-C. Ignored ones (``nohup``) stay so."""

    def on_signal(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) if signal.getsignal(n) is not signal.SIG_IGN]
    old = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    except BaseException:
        job.stop()
        job.close(time.monotonic() + LAST_OUTPUT)
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
    if options.rendezvous and not _is_rendezvous(options.rendezvous):
        print(f"hmc run: --rendezvous {options.rendezvous}: give tcp://HOST:PORT, with a port from 1 to 65535", file=sys.stderr)
        return 2
    if options.nodes > 1 and not os.environ.get("HMC_JOB_KEY"):
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
        if not options.no_prefix:
            # What has no end, or that of a progress bar, is followed by a line of another rank.
            line = with_rank(rank, line)
        with lock:
            sys.stdout.buffer.write(line.encode(BYTES))
            sys.stdout.buffer.flush()

    job = Job(
        command=command,
        processes=options.processes,
        first_rank=options.node_rank * options.processes,
        size=options.nodes * options.processes,
        rendezvous=options.rendezvous,
        environment=simulation(options.simulate, options.processes),
        grace=options.grace,
        output=show,
        encoding=BYTES,
    )
    with stopped_by_signals(job):
        try:
            job.start()
        except OSError as error:
            job.stop()
            job.close()
            print(f"hmc run: cannot start {shlex.join(command)}: {error}", file=sys.stderr)
            return 2
        return job.wait()
