"""A plan as an algorithm of MSCCL, in the XML that NCCL with MSCCL and RCCL read.

A rank has thread blocks, which run side by side. Each carries out its steps one after the other; a step may wait for one step of
another block. A message is a step "s" of the sender and a step "r" of the receiver, matched in order: each pair of ranks has a
block at both ends. Copies ("cpy") and reductions ("re": target += source) have blocks of their own. A step that waits for
several others comes after steps "nop". Buffers are counted in chunks of one size.

All blocks follow one order of all actions, so they cannot deadlock, however few messages a connection holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hmc._exports.actions import Action, Slice, actions_of
from hmc.errors import UnsupportedError

if TYPE_CHECKING:
    import hmc

__all__ = ["write"]

_COLLECTIVES = {
    "all_reduce": "allreduce",
    "reduce_scatter": "reducescatter",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
}
_BUFFERS = {"in": "i", "out": "o", "scratch": "s"}
# Limits of the libraries that read it: thread blocks per channel, steps of a block, chunks of a step.
_MOST_BLOCKS, _MOST_STEPS, _MOST_CHUNKS = 32, 256, 72


@dataclass
class _Step:
    kind: str
    source: Slice = ("in", 0)
    target: Slice = ("in", 0)
    chunks: int = 0
    waits_for: tuple[int, int] = (-1, -1)  # block, step
    awaited: bool = False


@dataclass
class _Block:
    id: int
    peer: int  # that it sends to and receives from; -1: none
    steps: list[_Step] = field(default_factory=list)
    waited: dict[int, int] = field(default_factory=dict)  # by block: its last step that a step here has waited for


class _Gpu:
    """The thread blocks of one rank."""

    def __init__(self, rank: int, chunk: int) -> None:
        self.rank = rank
        self.blocks: list[_Block] = []
        self._chunk = chunk  # bytes
        self._by_peer: dict[int, _Block] = {}
        self._done: dict[Action, tuple[int, int]] = {}  # block and step that completes it

    def add(self, action: Action) -> None:
        """This rank's part of it: of a message the send or the receive."""
        if action.kind == "message":
            sends = action.rank == self.rank
            block = self._block_for(action.to if sends else action.rank)
            steps = [_Step("s" if sends else "r", action.sources[0], action.target)]
        else:
            steps = self._local_steps(action)
            block = self._local_block(len(steps) + len(action.after))
        for step in steps:
            step.chunks = action.bytes // self._chunk
        self._wait(block, steps[0], action.after)
        block.steps += steps
        self._done[action] = (block.id, len(block.steps) - 1)

    @staticmethod
    def _local_steps(action: Action) -> list[_Step]:
        sources = list(action.sources)
        if action.target in sources:
            sources.remove(action.target)
            return [_Step("re", source, action.target) for source in sources]
        first = _Step("cpy", sources.pop(0), action.target)
        return [first, *(_Step("re", source, action.target) for source in sources)]

    def _block_for(self, peer: int) -> _Block:
        if peer not in self._by_peer:
            self._by_peer[peer] = _Block(len(self.blocks), peer)
            self.blocks.append(self._by_peer[peer])
        return self._by_peer[peer]

    def _local_block(self, steps: int) -> _Block:
        block = self._block_for(-1)
        if len(block.steps) + steps <= _MOST_STEPS:
            return block
        del self._by_peer[-1]
        return self._block_for(-1)

    def _wait(self, block: _Block, step: _Step, before: Iterable[Action]) -> None:
        """Appends "nop" steps that wait for all but one of them; `step` waits for that one."""
        last: dict[int, int] = {}
        for action in before:
            if action in self._done:  # else it is the other rank's part that comes after it
                other, at = self._done[action]
                last[other] = max(at, last.get(other, -1))
        waits = [(other, at) for other, at in last.items() if other != block.id and at > block.waited.get(other, -1)]
        for other, at in waits:
            block.waited[other] = at
            self.blocks[other].steps[at].awaited = True
        block.steps += (_Step("nop", waits_for=each) for each in waits[:-1])
        if waits:
            step.waits_for = waits[-1]


