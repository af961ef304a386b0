"""Layers of a push that are ready at the same time: they travel, are checked and are acknowledged together."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from kv_sides import expected, same

import hmc
from hmc.kv import _backlog, _push, _receive
from hmc.kv._wire import CREDIT, LAYER, Record

TEXT = "L={count} B=8 H=2 N=16 (kv D=16) bf16"
MINE, THEIRS, TOKENS = [0, 7], [3, 1], 32


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The layers that each record says have arrived."""
    sent: list[tuple[int, int]] = []
    real = _push.Push._send

    def send(self: Any, kind: int, layers: tuple[int, int] = (0, 0), *more: Any) -> None:
        if kind == LAYER:
            sent.append(layers)
        real(self, kind, layers, *more)

    monkeypatch.setattr(_push.Push, "_send", send)
    return sent


@pytest.fixture
def go(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The receiver lets no sender write before it is set."""
    gate = threading.Event()
    real = _receive.Inbox._let_write

    def later(self: Any) -> Any:
        assert gate.wait(20)
        return real(self)

    monkeypatch.setattr(_receive.Inbox, "_let_write", later)
    return gate


def ready(push: Any, layers: list[int], go: threading.Event) -> None:
    for layer in layers:
        push.ready(layer, timeout=20)
    go.set()


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("credits", "layers", "wanted"),
    [
        (24, list(range(12)), [(0, 3), (3, 6), (9, 3)]),
        (12, list(range(12)), [(0, 1), (1, 2), (3, 4), (7, 5)]),
        (24, [0, 1, 2, 7, 8, 3, 5, 4, 11, 9, 10, 6], [(0, 3), (7, 2), (3, 1), (5, 1), (4, 1), (11, 1), (9, 2), (6, 1)]),
        (24, [1, 2, 2, 3, *range(12)], [(1, 2), (2, 2), (0, 12)]),
    ],
)
def test_they_travel_in_one_record(
    kv_pair: Any,
    records: list[tuple[int, int]],
    go: threading.Event,
    verify: bool,
    credits: int,
    layers: list[int],
    wanted: list[tuple[int, int]],
) -> None:
    a, b, to_a, to_b = kv_pair(TEXT.format(count=12), TEXT.format(count=12))
    expects = expected(a, MINE, b, THEIRS, TOKENS)
    inbox = b.pool.receive(to_a, THEIRS, TOKENS, verify=verify)
    push = a.pool.push(to_b, inbox.ticket, MINE, credits=credits)
    ready(push, layers, go)
    push.close(20)
    inbox.wait(20)
    assert records == wanted
    assert inbox.layers == list(range(12))
    assert push._credits == credits, "each layer is acknowledged once"
    same(b, expects)


@pytest.mark.parametrize("target", ["L=5@4 B=8 H=2 N=16 (kv D=16) bf16", "L=5@4 B=8 H=2 N=16 D=16 kv f32"])
def test_layers_that_the_receiver_lacks_stay_here(
    kv_pair: Any, records: list[tuple[int, int]], go: threading.Event, target: str
) -> None:
    a, b, to_a, to_b = kv_pair(TEXT.format(count=12), target)
    expects = expected(a, MINE, b, THEIRS, TOKENS)
    inbox = b.pool.receive(to_a, THEIRS, TOKENS)
    push = a.pool.push(to_b, inbox.ticket, MINE, credits=24)
    ready(push, list(range(12)), go)
    push.close(20)
    inbox.wait(20)
    assert records == [(4, 5)]  # of layers 3 to 8
    assert push._credits == 24
    same(b, expects)


def test_a_change_in_one_of_them_is_an_error_of_all(
    kv_pair: Any, records: list[tuple[int, int]], go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, to_a, to_b = kv_pair(TEXT.format(count=6), TEXT.format(count=6))
    real = _receive.Inbox._check_layers

    def spoil(self: Any, record: Any) -> Any:
        if record.layers == (3, 3):
            b.arrays[0][4 * 8 * 2 * 16 * 2 * 16 * 2 + THEIRS[0] * 2 * 16 * 2 * 16 * 2 + 5] ^= 8  # of layer 4
        return real(self, record)

    monkeypatch.setattr(_receive.Inbox, "_check_layers", spoil)
    inbox = b.pool.receive(to_a, THEIRS, TOKENS)
    push = a.pool.push(to_b, inbox.ticket, MINE, credits=6)
    ready(push, list(range(6)), go)
    with pytest.raises(hmc.HmcCancelledError):
        push.close(20)
    with pytest.raises(hmc.CorruptError, match="layers 3 to 5 of session"):
        inbox.wait(20)
    assert inbox.layers == [0, 1, 2]


def test_they_are_bounded_in_bytes(
    kv_pair: Any, records: list[tuple[int, int]], go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, to_a, to_b = kv_pair(TEXT.format(count=12), TEXT.format(count=12))
    monkeypatch.setattr(_backlog, "LOADED", 5 * len(MINE) * a.layout.buffer_bytes // a.layout.blocks // 12 - 1)
    inbox = b.pool.receive(to_a, THEIRS, TOKENS)
    push = a.pool.push(to_b, inbox.ticket, MINE, credits=24)
    ready(push, list(range(12)), go)
    push.close(20)
    inbox.wait(20)
    assert records == [(0, 1), (1, 2), (3, 4), (7, 4), (11, 1)]


def test_a_migration_sends_them_together(kv_pair: Any, records: list[tuple[int, int]], go: threading.Event) -> None:
    a, b, to_a, to_b = kv_pair(TEXT.format(count=12), TEXT.format(count=12))
    mine = a.pool.allocate("s", TOKENS)
    expects = expected(a, mine, b, THEIRS, TOKENS)
    inbox = b.pool.receive(to_a, THEIRS, TOKENS)
    move = a.pool.migrate(to_b, inbox.ticket, session="s")
    go.set()
    move.wait(20)
    inbox.wait(20)
    assert sum(count for _, count in records) == 12
    assert len(records) <= 5
    same(b, expects)


def test_a_stop_is_noticed_before_the_next_ones_travel(
    kv_pair: Any, records: list[tuple[int, int]], go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, to_a, to_b = kv_pair(TEXT.format(count=24), TEXT.format(count=24))
    posted: list[Any] = []
    real = _push.Push._post

    def post(self: Any, *given: Any) -> Any:
        posted.append(given)
        if len(posted) == 2:
            inbox.cancel()
            until = time.monotonic() + 20
            while self._stopped_by is None:
                assert time.monotonic() < until
                time.sleep(0.001)
        return real(self, *given)

    monkeypatch.setattr(_push.Push, "_post", post)
    inbox = b.pool.receive(to_a, THEIRS, TOKENS)
    push = a.pool.push(to_b, inbox.ticket, MINE, credits=24)
    for layer in reversed(range(24)):  # none travels with another
        push.ready(layer, timeout=20)
    go.set()
    for side in (push, inbox):
        with pytest.raises(hmc.HmcCancelledError):
            side.wait(20)
    assert len(posted) == 2


def test_a_receiver_cannot_give_more_credits_than_there_were(kv_pair: Any) -> None:
    a, b, to_a, to_b = kv_pair(TEXT.format(count=6), TEXT.format(count=6))
    inbox = b.pool.receive(to_a, THEIRS, TOKENS)
    push = a.pool.push(to_b, inbox.ticket, MINE, credits=2)
    push._noted(Record(CREDIT, 1, 0, (0, (1 << 64) - 1)))
    assert push._credits == 2
    for layer in range(6):
        push.ready(layer, timeout=20)
    push.close(20)
    inbox.wait(20)
