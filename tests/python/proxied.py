"""The proxy of the vLLM connector, between a client and HTTP servers in the place of engines."""

from __future__ import annotations

import http.client
import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hmc.integrations.vllm.proxy import Prefill, Proxy

Answering = Callable[[dict[str, Any], BaseHTTPRequestHandler], tuple[int, Any]]
TIMEOUT = 20


class FakeEngine(ThreadingHTTPServer):
    """Keeps what it is asked, and answers as ``answer`` says."""

    daemon_threads = True

    def __init__(self, answer: Answering) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that the proxy ends are no news."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeEngine
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        self.server.asked.put((self.path, body))
        status, found = self.server.answer(body, self)
        if found is None:
            return  # answered already
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Engine", "fake")
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def proxied(mode: str, prefill: Answering, decode: Answering) -> Iterator[tuple[FakeEngine, FakeEngine, Proxy]]:
    first, second = FakeEngine(prefill), FakeEngine(decode)
    proxy = Proxy(("127.0.0.1", 0), [Prefill(first.at, "10.0.0.1", 5000, 2, 3)], [second.at], mode)
    threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield first, second, proxy
    finally:
        for server in (proxy, first, second):
            server.shutdown()
            server.server_close()


def ask(proxy: Proxy, path: str = "/v1/completions", **body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=TIMEOUT)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def prefilled(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
    return 200, {"kv_transfer_params": {"do_remote_prefill": True, "remote_request_id": "r"}}


def decoded(body: dict[str, Any], handler: BaseHTTPRequestHandler) -> tuple[int, Any]:
    return 200, {"text": "found", "params": body.get("kv_transfer_params")}


def exchange(proxy: Proxy, request: bytes) -> bytes:
    """All that the proxy answers until it closes the connection."""
    with socket.create_connection(proxy.server_address) as client:
        client.settimeout(TIMEOUT)
        client.sendall(request)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
        return answer
