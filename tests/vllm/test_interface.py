"""The connector against vLLM's interface, without an engine."""

from __future__ import annotations

import dataclasses
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from engines import transfer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.v1.request import RequestStatus

from hmc.integrations.vllm import HMCConnector
from hmc.integrations.vllm._metadata import HMCConnectorMetadata
from hmc.integrations.vllm._options import Options
from hmc.integrations.vllm._params import Remote, params_of
from hmc.integrations.vllm._scheduler import Scheduler
from hmc.integrations.vllm._stats import HMCPromMetrics, HMCStats
from hmc.integrations.vllm._tally import empty

THERE = Remote("there", "far", "127.0.0.1", 6000)
BLOCK = 32


def test_vllm_finds_the_connector_by_its_path() -> None:
    config = KVTransferConfig(**transfer("kv_both", 5000))
    assert KVConnectorFactory.get_connector_class(config) is HMCConnector
    assert not HMCConnector.__abstractmethods__


@pytest.mark.parametrize("name", sorted(name for name in vars(HMCConnector) if not name.startswith("_")))
def test_every_method_is_one_of_vllm_and_has_its_parameters(name: str) -> None:
    mine, base = getattr(HMCConnector, name), getattr(KVConnectorBase_V1, name)
    assert list(inspect.signature(mine).parameters) == list(inspect.signature(base).parameters)


def request(tokens: int = 100, params: dict[str, Any] | None = None, status: Any = RequestStatus.FINISHED_LENGTH_CAPPED) -> Any:
    return SimpleNamespace(
        request_id="near",
        prompt_token_ids=list(range(tokens)),
        kv_transfer_params=params,
        status=status,
        num_computed_tokens=tokens,
    )


def blocks(*numbers: int) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (list(numbers),))


def scheduler(seconds: float = 30, role: str = "kv_both") -> Scheduler:
    parallel = SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_index=0)
    options = Options.of(KVTransferConfig(**transfer(role, 5000, engine_id="here")), parallel)
    return Scheduler(dataclasses.replace(options, lease_seconds=seconds), BLOCK)


def remote_prefill() -> dict[str, Any]:
    return params_of(THERE, [1, 2, 3, 4], 100)


def test_a_finished_prefill_is_kept_and_its_params_lead_back_to_it() -> None:
    one = scheduler()
    keep, params = one.finished(request(params={"do_remote_decode": True}), [7, 8, 9, 10])
    assert keep
    assert Remote.of(params) == Remote("here", "near", "127.0.0.1", 5000)
    [kept] = one.take().keep
    assert (kept.request, kept.blocks, kept.tokens) == ("near", [7, 8, 9, 10], 100)
    assert one.take().keep == []


