"""A proxy in front of prefill and decode engines: ``python -m hmc.integrations.vllm.proxy``.

It speaks vLLM's OpenAI-compatible HTTP interface to clients and engines. In mode pull it asks a prefill engine, then a decode
engine with the ``kv_transfer_params`` of the answer. In mode push it asks both at once, so that the prompt's layers travel while
they are computed. Requires neither vLLM nor torch. It checks nothing and encrypts nothing: it belongs behind a gateway.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import logging
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from hmc.integrations.vllm._departures import Departures

__all__ = ["Prefill", "Proxy", "main"]

logger = logging.getLogger("hmc.vllm.proxy")

_PIECE = 1 << 16  # bytes that are relayed at a time
_MOST_BYTES = 1 << 30  # of a client's body
_DIGITS = 12
_JSON = "application/json"
# Of an engine's answer, these are the proxy's own.
_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}
_WITHOUT_BODY = (204, 304)


@dataclass(frozen=True)
class Prefill:
    """A prefill engine: ``at`` is HOST:PORT of its HTTP server, the others are those of its KV workers."""

    at: str
    host: str = "127.0.0.1"
    port: int = 14579
    tp_size: int = 1
    pp_size: int = 1

    @staticmethod
    def of(text: str) -> Prefill:
        """From "URL", or "URL,KV_HOST:KV_PORT", or with ",TP,PP" behind it. Raises ValueError."""
        url, *more = text.split(",")
        if len(more) > 3:
            raise ValueError(f"{text!r}: URL,KV_HOST:KV_PORT,TP,PP is expected")
        host, _, text_of_port = (more[0] if more else "127.0.0.1:14579").rpartition(":")
        port, tp_size, pp_size = (int(one) for one in (text_of_port, *more[1:], *("1", "1")[len(more[1:]) :]))
        if not 0 < port < 65536 or tp_size < 1 or pp_size < 1 or port + tp_size * pp_size > 65536:
            raise ValueError(f"{text!r}: KV port {port}, TP {tp_size}, PP {pp_size} is out of range")
        return Prefill(address_of(url), host.strip("[]"), port, tp_size, pp_size)


def address_of(url: str) -> str:
    """HOST:PORT of a URL with a port. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or not parts.port or parts.path.strip("/"):
        raise ValueError(f"{url!r}: http://HOST:PORT is expected")
    return parts.netloc


