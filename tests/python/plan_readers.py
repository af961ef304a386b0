"""Readers of exported plans that share no code with the writers: they parse the files and carry out what these say."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hmc

Values = list[int | None]  # None: never written


class Msccl:
    """Carries out an MSCCL algorithm over buffers of distinct numbers, thread blocks in random order."""

    def __init__(self, file: Path) -> None:
        self.algo = ElementTree.parse(file).getroot()
        assert self.algo.tag == "algo"
        self.ranks = int(self.algo.get("ngpus", ""))
        gpus = self.algo.findall("gpu")
        assert [int(gpu.get("id", "")) for gpu in gpus] == list(range(self.ranks))
        self.sizes = [{buffer: int(gpu.get(f"{buffer}_chunks", "")) for buffer in "ios"} for gpu in gpus]
        self.blocks: dict[tuple[int, int], ElementTree.Element] = {}
        ends = set()
        for rank, gpu in enumerate(gpus):
            for block in gpu.findall("tb"):
                assert block.get("chan") == "0"
                self.blocks[rank, int(block.get("id", ""))] = block
                for end in ("send", "recv"):
                    peer = int(block.get(end, ""))
                    assert -1 <= peer < self.ranks
                    assert peer != rank
                    assert peer == -1 or (rank, end, peer) not in ends, "two thread blocks share a connection"
                    ends.add((rank, end, peer))
                assert [int(step.get("s", "")) for step in block] == list(range(len(block)))
        for (rank, _), block in self.blocks.items():
            for step in block:
                if step.get("depid") != "-1":
                    awaited = self.blocks[rank, int(step.get("depid", ""))][int(step.get("deps", ""))]
                    assert awaited.get("hasdep") == "1", "a step is waited for that does not say so"

    def run(self, inputs: Sequence[Sequence[int]], capacity: int, seed: int) -> list[list[int]]:
        """The outputs by rank. ``capacity``: messages that a connection holds; 0: sender and receiver meet."""
        self.buffers: list[dict[str, Values]] = []
        for sizes, values in zip(self.sizes, inputs, strict=True):
            assert len(values) == sizes["i"]
            self.buffers.append({"i": list(values), "o": [None] * sizes["o"], "s": [None] * sizes["s"]})
        self.at = dict.fromkeys(self.blocks, 0)
        self.wires: dict[tuple[int, int], deque[list[int]]] = {}
        order = random.Random(seed)
        left = sum(map(len, self.blocks.values()))
        while left:
            blocks = list(self.blocks)
            order.shuffle(blocks)
            done = sum(self._advance(block, capacity) for block in blocks)
            assert done, "deadlock"
            left -= done
        assert not any(self.wires.values()), "messages that are never received"
        outputs = []
        for rank in range(self.ranks):
            found = self.buffers[rank]["o"]
            assert None not in found, f"rank {rank} has not written all of its output"
            outputs.append([value for value in found if value is not None])
        return outputs

    def _next(self, block: tuple[int, int]) -> ElementTree.Element | None:
        """The step that it can carry out now."""
        steps = self.blocks[block]
        if self.at[block] == len(steps):
            return None
        step = steps[self.at[block]]
        other, at = int(step.get("depid", "")), int(step.get("deps", ""))
        return step if other == -1 or self.at[block[0], other] > at else None

    def _read(self, rank: int, step: ElementTree.Element, side: str) -> list[int]:
        buffer, at, count = (
            self.buffers[rank][step.get(f"{side}buf", "")],
            int(step.get(f"{side}off", "")),
            int(step.get("cnt", "")),
        )
        assert at >= 0
        assert at + count <= len(buffer)
        values = [value for value in buffer[at : at + count] if value is not None]
        assert len(values) == count, "a step reads what was never written"
        return values

    def _write(self, rank: int, step: ElementTree.Element, values: list[int]) -> None:
        buffer, at, count = self.buffers[rank][step.get("dstbuf", "")], int(step.get("dstoff", "")), int(step.get("cnt", ""))
        assert step.get("dstbuf") in ("o", "s"), "an input is overwritten"
        assert at >= 0
        assert at + count <= len(buffer)
        assert len(values) == count > 0
        buffer[at : at + count] = values

    def _advance(self, block: tuple[int, int], capacity: int) -> int:
        """How many steps were carried out."""
        rank, step = block[0], self._next(block)
        if step is None:
            return 0
        kind = step.get("type")
        if kind in ("s", "r"):
            return self._message(block, step, capacity)
        if kind == "cpy":
            self._write(rank, step, self._read(rank, step, "src"))
        elif kind == "re":
            added = zip(self._read(rank, step, "dst"), self._read(rank, step, "src"), strict=True)
            self._write(rank, step, [a + b for a, b in added])
        else:
            assert kind == "nop"
        self.at[block] += 1
        return 1

    def _message(self, block: tuple[int, int], step: ElementTree.Element, capacity: int) -> int:
        rank, sends = block[0], step.get("type") == "s"
        peer = int(self.blocks[block].get("send" if sends else "recv", ""))
        wire = self.wires.setdefault((rank, peer) if sends else (peer, rank), deque())
        if not sends:
            if not wire:
                return 0
            self._write(rank, step, wire.popleft())
        elif capacity > 0:
            if len(wire) == capacity:
                return 0
            wire.append(self._read(rank, step, "src"))
        else:
            other = next(key for key, each in self.blocks.items() if key[0] == peer and each.get("recv") == str(rank))
            received = self._next(other)
            if received is None or received.get("type") != "r":
                return 0
            self._write(peer, received, self._read(rank, step, "src"))
            self.at[other] += 1
            self.at[block] += 1
            return 2
        self.at[block] += 1
        return 1


@dataclass
class Node:
    """Of a Chakra trace."""

    id: int = 0
    name: str = ""
    type: int = 0
    data_deps: list[int] = field(default_factory=list)
    attr: dict[str, Any] = field(default_factory=dict)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data: bytes) -> list[tuple[int, Any]]:
    """(field number, number or bytes) of a protobuf message."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value, at = _varint(data, at)
        if key & 7 == 2:
            at += value
            assert at <= len(data)
            found.append((key >> 3, data[at - value : at]))
        else:
            assert key & 7 == 0
            found.append((key >> 3, value))
    return found


