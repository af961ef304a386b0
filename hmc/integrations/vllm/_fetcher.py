"""The decode side of a worker: asks prefill workers for leases, and pulls them into this engine's blocks."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmc import kv
from hmc._core import Context
from hmc.errors import HmcCancelledError, HmcError, HmcTimeoutError, InvalidArgumentError
from hmc.integrations.vllm._asking import CONNECT, answer_of
from hmc.integrations.vllm._loading import Fetch, Loading
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Source

__all__ = ["Fetcher"]

_ANSWER = 30.0  # seconds


def _left(until: float) -> float:
    """Seconds."""
    return max(0.0, until - time.monotonic())


@dataclass
class _Running:
    fetch: Fetch
    asked: float  # when
    begun: bool = False  # a thread has it
    cancelled: bool = False
    transfers: list[kv.Transfer] = field(default_factory=list)


class Fetcher(Loading):
    """Pulls requests into ``pools``, ``threads`` of them at a time. Arguments are those of :class:`Loading`. Any thread."""

    def __init__(
        self, ctx: Context, pools: Sequence[kv.Pool], sources: Callable[[Remote], list[Source]], model: str, **more: Any
    ) -> None:
        self._running: dict[str, _Running] = {}
        self._finished: set[str] = set()
        self._failures: set[int] = set()  # blocks
        super().__init__(ctx, pools, sources, model, **more)

    def fetch(self, fetch: Fetch) -> None:
        """Starts to fetch a request. Returns at once; :meth:`finished` returns it when its blocks are not written any more."""
        running = _Running(fetch, time.monotonic())
        with self._lock:
            self._running[fetch.request] = running
        self._asking.do(lambda: self._fetch(running))

    def cancel(self, request: str) -> None:
        """Ends a fetch early. It still finishes, as failed. Returns at once; idempotent."""
        with self._lock:
            running = self._running.get(request)
            if running is None:
                return
            running.cancelled = True
            if not running.begun:
                self._give_up(running, HmcCancelledError(f"the fetch of request {request} was cancelled"))
            transfers = list(running.transfers)
        for transfer in transfers:
            transfer.cancel()

    def finished(self) -> tuple[set[str], set[int]]:
        """The requests that have ended, and the blocks of those that failed: these hold garbage. Each is returned once."""
        with self._lock:
            late = time.monotonic() - self._timeout
            for running in [one for one in self._running.values() if not one.begun and one.asked < late]:
                self._give_up(
                    running,
                    HmcTimeoutError(f"no thread was free within {self._timeout:g} s; raise load_threads"),
                )
            # Fetches that have begun are renewed too: they ask one prefill worker after another.
            self._renew_wanted(running.fetch.remote for running in self._running.values() if not running.cancelled)
            finished, self._finished = self._finished, set()
            failed, self._failures = self._failures, set()
        return finished, failed

    def close(self, timeout: float = 10.0) -> None:
        """Cancels what is in flight and waits until nothing is written any more, or until ``timeout`` seconds are over."""
        with self._lock:
            running = list(self._running)
        for request in running:
            self.cancel(request)
        self._asking.close(timeout)

    def _fetch(self, running: _Running) -> None:
        failed, fetch = True, running.fetch
        with self._lock:
            if self._running.get(fetch.request) is not running:
                return  # it was given up
            running.begun = True
        asked: set[str] = set()
        try:
            parts = []
            for source in self._asking.sources(fetch.remote):
                asked.add(source.address)
                if source.read:
                    parts.append(self._pull(fetch, source, running, running.asked + self._timeout))
                else:
                    self._asking.say(self._ask("release", fetch), source.address)
            self._check_complete(parts)
            nbytes = sum(pool.counters(fetch.request).get("bytes_read", 0) for pool in self._pools)
            self._tally.loaded(time.monotonic() - running.asked, nbytes, fetch.tokens)
            failed = False
        except Exception as error:
            self._failed(fetch, error)
            if asked:  # the other prefill workers would wait for this reader
                self._asking.tell("release", [fetch.remote], like=self._ask("release", fetch), skip=asked)
        finally:
            with self._lock:
                self._end(fetch, failed)

    def _end(self, fetch: Fetch, failed: bool) -> None:
        """Under the lock."""
        del self._running[fetch.request]
        self._finished.add(fetch.request)
        if failed:
            self._failures.update(fetch.blocks)

    def _give_up(self, running: _Running, error: HmcError) -> None:
        """Ends a fetch that no thread has begun. Under the lock."""
        self._end(running.fetch, True)
        self._failed(running.fetch, error)
        self._asking.tell("release", [running.fetch.remote], like=self._ask("release", running.fetch))

    def _pull(self, fetch: Fetch, source: Source, running: _Running, until: float) -> tuple[tuple[int, int], tuple[int, int]]:
        """Pulls what a source has of a request. Returns its (layers, heads)."""
        what = "release" if running.cancelled else "lease"
        ask = self._ask(what, fetch, answer=secrets.randbits(61) | 1, readers=source.readers)
        peer = self._asking.say(ask, source.address, min(CONNECT, _left(until)))
        if what == "release":
            raise HmcCancelledError(f"the fetch of request {fetch.request} was cancelled")
        answer = answer_of(peer, ask.answer, min(_ANSWER, _left(until)))
        if len(answer.tickets) != len(self._pools):
            raise InvalidArgumentError(f"{len(answer.tickets)} tickets; this engine has {len(self._pools)} pools")
        transfers = []
        try:
            for pool, ticket in zip(self._pools, answer.tickets, strict=True):
                transfers.append(
                    pool.pull(peer, ticket, fetch.blocks, session=fetch.request, first=fetch.first, tokens=fetch.tokens)
                )
            with self._lock:
                running.transfers = transfers
                cancelled = running.cancelled
            if cancelled:
                raise HmcCancelledError(f"the fetch of request {fetch.request} was cancelled")
            for transfer in transfers:
                transfer.wait(_left(until))
        finally:
            self._drain(transfers)
        return answer.layers, answer.heads

    def _drain(self, transfers: list[kv.Transfer]) -> None:
        """Returns when nothing of them is written any more."""
        for transfer in transfers:
            transfer.cancel()
        for transfer in transfers:
            with contextlib.suppress(HmcError):
                transfer.wait()
