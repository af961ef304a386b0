"""The scheduler's side of the connector: which requests are kept, fetched, cancelled and released."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hmc.errors import InvalidArgumentError
from hmc.integrations.vllm._loading import Fetch
from hmc.integrations.vllm._log import logger
from hmc.integrations.vllm._metadata import HMCConnectorMetadata, Keep
from hmc.integrations.vllm._options import Options
from hmc.integrations.vllm._params import Remote, asked, digest_of, params_of

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

__all__ = ["Scheduler", "waits_preempted"]


def aborted(request: Request) -> bool:
    """Whether a request that has finished was aborted."""
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.FINISHED_ABORTED)


def whole(request: Request) -> bool:
    """Whether a request that has finished was computed to its end."""
    from vllm.v1.request import RequestStatus

    return request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


def waits_preempted(request: Request) -> bool:
    """Whether a request has lost its blocks, and has not got others yet."""
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.PREEMPTED)


class Scheduler:
    """Collects the news of a step, in mode pull. ``block``: tokens of a block. One thread."""

    def __init__(self, options: Options, block: int) -> None:
        self._options = options
        self._block = block
        self._renewed = time.monotonic()
        self._news = HMCConnectorMetadata()
        self._waiting: dict[str, Remote] = {}  # requests that wait for blocks here
        self._fetching: set[str] = set()

    def matched_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        """The tokens behind ``computed`` that the prefill engine has, and whether they are loaded between steps."""
        if self._remote(request) is None:
            return 0, False
        count = len(request.prompt_token_ids or []) - computed
        return (count, True) if count > 0 else (0, False)

    def scheduled(self, output: SchedulerOutput) -> None:
        """Nothing: finished requests are read."""

    def pending(self) -> bool:
        """Whether the engine has to go on stepping, although it has nothing to compute."""
        return False

    def new_request(self, request: Request) -> None:
        """A request has arrived: until it gets blocks, its remote one is renewed."""
        remote = self._remote(request)
        if remote is not None:
            self._waiting[request.request_id] = remote

    def allocated(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        """A request has got blocks, of which the last ``external`` tokens of the prompt are loaded."""
        remote = self._remote(request)
        if remote is None:
            return
        request.kv_transfer_params["do_remote_prefill"] = False  # once: after a failure it is computed here
        self._waiting.pop(request.request_id, None)
        if external == 0:  # the prompt is in the local prefix cache
            self._news.release.append(remote)
            return
        (own,) = blocks.get_block_ids()
        skip = len(request.prompt_token_ids) - external
        end = -(-(skip + external) // self._block)
        self._fetching.add(request.request_id)
        wanted = list(own[skip // self._block : end])
        digest = digest_of(request.prompt_token_ids)
        self._news.fetch.append(Fetch(request.request_id, remote, wanted, skip, external, skip % self._block, digest))

    def finished(self, request: Request, blocks: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request has finished. True: its blocks stay until the worker returns it; and the params for the decode engine."""
        remote = self._remote(request)
        if self._waiting.pop(request.request_id, None) is not None and remote is not None:
            request.kv_transfer_params["do_remote_prefill"] = False
            self._news.release.append(remote)  # aborted before it got blocks
        if request.request_id in self._fetching and aborted(request):
            self._news.cancel.append(request.request_id)
        if not asked(request.kv_transfer_params, "do_remote_decode"):
            return False, None
        if not self._options.lends:
            logger.warning("HMC: request %s has do_remote_decode, and kv_role lends nothing: it is not kept", request.request_id)
            return False, None
        return self._prefilled(request, blocks, whole(request) and bool(blocks))

    def _prefilled(self, request: Request, blocks: list[int], good: bool) -> tuple[bool, dict[str, Any] | None]:
        """A prefill request has ended; ``good``: with blocks that a decode engine can use."""
        if not good:
            return False, None
        tokens = min(request.num_computed_tokens, len(blocks) * self._block)
        prompt = request.prompt_token_ids or []
        digest = digest_of(prompt) if len(prompt) == tokens else ""
        self._news.keep.append(Keep(request.request_id, list(blocks), tokens, prompt=digest))
        return True, params_of(self._options.here(request.request_id), list(blocks), tokens)

    def moved(self, fetched: set[str], sent: set[str]) -> None:
        """Fetches have ended in every worker, and blocks of finished requests are free."""
        self._fetching -= fetched

    def take(self) -> HMCConnectorMetadata:
        """The news since the last call."""
        news, self._news = self._news, HMCConnectorMetadata()
        now = time.monotonic()
        if self._waiting and now - self._renewed > self._options.lease_seconds / 6:
            self._renewed = now
            news.renew = list(self._waiting.values())
        return news

    def _remote(self, request: Request) -> Remote | None:
        try:
            remote = Remote.of(request.kv_transfer_params, self._options.mode)
            if remote is not None and not self._options.fetches:
                raise InvalidArgumentError("it has do_remote_prefill, and kv_role loads nothing")
            return remote
        except InvalidArgumentError as error:
            logger.warning("HMC: request %s is computed here: %s", request.request_id, error)
            request.kv_transfer_params["do_remote_prefill"] = False
            return None
