"""Soak: random operations between processes that are stopped, killed and closed; every byte and every promise is checked.

    python tests/python/soak.py [--seconds 30] [--seed N] [--transports shm,ring,tcp] [--slack 1.0]
    python tests/python/soak.py --seed N --episode E --transports tcp     # replays one episode

An episode is one job. All that it does follows from (seed, episode, transport): each rank computes the same plan of batches.
In a batch the ranks post their operations together; meanwhile the parent may stop and continue one of them, kill it, or have it
close. Checked are:

- bytes: every message, every got block, and after each batch the whole of both windows of each rank, untouched bytes included;
- completion: each accepted operation completes once (callbacks are counted) and not after its deadline;
- a killed rank: what is pending on it ends with PeerLostError within a second (and ``--slack``), the others' operations succeed;
- a cancelled receive and a closed rank: nothing is written any more.

`ring` is shm without copying between address spaces (HMC_SHM_PTRACE=0). Findings are printed with the command that replays them.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from soak_plan import Batch, Plan

ENVIRONMENTS = {
    "shm": {"HMC_TRANSPORTS": "shm"},
    "ring": {"HMC_TRANSPORTS": "shm", "HMC_SHM_PTRACE": "0"},
    "tcp": {"HMC_TRANSPORTS": "tcp"},
}
PATIENCE = 45.0  # seconds, of the parent with a batch
DETECTION = 1.0  # seconds in which a killed peer is noticed


class Child:
    """A rank's process as the parent sees it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith('{"soak"'):
                self.answers.put(json.loads(line))
            else:
                sys.stderr.write(line)
        self.answers.put(None)

    def say(self, line: str) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass


class Episode:
    """Runs a plan; collects what was found."""

    def __init__(self, seed: int, episode: int, transport: str, slack: float, without: str) -> None:
        self.plan = Plan(seed, episode, transport, without)
        self.slack = slack
        self.findings: list[str] = []
        self.folder = tempfile.TemporaryDirectory(prefix="hmc-soak-")
        rendezvous = f"unix:{self.folder.name}/meet"
        command = [sys.executable, __file__, "--rank", rendezvous, "--seed", str(seed), "--episode", str(episode)]
        command += ["--transports", transport, "--slack", str(slack), "--without", without]
        environment = {**os.environ, **ENVIRONMENTS[transport], "HMC_LOG": os.environ.get("HMC_LOG", "error")}
        self.children = [Child(command, {**environment, "SOAK_RANK": str(rank)}) for rank in range(self.plan.ranks)]
        self.present = set(range(self.plan.ranks))  # still takes part
        self.running = set(self.present)  # still answers

    def run(self) -> None:
        try:
            self.collect("ready")
            for number, batch in enumerate(self.plan.batches):
                if not self.findings:
                    self.batch(number, batch)
            if not self.findings:
                self.collect("end", self.running)
        finally:
            for child in self.children:
                child.process.kill()
                child.process.wait()
            self.folder.cleanup()

    def batch(self, number: int, batch: Batch) -> None:
        for rank in self.present:
            self.children[rank].say(f"go {number}")
        victim = self.children[batch.victim].process
        killed = 0.0
        time.sleep(batch.delay)
        if batch.event == "stop":
            victim.send_signal(signal.SIGSTOP)
            time.sleep(batch.pause)
            victim.send_signal(signal.SIGCONT)
        elif batch.event == "kill":
            killed = time.monotonic()
            victim.kill()
            victim.wait()
            self.present.discard(batch.victim)
            self.running.discard(batch.victim)
        late = self.collect(
            "go", self.present, f"batch {number} ({batch.event} of {batch.victim}, {batch.collective or 'no collective'})"
        )
        for what, when in late:
            if when - killed > DETECTION + self.slack:
                self.findings.append(f"batch {number}: {what}: ended {when - killed:.2f} s after the kill")
        if batch.event == "close":
            self.present.discard(batch.victim)
        for rank in self.present | ({batch.victim} & self.running):
            self.children[rank].say(f"verify {number}")
        self.collect("verify", self.present | ({batch.victim} & self.running), f"batch {number} ({batch.event} of {batch.victim})")

    def collect(self, word: str, ranks: set[int] | None = None, what: str = "") -> list[tuple[str, float]]:
        """Waits for every rank's answer. Returns what the kill of a rank ended."""
        late: list[tuple[str, float]] = []
        if word == "end":
            for rank in ranks or ():
                self.children[rank].say("end")
        end = time.monotonic() + PATIENCE
        for rank in sorted(self.running if ranks is None else ranks):
            child = self.children[rank]
            try:
                answer = child.answers.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                self.findings.append(f"{what or word}: rank {rank} did not answer in {PATIENCE:g} s; its stacks are above")
                child.process.send_signal(signal.SIGUSR1)
                time.sleep(0.5)
                continue
            if answer is None:
                self.findings.append(f"{what or word}: rank {rank} ended with status {child.process.wait()}")
                self.running.discard(rank)
                continue
            self.findings += [f"{what or word}: {finding}" for finding in answer["findings"]]
            late += [(str(name), float(when)) for name, when in answer["late"]]
        return late


def soak(seconds: float, seed: int, transports: list[str], slack: float, only: int | None = None, without: str = "") -> list[str]:
    """Episodes over the transports in turn until the time is over; returns the findings, which are printed as well."""
    findings: list[str] = []
    counts = dict.fromkeys(transports, 0)
    print(f"soak: seed {seed}", flush=True)
    end = time.monotonic() + seconds
    number = only or 0
    while True:
        for transport in transports:
            episode = Episode(seed, number, transport, slack, without)
            episode.run()
            counts[transport] += 1
            for finding in episode.findings:
                findings.append(f"{transport}: {finding}")
                print(f"FINDING {transport}: {finding}")
            if episode.findings:
                options = f"--seed {seed} --episode {number} --transports {transport}" + (
                    f" --without {without}" if without else ""
                )
                print(f"  replay: python {sys.argv[0]} {options}", flush=True)
            if time.monotonic() > end and only is None:
                break
        number += 1
        if only is not None or time.monotonic() > end:
            break
    ran = ", ".join(f"{count} over {name}" for name, count in counts.items())
    print(f"soak: episodes: {ran}; findings: {len(findings)}; seed {seed}", flush=True)
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--episode", type=int, help="run this one only")
    parser.add_argument("--transports", default=",".join(ENVIRONMENTS))
    parser.add_argument("--slack", type=float, default=1.0, help="seconds that a busy machine may take beyond a promise")
    parser.add_argument("--without", default="", metavar="KINDS", help="leave these operations out, e.g. fenced,cancel")
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    transports = options.transports.split(",")
    if options.rank:
        from soak_rank import Rank

        faulthandler.register(signal.SIGUSR1)
        Rank(Plan(options.seed, options.episode, transports[0], options.without), options.rank, options.slack).speak()
        return 0
    return 1 if soak(options.seconds, options.seed, transports, options.slack, options.episode, options.without) else 0


if __name__ == "__main__":
    sys.exit(main())
