"""The decode side of a worker: asks prefill workers for leases, and pulls them into this engine's blocks."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hmc import kv
from hmc._core import Context, Peer
from hmc.errors import HmcCancelledError, HmcError, InvalidArgumentError
from hmc.integrations.vllm._asking import CONNECT, Asking, answer_of
from hmc.integrations.vllm._messages import Ask
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Source
from hmc.integrations.vllm._tally import Tally
from hmc.kv._moves import common

__all__ = ["Fetch", "Fetcher"]

logger = logging.getLogger("vllm.hmc")

_ANSWER = 30.0  # seconds


def _left(until: float) -> float:
    """Seconds."""
    return max(0.0, until - time.monotonic())


@dataclass(frozen=True)
class Fetch:
    """``tokens`` tokens of a remote request, from token ``skip`` on, into ``blocks`` from token ``first`` of the first one on.

    ``prompt``: digest of all tokens before the last one, or "".
    """

    request: str
    remote: Remote
    blocks: list[int]
    skip: int
    tokens: int
    first: int = 0
    prompt: str = ""


@dataclass
class _Running:
    cancelled: bool = False
    transfers: list[kv.Transfer] = field(default_factory=list)


class Fetcher:
    """Pulls requests into ``pools``, ``threads`` of them at a time.

    ``sources`` names the prefill workers that have parts of a remote request. ``model``: fingerprint, see :class:`Ask`.
    ``timeout``: seconds for a request, from its first question on. ``connected`` is called with each new peer. Any thread.
    """

    def __init__(
        self,
        ctx: Context,
        pools: Sequence[kv.Pool],
        sources: Callable[[Remote], list[Source]],
        model: str,
        *,
        timeout: float = 120.0,
        threads: int = 4,
        tally: Tally | None = None,
        connected: Callable[[Peer], None] = lambda peer: None,
    ) -> None:
        self._pools = list(pools)
        self._model = model
        self._timeout = timeout
        self._tally = tally or Tally()
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._finished: set[str] = set()
        self._failed: set[int] = set()
        self._asking = Asking(ctx, sources, connected, threads)

    def fetch(self, fetch: Fetch) -> None:
        """Starts to fetch a request. Returns at once; :meth:`finished` returns it when its blocks are not written any more."""
        running = _Running()
        with self._lock:
            self._running[fetch.request] = running
        self._asking.do(lambda: self._fetch(fetch, running))

    def cancel(self, request: str) -> None:
        """Ends a fetch early. It still finishes, as failed. Returns at once; idempotent."""
        with self._lock:
            running = self._running.get(request)
            if running is None:
                return
            running.cancelled = True
            transfers = list(running.transfers)
        for transfer in transfers:
            transfer.cancel()

    def release(self, remote: Remote) -> None:
        """Says to the prefill workers that nothing of a request will be read, so that they free its blocks. Returns at once."""
        self._asking.tell("release", [remote])

    def renew(self, remotes: Sequence[Remote]) -> None:
        """Says to the prefill workers that requests, all of one engine, will be read later. Returns at once."""
        self._asking.tell("renew", remotes)

    def finished(self) -> tuple[set[str], set[int]]:
        """The requests that have ended, and the blocks of those that failed: these hold garbage. Each is returned once."""
        with self._lock:
            finished, self._finished = self._finished, set()
            failed, self._failed = self._failed, set()
        return finished, failed

    def close(self, timeout: float = 10.0) -> None:
        """Cancels what is in flight and waits until nothing is written any more, or until ``timeout`` seconds are over."""
        with self._lock:
            running = list(self._running)
        for request in running:
            self.cancel(request)
        self._asking.close(timeout)

    def _fetch(self, fetch: Fetch, running: _Running) -> None:
        failed = True
        begun = time.monotonic()
        try:
            layout = self._pools[0].layout
            missing = layout.layers[1] * layout.heads[1]
            for source in self._asking.sources(fetch.remote):
                if source.read:
                    missing -= self._pull(fetch, source, running, begun + self._timeout)
                else:
                    self._asking.say(Ask("release", fetch.remote.engine, [fetch.remote.request]), source.address)
            if missing:
                raise InvalidArgumentError(
                    f"the workers of {fetch.remote.engine} lack {missing} pairs of a layer and a head of {layout}: "
                    "their stages have other layers than vLLM's rule says"
                )
            nbytes = sum(pool.counters(fetch.request).get("bytes_read", 0) for pool in self._pools)
            self._tally.loaded(time.monotonic() - begun, nbytes, fetch.tokens)
            failed = False
        except HmcError as error:
            if not isinstance(error, HmcCancelledError):
                self._tally.count("loads_failed")
                logger.warning("HMC: request %s was not loaded from %s: %s", fetch.request, fetch.remote.engine, error)
        except Exception:
            self._tally.count("loads_failed")
            logger.exception("HMC: request %s was not loaded from %s", fetch.request, fetch.remote.engine)
        finally:
            with self._lock:
                del self._running[fetch.request]
                self._finished.add(fetch.request)
                if failed:
                    self._failed.update(fetch.blocks)

    def _pull(self, fetch: Fetch, source: Source, running: _Running, until: float) -> int:
        """Pulls what a source has of a request. Returns how many pairs of a layer and a head that was."""
        what = "release" if running.cancelled else "lease"
        ask = Ask(
            what,
            fetch.remote.engine,
            [fetch.remote.request],
            answer=secrets.randbits(61) | 1,
            first=fetch.skip,
            tokens=fetch.tokens,
            readers=source.readers,
            model=self._model,
            prompt=fetch.prompt,
        )
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
        layout = self._pools[0].layout
        return common(layout.layers, answer.layers)[1] * common(layout.heads, answer.heads)[1]

    def _drain(self, transfers: list[kv.Transfer]) -> None:
        """Returns when nothing of them is written any more."""
        for transfer in transfers:
            transfer.cancel()
        for transfer in transfers:
            with contextlib.suppress(HmcError):
                transfer.wait()