class _Call:
    """A request to an engine, which another thread may end."""

    def __init__(self, at: str) -> None:
        self._connection = http.client.HTTPConnection(at)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._ended = False

    def connect(self) -> None:
        """Connects, so that ``end`` has an effect from now on. Raises OSError."""
        self._connection.connect()
        with self._lock:
            self._socket = self._connection.sock
            ended = self._ended
        if ended:
            self.end()

    def start(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Sends it, and waits for the head of the answer. Raises OSError, HTTPException."""
        if self._socket is None:
            self.connect()
        self._connection.request(method, path, body, headers)
        return self._connection.getresponse()

    def end(self) -> None:
        """Ends it: the engine aborts the request. Any thread; idempotent."""
        with self._lock:
            self._ended = True
            connected = self._socket
        if connected is not None:
            with contextlib.suppress(OSError):  # it has ended
                connected.shutdown(socket.SHUT_RDWR)


class Proxy(ThreadingHTTPServer):
    """Serves at ``listen`` (host, port); takes the engines in turn. ``serve_forever`` and ``shutdown`` as of any HTTPServer."""

    daemon_threads = True
    request_queue_size = 1024  # clients that connect at once

    def __init__(self, listen: tuple[str, int], prefills: Sequence[Prefill], decodes: Sequence[str], mode: str) -> None:
        self.departures = Departures()
        super().__init__(listen, _Handler)
        self.mode = mode
        self._lock = threading.Lock()
        self._turns: tuple[Iterator[Prefill], Iterator[str]] = itertools.cycle(prefills), itertools.cycle(decodes)
        self._others = itertools.cycle(decodes)

    def turn(self) -> tuple[Prefill, str]:
        """The engines of the next request that both compute."""
        with self._lock:
            return next(self._turns[0]), next(self._turns[1])

    def decode_turn(self, generates: bool) -> str:
        """The decode engine of the next request that it answers alone. Others than generations have turns of their own."""
        with self._lock:
            return next(self._turns[1] if generates else self._others)

    def server_close(self) -> None:
        """Listens no more. Requests in flight go on."""
        super().server_close()
        self.departures.close()


class _Handler(BaseHTTPRequestHandler):
    """A connection of a client, which has one request at a time."""

    server: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is sent in pieces
    _left = False  # the client

    def setup(self) -> None:
        super().setup()
        self._lock = threading.Lock()
        self._calls: list[_Call] = []  # of the request

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)

    def do_GET(self) -> None:
        """Questions such as which models there are go to a decode engine, without a body."""
        self._serve(lambda _: self._pass(None, self.server.decode_turn(False)))

    def do_POST(self) -> None:
        """Generates. Bodies of several prompts or answers, and those of no generation, go to a decode engine alone."""
        self._serve(self._generate)

    def _serve(self, answer: Callable[[bytes], None]) -> None:
        """Answers a request, and ends what it has at engines where the client leaves."""
        data = self._body()
        if data is None:
            self.close_connection = True  # what follows is not told from another request
            return
        with self.server.departures.watched(self.connection, self._leave):
            try:
                answer(data)
            except (OSError, http.client.HTTPException) as error:
                self._fail(error)
        with self._lock:
            self._calls.clear()

    def _leave(self) -> None:
        """The client has left. Any thread."""
        with self._lock:
            self._left = True
            calls = list(self._calls)
        for call in calls:
            call.end()

    def _call(self, at: str) -> _Call:
        """A request to an engine, which ends when the client leaves. Raises OSError where it has left."""
        call = _Call(at)
        with self._lock:
            if self._left:
                raise ConnectionAbortedError("the client left")
            self._calls.append(call)
        return call

    def _generate(self, data: bytes) -> None:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):  # RecursionError: thousands of brackets
            body = None
        generates = isinstance(body, dict) and self.path.endswith("/completions")
        if generates and _is_one(body):
            with contextlib.suppress(RecursionError):  # brackets that json reads and does not write: nothing was sent
                (self._push if self.server.mode == "push" else self._pull)(body, *self.server.turn())
                return
        self._pass(data, self.server.decode_turn(generates))

    def _pass(self, data: bytes | None, decode: str) -> None:
        """Passes a body on as it is."""
        found = self.headers.get("Content-Type", _JSON)
        self._relay(*self._head(self._call(decode), self.command, data, found))

    def _body(self) -> bytes | None:
        """What the client posts; None: it was refused, or the client left."""
        lengths = set(self.headers.get_all("Content-Length", ["0"]))
        length = next(iter(lengths))
        if "Transfer-Encoding" in self.headers or len(lengths) > 1 or not length.isdecimal():
            self.send_error(411, "a body requires Content-Length")
            return None
        if len(length) > _DIGITS or int(length) > _MOST_BYTES:
            self.send_error(413, f"a body has at most {_MOST_BYTES} bytes")
            return None
        data = self.rfile.read(int(length))
        return data if len(data) == int(length) else None

    def _pull(self, body: dict[str, Any], prefill: Prefill, decode: str) -> None:
        params = self._prefilled(self._call(prefill.at), body, {"do_remote_decode": True})
        self._relay(*self._head(self._call(decode), "POST", _with(body, params)))

    def _push(self, body: dict[str, Any], prefill: Prefill, decode: str) -> None:
        transfer = secrets.token_hex(16)
        there = {"remote_host": prefill.host, "remote_port": prefill.port, "tp_size": prefill.tp_size, "pp_size": prefill.pp_size}
        asked = _with(body, {"do_remote_prefill": True, "transfer_id": transfer, **there})
        first, second = self._call(prefill.at), self._call(decode)
        decided = threading.Lock()  # taken by the first of: prefill has failed, decode has answered or failed
        second.connect()

        def compute() -> None:
            params = self._prefilled(first, body, {"do_remote_decode": True, "transfer_id": transfer})
            if params is None and decided.acquire(blocking=False):
                second.end()  # it would wait for layers that do not come

        threading.Thread(target=compute, daemon=True).start()
        found = None
        try:
            found = self._head(second, "POST", asked)
        except (OSError, http.client.HTTPException):
            if decided.acquire(blocking=False):
                first.end()
                raise
        if found is None or not decided.acquire(blocking=False):
            found = self._head(self._call(decode), "POST", _with(body, None))
        try:
            self._relay(*found)
        finally:
            first.end()

    def _prefilled(self, call: _Call, body: dict[str, Any], params: dict[str, Any]) -> dict[str, Any] | None:
        """Lets an engine compute the prompt. Returns the params for the decode engine; None: it failed."""
        asked = {name: value for name, value in body.items() if name not in ("stream_options", "min_tokens")}
        asked |= {name: 1 for name in ("max_tokens", "max_completion_tokens") if name in asked or name == "max_tokens"}
        try:
            answer = call.start("POST", self.path, _with({**asked, "stream": False}, params), self._headers(_JSON))
            found = answer.read()
            if answer.status == 200:
                return json.loads(found).get("kv_transfer_params") or {}
            logger.warning("prefill answered %d: %.200s", answer.status, found)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            logger.warning("prefill failed: %r", error)
        return None

    def _head(
        self, call: _Call, method: str, body: bytes | None, content: str = _JSON
    ) -> tuple[_Call, http.client.HTTPResponse, bytes]:
        """Asks an engine, and waits for the first bytes of its answer's body, before which nothing goes to the client."""
        answer = call.start(method, self.path, body, self._headers(content))
        return call, answer, _read(answer)

    def _relay(self, call: _Call, answer: http.client.HTTPResponse, piece: bytes) -> None:
        """Passes an engine's answer on as it comes. An error of either side ends the other one."""
        try:
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            chunked = self.request_version >= "HTTP/1.1" and answer.status not in _WITHOUT_BODY
            if chunked:
                self.send_header("Transfer-Encoding", "chunked")
            elif answer.status not in _WITHOUT_BODY:
                self.send_header("Connection", "close")
            self.end_headers()
            while piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                piece = _read(answer)
            if chunked:
                self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException) as error:
            logger.warning("a request ended early: %r", error)
            self.close_connection = True
        finally:
            call.end()

    def _headers(self, content: str) -> dict[str, str]:
        kept = ("authorization", "x-request-id")
        found = {name: value for name, value in self.headers.items() if name.lower() in kept}
        return {**found, "Content-Type": content}

    def _fail(self, error: Exception) -> None:
        if self._left:
            self.close_connection = True
            return
        logger.warning("no engine answers: %r", error)
        with contextlib.suppress(OSError):
            self.send_error(502, f"no engine answers: {error}")


