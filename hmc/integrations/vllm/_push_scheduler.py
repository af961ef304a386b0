"""The scheduler's side of the connector in mode push: which prompts the workers push, and how far each step computes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hmc.errors import InvalidArgumentError
from hmc.integrations.vllm._log import logger
from hmc.integrations.vllm._metadata import HMCConnectorMetadata, Keep
from hmc.integrations.vllm._options import Options
from hmc.integrations.vllm._outgoing import Chunk, Dropped
from hmc.integrations.vllm._params import asked, digest_of, params_of, transfer_of
from hmc.integrations.vllm._scheduler import Scheduler, waits_preempted

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

__all__ = ["PushScheduler"]


@dataclass
class _Prompt:
    """A prompt that is computed here for a decode engine."""

    request: Request
    transfer: str
    tokens: int
    digest: str
    blocks: list[int] = field(default_factory=list)
    end: int = 0  # token behind the last one that was scheduled


class PushScheduler(Scheduler):
    """Collects the news of a step. The decode side is that of mode pull: what differs is in the workers."""

    def __init__(self, options: Options, block: int) -> None:
        super().__init__(options, block)
        self._prompts: dict[str, _Prompt] = {}
        self._held: set[str] = set()  # finished requests whose blocks the workers have

    def new_request(self, request: Request) -> None:
        """A request has arrived."""
        super().new_request(request)
        params = request.kv_transfer_params
        if not asked(params, "do_remote_decode") or not self._options.lends:
            return
        try:
            transfer = transfer_of(params, request.request_id)
        except InvalidArgumentError as error:
            logger.warning("HMC: request %s is not pushed: %s", request.request_id, error)
            return
        tokens = request.prompt_token_ids or []
        self._prompts[request.request_id] = _Prompt(request, transfer, len(tokens), digest_of(tokens))

    def scheduled(self, output: SchedulerOutput) -> None:
        """Notes what a step computes of the prompts."""
        self._preempted(output)
        for new in output.scheduled_new_reqs:
            prompt = self._prompts.get(new.req_id)
            if prompt is not None:
                prompt.blocks = list(new.block_ids[0])
                self._chunk(new.req_id, prompt, new.num_computed_tokens, output)
        cached = output.scheduled_cached_reqs
        for request, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            prompt = self._prompts.get(request)
            if prompt is not None:
                old = [] if request in cached.resumed_req_ids else prompt.blocks
                prompt.blocks = [*old, *(blocks[0] if blocks else [])]
                self._chunk(request, prompt, computed, output)

    def pending(self) -> bool:
        """Until the workers have returned what they hold, and have got the news."""
        return bool(self._held) or self._news != HMCConnectorMetadata()

    def moved(self, fetched: set[str], sent: set[str]) -> None:
        """Requests have arrived in every worker, and blocks of finished requests are free."""
        super().moved(fetched, sent)
        self._held -= sent

    def _preempted(self, output: SchedulerOutput) -> None:
        """Notes the prompts that have lost their blocks. A reset of vLLM's prefix cache preempts requests between two steps."""
        gone = {*(output.preempted_req_ids or ()), *output.scheduled_cached_reqs.resumed_req_ids}
        gone.update(new.req_id for new in output.scheduled_new_reqs)  # resumed ones, in vLLM's model runner V2
        for request, prompt in self._prompts.items():
            if prompt.blocks and (request in gone or waits_preempted(prompt.request)):
                prompt.blocks, prompt.end = [], 0
                self._news.preempted.append(request)

    def _chunk(self, request: str, prompt: _Prompt, computed: int, output: SchedulerOutput) -> None:
        end = min(computed + output.num_scheduled_tokens[request], prompt.tokens)
        if end > prompt.end:
            prompt.end = end
            self._news.chunks.append(Chunk(request, prompt.transfer, list(prompt.blocks), end, prompt.tokens, prompt.digest))

    def _prefilled(self, request: Request, blocks: list[int], good: bool) -> tuple[bool, dict[str, Any] | None]:
        prompt = self._prompts.pop(request.request_id, None)
        if prompt is None:
            return False, None
        held = bool(blocks and prompt.blocks)
        if held:
            self._held.add(request.request_id)
        if not (good and held):
            self._news.dropped.append(Dropped(request.request_id, prompt.transfer, held))
            return held, None
        self._news.keep.append(Keep(request.request_id, list(blocks), prompt.tokens, prompt.transfer))
        here = self._options.here(prompt.transfer)
        return True, params_of(here, list(blocks), prompt.tokens, self._options.mode)
