"""torch's calls as HMC's, for every class of torch's that has them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import hmc
from hmc.torch._meeting import leave
from hmc.torch._shared import Shared, bounded
from hmc.torch._tensors import (
    Packed,
    Tensors,
    bare,
    check_blocks,
    check_equal,
    check_lists,
    check_tag,
    check_types,
    elements,
    one,
    reducible,
    reduction,
)
from hmc.torch._work import Block, DoneWork, HmcWork, JoinedWork, ReceiveWork

# For what is under way to arrive, and for ranks of this host to let go of this one's memory.
CLOSE_SECONDS = 30.0


class Calls:
    """Collectives and messages of :attr:`communicator` under torch's names.

    A call with ``asyncOp`` false blocks until the result is in the tensors; others return at once.
    """

    communicator: hmc.Communicator

    def _start(self, shared: Shared) -> None:
        self.communicator = shared.communicator
        self._shared = shared
        self._coalesced: Block | None = None  # the Works of calls between start_coalescing() and end_coalescing()

    @property
    def _seconds(self) -> float:
        return self._shared.seconds

    def getBackendName(self) -> str:
        return "hmc"

    def name(self) -> str:
        return "hmc"

    def set_timeout(self, timeout: timedelta) -> None:
        self._shared.seconds = bounded(timeout).total_seconds()

    def shutdown(self) -> None:
        leave(self.communicator)
        try:
            self.communicator.close(timeout=min(self._seconds, CLOSE_SECONDS))
        except hmc.HmcTimeoutError as error:  # torch forgets the group only where this returns
            warnings.warn(f"a process group was closed while others had not let go of it: {error}", stacklevel=2)

    def abort(self) -> None:
        """Ends what is under way with an error, here and at the others; of the default group, that of all groups."""
        leave(self.communicator)
        with contextlib.suppress(hmc.HmcTimeoutError):  # a peer may still write into memory, which is then kept
            self.communicator.close(timeout=0)

    # ---- reductions ----

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        tensor = one(tensors)
        op, factor, dtype = reduction(tensor, opts)
        return self._call("all_reduce", (reducible(tensor, dtype), None, op, factor, dtype), tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        with self.communicator.batch() as batch:
            for tensor in tensors:
                op, factor, dtype = reduction(tensor, opts)
                self.communicator.all_reduce(reducible(tensor, dtype), None, op, factor, dtype)
            work = batch.start()
        return self._work([work], tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        tensor = one(tensors)
        op, factor, dtype = reduction(tensor, opts)
        array = reducible(tensor, dtype)
        out = array if opts.rootRank == self.communicator.rank else None
        return self._call("reduce", (out, array, opts.rootRank, op, factor, dtype), tensors, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> dist.Work:
        out, blocks = one(outputs), one(inputs)
        check_blocks(blocks, self.communicator.size, "reduce_scatter")
        packed = Packed(blocks)
        packed.load()
        return self._reduce_scatter(out, packed.flat, opts, packed.counts, packed)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        return self._reduce_scatter(output, input, opts)

    def _reduce_scatter(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any, counts: Sequence[int] | None = None, keep: Any = None
    ) -> dist.Work:
        check_types((output, input), "reduce_scatter")
        op, factor, dtype = reduction(input, opts)
        if counts is not None and input.is_complex():
            counts = [2 * count for count in counts]
        arguments = (reducible(output, dtype), reducible(input, dtype), op, counts, factor, dtype)
        return self._call("reduce_scatter", arguments, [output], opts, keep=keep)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        with self.communicator.batch() as batch:
            for output, input in zip(outputs, inputs, strict=True):
                check_types((output, input), "reduce_scatter")
                op, factor, dtype = reduction(input, opts)
                self.communicator.reduce_scatter(reducible(output, dtype), reducible(input, dtype), op, None, factor, dtype)
            work = batch.start()
        return self._work([work], outputs, opts)

    # ---- data movement ----

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        return self._call("broadcast", (bare(one(tensors)), opts.rootRank), tensors, opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        blocks, input = one(outputs), one(inputs)
        check_blocks(blocks, self.communicator.size, "all_gather")
        check_types((blocks[0], input), "all_gather")
        packed = Packed(blocks)
        arguments = (bare(packed.flat), bare(input), packed.counts)
        return self._call("all_gather", arguments, blocks, opts, packed.unload, packed)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """``outputs`` has a list for each rank, with a tensor for each of ``inputs``."""
        check_lists(outputs, len(inputs), self.communicator.size, "all_gather_coalesced")
        gathered = [[of_rank[at] for of_rank in outputs] for at in range(len(inputs))]
        for blocks, input in zip(gathered, inputs, strict=True):
            check_equal(blocks, input, self.communicator.size, "all_gather_coalesced")
        parts = [Packed(blocks) for blocks in gathered]
        with self.communicator.batch() as batch:
            for part, input in zip(parts, inputs, strict=True):
                self.communicator.all_gather(bare(part.flat), bare(input))
            work = batch.start()

        def unload() -> None:
            for part in parts:
                part.unload()

        return self._work([work], [block for of_rank in outputs for block in of_rank], opts, unload, parts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        check_types((output, input), "all_gather")
        return self._call("all_gather", (bare(output), bare(input)), [output], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        with self.communicator.batch() as batch:
            for output, input in zip(outputs, inputs, strict=True):
                check_types((output, input), "all_gather")
                self.communicator.all_gather(bare(output), bare(input))
            work = batch.start()
        return self._work([work], outputs, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        input = one(inputs)
        if opts.rootRank != self.communicator.rank:
            return self._call("gather", (None, bare(input), opts.rootRank), [], opts)
        blocks = one(outputs)
        check_equal(blocks, input, self.communicator.size, "gather")
        packed = Packed(blocks)
        arguments = (bare(packed.flat), bare(input), opts.rootRank)
        return self._call("gather", arguments, packed.blocks, opts, packed.unload, packed)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> dist.Work:
        out = bare(output) if opts.rootRank == self.communicator.rank else None
        return self._call("gather", (out, bare(input), opts.rootRank), [output], opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist.Work:
        out = one(outputs)
        if opts.rootRank != self.communicator.rank:
            return self._call("scatter", (bare(out), None, opts.rootRank), outputs, opts)
        blocks = one(inputs)
        check_equal(blocks, out, self.communicator.size, "scatter")
        packed = Packed(blocks)
        packed.load()
        return self._call("scatter", (bare(out), bare(packed.flat), opts.rootRank), outputs, opts, keep=packed)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        check_blocks(outputs, self.communicator.size, "all_to_all")
        check_blocks(inputs, self.communicator.size, "all_to_all")
        check_types((outputs[0], inputs[0]), "all_to_all")
        out, inp = Packed(outputs), Packed(inputs)
        inp.load()
        arguments = (bare(out.flat), out.counts, bare(inp.flat), inp.counts)
        return self._call("all_to_all_v", arguments, outputs, opts, out.unload, (out, inp))

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> dist.Work:
        check_types((output, input), "all_to_all")
        out_counts = elements(output, output_splits, self.communicator.size)
        in_counts = elements(input, input_splits, self.communicator.size)
        return self._call("all_to_all_v", (bare(output), out_counts, bare(input), in_counts), [output], opts)

    # ---- barriers ----

    def barrier(self, opts: Any = None) -> dist.Work:
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        seconds = self._seconds_of(opts)
        if opts is not None and not opts.asyncOp:
            self.communicator.barrier(timeout=seconds)
            return DoneWork([])
        return self._work([self.communicator._ibarrier(seconds)], [], opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Returns when every rank is in it. ``timeout``: a timedelta, or torch's options that have one.

        Calls match that ranks are in at the same time, also where a rank missed earlier ones. Raises HmcTimeoutError, which names
        the ranks that did not come, on every rank that did: all of them with ``wait_all_ranks``, else the first. Where a rank died
        or left the group, raises PeerLostError or ClosedError, then and in every later call.
        """
        given = timeout if timeout is None or isinstance(timeout, timedelta) else timeout.timeout
        seconds = given.total_seconds() if given is not None and given.total_seconds() > 0 else self._seconds
        self._shared.monitored_barrier.wait(seconds, wait_all_ranks)

    # ---- messages ----

    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> dist.Work:
        check_tag(tag)
        return self._work([self.communicator.isend(bare(one(tensors)), dstRank, tag)], tensors, None)

    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> dist.Work:
        check_tag(tag)
        work = self._work([self.communicator.irecv(bare(one(tensors)), srcRank, tag)], tensors, None, kind=ReceiveWork)
        work.asked = srcRank, tag
        return work

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self.recv(tensors, hmc.ANY_SOURCE, tag)

    # ---- one launch of several calls: each has its own Work, and torch wants one for all ----

    def start_coalescing(self, device: torch.device | None = None) -> None:
        self._coalesced = {}  # without what an exception left of a block that has no end

    def end_coalescing(self, device: torch.device | None = None) -> dist.Work:
        block, self._coalesced = self._coalesced or {}, None
        parts = list(block)
        for part in parts:
            part.block = None
        return JoinedWork(parts, self._seconds)

    # Names of torch before 2.14, and those that callers still use.
    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single

    def _seconds_of(self, opts: Any) -> float:
        if opts is None:
            return self._seconds
        given: float = opts.timeout.total_seconds()
        return given if given > 0 else self._seconds

    def _call(
        self,
        name: str,
        arguments: tuple[Any, ...],
        tensors: Tensors,
        opts: Any,
        finish: Callable[[], None] | None = None,
        keep: Any = None,
    ) -> dist.Work:
        """The Communicator's call `name`. `finish` is left to do after it; `keep` is what it needs until then."""
        if opts is None or opts.asyncOp or self._coalesced is not None:
            return self._work([getattr(self.communicator, "i" + name)(*arguments)], tensors, opts, finish, keep)
        getattr(self.communicator, name)(*arguments, timeout=self._seconds_of(opts))
        if finish is not None:
            finish()
        return DoneWork(tensors)

    def _work(
        self,
        works: Sequence[hmc.Work],
        tensors: Tensors,
        opts: Any,
        finish: Callable[[], None] | None = None,
        keep: Any = None,
        kind: type[HmcWork] = HmcWork,
    ) -> HmcWork:
        work = kind(works, tensors, self._seconds_of(opts), finish)
        work.keep = keep
        if self._coalesced is not None:
            self._coalesced[work] = None
            work.block = self._coalesced
        return work
