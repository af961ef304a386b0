"""The process group: torch's calls as HMC's."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import hmc
from hmc.torch._tensors import Packed, Tensors, bare, check_blocks, check_equal, check_tag, device_types, elements, one, reduced
from hmc.torch._work import HmcWork

# For what is under way to arrive, and for ranks of this host to let go of this one's memory.
CLOSE_SECONDS = 30.0


class HmcProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A torch.distributed process group whose collectives and messages are those of :attr:`communicator`.

    Collectives of one group are issued in the same order on every rank. All calls return at once; ``wait()`` of their Works, and
    torch's synchronous calls, return when the result is in the tensors. Timeouts are those of the group. Errors are HMC's:
    :class:`hmc.PeerLostError` names the rank.
    """

    def __init__(self, communicator: hmc.Communicator, timeout: timedelta) -> None:
        super().__init__(communicator.rank, communicator.size)
        self.communicator = communicator
        self._timeout = timeout
        self._group_name = self._group_desc = "undefined"
        self._coalesced: list[HmcWork] | None = None  # the Works of calls between _start_coalescing() and _end_coalescing()

    # What torch's C++ asks for; its own class answers for backends only.

    def getBackendName(self) -> str:
        return "hmc"

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description

    def getGroupDesc(self) -> str:
        return self._group_desc

    def name(self) -> str:
        return "hmc"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in device_types()]

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def shutdown(self) -> None:
        try:
            self.communicator.close(timeout=min(self._timeout.total_seconds(), CLOSE_SECONDS))
        except hmc.HmcTimeoutError as error:  # torch forgets the group only where this returns
            warnings.warn(f"a process group was closed while others had not let go of it: {error}", stacklevel=2)

    def abort(self) -> None:
        """Ends what is under way with an error, here and at the others."""
        with contextlib.suppress(hmc.HmcTimeoutError):  # a peer may still write into memory, which is then kept
            self.communicator.close(timeout=0)

    # ---- reductions ----

    def allreduce(self, tensors: Tensors, opts: Any = None) -> HmcWork:
        return self._all_reduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> HmcWork:
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors: Tensors, opts: Any) -> HmcWork:
        works = []
        for tensor in tensors:
            array, options = reduced(tensor, opts)
            works.append(self.communicator.iall_reduce(array, **options))
        return self._work(works, tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> HmcWork:
        array, options = reduced(one(tensors), opts)
        root = opts.rootRank
        out = array if root == self.rank() else None
        return self._work([self.communicator.ireduce(out, array, root, **options)], tensors, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> HmcWork:
        out, blocks = one(outputs), one(inputs)
        check_blocks(blocks, self.size(), "reduce_scatter")
        packed = Packed(blocks)
        array, options = reduced(packed.flat, opts)
        packed.load()
        work = self.communicator.ireduce_scatter(bare(out), array, counts=packed.counts, **options)
        return self._work([work], [out], opts, keep=packed)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HmcWork:
        return self._reduce_scatters([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HmcWork:
        return self._reduce_scatters(outputs, inputs, opts)

    def _reduce_scatters(self, outputs: Tensors, inputs: Tensors, opts: Any) -> HmcWork:
        works = []
        for output, input in zip(outputs, inputs, strict=True):
            array, options = reduced(input, opts)
            works.append(self.communicator.ireduce_scatter(bare(output), array, **options))
        return self._work(works, outputs, opts)

    # ---- data movement ----

    def broadcast(self, tensors: Tensors, opts: Any) -> HmcWork:
        return self._work([self.communicator.ibroadcast(bare(one(tensors)), opts.rootRank)], tensors, opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> HmcWork:
        blocks, input = one(outputs), one(inputs)
        check_blocks(blocks, self.size(), "all_gather")
        packed = Packed(blocks)
        work = self.communicator.iall_gather(bare(packed.flat), bare(input), packed.counts)
        return self._work([work], blocks, opts, packed.unload, keep=packed)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> HmcWork:
        parts = [self.allgather([out], [input], opts) for out, input in zip(outputs, inputs, strict=True)]
        return self._joined(parts, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HmcWork:
        return self._all_gathers([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HmcWork:
        return self._all_gathers(outputs, inputs, opts)

    def _all_gathers(self, outputs: Tensors, inputs: Tensors, opts: Any) -> HmcWork:
        pairs = zip(outputs, inputs, strict=True)
        return self._work([self.communicator.iall_gather(bare(out), bare(input)) for out, input in pairs], outputs, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> HmcWork:
        input = one(inputs)
        if opts.rootRank != self.rank():
            return self._work([self.communicator.igather(None, bare(input), opts.rootRank)], [], opts)
        packed = Packed(one(outputs))
        check_equal(packed.blocks, input, self.size(), "gather")
        work = self.communicator.igather(bare(packed.flat), bare(input), opts.rootRank)
        return self._work([work], packed.blocks, opts, packed.unload, keep=packed)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> HmcWork:
        out = one(outputs)
        if opts.rootRank != self.rank():
            return self._work([self.communicator.iscatter(bare(out), None, opts.rootRank)], outputs, opts)
        packed = Packed(one(inputs))
        check_equal(packed.blocks, out, self.size(), "scatter")
        packed.load()
        return self._work([self.communicator.iscatter(bare(out), bare(packed.flat), opts.rootRank)], outputs, opts, keep=packed)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HmcWork:
        check_blocks(outputs, self.size(), "all_to_all")
        check_blocks(inputs, self.size(), "all_to_all")
        out, inp = Packed(outputs), Packed(inputs)
        inp.load()
        work = self.communicator.iall_to_all_v(bare(out.flat), out.counts, bare(inp.flat), inp.counts)
        return self._work([work], outputs, opts, out.unload, keep=(out, inp))

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> HmcWork:
        out, inp = bare(output), bare(input)
        out_counts = elements(output, output_splits, self.size())
        in_counts = elements(input, input_splits, self.size())
        return self._work([self.communicator.iall_to_all_v(out, out_counts, inp, in_counts)], [output], opts)

    def barrier(self, opts: Any = None) -> HmcWork:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return self._work([self.communicator._ibarrier(self._timeout_of(opts).total_seconds())], [], opts)

    # ---- messages ----

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> HmcWork:
        check_tag(tag)
        return self._work([self.communicator.isend(bare(one(tensors)), dst, tag)], tensors, None)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> HmcWork:
        check_tag(tag)
        return self._work([self.communicator.irecv(bare(one(tensors)), src, tag)], tensors, None)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> HmcWork:
        check_tag(tag)
        return self._work([self.communicator.irecv(bare(one(tensors)), hmc.ANY_SOURCE, tag)], tensors, None)

    # ---- one launch of several calls: each has its own Work, and torch wants one for all ----

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> HmcWork:
        parts, self._coalesced = self._coalesced or [], None
        return self._joined(parts, None)

    # Names of torch before 2.13, and those that callers still use.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _timeout_of(self, opts: Any) -> timedelta:
        given = getattr(opts, "timeout", None)
        return given if given is not None and given.total_seconds() > 0 else self._timeout

    def _work(
        self, works: Sequence[hmc.Work], tensors: Tensors, opts: Any, finish: Callable[[], None] | None = None, keep: Any = None
    ) -> HmcWork:
        work = HmcWork(works, tensors, self._timeout_of(opts), finish)
        work.keep = keep
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _joined(self, parts: Sequence[HmcWork], opts: Any) -> HmcWork:
        def finish() -> None:
            for part in parts:
                part._finish_once()

        works = [work for part in parts for work in part._works]
        return HmcWork(works, [tensor for part in parts for tensor in part._tensors], self._timeout_of(opts), finish)