def _read(answer: http.client.HTTPResponse) -> bytes:
    """What has come of an answer's body; empty at its end. Raises IncompleteRead where the engine ended early."""
    piece = answer.read1(_PIECE)
    if not piece and answer.length:
        raise http.client.IncompleteRead(piece, answer.length)
    return piece


def _is_one(body: dict[str, Any]) -> bool:
    """Whether an engine makes one request of a body: vLLM gives several the same params, which name one prompt's KV cache."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
    # vLLM takes texts and fractions for numbers. Embeddings are prompts too, and have no tokens that the engines could compare.
    return not several and body.get("prompt_embeds") is None and all(body.get(name) in (None, 1) for name in ("n", "best_of"))


def _with(body: dict[str, Any], params: dict[str, Any] | None) -> bytes:
    """A body with params for the connector."""
    return json.dumps({**body, "kv_transfer_params": params} if params else body).encode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m hmc.integrations.vllm.proxy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument(
        "--prefill",
        action="append",
        required=True,
        metavar="URL[,KV_HOST:KV_PORT[,TP[,PP]]]",
        help="a prefill engine, for push its kv_port (default: 127.0.0.1:14579), tensor and pipeline parallel sizes; repeat it",
    )
    parser.add_argument("--decode", action="append", required=True, metavar="URL", help="a decode engine; repeat it")
    parser.add_argument("--mode", choices=("pull", "push"), default="pull", help="as the engines have it (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        prefills, decodes = [Prefill.of(text) for text in options.prefill], [address_of(url) for url in options.decode]
        host, _, port = options.listen.rpartition(":")
        proxy = Proxy((host, int(port)), prefills, decodes, options.mode)
    except (OSError, ValueError) as error:
        print(f"hmc proxy: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    print(f"mode {options.mode}, at http://{host}:{proxy.server_port}", flush=True)
    with proxy, contextlib.suppress(KeyboardInterrupt):
        proxy.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
