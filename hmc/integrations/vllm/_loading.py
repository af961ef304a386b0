"""What the decode side of a worker does alike in both modes: its arguments, what it says to prefill workers, and its checks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hmc import kv
from hmc._core import Context, Peer
from hmc.errors import HmcCancelledError, HmcError, InvalidArgumentError
from hmc.integrations.vllm._asking import Asking
from hmc.integrations.vllm._log import logger
from hmc.integrations.vllm._messages import Ask
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Source
from hmc.integrations.vllm._tally import Tally
from hmc.kv._moves import common

__all__ = ["Fetch", "Loading"]


@dataclass(frozen=True)
class Fetch:
    """``tokens`` tokens of a remote request, from token ``skip`` on, into ``blocks`` from token ``first`` of the first one on.

    ``prompt``: digest of the prompt's tokens, or "".
    """

    request: str
    remote: Remote
    blocks: list[int]
    skip: int
    tokens: int
    first: int = 0
    prompt: str = ""


class Loading:
    """Base of what loads requests into ``pools``. Any thread.

    ``sources`` names the prefill workers that have parts of a remote request. ``model``: fingerprint, see :class:`Ask`.
    ``timeout``: seconds for a request, in push with the time in which it is computed. ``threads``: requests that are asked for at a
    time. ``renew``: seconds between two renewals of requests that wait for a thread or for another prefill worker. ``connected`` is
    called with each new peer.
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
        renew: float = 5.0,
        tally: Tally | None = None,
        connected: Callable[[Peer], None] = lambda peer: None,
    ) -> None:
        self._pools = list(pools)
        self._model = model
        self._timeout = timeout
        self._renew_every = renew
        self._renewed = time.monotonic()
        self._tally = tally or Tally()
        self._lock = threading.Lock()
        self._asking = Asking(ctx, sources, connected, threads)

    def _ask(self, what: str, fetch: Fetch, **more: int) -> Ask:
        """A question about a request, with which a prefill worker notices that it has another prompt."""
        remote = fetch.remote
        first, tokens, prompt = fetch.skip, fetch.tokens, fetch.prompt
        return Ask(what, remote.engine, [remote.request], first=first, tokens=tokens, model=self._model, prompt=prompt, **more)

    def release(self, remote: Remote) -> None:
        """Says to the prefill workers that nothing of a request is wanted, so that they free its blocks. Returns at once."""
        self._asking.tell("release", [remote])

    def renew(self, remotes: Sequence[Remote]) -> None:
        """Says to the prefill workers that requests are wanted later. Returns at once."""
        by_engine: dict[Remote, list[Remote]] = {}
        for remote in remotes:
            by_engine.setdefault(remote.workers, []).append(remote)
        for some in by_engine.values():
            self._asking.tell("renew", some)

    def _renew_wanted(self, remotes: Iterable[Remote]) -> None:
        """Renews requests that are read later, as other engines or workers come first. Does nothing until it is time again."""
        now = time.monotonic()
        if now - self._renewed < self._renew_every:
            return
        self._renewed = now
        for remote in remotes:
            self._asking.tell("renew", [remote])

    def _check_complete(self, parts: Iterable[tuple[tuple[int, int], tuple[int, int]]]) -> None:
        """``parts``: (layers, heads) of each prefill worker. InvalidArgumentError where they lack some of this worker's."""
        layout = self._pools[0].layout
        missing = layout.layers[1] * layout.heads[1] - sum(
            common(layout.layers, layers)[1] * common(layout.heads, heads)[1] for layers, heads in parts
        )
        if missing:
            raise InvalidArgumentError(
                f"the workers of the prefill engine lack {missing} pairs of a layer and a head of {layout}: their stages have "
                "other layers than vLLM's rule says"
            )

    def _failed(self, fetch: Fetch, error: Exception) -> None:
        """Counts and logs a load that has failed."""
        if isinstance(error, HmcCancelledError):
            return
        self._tally.count("loads_failed")
        unexpected = None if isinstance(error, HmcError) else error
        logger.warning(
            "HMC: request %s was not loaded from %s: %s", fetch.request, fetch.remote.address(0, 0), error, exc_info=unexpected
        )
