"""Collectives of device memory by the vendor's own library, in a group whose ranks all have cards of one vendor."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

import hmc
from hmc.torch._callbacks import run_soon
from hmc.torch._shared import Shared

# Tag of the receives that end when a rank is lost or aborts the group; above those of torch and of monitored_barrier().
_LOSS_TAG = 1 << 41
_WORDS = 64  # bytes in which a rank says something of itself


class Library(NamedTuple):
    """A vendor's library, as this torch has it."""

    kind: str  # of its devices, as torch calls them
    name: str  # with its version: ranks join whose names are the same
    card: Callable[[torch.device], str]  # the same for two devices where they are one card
    make: Callable[[Any, int, int, timedelta], Any]  # torch's backend, from its store, rank, size and timeout


def library() -> Library | None:
    """NCCL or RCCL; None where this torch has neither or sees no device, or HMC_TORCH_NATIVE is 0."""
    if os.environ.get("HMC_TORCH_NATIVE", "1") == "0" or not dist.is_nccl_available() or not torch.cuda.is_available():
        return None
    version = ".".join(str(part) for part in torch.cuda.nccl.version())
    return Library("cuda", f"{'RCCL' if torch.version.hip else 'NCCL'} {version}", _card, _made)


def _card(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _made(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


class Native:
    """The library's share of one group. One thread issues the group's collectives.

    Whether there is one is agreed among the ranks: of the library when the group is made, of the cards at the group's first
    collective of device memory. Two ranks on one card, another library at one of them, or a rank where the library fails to make
    its group leave all collectives to HMC.
    """

    def __init__(self, shared: Shared, store: Any) -> None:
        self.shared = shared
        self.communicator = shared.communicator
        self._store = store
        self._library = library()
        self._backend: Any = None
        self._undecided = False
        self._lost: BaseException | None = None
        self._watches: list[hmc.Work] = []
        self._closing = threading.Lock()
        if self.communicator.size > 1:
            named = self._said(self._library.name if self._library is not None else "")
            self._undecided = self._library is not None and len(set(named)) == 1

    def of(self, arguments: Sequence[Any]) -> Any:
        """torch's backend for a collective with these arguments, or None where HMC carries it out. PeerLostError."""
        if self._backend is None and not self._undecided:
            return None
        device = _device(arguments)
        if self._library is None or device is None or device.type != self._library.kind:
            return None
        if self._undecided:
            self._decide(device)
        if self._lost is not None:
            raise self._lost
        return self._backend

    def set_timeout(self, timeout: timedelta) -> None:
        if self._backend is not None:
            self._backend._set_default_timeout(timeout)

    def close(self, abort: bool) -> None:
        """Ends the library's group: after what is under way, or at once. Idempotent."""
        with self._closing:
            backend, self._backend, self._undecided = self._backend, None, False
        if abort and backend is not None:
            self._notify_of_abort()
        for work in self._watches:
            with contextlib.suppress(hmc.HmcError):
                work.cancel()
        self._watches.clear()
        if backend is not None:
            try:
                backend.abort() if abort else backend.shutdown()
            except Exception as error:  # torch forgets the group only where this returns
                warnings.warn(f"the group's collectives ended, but its library reports: {error}", stacklevel=2)

    def _notify_of_abort(self) -> None:
        for rank in range(self.communicator.size):
            if rank != self.communicator.rank:
                with contextlib.suppress(hmc.HmcError):
                    self.communicator.isend(b"\1", rank, _LOSS_TAG)

    def _said(self, text: str) -> list[bytes]:
        """What every rank says here, in rank order."""
        own = np.frombuffer(text.encode()[:_WORDS].ljust(_WORDS, b"\0"), np.uint8)
        all_said = np.zeros(self.communicator.size * _WORDS, np.uint8)
        self.communicator.all_gather(all_said, own, timeout=self.shared.seconds)
        return [bytes(row) for row in all_said.reshape(-1, _WORDS)]

    def _decide(self, device: torch.device) -> None:
        assert self._library is not None
        cards = self._said(f"{device.type} {self._library.card(device)}")
        self._undecided = False
        if len(set(cards)) < len(cards):
            return
        rank, size = self.communicator.rank, self.communicator.size
        store = dist.PrefixStore("hmc/native", self._store)
        made, failure = None, ""
        try:
            made = self._library.make(store, rank, size, timedelta(seconds=self.shared.seconds))
        except Exception as error:
            failure = f"rank {rank}: {type(error).__name__}: {error}"
        # A rank without it would wait in HMC for ranks that wait in the library.
        failures = [text for text in self._said(failure) if text.strip(b"\0")]
        if not failures:
            self._backend = made
            self._watch()
            return
        if made is not None:
            made.abort()
        reason = failures[0].rstrip(b"\0").decode(errors="replace")
        warnings.warn(f"HMC carries out this group's collectives: {self._library.name} made no group ({reason})", stacklevel=2)

    def _watch(self) -> None:
        """The library waits for a dead rank without end: HMC notices, and ends what waits."""
        for rank in range(self.communicator.size):
            if rank != self.communicator.rank:
                work = self.communicator.irecv(bytearray(1), rank, _LOSS_TAG)
                work.add_done_callback(self._left)
                self._watches.append(work)

    def _left(self, work: hmc.Work) -> None:
        error = work.error()
        if error is None:
            error = hmc.HmcCancelledError(f"rank {work.info.source} aborted the process group")
        elif not isinstance(error, hmc.PeerLostError):
            return
        with self._closing:
            first, self._lost = self._lost is None, self._lost or error
            backend = self._backend
        if first and backend is not None:
            run_soon(backend.abort)  # it may wait, and this is the thread of all callbacks


def _device(arguments: Any) -> torch.device | None:
    """Of the first tensor among lists of tensors."""
    if isinstance(arguments, torch.Tensor):
        return arguments.device
    if isinstance(arguments, list | tuple):
        return next((found for found in map(_device, arguments) if found is not None), None)
    return None
