"""The tally of the workers as vLLM's log and Prometheus show it."""

from __future__ import annotations

from typing import Any

import numpy as np
from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

from hmc.integrations.vllm._tally import COUNTS, LISTS, empty

__all__ = ["HMCPromMetrics", "HMCStats"]

_BUCKETS = {
    "load_seconds": [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
    "load_bytes": [float(4 << (10 + 2 * i)) for i in range(12)],
    "load_tokens": [float(16 << (2 * i)) for i in range(8)],
}
_MEANS = {
    "load_seconds": "Seconds from the start of a load to its last checked byte, per request and worker.",
    "load_bytes": "Bytes that were read for a request, per worker.",
    "load_tokens": "Tokens that were read for a request, per worker.",
    "loads_failed": "Loads that failed, per request and worker; vLLM computes these tokens, or fails the request.",
    "requests_lent": "Requests that decode engines have read or released, per worker of the prefill engine.",
    "requests_expired": "Requests that no decode engine has read in time, per worker of the prefill engine.",
}


class HMCStats(KVConnectorStats):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Tallies that add up over workers and steps."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data or empty())

    def reset(self) -> None:
        """Forgets all."""
        self.data = empty()

    def is_empty(self) -> bool:
        """True without any load or lent request."""
        return bool(self.data == empty())

    def aggregate(self, other: KVConnectorStats) -> HMCStats:
        """Adds another one to this one."""
        for name in (*LISTS, *COUNTS):
            self.data[name] += other.data[name]
        return self

    def reduce(self) -> dict[str, int | float]:
        """A line of vLLM's log."""
        seconds, nbytes, tokens = (np.asarray(self.data[name], float) for name in LISTS)
        found: dict[str, int | float] = {"Loads": len(seconds)}
        if len(seconds):
            found["Avg load time (ms)"] = round(float(seconds.mean()) * 1e3, 3)
            found["P90 load time (ms)"] = round(float(np.percentile(seconds, 90)) * 1e3, 3)
            found["Avg MiB per load"] = round(float(nbytes.mean()) / 2**20, 3)
            found["Avg tokens per load"] = round(float(tokens.mean()), 1)
        named = {"loads_failed": "Failed loads", "requests_lent": "Lent requests", "requests_expired": "Expired requests"}
        return {**found, **{text: self.data[name] for name, text in named.items()}}


class HMCPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """Metrics ``vllm:hmc_*``."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics = {}
        for name in (*LISTS, *COUNTS):
            kind = metric_types[Histogram if name in LISTS else Counter]
            more = {"buckets": _BUCKETS[name]} if name in LISTS else {}
            metric = kind(name=f"vllm:hmc_{name}", documentation=_MEANS[name], labelnames=labelnames, **more)
            self._metrics[name] = create_metric_per_engine(metric, per_engine_labelvalues)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the stats of a step."""
        for name in LISTS:
            for value in transfer_stats_data[name]:
                self._metrics[name][engine_idx].observe(value)
        for name in COUNTS:
            self._metrics[name][engine_idx].inc(transfer_stats_data[name])
