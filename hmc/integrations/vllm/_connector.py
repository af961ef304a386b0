"""HMCConnector: what vLLM calls, in the scheduler and in each worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from hmc.integrations.vllm._metadata import HMCConnectorMetadata
from hmc.integrations.vllm._options import Options
from hmc.integrations.vllm._push_scheduler import PushScheduler
from hmc.integrations.vllm._scheduler import Scheduler
from hmc.integrations.vllm._stats import HMCPromMetrics, HMCStats

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

__all__ = ["HMCConnector"]


class HMCConnector(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Prefill here, decode there, over hmc.kv. The decode engine pulls the KV cache of a finished prefill request (mode pull), or
    the prefill engine pushes each layer as soon as it is computed (mode push).

    vLLM makes one for its scheduler and one for each worker. docs/howto/vllm.md has options and commands.
    """

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = Options.of(vllm_config.kv_transfer_config, vllm_config.parallel_config)
        self._scheduler: Scheduler | None = None
        self._worker: Any = None
        self._failed: set[int] = set()
        if role == KVConnectorRole.SCHEDULER:
            kind = PushScheduler if options.mode == "push" else Scheduler
            self._scheduler = kind(options, vllm_config.cache_config.block_size)
        else:
            from hmc.integrations.vllm._worker import Worker

            self._worker = Worker(vllm_config, options)

    # ---- the scheduler ----

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """The tokens of the prompt that the prefill engine has beyond the local ones, and whether they are loaded between steps."""
        assert self._scheduler is not None
        return self._scheduler.matched_tokens(request, num_computed_tokens)

    def on_new_request(self, request: Request) -> None:
        """A request has arrived."""
        assert self._scheduler is not None
        self._scheduler.new_request(request)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """A request has got its blocks."""
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """The news for the workers."""
        assert self._scheduler is not None
        self._scheduler.scheduled(scheduler_output)
        return self._scheduler.take()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """The workers' news."""
        assert self._scheduler is not None
        self._scheduler.moved(set(connector_output.finished_recving or ()), set(connector_output.finished_sending or ()))

    def has_pending_push_work(self) -> bool:
        """Whether the engine goes on stepping without a request that it computes, because blocks are pushed."""
        assert self._scheduler is not None
        return self._scheduler.pending()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks of a finished request stay, and the params for the decode engine."""
        assert self._scheduler is not None
        return self._scheduler.finished(request, block_ids)

    # ---- a worker ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Takes the layers' caches. Raises UnsupportedError for a layout that is not described."""
        self._worker.start(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """A step begins. In mode push waits until nothing reads the blocks of preempted requests, which it may overwrite."""
        assert isinstance(kv_connector_metadata, HMCConnectorMetadata)
        self._worker.begin(kv_connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Starts what the scheduler asked for, and returns at once."""
        news = self._get_connector_metadata()
        assert isinstance(news, HMCConnectorMetadata)
        self._worker.step(news)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request runs once all its layers are loaded. A step that waited here would hold up all others of its batch."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any) -> None:
        """Lets the layer go to the decode engines (push). Returns at once."""
        self._worker.saved(layer_name)

    def wait_for_save(self) -> None:
        """The step has ended (push). Returns at once: blocks stay until get_finished() returns their request."""
        self._worker.end()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Requests whose blocks are read no more, and requests whose blocks are written no more."""
        sent, fetched, failed = self._worker.finished()
        self._failed |= failed
        return sent, fetched

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks of the requests that were not loaded, among those that get_finished() has returned."""
        failed, self._failed = self._failed, set()
        return failed

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """What this worker has loaded and lent since the last call."""
        found = self._worker.tally.take() if self._worker is not None else None
        return None if found is None else HMCStats(found)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """True in mode push: save_kv_layer() is not called inside a graph."""
        return extra_config.get("mode") == "push"

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        """The stats that a worker has sent."""
        return HMCStats(data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> HMCPromMetrics:
        """The metrics ``vllm:hmc_*``."""
        return HMCPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Ends transfers and leases."""
        if self._worker is not None:
            self._worker.close()
