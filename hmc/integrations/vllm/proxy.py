"""A proxy in front of prefill and decode engines: ``python -m hmc.integrations.vllm.proxy``.

It speaks vLLM's OpenAI-compatible HTTP interface to clients and engines. In mode pull it asks a prefill engine, then a decode
engine with the ``kv_transfer_params`` of the answer. In mode push it asks both at once, so that the prompt's layers travel while
they are computed. Requires neither vLLM nor torch. It checks nothing and encrypts nothing: it belongs behind a gateway.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import logging
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from hmc.integrations.vllm._departures import Departures
from hmc.integrations.vllm._engines import Call, Engine, Engines, Prefill, address_of

__all__ = ["Prefill", "Proxy", "main"]

logger = logging.getLogger("hmc.vllm.proxy")

_PIECE = 1 << 16  # bytes that are relayed at a time
_MOST_BYTES = 1 << 30  # of a client's body
_DIGITS = 12
_JSON = "application/json"
# Of an engine's answer, these are the proxy's own.
_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}
_WITHOUT_BODY = (204, 304)

_Engine = TypeVar("_Engine", bound=Engine)


class Proxy(ThreadingHTTPServer):
    """Serves at ``listen`` (host, port). ``serve_forever`` and ``shutdown`` as of any HTTPServer.

    Takes the engines in turn, and another one for an engine that cannot be reached. ``engine_timeout``: seconds that an engine
    may take to send anything; None: any time.
    """

    daemon_threads = True
    request_queue_size = 1024  # clients that connect at once

    def __init__(
        self,
        listen: tuple[str, int],
        prefills: Sequence[Prefill],
        decodes: Sequence[str],
        mode: str,
        engine_timeout: float | None = None,
    ) -> None:
        self.departures = Departures()
        super().__init__(listen, _Handler)
        self.mode = mode
        self.engine_timeout = engine_timeout
        self.prefills, self.decodes = Engines(prefills), Engines([Engine(at) for at in decodes])

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
        self._calls: list[Call] = []  # of the request

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)

    def do_GET(self) -> None:
        """Questions such as which models there are go to a decode engine, without a body."""
        self._serve(lambda _: self._pass(None, False))

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
            calls, self._calls = self._calls, []
        for call in calls:
            call.end()  # of one whose time is over

    def _leave(self) -> None:
        """The client has left. Any thread."""
        with self._lock:
            self._left = True
            calls = list(self._calls)
        for call in calls:
            call.end()

    def _call(self, at: str) -> Call:
        """A request to an engine, which ends when the client leaves. Raises OSError where it has left."""
        call = Call(at, self.server.engine_timeout)
        with self._lock:
            if self._left:
                raise ConnectionAbortedError("the client left")
            self._calls.append(call)
        return call

    def _reach(self, engines: Engines[_Engine], generates: bool = True) -> tuple[_Engine, Call]:
        """A request to the first engine in turn that can be reached. Raises OSError."""
        reason = OSError("there is none")
        for engine in engines.in_turn(generates):
            call = self._call(engine.at)
            try:
                call.connect()
            except OSError as error:
                logger.warning("engine %s cannot be reached: %r", engine.at, error)
                engines.not_reached(engine)
                reason = error
            else:
                return engine, call
        raise reason

    def _reach_prefill(self) -> tuple[Prefill, Call] | None:
        """None: none can be reached. Raises OSError where the client has left."""
        try:
            return self._reach(self.server.prefills)
        except OSError:
            if self._left:
                raise
            return None

    def _generate(self, data: bytes) -> None:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):  # RecursionError: thousands of brackets
            body = None
        generates = isinstance(body, dict) and self.path.endswith("/completions")
        if generates and _is_one(body):
            with contextlib.suppress(RecursionError):  # brackets that json reads and does not write: nothing was sent
                (self._push if self.server.mode == "push" else self._pull)(body)
                return
        self._pass(data, generates)

    def _pass(self, data: bytes | None, generates: bool) -> None:
        """Passes a body on as it is."""
        found = self.headers.get("Content-Type", _JSON)
        self._relay(*self._head(self.command, data, found, generates=generates))

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

    def _pull(self, body: dict[str, Any]) -> None:
        reached = self._reach_prefill()
        params = None if reached is None else self._prefilled(reached[1], body, {"do_remote_decode": True})
        self._relay(*self._head("POST", _with(body, params)))

    def _push(self, body: dict[str, Any]) -> None:
        reached = self._reach_prefill()
        if reached is None:
            return self._relay(*self._head("POST", _with(body, None)))
        prefill, first = reached
        transfer = secrets.token_hex(16)
        there = {"remote_host": prefill.host, "remote_port": prefill.port, "tp_size": prefill.tp_size, "pp_size": prefill.pp_size}
        asked = _with(body, {"do_remote_prefill": True, "transfer_id": transfer, **there})
        try:
            _, second = self._reach(self.server.decodes)
        except OSError:
            first.end()
            raise
        decided = threading.Lock()  # taken by the first of: prefill has failed, decode has answered or failed
        computed = threading.Event()

        def compute() -> None:
            if self._prefilled(first, body, {"do_remote_decode": True, "transfer_id": transfer}) is not None:
                computed.set()
            elif decided.acquire(blocking=False):
                second.end()  # it would wait for layers that do not come

        threading.Thread(target=compute, daemon=True).start()
        found = None
        try:
            found = self._head("POST", asked, call=second)
        except (OSError, http.client.HTTPException) as error:
            if decided.acquire(blocking=False):
                first.end()
                second.end()
                if computed.is_set() or not isinstance(error, TimeoutError):  # else it waits for a prefill engine that hangs
                    raise
        if found is None or not decided.acquire(blocking=False):
            found = self._head("POST", _with(body, None))
        try:
            self._relay(*found)
        finally:
            first.end()

    def _prefilled(self, call: Call, body: dict[str, Any], params: dict[str, Any]) -> dict[str, Any] | None:
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
        self, method: str, body: bytes | None, content: str = _JSON, generates: bool = True, call: Call | None = None
    ) -> tuple[Call, http.client.HTTPResponse, bytes]:
        """Asks a decode engine, and waits for the first bytes of its answer's body, before which nothing goes to the client."""
        call = call or self._reach(self.server.decodes, generates)[1]
        answer = call.start(method, self.path, body, self._headers(content))
        return call, answer, _read(answer)

    def _relay(self, call: Call, answer: http.client.HTTPResponse, piece: bytes) -> None:
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
            self.send_error(504 if isinstance(error, TimeoutError) else 502, f"no engine answers: {error}")


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
    parser.add_argument(
        "--engine-timeout",
        type=float,
        metavar="SECONDS",
        help="how long an engine may take to send anything, which one that hangs never does (default: any time); an answer that is "
        "not streamed comes at its end",
    )
    options = parser.parse_args(arguments)
    try:
        if options.engine_timeout is not None and not 0 < options.engine_timeout < threading.TIMEOUT_MAX:
            raise ValueError(f"--engine-timeout {options.engine_timeout}: a number of seconds above 0 is expected")
        prefills, decodes = [Prefill.of(text) for text in options.prefill], [address_of(url) for url in options.decode]
        host, _, port = options.listen.rpartition(":")
        proxy = Proxy((host, int(port)), prefills, decodes, options.mode, options.engine_timeout)
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
