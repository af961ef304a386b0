"""The scheduler's side of mode push against vLLM's interface, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from engines import transfer
from vllm.config import KVTransferConfig
from vllm.v1.request import RequestStatus

from hmc.integrations.vllm import HMCConnector
from hmc.integrations.vllm._metadata import HMCConnectorMetadata
from hmc.integrations.vllm._options import Options
from hmc.integrations.vllm._outgoing import Chunk, Dropped
from hmc.integrations.vllm._params import Remote, digest_of
from hmc.integrations.vllm._push_scheduler import PushScheduler

BLOCK = 32
PREFILL = {"do_remote_decode": True, "transfer_id": "t"}


def request(tokens: int = 100, params: Any = None, status: Any = RequestStatus.FINISHED_LENGTH_CAPPED) -> Any:
    ids = list(range(tokens))
    return SimpleNamespace(
        request_id="r", prompt_token_ids=ids, kv_transfer_params=params, status=status, num_computed_tokens=tokens
    )


def scheduler(role: str = "kv_both") -> PushScheduler:
    parallel = SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_index=0)
    config = KVTransferConfig(**transfer(role, 5000, engine_id="here", kv_connector_extra_config={"mode": "push"}))
    return PushScheduler(Options.of(config, parallel), BLOCK)


def output(
    new: dict[str, tuple[list[int], int]] | None = None,
    cached: dict[str, tuple[list[int] | None, int]] | None = None,
    resumed: tuple[str, ...] = (),
    preempted: tuple[str, ...] = (),
    **scheduled: int,
) -> Any:
    """A step. ``new`` and ``cached``: (new blocks, tokens that are computed already) by request; ``scheduled``: tokens."""
    cached = cached or {}
    return SimpleNamespace(
        preempted_req_ids=set(preempted) or None,
        num_scheduled_tokens=scheduled,
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=(blocks,), num_computed_tokens=computed)
            for name, (blocks, computed) in (new or {}).items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            resumed_req_ids=set(resumed),
            new_block_ids=[None if blocks is None else (blocks,) for blocks, _ in cached.values()],
            num_computed_tokens=[computed for _, computed in cached.values()],
        ),
    )


def chunks(one: PushScheduler, step: Any) -> list[Chunk]:
    one.scheduled(step)
    return one.take().chunks


def test_each_step_says_how_far_it_computes_a_prompt() -> None:
    one = scheduler()
    one.new_request(request(params=dict(PREFILL)))
    assert chunks(one, output({"r": ([7, 8], 32)}, r=32, other=5)) == [Chunk("r", "t", [7, 8], 64, 100, digest_of(range(100)))]
    assert chunks(one, output(cached={"r": ([9, 4], 64)}, r=36)) == [Chunk("r", "t", [7, 8, 9, 4], 100, 100, digest_of(range(100)))]
    assert chunks(one, output(cached={"r": (None, 100)}, r=1)) == [], "a token behind the prompt is not pushed"


def test_a_resumed_prompt_begins_again_in_its_new_blocks() -> None:
    one = scheduler()
    one.new_request(request(params=dict(PREFILL)))
    chunks(one, output({"r": ([7, 8], 0)}, r=64))
    one.scheduled(output(preempted=("r", "other")))
    assert one.take().preempted == ["r"]
    found = chunks(one, output(cached={"r": ([3, 5, 6], 32)}, resumed=("r",), r=40))
    assert found == [Chunk("r", "t", [3, 5, 6], 72, 100, digest_of(range(100)))]


@pytest.mark.parametrize("how", ["waits", "resumed", "resumed as a new one"])
def test_a_prompt_that_loses_its_blocks_between_two_steps_begins_again(how: str) -> None:
    """As vLLM's reset of the prefix cache preempts running requests."""
    one = scheduler()
    prompt = request(params=dict(PREFILL), status=RequestStatus.RUNNING)
    one.new_request(prompt)
    chunks(one, output({"r": ([7, 8], 0)}, r=64))
    if how == "waits":
        prompt.status = RequestStatus.PREEMPTED
        one.scheduled(output(other=10))
        assert one.take().preempted == ["r"]
        prompt.status = RequestStatus.RUNNING
    if how == "resumed as a new one":
        one.scheduled(output({"r": ([3, 5], 0)}, r=64))
    else:
        one.scheduled(output(cached={"r": ([3, 5], 0)}, resumed=("r",), r=64))
    news = one.take()
    assert news.preempted == ([] if how == "waits" else ["r"])
    assert news.chunks == [Chunk("r", "t", [3, 5], 64, 100, digest_of(range(100)))]


