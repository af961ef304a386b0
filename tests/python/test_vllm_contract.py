"""What the vLLM connector reads: params of a proxy, options, messages of a peer. No vLLM."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hmc.errors import InvalidArgumentError, ProtocolError
from hmc.integrations.vllm._messages import Answer, Ask, Piece
from hmc.integrations.vllm._options import Options
from hmc.integrations.vllm._params import Remote, asked, params_of, transfer_of

# The keys of vLLM's NixlConnector that toy_proxy_server.py and the routers pass on.
KEYS = {
    "do_remote_prefill",
    "do_remote_decode",
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "tp_size",
    "pp_size",
    "remote_num_tokens",
    "transfer_mode",
}
REMOTE = Remote("e", "r", "10.0.0.1", 5000, 2, 2)


def test_params_have_the_keys_of_nixl_and_come_back_through_json() -> None:
    params = json.loads(json.dumps(params_of(REMOTE, [3, 4], 40)))
    assert set(params) == KEYS
    assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
    assert Remote.of(params) == REMOTE


@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": True}, {"do_remote_prefill": False, "remote_host": "h"}])
def test_params_without_a_remote_prefill(params: dict[str, Any] | None) -> None:
    assert Remote.of(params) is None


@pytest.mark.parametrize("name", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"])
def test_missing_params_are_named(name: str) -> None:
    params = params_of(REMOTE, [1], 4)
    del params[name]
    with pytest.raises(InvalidArgumentError, match=name):
        Remote.of(params)


@pytest.mark.parametrize("params", ["text", 5, ["do_remote_prefill"], [1], True])
def test_params_that_are_no_object_ask_for_nothing(params: Any) -> None:
    assert Remote.of(params) is None
    assert not asked(params, "do_remote_decode")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remote_port", 0.5),
        ("remote_port", 70000),
        ("remote_port", "x"),
        ("remote_port", "9" * 5000),
        ("remote_port", [1]),
        ("remote_port", json.loads("1e999")),
        ("remote_port", json.loads("NaN")),
        ("tp_size", -1),
        ("tp_size", json.loads("-Infinity")),
        ("pp_size", {"a": 1}),
        ("pp_size", 1e300),
        ("remote_host", {"a": 1}),
        ("remote_host", "x" * 1001),
        ("remote_request_id", ["r"]),
        ("remote_engine_id", 5),
    ],
)
def test_wrong_params_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Remote.of({**params_of(REMOTE, [1], 4), name: value})


def test_every_worker_has_its_own_address() -> None:
    found = {REMOTE.address(pp, tp) for pp in range(2) for tp in range(2)}
    assert found == {f"tcp://10.0.0.1:{port}" for port in range(5000, 5004)}
    assert Remote("e", "r", "fe80::1", 5000).address(0, 0) == "tcp://[fe80::1]:5000"


def config(extra: dict[str, Any], role: str = "kv_both") -> tuple[Any, Any]:
    transfer = SimpleNamespace(
        engine_id="e",
        kv_port=6000,
        kv_connector_extra_config=extra,
        is_kv_producer=role in ("kv_producer", "kv_both"),
        is_kv_consumer=role in ("kv_consumer", "kv_both"),
    )
    return transfer, SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_index=4)


def test_options_have_defaults_and_a_port_for_each_engine() -> None:
    options = Options.of(*config({}))
    assert (options.mode, options.host, options.port, options.lease_seconds) == ("pull", "127.0.0.1", 6024, 30)
    assert options.address(2, 1) == ["tcp://127.0.0.1:6029"]
    assert Options.of(*config({}, "kv_consumer")).address(0, 0) == []


@pytest.mark.parametrize(
    "extra",
    [
        {"hots": "a"},
        {"host": ""},
        {"host": None},
        {"kv_lease_duration": 0},
        {"kv_lease_duration": "long"},
        {"kv_lease_duration": float("nan")},
        {"load_threads": 0},
        {"load_threads": float("inf")},
        {"load_timeout": None},
        {"mode": "shove"},
        {"mode": ["push"]},
        {"push_credits": 0},
        {"push_credits": "many"},
    ],
)
def test_wrong_options_are_refused_by_name(extra: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="kv_connector_extra_config"):
        Options.of(*config(extra))


ASK = Ask("lease", "e", ["r"], answer=5, first=32, tokens=7, readers=2, model="m")


def test_messages_come_back() -> None:
    assert Ask.decode(ASK.encode().tobytes()) == ASK
    answer = Answer([b"\x00\xff" * 40, b""], (1, 2), (0, 4), "why")
    assert Answer.decode(answer.encode().tobytes()) == answer


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"what": "steal"},
        {"requests": []},
        {"requests": ["a", "b"]},
        {"requests": [1]},
        {"requests": "r"},
        {"tokens": -1},
        {"tokens": 1.5},
        {"answer": 1 << 62},
        {"readers": 0},
        {"requests": ["r" * 1001]},
        {"model": "m" * 1001},
        {"more": 1},
        {"engine": None},
    ],
)
def test_a_damaged_question_is_refused(change: dict[str, Any]) -> None:
    fields = {**json.loads(ASK.encode().tobytes()), **change}
    with pytest.raises(ProtocolError):
        Ask.decode(json.dumps(fields).encode())


PIECE = Piece(5, 32, 7, 9, (1, 2), (0, 4), "why")


def test_pieces_come_back() -> None:
    assert Piece.decode(PIECE.encode().tobytes()) == PIECE


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"offer": -1},
        {"begin": 0.5},
        {"tokens": 1 << 62},
        {"layers": [1]},
        {"heads": ["a", 1]},
        {"error": 1},
        {"x": 1},
    ],
)
def test_a_damaged_piece_is_refused(change: dict[str, Any]) -> None:
    fields = {**json.loads(PIECE.encode().tobytes()), **change}
    with pytest.raises(ProtocolError):
        Piece.decode(json.dumps(fields).encode())


PUSHED = {"do_remote_prefill": True, "transfer_id": "t", "remote_host": "10.0.0.1", "remote_port": 5000}


def test_push_needs_no_engine_id_and_takes_what_prefill_returns() -> None:
    assert Remote.of(PUSHED, "push") == Remote("", "t", "10.0.0.1", 5000)
    assert Remote.of({**PUSHED, "remote_engine_id": "e", "tp_size": 2}, "push") == Remote("e", "t", "10.0.0.1", 5000, 2)
    assert Remote.of(params_of(REMOTE, [1], 4, "push"), "push") == REMOTE
    with pytest.raises(InvalidArgumentError, match="remote_engine_id"):
        Remote.of(PUSHED)


@pytest.mark.parametrize("given", ["pull", "push"])
def test_params_of_the_other_mode_are_refused(given: str) -> None:
    other = {"pull": "push", "push": "pull"}[given]
    with pytest.raises(InvalidArgumentError, match="transfer_mode"):
        Remote.of(params_of(REMOTE, [1], 4, given), other)


@pytest.mark.parametrize("wrong", [5, ["t"], "x" * 1001])
def test_a_wrong_transfer_id_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="transfer_id"):
        transfer_of({"transfer_id": wrong}, "r")
    with pytest.raises(InvalidArgumentError):
        Remote.of({**PUSHED, "transfer_id": wrong}, "push")


def test_random_bytes_are_refused() -> None:
    source = random.Random(3)
    for good in (ASK.encode().tobytes(), PIECE.encode().tobytes()):
        _check_mutations(source, good)
    answer = b'{"version": 1, "tickets": [%s], "layers": [0, %s], "heads": [0, 1], "error": ""}'
    for data in (b"", b"\xff", b"[]", b"null", b"[" * 100_000, answer % (b"1", b"1"), answer % (b"", b"1e999")):
        for what in (Answer, Piece):
            with pytest.raises(ProtocolError):
                what.decode(data)
    for data in (b"[" * 100_000, b'{"version": 1, "what": ' + b'{"a":' * 50_000):
        with pytest.raises(ProtocolError):
            Ask.decode(data)


def test_what_a_peer_says_fills_no_log() -> None:
    long = "x" * 1_000_000
    fields = {"version": 1, "tickets": [], "layers": [0, 1], "heads": [0, 1], "error": long}
    assert len(Answer.decode(json.dumps(fields).encode()).error) == 1000
    assert len(Piece.decode(json.dumps({**json.loads(PIECE.encode().tobytes()), "error": long}).encode()).error) == 1000
    for what, damaged in (
        (Ask, {long: 1}),
        (Piece, {long: 1}),
        (Answer, {**fields, "layers": [long, 1]}),
        (Answer, {**fields, "heads": [1, long]}),
    ):
        with pytest.raises(ProtocolError) as caught:
            what.decode(json.dumps({**damaged, "version": 1}).encode())
        assert len(str(caught.value)) < 400


def _check_mutations(source: random.Random, good: bytes) -> None:
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(source.randrange(1, 4)):
            data[source.randrange(len(data))] = source.randrange(256)
        for what in (Ask, Answer, Piece):
            try:
                what.decode(bytes(data))
            except ProtocolError:
                continue


def test_a_message_is_an_array_of_bytes() -> None:
    assert ASK.encode().dtype == np.uint8


def test_importing_hmc_imports_no_engine() -> None:
    program = "import sys, hmc, hmc.integrations.vllm; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    # "-c" looks for modules in the working directory first: not the source tree, whose hmc/ has no extension.
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False, cwd="/").returncode == 0