def _chunk_of(what: str, actions: list[Action]) -> int:
    """Bytes of which all sizes and offsets are multiples."""
    chunk = min((action.bytes for action in actions), default=0)
    if chunk == 0:
        raise UnsupportedError(f"{what}: some ranks send no bytes, and MSCCL has equal chunks; plan more bytes")
    for action in actions:
        for size in (action.bytes, action.target[1], *(offset for _, offset in action.sources)):
            if size % chunk != 0 or action.bytes > _MOST_CHUNKS * chunk:
                raise UnsupportedError(
                    f"{what}: it has parts of {chunk} bytes and parts at or of {max(size, action.bytes)} bytes, and MSCCL has "
                    f"equal chunks, at most {_MOST_CHUNKS} in a step; plan fewer bytes, or a power of 2 for each rank"
                )
    return chunk


def _checked(what: str, gpus: list[_Gpu]) -> None:
    for blocks in (gpu.blocks for gpu in gpus):
        steps = max(len(block.steps) for block in blocks)
        for found, most, name in (
            (len(blocks), _MOST_BLOCKS, "thread blocks of a rank"),
            (steps, _MOST_STEPS, "steps of a thread block"),
        ):
            if found > most:
                raise UnsupportedError(f"{what}: it takes {found} {name}, and MSCCL has at most {most}; plan fewer bytes or ranks")


def _step_text(number: int, step: _Step, chunk: int) -> str:
    (source, source_at), (target, target_at) = step.source, step.target
    return (
        f'      <step s="{number}" type="{step.kind}" srcbuf="{_BUFFERS[source]}" srcoff="{source_at // chunk}" '
        f'dstbuf="{_BUFFERS[target]}" dstoff="{target_at // chunk}" cnt="{step.chunks}" depid="{step.waits_for[0]}" '
        f'deps="{step.waits_for[1]}" hasdep="{int(step.awaited)}"/>'
    )


def _chunks_of_buffers(plan: hmc.CollectivePlan, actions: list[Action], chunk: int) -> dict[str, int]:
    whole = plan.bytes // chunk
    chunks = {"i": whole, "o": whole, "s": 0}
    if plan.call == "all_gather":
        chunks["i"] //= plan.ranks
    if plan.call == "reduce_scatter":
        chunks["o"] //= plan.ranks
    for action in actions:
        for buffer, offset in (action.target, *action.sources):
            if buffer == "scratch":
                chunks["s"] = max(chunks["s"], (offset + action.bytes) // chunk)
    return chunks


def _lines(plan: hmc.CollectivePlan, actions: list[Action], chunk: int, gpus: list[_Gpu]) -> Iterable[str]:
    sizes = _chunks_of_buffers(plan, actions, chunk)
    yield (
        f'<algo name="hmc {plan.call}: {plan.algorithm}" proto="Simple" nchannels="1" '
        f'nchunksperloop="{max(sizes["i"], sizes["o"])}" ngpus="{plan.ranks}" coll="{_COLLECTIVES[plan.call]}" '
        f'inplace="0" outofplace="1" minBytes="{plan.bytes}" maxBytes="{plan.bytes}">'
    )
    for gpu in gpus:
        yield f'  <gpu id="{gpu.rank}" i_chunks="{sizes["i"]}" o_chunks="{sizes["o"]}" s_chunks="{sizes["s"]}">'
        for block in gpu.blocks:
            yield f'    <tb id="{block.id}" send="{block.peer}" recv="{block.peer}" chan="0">'
            yield from (_step_text(number, step, chunk) for number, step in enumerate(block.steps))
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def write(plan: hmc.CollectivePlan, path: Path) -> list[Path]:
    """Writes one file. Raises UnsupportedError, OSError."""
    what = f"MSCCL XML of {plan.call} of {plan.bytes} bytes among {plan.ranks} ranks"
    if plan.call not in _COLLECTIVES:
        raise UnsupportedError(f"{what}: HMC writes {', '.join(_COLLECTIVES)}, whose algorithms have no root")
    if plan.ranks == 1:
        raise UnsupportedError(f"{what}: one rank sends no messages; plan at least 2 ranks")
    actions = actions_of(plan.schedule())
    chunk = _chunk_of(what, actions)
    gpus = [_Gpu(rank, chunk) for rank in range(plan.ranks)]
    for action in actions:
        for rank in {action.rank, action.to}:
            gpus[rank].add(action)
    _checked(what, gpus)
    path.write_text("\n".join(_lines(plan, actions, chunk, gpus)) + "\n")
    return [path]