def test_a_request_without_a_transfer_id_has_its_own() -> None:
    one = scheduler()
    one.new_request(request(params={"do_remote_decode": True}))
    assert chunks(one, output({"r": ([7], 0)}, r=10))[0].transfer == "r"


def test_a_finished_prompt_stays_until_every_worker_has_returned_it() -> None:
    one = scheduler()
    prompt = request(params=dict(PREFILL))
    one.new_request(prompt)
    chunks(one, output({"r": ([7, 8, 9, 4], 0)}, r=100))
    assert not one.pending()
    keep, params = one.finished(prompt, [7, 8, 9, 4])
    assert keep
    assert params is not None
    assert Remote.of(params, "push") == Remote("here", "t", "127.0.0.1", 5000)
    [kept] = one.take().keep
    assert (kept.request, kept.transfer) == ("r", "t")
    assert one.pending(), "vLLM must go on stepping"
    one.moved(set(), {"r"})
    assert not one.pending()


@pytest.mark.parametrize("status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR])
def test_an_aborted_prompt_is_dropped_and_stays_where_a_push_may_read_it(status: Any) -> None:
    one = scheduler()
    computed = request(params=dict(PREFILL), status=status)
    one.new_request(computed)
    chunks(one, output({"r": ([7, 8], 0)}, r=50))
    assert one.finished(computed, [7, 8]) == (True, None)
    assert one.pending()
    assert one.take().dropped == [Dropped("r", "t", True)]
    one.moved(set(), {"r"})
    waiting = request(params=dict(PREFILL), status=status)
    one.new_request(waiting)
    assert one.finished(waiting, []) == (False, None)
    assert one.take().dropped == [Dropped("r", "t", False)]
    assert not one.pending()


@pytest.mark.parametrize("params", [None, {}, {"other": 1}, "text", {"do_remote_decode": True, "transfer_id": 5}])
def test_other_requests_are_left_alone(params: Any) -> None:
    one = scheduler()
    plain = request(params=params)
    one.new_request(plain)
    assert chunks(one, output({"r": ([7, 8], 0)}, r=50)) == []
    assert one.finished(plain, [7, 8]) == (False, None)
    assert one.take() == HMCConnectorMetadata()


def test_a_consumer_pushes_nothing() -> None:
    one = scheduler("kv_consumer")
    plain = request(params=dict(PREFILL))
    one.new_request(plain)
    assert chunks(one, output({"r": ([7, 8], 0)}, r=50)) == []
    assert one.finished(plain, [7, 8]) == (False, None)


def test_decode_offers_its_blocks_to_the_address_that_the_proxy_names() -> None:
    one = scheduler()
    params = {"do_remote_prefill": True, "transfer_id": "t", "remote_host": "127.0.0.1", "remote_port": 6000}
    wanted = request(params=params)
    one.new_request(wanted)
    assert one.matched_tokens(wanted, 32) == (68, True)
    one.allocated(wanted, SimpleNamespace(get_block_ids=lambda: ([5, 6, 7, 8],)), 68)
    [fetch] = one.take().fetch
    assert (fetch.remote, fetch.blocks, fetch.skip, fetch.tokens) == (Remote("", "t", "127.0.0.1", 6000), [6, 7, 8], 32, 68)


@pytest.mark.parametrize("change", [{"transfer_mode": "pull"}, {"transfer_id": None}, {"remote_host": None}])
def test_wrong_params_are_computed_here(change: dict[str, Any]) -> None:
    one = scheduler()
    params = {"do_remote_prefill": True, "transfer_id": "t", "remote_host": "127.0.0.1", "remote_port": 6000}
    wrong = request(params={**params, **change})
    one.new_request(wrong)
    assert one.matched_tokens(wrong, 0) == (0, False)


def test_only_mode_push_requires_graphs_in_pieces() -> None:
    assert HMCConnector.requires_piecewise_for_cudagraph({"mode": "push"})
    assert not HMCConnector.requires_piecewise_for_cudagraph({})
