"""Clients of the vLLM connector's proxy that are unusual, hostile, many, or leave."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from proxied import TIMEOUT, ask, decoded, exchange, prefilled, proxied

from hmc.integrations.vllm.proxy import Prefill, Proxy


def test_a_body_of_a_question_is_not_the_next_request() -> None:
    with proxied("pull", prefilled, decoded) as (_, decode, proxy):
        smuggled = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
        head = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
        last = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert exchange(proxy, head + smuggled + last).count(b"HTTP/1.1 200") == 2
        assert [decode.asked.get(timeout=TIMEOUT)[0] for _ in range(2)] == ["/v1/models", "/last"]
        assert decode.asked.empty()


def test_a_body_that_is_passed_on_keeps_its_type() -> None:
    found: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def keep(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
        found.put(handler.headers["Content-Type"])
        return 200, {}

    with proxied("pull", prefilled, keep) as (_, _, proxy):
        for path, kind in (("/v1/audio/transcriptions", "multipart/form-data; boundary=x"), ("/v1/completions", "text/plain")):
            head = b"POST %s HTTP/1.1\r\nContent-Type: %s\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
            assert b" 200 " in exchange(proxy, head % (path.encode(), kind.encode()) + b"{}")
        assert [found.get(timeout=TIMEOUT) for _ in range(2)] == ["multipart/form-data; boundary=x", "application/json"]


def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    with proxied("pull", prefilled, decoded) as (_, _, proxy):
        head, _, body = exchange(proxy, b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert json.loads(body)["text"] == "found"


def test_an_answer_without_a_body_stays_one() -> None:
    def empty(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
        handler.send_response(204)
        handler.end_headers()
        return 204, None

    with proxied("pull", prefilled, empty) as (_, _, proxy):
        answer = exchange(proxy, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 204")
        assert answer.endswith(b"\r\n\r\n")
        assert b"chunked" not in answer


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_every_depth_of_brackets_is_answered(mode: str) -> None:
    with proxied(mode, prefilled, lambda *_: (400, {"error": "brackets"})) as (_, _, proxy):
        for depth in range(930, 1000):
            body = b'{"prompt": "a", "x": ' + b"[" * depth + b"]" * depth + b"}"
            head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
            assert exchange(proxy, head + body).startswith(b"HTTP/1.1 "), depth


@pytest.mark.parametrize(("mode", "phase"), [("pull", "prefill"), ("pull", "decode"), ("push", "decode")])
def test_a_client_that_leaves_before_the_answer_ends_its_requests(mode: str, phase: str) -> None:
    entered, ended = threading.Event(), threading.Event()

    def silent(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
        entered.set()
        if handler.rfile.read(1) == b"":
            ended.set()
        return 0, None

    engines = (silent, decoded) if phase == "prefill" else (prefilled, silent)
    with proxied(mode, *engines) as (_, decode, proxy):
        with socket.create_connection(proxy.server_address) as client:
            client.sendall(b'POST /v1/completions HTTP/1.1\r\nContent-Length: 15\r\n\r\n{"prompt": "a"}')
            assert entered.wait(TIMEOUT)
        assert ended.wait(TIMEOUT)
        if phase == "prefill":
            assert ask(proxy, prompt="a", n=2)[0] == 200
            assert [decode.asked.get(timeout=TIMEOUT)[1].get("n") for _ in range(decode.asked.qsize())] == [2]


def test_many_clients_connect_at_once_and_small_pieces_are_sent_at_once() -> None:
    proxy = Proxy(("127.0.0.1", 0), [Prefill("127.0.0.1:1")], ["127.0.0.1:1"], "pull")
    with contextlib.ExitStack() as clients:
        clients.callback(proxy.server_close)
        for _ in range(100):
            clients.enter_context(socket.create_connection(proxy.server_address, TIMEOUT))
        delays: list[int] = []
        watched = proxy.departures.watched

        def look(connection: socket.socket, left: Callable[[], None]) -> Any:
            delays.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            return watched(connection, left)

        proxy.departures.watched = look  # type: ignore[method-assign]
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        clients.callback(proxy.shutdown)
        assert b" 502 " in exchange(proxy, b"GET / HTTP/1.1\r\n\r\n")
        assert delays == [1]


def test_other_requests_take_no_turns_of_generations() -> None:
    with proxied("pull", prefilled, decoded) as (first, third, one), proxied("pull", prefilled, decoded) as (second, fourth, _):
        engines = (first, second, third, fourth)
        with Proxy(("127.0.0.1", 0), [Prefill(first.at), Prefill(second.at)], [third.at, fourth.at], one.mode) as proxy:
            threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
            for _ in range(4):
                assert b" 200 " in exchange(proxy, b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n")
                assert ask(proxy, prompt="a")[0] == 200
            proxy.shutdown()
        asked = [[engine.asked.get(timeout=TIMEOUT)[0] for _ in range(engine.asked.qsize())] for engine in engines]
        assert [paths.count("/v1/completions") for paths in asked] == [2, 2, 2, 2]


def test_a_closed_proxy_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    proxy = Proxy(("127.0.0.1", 0), [Prefill("127.0.0.1:1")], ["127.0.0.1:1"], "pull")
    (thread,) = set(threading.enumerate()) - before
    with pytest.raises(OSError):
        Proxy(proxy.server_address, [], [], "pull")  # type: ignore[arg-type]
    proxy.server_close()
    proxy.server_close()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