@pytest.mark.parametrize("status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR, RequestStatus.FINISHED_IGNORED])
def test_a_prefill_that_did_not_finish_is_not_kept(status: Any) -> None:
    one = scheduler()
    assert one.finished(request(params={"do_remote_decode": True}, status=status), [7, 8, 9, 10]) == (False, None)
    assert one.take().keep == []


# A client's vllm_xargs can hold anything under this key.
@pytest.mark.parametrize("params", [None, {}, {"other": 1}, "text", 5, ["do_remote_prefill"]])
def test_an_ordinary_request_is_left_alone(params: Any) -> None:
    one = scheduler()
    plain = request(params=params)
    one.new_request(plain)
    assert one.matched_tokens(plain, 0) == (0, False)
    one.allocated(plain, blocks(1, 2, 3, 4), 0)
    assert one.finished(plain, [1, 2, 3, 4]) == (False, None)
    assert one.take() == HMCConnectorMetadata()


@pytest.mark.parametrize(
    ("computed", "own", "first"), [(0, [5, 6, 7, 8], 0), (32, [6, 7, 8], 0), (64, [7, 8], 0), (96, [8], 0), (40, [6, 7, 8], 8)]
)
def test_only_missing_tokens_are_fetched_and_once(computed: int, own: list[int], first: int) -> None:
    one = scheduler()
    wanted = request(params=remote_prefill())
    one.new_request(wanted)
    assert one.matched_tokens(wanted, computed) == (100 - computed, True)
    assert one.matched_tokens(wanted, computed) == (100 - computed, True), "it may be asked several times"
    one.allocated(wanted, blocks(5, 6, 7, 8, 9), 100 - computed)
    [fetch] = one.take().fetch
    assert (fetch.request, fetch.remote, fetch.blocks) == ("near", THERE, own)
    assert (fetch.skip, fetch.tokens, fetch.first) == (computed, 100 - computed, first)
    assert one.matched_tokens(wanted, 0) == (0, False), "after a failure the tokens are computed here"
    one.allocated(wanted, blocks(5, 6, 7, 8, 9), 0)
    assert one.take().release == []


def test_a_prompt_in_the_prefix_cache_is_released() -> None:
    one = scheduler()
    cached = request(params=remote_prefill())
    one.new_request(cached)
    assert one.matched_tokens(cached, 100) == (0, False)
    one.allocated(cached, blocks(5, 6, 7, 8), 0)
    news = one.take()
    assert (news.fetch, news.release) == ([], [THERE])
    assert one.finished(cached, [5, 6, 7, 8]) == (False, None)
    assert one.take().release == []


def test_a_request_that_is_aborted_before_it_gets_blocks_is_released() -> None:
    one = scheduler()
    waiting = request(params=remote_prefill(), status=RequestStatus.FINISHED_ABORTED)
    one.new_request(waiting)
    assert one.finished(waiting, []) == (False, None)
    assert one.take().release == [THERE]


def test_a_request_that_is_aborted_while_it_loads_is_cancelled_once() -> None:
    one = scheduler()
    loading = request(params=remote_prefill(), status=RequestStatus.FINISHED_ABORTED)
    one.new_request(loading)
    one.allocated(loading, blocks(5, 6, 7, 8), 100)
    assert one.finished(loading, [5, 6, 7, 8]) == (False, None)
    assert one.take().cancel == ["near"]
    one.moved({"near"}, set())
    assert one.finished(loading, [5, 6, 7, 8]) == (False, None)
    assert one.take().cancel == []


def test_waiting_requests_are_renewed() -> None:
    one = scheduler(seconds=0)
    waiting = request(params=remote_prefill())
    one.new_request(waiting)
    assert one.take().renew == [THERE]
    one.allocated(waiting, blocks(5, 6, 7, 8), 100)
    assert one.take().renew == []
    patient = scheduler(seconds=3600)
    patient.new_request(request(params=remote_prefill()))
    assert patient.take().renew == []


@pytest.mark.parametrize("params", [remote_prefill(), {"do_remote_decode": True}])
def test_a_request_that_the_role_does_not_serve_is_an_ordinary_one(params: dict[str, Any]) -> None:
    one = scheduler(role="kv_producer" if "remote_host" in params else "kv_consumer")
    refused = request(params=params)
    one.new_request(refused)
    assert one.matched_tokens(refused, 0) == (0, False)
    one.allocated(refused, blocks(1, 2, 3, 4), 0)
    assert one.finished(refused, [1, 2, 3, 4]) == (False, None)
    assert one.take() == HMCConnectorMetadata()


@pytest.mark.parametrize("change", [{"remote_host": None}, {"remote_port": float("inf")}, {"tp_size": [1]}])
def test_wrong_params_are_computed_here(change: dict[str, Any]) -> None:
    one = scheduler()
    wrong = request(params={**remote_prefill(), **change})
    one.new_request(wrong)
    assert one.matched_tokens(wrong, 0) == (0, False)
    one.allocated(wrong, blocks(1, 2, 3, 4), 0)
    assert one.finished(wrong, [1, 2, 3, 4]) == (False, None)
    assert one.take() == HMCConnectorMetadata()


def test_stats_add_up_and_reach_prometheus() -> None:
    first = HMCStats({**empty(), "load_seconds": [0.25, 0.75], "load_bytes": [1 << 20, 3 << 20], "load_tokens": [100, 50]})
    second = HMCStats({**empty(), "loads_failed": 2, "requests_expired": 1})
    assert not second.is_empty()
    assert HMCStats().is_empty()
    total = first.aggregate(second)
    found = total.reduce()
    assert (found["Loads"], found["Avg load time (ms)"], found["Avg MiB per load"], found["Failed loads"]) == (2, 500, 2, 2)
    assert HMCStats().reduce()["Loads"] == 0

    registry = CollectorRegistry()
    kinds = {
        kind: (lambda kind=kind, **more: kind(registry=registry, **more))  # type: ignore[misc]
        for kind in (Gauge, Counter, Histogram)
    }
    config = SimpleNamespace(kv_transfer_config=None)
    metrics = HMCPromMetrics(config, kinds, ["engine"], {0: ["0"], 1: ["1"]})
    metrics.observe(total.to_dict(), 1)
    metrics.observe(total.to_dict(), 1)
    values = {
        (one.name, one.labels["engine"]): one.value
        for family in registry.collect()
        for one in family.samples
        if "le" not in one.labels
    }
    assert values["vllm:hmc_load_seconds_count", "1"] == 4
    assert values["vllm:hmc_load_bytes_sum", "1"] == 8 << 20
    assert values["vllm:hmc_loads_failed_total", "1"] == 4
    assert values["vllm:hmc_requests_expired_total", "0"] == 0