def _attributes(data: list[tuple[int, Any]], number: int) -> dict[str, Any]:
    """Of AttributeProto: name = 1; int32_val = 7, int64_val = 9, uint64_val = 13, bool_val = 27, string_val = 29."""
    attributes = {}
    for field_number, value in data:
        if field_number != number:
            continue
        fields = dict(_fields(value))
        (kind,) = fields.keys() - {1}
        attributes[fields[1].decode()] = fields[kind].decode() if kind == 29 else (kind, fields[kind])
    return attributes


def _messages(data: bytes) -> list[list[tuple[int, Any]]]:
    found = []
    at = 0
    while at < len(data):
        size, at = _varint(data, at)
        found.append(_fields(data[at : at + size]))
        at += size
    assert at == len(data)
    return found


def read_chakra(file: Path) -> tuple[str, dict[str, Any], list[Node]]:
    """Version and attributes of the GlobalMetadata, and the Nodes. Numeric attributes are (field number, value)."""
    metadata, *others = _messages(file.read_bytes())
    nodes = []
    for message in others:
        node = Node(attr=_attributes(message, 10))
        for number, value in message:
            if number == 1:
                node.id = value
            elif number == 2:
                node.name = value.decode()
            elif number == 3:
                node.type = value
            elif number == 5:  # packed
                at = 0
                while at < len(value):
                    before, at = _varint(value, at)
                    node.data_deps.append(before)
            else:
                assert number == 10
        nodes.append(node)
    return dict(metadata)[1].decode(), _attributes(metadata, 2), nodes


def run_schedule(
    schedule: Sequence[Sequence[hmc.PlannedStep]],
    inputs: Sequence[Sequence[int]],
    element: int,
    seed: int,
    in_place: int | None = None,
) -> list[Values]:
    """Carries out PlannedSteps, in random order, over buffers of numbers that have ``element`` bytes. Returns the outputs by rank.

    ``in_place``: a rank whose input is its output.
    """
    buffers: list[dict[str, dict[int, int]]] = [{"in": dict(enumerate(values)), "out": {}, "scratch": {}} for values in inputs]
    if in_place is not None:
        buffers[in_place]["out"] = buffers[in_place]["in"]
    left = [(rank, i) for rank, steps in enumerate(schedule) for i in range(len(steps))]
    done: set[tuple[int, int]] = set()
    wires: dict[tuple[int, int, int], list[int]] = {}
    order = random.Random(seed)

    def carry_out(rank: int, step: hmc.PlannedStep) -> bool:
        read = []
        for buffer, offset in step.sources:
            assert offset % element == step.bytes % element == 0
            read.append([buffers[rank][buffer][i] for i in range(offset // element, (offset + step.bytes) // element)])
        if step.kind == "send":
            wires[rank, step.peer, step.tag] = read[0]
            return True
        if step.kind == "receive":
            if (step.peer, rank, step.tag) not in wires:
                return False
            read = [wires.pop((step.peer, rank, step.tag))]
        assert step.target is not None
        written = [sum(values) for values in zip(*read, strict=True)]
        assert len(written) * element == step.bytes
        first = step.target[1] // element
        buffers[rank][step.target[0]].update(enumerate(written, first))
        return True

    while left:
        order.shuffle(left)
        before = len(left)
        for rank, i in tuple(left):
            step = schedule[rank][i]
            if all((rank, each) in done for each in step.after) and carry_out(rank, step):
                done.add((rank, i))
                left.remove((rank, i))
        assert len(left) < before, "deadlock"
    assert not wires
    return [[out.get(i) for i in range(max(out, default=-1) + 1)] for out in (each["out"] for each in buffers)]
