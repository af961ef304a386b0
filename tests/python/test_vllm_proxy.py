"""The proxy of the vLLM connector, between a client and HTTP servers in the place of engines."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from proxied import TIMEOUT, Answering, ask, decoded, prefilled, proxied

from hmc.integrations.vllm.proxy import Prefill, address_of


def test_pull_asks_prefill_then_decode_with_its_params() -> None:
    with proxied("pull", prefilled, decoded) as (prefill, decode, proxy):
        status, found = ask(proxy, prompt=[1, 2], max_tokens=40, stream=False, min_tokens=9, stream_options={"a": 1})
        assert (status, found["text"]) == (200, "found")
        path, body = prefill.asked.get(timeout=TIMEOUT)
        assert path == "/v1/completions"
        assert body == {"prompt": [1, 2], "max_tokens": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
        _, body = decode.asked.get(timeout=TIMEOUT)
        assert body["kv_transfer_params"] == {"do_remote_prefill": True, "remote_request_id": "r"}
        assert (body["max_tokens"], body["min_tokens"]) == (40, 9)


def test_push_asks_both_at_once_with_one_transfer_id() -> None:
    met = threading.Barrier(2)

    def wait(then: Answering) -> Answering:
        def answer(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
            met.wait(TIMEOUT)
            return then(body, handler)

        return answer

    with proxied("push", wait(prefilled), wait(decoded)) as (prefill, decode, proxy):
        seen = set()
        for _ in range(3):
            assert ask(proxy, "/v1/chat/completions", messages=[], max_completion_tokens=7)[0] == 200
            _, first = prefill.asked.get(timeout=TIMEOUT)
            _, second = decode.asked.get(timeout=TIMEOUT)
            transfer = first["kv_transfer_params"]["transfer_id"]
            assert first["kv_transfer_params"] == {"do_remote_decode": True, "transfer_id": transfer}
            assert (first["max_completion_tokens"], second["max_completion_tokens"]) == (1, 7)
            there = {"remote_host": "10.0.0.1", "remote_port": 5000, "tp_size": 2, "pp_size": 3}
            assert second["kv_transfer_params"] == {"do_remote_prefill": True, "transfer_id": transfer, **there}
            seen.add(transfer)
        assert len(seen) == 3


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("how", ["an error", "a closed connection", "no server"])
def test_decode_computes_what_prefill_cannot(mode: str, how: str) -> None:
    asked, aborted = threading.Event(), threading.Event()

    def broken(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
        if mode == "push":  # else the proxy may end decode's request before it was sent
            assert asked.wait(TIMEOUT)
        if how == "a closed connection":
            handler.connection.shutdown(socket.SHUT_RDWR)
            return 0, None
        return 500, {"error": "broken"}

    def decode(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
        if "kv_transfer_params" not in body:
            return decoded(body, handler)
        asked.set()
        assert handler.rfile.read(1) == b"", "the proxy ends it"
        aborted.set()
        return 0, None

    with proxied(mode, broken, decode) as (prefill, _, proxy):
        if how == "no server":
            prefill.shutdown()
            prefill.server_close()
        status, found = ask(proxy, prompt=[1], max_tokens=4)
        assert (status, found) == (200, {"text": "found", "params": None})
        if mode == "push" and how != "no server":
            assert aborted.wait(TIMEOUT)


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_an_error_of_decode_reaches_the_client(mode: str) -> None:
    with proxied(mode, prefilled, lambda body, handler: (400, {"error": "too long"})) as (_, _, proxy):
        assert ask(proxy, prompt=[1]) == (400, {"error": "too long"})


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_decode_engine_that_is_not_there_is_a_bad_gateway(mode: str) -> None:
    with proxied(mode, prefilled, decoded) as (_, decode, proxy):
        decode.shutdown()
        decode.server_close()
        connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=TIMEOUT)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": [1]}))
        assert connection.getresponse().status == 502
        connection.close()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_pieces_of_a_stream_are_passed_on_as_they_come(mode: str) -> None:
    next_piece = threading.Semaphore(1)

    def stream(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for number in range(5):
            assert next_piece.acquire(timeout=TIMEOUT)
            data = b"data: %d\n\n" % number
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.write(b"0\r\n\r\n")
        return 0, None

    with proxied(mode, prefilled, stream) as (_, _, proxy):
        connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=TIMEOUT)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": [1], "stream": True}))
        answer = connection.getresponse()
        assert answer.getheader("Content-Type") == "text/event-stream"
        for number in range(5):
            assert answer.read1(100) == b"data: %d\n\n" % number
            next_piece.release()
        assert answer.read() == b""
        connection.close()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_client_that_leaves_ends_the_request_of_decode(mode: str) -> None:
    ended = threading.Event()

    def endless(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b"1\r\nx\r\n")
                time.sleep(0.01)
        ended.set()
        return 0, None

    with proxied(mode, prefilled, endless) as (_, _, proxy):
        connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=TIMEOUT)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": [1], "stream": True}))
        answer = connection.getresponse()
        assert answer.read1(1) == b"x"
        answer.close()
        connection.close()
        assert ended.wait(TIMEOUT)


@pytest.mark.parametrize(
    ("method", "path", "data"), [("GET", "/v1/models", b""), ("POST", "/tokenize", b"{}"), ("POST", "/x", b"5")]
)
def test_other_requests_go_to_decode(method: str, path: str, data: bytes) -> None:
    with proxied("push", prefilled, decoded) as (prefill, decode, proxy):
        connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=TIMEOUT)
        connection.request(method, path, data)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("X-Engine")) == (200, "fake") or data == b"5"
        connection.close()
        assert decode.asked.get(timeout=TIMEOUT)[0] == path
        assert prefill.asked.empty()


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a", "b"]},
        {"prompt": [[1, 2], [3]]},
        {"prompt": [1, 2], "n": 2},
        {"prompt": "a", "best_of": 3},
        {"prompt": "a", "n": "2"},
        {"prompt": "a", "n": 2.0},
        {"prompt": None, "prompt_embeds": ["gASV", "gASW"]},
    ],
)
def test_several_prompts_or_answers_are_computed_by_decode(mode: str, body: dict[str, Any]) -> None:
    with proxied(mode, prefilled, decoded) as (first, second, proxy):
        status, _ = ask(proxy, **body)
        assert status == 200
        _, asked = second.asked.get(timeout=TIMEOUT)
        assert "kv_transfer_params" not in asked
        assert first.asked.empty()


@pytest.mark.parametrize("head", [b"Transfer-Encoding: chunked", b"Content-Length: -1", b"Content-Length: 1x"])
def test_a_body_of_unknown_length_is_refused_and_ends_the_connection(head: bytes) -> None:
    with proxied("pull", prefilled, decoded) as (first, second, proxy), socket.create_connection(proxy.server_address) as client:
        client.settimeout(TIMEOUT)
        smuggled = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + smuggled)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 411")
        assert answer.count(b"HTTP/1.1") == 1
        assert first.asked.empty()
        assert second.asked.empty()


@pytest.mark.parametrize(
    ("lengths", "status"), [((5, 50), b"411"), ((1 << 31,), b"413"), ((10**40,), b"413"), ((500,), b"")], ids=str
)
def test_a_body_of_another_length_is_passed_to_no_engine(lengths: tuple[int, ...], status: bytes) -> None:
    with proxied("pull", prefilled, decoded) as (first, second, proxy), socket.create_connection(proxy.server_address) as client:
        client.settimeout(TIMEOUT)
        head = b"".join(b"Content-Length: %d\r\n" % length for length in lengths)
        client.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + head + b'\r\n{"a"}')
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 " + status if status else b"")
        assert bool(answer) == bool(status)
        assert first.asked.empty()
        assert second.asked.empty()


def test_a_body_of_thousands_of_brackets_goes_to_decode() -> None:
    with proxied("pull", prefilled, lambda *_: (400, {"error": "brackets"})) as (first, _, proxy):
        connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=TIMEOUT)
        connection.request("POST", "/v1/completions", b"[" * 100_000)
        connection.getresponse().read()
        connection.close()
        assert first.asked.empty()


def test_an_answer_that_is_cut_short_does_not_end_well() -> None:
    def cut(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True
        return 200, None

    with proxied("pull", prefilled, cut) as (_, _, proxy):
        connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=TIMEOUT)
        connection.request("POST", "/v1/completions", b'{"prompt": "a"}', {"Content-Type": "application/json"})
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.getresponse().read()


def test_engines_are_named_on_the_command_line() -> None:
    assert Prefill.of("http://a:8100") == Prefill("a:8100", "127.0.0.1", 14579, 1, 1)
    assert Prefill.of("http://a:8100,10.0.0.1:6000,2,4") == Prefill("a:8100", "10.0.0.1", 6000, 2, 4)
    assert Prefill.of("http://a:8100,[fe80::1]:6000").host == "fe80::1"
    for wrong in ("a:8100", "https://a:1", "http://a", "http://a:1/v1"):
        with pytest.raises(ValueError, match="http://HOST:PORT"):
            address_of(wrong)
    for wrong in ("http://a:1,host", "http://a:1,h:1,x", "http://a:1,h:1,1,1,1", "http://a:1,h:65536", "http://a:1,h:1,0"):
        with pytest.raises(ValueError):
            Prefill.of(wrong)


def test_the_command_says_where_it_listens_and_refuses_what_is_wrong() -> None:
    command = [sys.executable, "-m", "hmc.integrations.vllm.proxy", "--prefill", "http://127.0.0.1:1", "--mode", "push"]
    wrong = subprocess.run([*command, "--decode", "nowhere"], timeout=60, check=False, capture_output=True, text=True, cwd="/")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "http://HOST:PORT" in wrong.stderr
    good = [*command, "--decode", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(good, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("mode push, at http://127.0.0.1:")
        process.kill()
