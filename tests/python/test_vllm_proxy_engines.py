"""The proxy of the vLLM connector in front of engines of which some cannot be reached, or hang."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from proxied import TIMEOUT, FakeEngine, ask, decoded, prefilled

from hmc.integrations.vllm._engines import Engine, Engines
from hmc.integrations.vllm.proxy import Prefill, Proxy, main


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def proxy_of(mode: str, prefills: list[str], decodes: list[str], timeout: float | None = None) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", 0), [Prefill(at) for at in prefills], decodes, mode, timeout) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        yield proxy
        proxy.shutdown()


@contextmanager
def engines(*answers: Any) -> Iterator[list[FakeEngine]]:
    with ExitStack() as ends:
        made = []
        for answer in answers:
            made.append(engine := FakeEngine(answer))
            ends.callback(engine.server_close)
            ends.callback(engine.shutdown)
        yield made


def count(engine: FakeEngine) -> int:
    return Counter(engine.asked.get(timeout=TIMEOUT)[0] for _ in range(engine.asked.qsize()))["/v1/completions"]


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_another_engine_takes_what_one_that_is_gone_would_have(mode: str) -> None:
    begun = threading.Semaphore(0)  # calls of prefill; in push mode decode is asked at the same time, and waits for its pages

    def compute(body: dict[str, Any], handler: Any) -> tuple[int, Any]:
        begun.release()
        return prefilled(body, handler)

    def decode_it(body: dict[str, Any], handler: Any) -> tuple[int, Any]:
        assert begun.acquire(timeout=TIMEOUT)
        return decoded(body, handler)

    with engines(compute, decode_it) as (prefill, decode):
        with proxy_of(mode, [nobody(), prefill.at], [nobody(), decode.at, nobody()]) as proxy:
            for _ in range(6):
                status, found = ask(proxy, prompt=[1])
                assert status == 200
                assert found["params"] is not None, "computed by prefill"
            assert (count(prefill), count(decode)) == (6, 6)


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_decode_computes_where_no_prefill_engine_is_reached(mode: str) -> None:
    with engines(decoded) as (decode,), proxy_of(mode, [nobody(), nobody()], [decode.at]) as proxy:
        for _ in range(3):
            assert ask(proxy, prompt=[1]) == (200, {"text": "found", "params": None})
        assert count(decode) == 3


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_prefill_engine_is_let_go_where_no_decode_engine_is_reached(mode: str) -> None:
    ended = threading.Event()

    def answer(body: dict[str, Any], handler: Any) -> tuple[int, Any]:
        ended.set()
        return prefilled(body, handler)

    with engines(answer) as (prefill,), proxy_of(mode, [prefill.at], [nobody(), nobody()]) as proxy:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=TIMEOUT)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": [1]}))
        assert connection.getresponse().status == 502
        connection.close()
        assert ended.is_set() == (mode == "pull"), "in push nothing is asked before decode is reached"


def test_an_engine_that_was_not_reached_comes_last_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    one, two, three = (Engine(str(i)) for i in range(3))
    group = Engines([one, two, three])
    assert [group.in_turn()[0] for _ in range(4)] == [one, two, three, one]
    group.not_reached(two)
    assert [group.in_turn() for _ in range(3)] == [[three, one, two], [three, one, two], [one, three, two]]
    assert group.in_turn(generates=False) == [one, three, two], "a turn of its own"
    now += 11
    assert [group.in_turn()[0] for _ in range(3)] == [two, three, one]
    assert Engines([]).in_turn() == []


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("hangs", ["prefill", "decode"])
def test_an_engine_that_hangs_is_given_its_time(mode: str, hangs: str) -> None:
    free, ended = threading.Event(), threading.Event()

    def hanging(body: dict[str, Any], handler: Any) -> tuple[int, Any]:
        if "kv_transfer_params" not in body:  # push: without prefill
            return decoded(body, handler)
        if hangs == "prefill" and body["kv_transfer_params"].get("do_remote_prefill"):
            assert handler.rfile.read(1) == b"", "the proxy ends it"
            return 0, None
        assert handler.rfile.read(1) == b"", "the proxy ends it"
        ended.set()
        assert free.wait(TIMEOUT)
        return 0, None

    answers = (hanging, decoded if mode == "pull" else hanging) if hangs == "prefill" else (prefilled, hanging)
    with engines(*answers) as (prefill, decode), proxy_of(mode, [prefill.at], [decode.at], timeout=0.5) as proxy:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=TIMEOUT)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": [1]}))
        answer = connection.getresponse()
        assert answer.status == (200 if hangs == "prefill" else 504)
        if hangs == "prefill":
            assert json.loads(answer.read()) == {"text": "found", "params": None}
        connection.close()
        assert ended.wait(TIMEOUT), "its request is over at the engine too"
        free.set()


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "1e300"])
def test_a_timeout_is_a_number_above_zero(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--prefill", "http://a:1", "--decode", "http://b:1", "--engine-timeout", wrong]
    assert main(given) == 2
    assert "--engine-timeout" in capsys.readouterr().err
