"""One process of the serving demo: ranks 0 and 1 are the prefill engine, rank 2 is decode.

Reports as JSON lines on standard output. Decode starts one more prefill engine, of which the last session is, and kills it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np

import hmc
from hmc._job import end_with_parent
from hmc.cli.ranks import run_worker
from hmc.demo.serve.engines import DECODE, OTHER, Pages, prefill_layout
from hmc.demo.serve.model import LAYERS, PARTS, Engine, prompt_of

TIMEOUT = 120  # seconds
DECODE_RANK = 2
NEW_TOKENS = 24


def tell(kind: str, **fields: Any) -> None:
    """One line to the parent."""
    print(json.dumps({"hmc-demo": kind, **fields}), flush=True)


def prefill(comm: hmc.Communicator, prompts: list[int]) -> None:
    """Computes prompts with the other prefill rank; leases pages of the even sessions, pushes those of the odd ones."""
    pair = comm.split(0, timeout=TIMEOUT)
    assert pair is not None
    partial = np.zeros(0, np.float32)

    def add(total: Any) -> None:
        nonlocal partial
        partial = total.copy()
        pair.all_reduce(total, partial, timeout=TIMEOUT)

    pages = Pages(comm.context, prefill_layout(comm.rank))
    engine = Engine(pages.cache, [PARTS[comm.rank]], add)
    decode = comm.peer(DECODE_RANK)
    for number, length in enumerate(prompts):
        name, prompt = f"session {number}", prompt_of(number, length)
        blocks = pages.pool.allocate(name, length)
        if number % 2 == 0:
            token = engine.forward(prompt, 0, blocks)
            lease = pages.pool.lease(name, tokens=length, peer=decode, seconds=TIMEOUT)
            comm.send(json.dumps({"ticket": lease.ticket.hex(), "token": token}).encode(), DECODE_RANK, number, timeout=TIMEOUT)
            lease.wait(timeout=TIMEOUT)
        else:
            offer = _received(comm, DECODE_RANK, number)
            with pages.pool.push(decode, bytes.fromhex(offer["ticket"]), session=name) as push:
                token = engine.forward(prompt, 0, blocks, lambda layer, push=push: push.ready(layer, timeout=TIMEOUT))  # type: ignore[misc]
            comm.send(json.dumps({"token": token}).encode(), DECODE_RANK, number, timeout=TIMEOUT)
        pages.pool.free(name)
    comm.barrier(timeout=TIMEOUT)
    pages.pool.close()


class Decode:
    """The decode engine. Beside its own pages it has those of an engine that computes all by itself, to compare with."""

    def __init__(self, comm: hmc.Communicator) -> None:
        self.comm = comm
        self.pages = Pages(comm.context, DECODE)
        self.engine = Engine(self.pages.cache)
        self.alone = Pages(comm.context, OTHER)
        self.one = Engine(self.alone.cache)

    def close(self) -> None:
        self.pages.pool.close()
        self.alone.pool.close()

    def expected(self, name: str, prompt: list[int]) -> list[int]:
        """The tokens of one engine without any transfer."""
        blocks = self.alone.pool.allocate(name, len(prompt) + NEW_TOKENS)
        token = self.one.forward(prompt, 0, blocks)
        found = self.one.decode(token, len(prompt), blocks, NEW_TOKENS)
        self.alone.pool.free(name)
        return found

    def serve(self, number: int, length: int) -> None:
        name, prompt = f"session {number}", prompt_of(number, length)
        blocks = self.pages.pool.allocate(name, length + NEW_TOKENS)
        first, seconds = (self._pull if number % 2 == 0 else self._receive)(number, length, name, blocks)
        tokens = self.engine.decode(first, length, blocks, NEW_TOKENS)
        expected = self.expected(name, prompt)
        self._forget(blocks[0])  # would it be noticed?
        changed = self.engine.decode(first, length, blocks, NEW_TOKENS) != expected
        counted = self.pages.pool.counters(name)
        self.pages.pool.free(name)
        tell(
            "session", name=name, prompt=length, how="pull" if number % 2 == 0 else "push by layers", tokens=tokens,
            equal=tokens == expected, control=changed, seconds=seconds, counters=counted,
        )  # fmt: skip

    def _pull(self, number: int, length: int, name: str, blocks: list[int]) -> tuple[int, float]:
        pool = self.pages.pool
        said = [_received(self.comm, rank, number) for rank in (0, 1)]
        begin = time.perf_counter()
        pulls = [
            pool.pull(self.comm.peer(rank), bytes.fromhex(one["ticket"]), blocks, session=name) for rank, one in enumerate(said)
        ]
        for pull in pulls:
            pull.wait(timeout=TIMEOUT)
        return said[0]["token"], time.perf_counter() - begin

    def _receive(self, number: int, length: int, name: str, blocks: list[int]) -> tuple[int, float]:
        pool = self.pages.pool
        begin = time.perf_counter()
        inboxes = [pool.receive(self.comm.peer(rank), blocks, tokens=length, session=name, timeout=TIMEOUT) for rank in (0, 1)]
        for rank, inbox in enumerate(inboxes):
            self.comm.send(json.dumps({"ticket": inbox.ticket.hex()}).encode(), rank, number, timeout=TIMEOUT)
        for inbox in inboxes:
            inbox.wait(timeout=TIMEOUT)
        seconds = time.perf_counter() - begin
        tokens = [_received(self.comm, rank, number)["token"] for rank in (0, 1)]
        return tokens[0], seconds

    def _forget(self, block: int) -> None:
        for array in self.pages.arrays:
            array[block] = 0

    def outlive(self, number: int, length: int, transports: str) -> None:
        """Loses the engine that computes a session, and computes the session itself."""
        name, prompt, pool = f"session {number}", prompt_of(number, length), self.pages.pool
        free = pool.free_blocks
        command = [sys.executable, __file__, "other", self.comm.context.addresses[0], str(number), str(length), transports]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HMC_RANK")}
        other = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        try:
            assert other.stdin is not None
            peer = self.comm.context.accept(timeout=TIMEOUT)
            blocks = pool.allocate(name, length + NEW_TOKENS)
            inbox = pool.receive(peer, blocks, tokens=length, session=name, timeout=TIMEOUT)
            print(inbox.ticket.hex(), file=other.stdin, flush=True)
            inbox.wait_layer(0, timeout=TIMEOUT)
        finally:
            other.kill()
            begin = time.perf_counter()
        error = ""
        try:
            inbox.wait(timeout=TIMEOUT)
        except hmc.PeerLostError as lost:
            error = str(lost)
        noticed = time.perf_counter() - begin
        layers = inbox.layers
        pool.free(name)
        other.wait(TIMEOUT)
        freed = pool.free_blocks == free
        blocks = pool.allocate(name, length + NEW_TOKENS)
        tokens = self.engine.decode(self.engine.forward(prompt, 0, blocks), length, blocks, NEW_TOKENS)
        pool.free(name)
        tell(
            "lost", name=name, prompt=length, error=error, noticed=noticed, layers=layers, freed=freed, tokens=tokens,
            equal=tokens == self.expected(name, prompt),
        )  # fmt: skip


def other(address: str, number: int, length: int, transports: str) -> None:
    """A prefill engine of another make: pushes a layer, and is killed in the next one."""
    with hmc.Context(transports=transports or None) as ctx:
        peer = ctx.connect(address, timeout=TIMEOUT)
        pages = Pages(ctx, OTHER)
        blocks = pages.pool.allocate("its own", length)
        push = pages.pool.push(peer, bytes.fromhex(sys.stdin.readline()), session="its own")

        def ready(layer: int) -> None:
            if layer == 1:
                time.sleep(TIMEOUT)
            push.ready(layer, timeout=TIMEOUT)

        Engine(pages.cache).forward(prompt_of(number, length), 0, blocks, ready)


def _received(comm: hmc.Communicator, rank: int, number: int) -> Any:
    data = bytearray(4096)
    info = comm.recv(data, rank, number, timeout=TIMEOUT)
    return json.loads(bytes(data[: info.bytes]))


def main() -> None:
    """Whether the tokens are right is the parent's to say."""
    if sys.argv[1] == "other":
        other(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
        return
    prompts, transports = [int(length) for length in sys.argv[1].split(",")], sys.argv[2]
    with hmc.init(transports=transports or None) as comm:
        if comm.rank != DECODE_RANK:
            prefill(comm, prompts)
            return
        comm.split(1, timeout=TIMEOUT)
        decode = Decode(comm)
        paths = [comm.peer(rank).path("cpu", "cpu").transport for rank in (0, 1)]
        tell("engines", decode=DECODE, prefill=[prefill_layout(rank) for rank in (0, 1)], other=OTHER, layers=LAYERS, paths=paths)
        for number, length in enumerate(prompts):
            decode.serve(number, length)
        comm.barrier(timeout=TIMEOUT)
        decode.outlive(len(prompts), max(prompts), transports)
        decode.close()


if __name__ == "__main__":
    run_worker(main)
