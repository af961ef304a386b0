"""One process of a soak (tests/python/soak.py): does its part of the plan, and checks what it sees."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from soak_plan import SIZES, WINDOW, Batch, Bytes, Op, Plan, data, different

import hmc

DEADLINE = 20.0  # seconds, of an operation
CLOSING = 20.0  # seconds


@dataclass
class Posted:
    """An accepted operation and what is checked of it."""

    op: Op
    role: str
    partner: int
    work: hmc.Work
    check: Callable[[], str]  # what is wrong with the bytes, empty: nothing
    callbacks: list[float] = field(default_factory=list)
    error: Exception | None = None


class Rank:
    """One process of an episode. Speaks with the parent by lines: "go N" and "verify N" in, JSON out."""

    def __init__(self, plan: Plan, rendezvous: str, slack: float) -> None:
        self.plan, self.slack = plan, slack
        rank = int(os.environ["SOAK_RANK"])
        self.comm = hmc.init(rank=rank, size=plan.ranks, rendezvous=rendezvous, timeout=DEADLINE)
        self.rank = rank
        self.outbox = self.comm.buffer(WINDOW)
        self.constants = self.comm.buffer(WINDOW)
        self.constants.numpy()[:] = data(plan.seed, -1 - rank & 0xFFFF, WINDOW)
        self.array = np.zeros(WINDOW, np.uint8)
        own = [self.comm.buffer(WINDOW), self.comm.register(self.array)]
        self.buffers = own
        self.windows: list[Bytes] = [own[0].numpy(), self.array]
        self.model = [data(plan.seed, 70_000 + window * 100 + rank, WINDOW) for window in (0, 1)]
        for window, model in zip(self.windows, self.model, strict=True):
            window[:] = model
        self.remote = [self.comm.exchange(buffer, timeout=DEADLINE) for buffer in (*own, self.constants)]
        self.findings: list[str] = []
        self.late: list[tuple[str, float]] = []  # operations that a kill ended, and when
        self.canaries: list[tuple[str, Bytes, Bytes]] = []
        self.payloads: list[tuple[int, bytes]] = []
        self.closed = False

    def find(self, text: str) -> None:
        self.findings.append(f"rank {self.rank}: {text}")

    def speak(self) -> None:
        """Answers the parent until it closes the pipe."""
        self.tell("ready")
        for line in sys.stdin:
            word, _, number = line.partition(" ")
            if word == "go":
                self.batch(int(number))
            elif word == "verify":
                self.verify(int(number))
            elif word == "end" and not self.closed:
                self.comm.close(timeout=CLOSING)
            self.tell(word)

    def tell(self, word: str) -> None:
        print(json.dumps({"soak": word, "findings": self.findings, "late": self.late}), flush=True)
        self.findings, self.late = [], []

    def door(self, op: Op, partner: int) -> tuple[Any, dict[str, int]]:
        """The object to call and its argument that names the partner, as destination or source."""
        if op.door == "peer":
            return self.comm.peer(partner), {}
        return (self.comm if op.door == "comm" else self.comm.local[0]), {"partner": partner}

    def batch(self, number: int) -> None:
        batch = self.plan.batches[number]
        self.posted: list[Posted] = []
        self.waits: list[Op] = []
        leaving = batch.event == "close" and batch.victim == self.rank
        end = time.monotonic() + batch.delay
        for op in batch.ops:
            if self.rank not in (op.src, op.dst):
                continue
            try:
                self.post(op)
            except hmc.HmcError as error:
                self.judge(batch, f"{op.kind} {op.id} ({op.door}), posting", op.dst if op.src == self.rank else op.src, error)
        if leaving:
            time.sleep(max(0.0, end - time.monotonic()))
            self.leave()
            return
        if batch.collective:
            self.collective(batch, number)
        if batch.asynchronous:
            asyncio.run(self.gather())
        else:
            for posted in self.posted:
                self.wait(posted)
        for posted in self.posted:
            if posted.error is not None:
                self.judge(batch, self.name(posted), posted.partner, posted.error, min(posted.callbacks, default=time.monotonic()))
            elif wrong := posted.check():
                self.find(f"{self.name(posted)}: {wrong}")
        for op in self.waits:
            self.receive(batch, op)

    def name(self, posted: Posted) -> str:
        op = posted.op
        return f"{op.kind} {op.id} ({op.door}, {posted.role}, {op.src} to {op.dst}, {op.size} bytes)"

    def judge(self, batch: Batch, what: str, partner: int, error: Exception, when: float | None = None) -> None:
        """An error is right where the partner was killed or closed, and its class is that of the event."""
        kinds = {"kill": hmc.PeerLostError, "close": (hmc.PeerLostError, hmc.ClosedError)}
        expected = kinds.get(batch.event)
        if expected is None or partner not in (batch.victim, -1) or not isinstance(error, expected):
            self.find(f"{what}: {type(error).__name__}: {error}")
        elif batch.event == "kill":
            self.late.append((what, when or time.monotonic()))

    def post(self, op: Op) -> None:
        mine = op.src == self.rank
        seed = self.plan.seed
        if op.kind in ("put", "blocks", "fenced") and mine:
            self.put(op)
        elif op.kind == "get" and not mine:
            door, _ = self.door(op, op.src)
            here = self.outbox[op.source[0] : op.source[0] + op.size]
            wanted = data(seed, -1 - op.src & 0xFFFF, WINDOW)[op.at[0] : op.at[0] + op.size]
            work = door.get(here, self.remote[2][op.src][op.at[0] : op.at[0] + op.size])
            self.accept(op, "reads", op.src, work, lambda: different(here.numpy(), wanted))
        elif op.kind == "notify" and mine:
            self.door(op, op.dst)[0].notify(op.dst, op.notify)
        elif op.kind in ("send", "cancel"):
            self.message(op, mine)
        if op.kind == "fenced":
            self.flag(op, mine)
        if not mine and op.notify is not None:
            self.waits.append(op)

    def put(self, op: Op) -> None:
        door, _ = self.door(op, op.dst)
        outbox = self.outbox.numpy()
        for index, source in enumerate(op.source):
            outbox[source : source + op.size] = data(self.plan.seed, op.id * 64 + index, op.size)
        remote = self.remote[op.window][op.dst]
        complete = "local" if op.local else "remote"
        if op.kind == "blocks":
            batch = door.prepare_blocks([(self.outbox, op.source, remote, op.at)], block=op.size)
            work = door.put_blocks(batch, notify=op.notify, complete=complete)
        else:
            here = self.outbox[op.source[0] : op.source[0] + op.size]
            work = door.put(here, remote[op.at[0] : op.at[0] + op.size], notify=op.notify, complete=complete)

        def reuse() -> str:
            if op.local:
                for source in op.source:
                    outbox[source : source + op.size] = 0
            return ""

        self.accept(op, "writes", op.dst, work, reuse)

    def message(self, op: Op, mine: bool) -> None:
        content = data(self.plan.seed, op.id * 64, op.size)
        door, named = self.door(op, op.dst if mine else op.src)
        # By Peer and by rank are two spaces of tags.
        if mine:
            self.accept(op, "sends", op.dst, door.isend(content.copy(), *named.values(), tag=op.tag), lambda: "")
            return
        into = np.full(op.size, 0xA5, np.uint8)
        work = door.irecv(into, *named.values(), tag=op.tag)
        if op.kind == "send":
            self.accept(op, "receives", op.src, work, lambda: different(into, content))
            return
        try:
            work.cancel()
        except (hmc.UnsupportedError, hmc.InvalidArgumentError):  # it came first
            self.accept(op, "receives before the cancel", op.src, work, lambda: different(into, content))
            return
        self.canaries.append((f"receive {op.id}, cancelled", into, into.copy()))
        again = np.zeros(op.size, np.uint8)
        work = door.irecv(again, *named.values(), tag=op.tag)
        self.accept(op, "receives after a cancel", op.src, work, lambda: different(again, content))

    def flag(self, op: Op, mine: bool) -> None:
        """fence() between a put and a message: whoever has the message sees the put."""
        door, named = self.door(op, op.dst if mine else op.src)
        if mine:
            door.fence(*named.values())
            self.accept(op, "sends behind the fence", op.dst, door.isend(b"flag", *named.values(), tag=op.tag), lambda: "")
            return
        window, at = self.windows[op.window], op.at[0]
        wanted, seen = data(self.plan.seed, op.id * 64, op.size), np.zeros(op.size, np.uint8)
        flag, looked = bytearray(4), threading.Event()

        def check() -> str:
            # Callbacks run after the completion, not before it.
            return different(seen, wanted) if looked.wait(DEADLINE) else f"its callback did not run in {DEADLINE:g} s"

        posted = self.accept(op, "receives behind the fence", op.src, door.irecv(flag, *named.values(), tag=op.tag), check)

        def look(_: hmc.Work) -> None:
            seen[:] = window[at : at + op.size]
            looked.set()

        posted.work.add_done_callback(look)

    def accept(self, op: Op, role: str, partner: int, work: hmc.Work, check: Callable[[], str]) -> Posted:
        posted = Posted(op, role, partner, work, check)
        work.add_done_callback(lambda _: posted.callbacks.append(time.monotonic()))
        self.posted.append(posted)
        return posted

    def wait(self, posted: Posted) -> None:
        """In short waits: each ends at its own deadline."""
        end = time.monotonic() + DEADLINE
        while True:
            start = time.monotonic()
            try:
                posted.work.wait(timeout=0.1)
                return
            except hmc.HmcTimeoutError as error:
                took = time.monotonic() - start
                if took > 0.1 + self.slack:
                    self.find(f"{self.name(posted)}: wait(0.1) took {took:.2f} s")
                if time.monotonic() > end:
                    posted.error = error
                    return
            except Exception as error:
                posted.error = error
                return

    async def gather(self) -> None:
        async def one(posted: Posted) -> None:
            try:
                await posted.work
            except asyncio.CancelledError:
                posted.error = TimeoutError(f"awaited for {DEADLINE:g} s")
                raise
            except Exception as error:
                posted.error = error

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(one(posted) for posted in self.posted)), DEADLINE)

    def receive(self, batch: Batch, op: Op) -> None:
        """Waits for the notification of a put that this rank is the target of: its bytes are there."""
        try:
            if isinstance(op.notify, int):
                self.door(op, op.src)[0].wait_notify(op.src, op.notify, timeout=DEADLINE)
            else:
                wanted = (op.src, op.notify)
                end = time.monotonic() + DEADLINE
                while wanted not in self.payloads:
                    # One that was killed may never have sent it.
                    if time.monotonic() > end or (op.src in self.comm.lost and not self.gather_payloads(0.0)):
                        break
                    self.gather_payloads(0.05)
                if wanted in self.payloads:
                    self.payloads.remove(wanted)
                elif not (batch.event in ("kill", "close") and op.src == batch.victim):
                    self.find(f"{op.kind} {op.id}: its payload from {op.src} did not come in {DEADLINE:g} s")
                    return
                else:
                    return
        except hmc.HmcError as error:
            self.judge(batch, f"{op.kind} {op.id}: wait_notify", op.src, error)
            return
        for index, at in enumerate(op.at):
            if wrong := different(self.windows[op.window][at : at + op.size], data(self.plan.seed, op.id * 64 + index, op.size)):
                self.find(f"{op.kind} {op.id} of {op.src}: notified, and {wrong}")

    def gather_payloads(self, timeout: float) -> bool:
        came = self.comm.notifications(timeout=timeout)
        self.payloads += came
        return bool(came)

    def collective(self, batch: Batch, number: int) -> None:
        size, seed, rank = self.plan.ranks, self.plan.seed, self.rank

        def part(source: int, target: int, bytes_: int) -> Bytes:
            return data(seed, 2_000_000 + number * 100 + source * 10 + target, bytes_)

        start = time.monotonic()
        try:
            if batch.collective == "all_to_all":
                bytes_ = SIZES[number % len(SIZES)]
                out = np.zeros((size, bytes_), np.uint8)
                self.comm.all_to_all(out, np.stack([part(rank, to, bytes_) for to in range(size)]), timeout=DEADLINE)
                wrong = different(out.ravel(), np.concatenate([part(source, rank, bytes_) for source in range(size)]))
            elif batch.collective == "all_to_all_v":
                counts = [
                    [(source * 7919 + target * 104_729 + number) % 50_000 for target in range(size)] for source in range(size)
                ]
                coming = [counts[source][rank] for source in range(size)]
                out = np.zeros(sum(coming), np.uint8)
                inp = np.concatenate([part(rank, to, counts[rank][to]) for to in range(size)])
                self.comm.all_to_all_v(out, coming, inp, counts[rank], timeout=DEADLINE)
                wrong = different(out, np.concatenate([part(source, rank, coming[source]) for source in range(size)]))
            elif batch.collective == "exchange_bytes":
                got = self.comm.exchange_bytes(part(rank, 0, 300 + rank).tobytes(), timeout=DEADLINE)
                wrong = "" if got == [part(source, 0, 300 + source).tobytes() for source in range(size)] else "other bytes"
            else:
                self.comm.barrier(timeout=DEADLINE)
                wrong = ""
            if wrong:
                self.find(f"{batch.collective}: {wrong}")
        except hmc.HmcError as error:
            self.judge(batch, batch.collective, -1, error)
        if time.monotonic() - start > DEADLINE + self.slack:
            self.find(f"{batch.collective}: {time.monotonic() - start:.1f} s, its timeout is {DEADLINE:g} s")

    def leave(self) -> None:
        """Closes with operations in flight: they end, and nothing is written afterwards."""
        start = time.monotonic()
        try:
            self.comm.close(timeout=CLOSING)
        except hmc.HmcTimeoutError as error:
            self.find(f"close: {error}")
        if time.monotonic() - start > CLOSING + self.slack:
            self.find(f"close(timeout={CLOSING:g}) took {time.monotonic() - start:.1f} s")
        self.closed = True
        self.canaries += [("window of a closed rank", window, window.copy()) for window in self.windows]
        for posted in self.posted:
            if not posted.work.done:
                self.find(f"{self.name(posted)}: not complete after close()")

    def verify(self, number: int) -> None:
        """After a batch, when every rank has finished it."""
        batch = self.plan.batches[number]
        end = time.monotonic() + DEADLINE
        for posted in self.posted:
            while len(posted.callbacks) < 1 and time.monotonic() < end:
                time.sleep(0.005)
            if len(posted.callbacks) != 1:
                self.find(f"{self.name(posted)}: {len(posted.callbacks)} callbacks")
        for what, array, copy in self.canaries:
            if wrong := different(array, copy):
                self.find(f"{what}: written afterwards: {wrong}")
        if self.closed:
            return
        self.canaries = []
        lost = batch.victim if batch.event in ("kill", "close") else -1
        for op in batch.ops:
            if op.dst != self.rank or op.kind not in ("put", "blocks", "fenced"):
                continue
            model, window = self.model[op.window], self.windows[op.window]
            for index, at in enumerate(op.at):
                here = slice(at, at + op.size)
                # What one that is gone wrote is not known.
                model[here] = window[here] if op.src == lost else data(self.plan.seed, op.id * 64 + index, op.size)
        for index, (window, model) in enumerate(zip(self.windows, self.model, strict=True)):
            if wrong := different(window, model):
                self.find(f"window {index} after batch {number}: {wrong}")
                model[:] = window
