"""Parts of the NIXL drop-in by themselves: descriptor lists, registered ranges, frames, metadata; random inputs."""

from __future__ import annotations

import ctypes
import logging
import mmap
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hmc.errors import TransportError
from hmc.integrations._shared import frames as wire
from hmc.integrations._shared import memory as shared_memory
from hmc.integrations._shared.batches import _pieces
from hmc.integrations._shared.errors import NotRegisteredError
from hmc.integrations._shared.inbox import Answers, _Inlet
from hmc.integrations._shared.memory import cpu_bytes
from hmc.integrations._shared.ranges import Range, Ranges
from hmc.integrations.nixl import _bindings as nixl
from hmc.integrations.nixl._descs import restore
from hmc.integrations.nixl._metadata import Entry, Metadata

DRAM, VRAM = nixl.DRAM_SEG, nixl.VRAM_SEG


@pytest.mark.parametrize("seed", range(20))
def test_overlapping_ranges_are_found_as_by_trying_each(seed: int) -> None:
    random = np.random.default_rng(seed)
    ranges: Ranges[int] = Ranges(lambda: "agent x")
    all = [
        Range(VRAM if random.random() < 0.2 else DRAM, int(a), int(n), int(d), number)
        for number, (a, n, d) in enumerate(
            zip(random.integers(0, 1000, 40), random.integers(0, 300, 40), random.integers(0, 2, 40), strict=True)
        )
    ]
    ranges.replace(all)
    gone = [all[at] for at in random.permutation(40)[:10]]
    ranges.replace([], gone)
    left = [one for one in all if one not in gone]
    for _ in range(500):
        row = np.array([[random.integers(0, 1300), random.integers(0, 200), random.integers(0, 2)]], np.uint64)
        address, nbytes, device = row[0].tolist()
        holding = [
            one for one in left if one.kind == DRAM and one.device == device
            and one.address <= address and address + nbytes <= one.address + one.nbytes
        ]  # fmt: skip
        if not holding:
            with pytest.raises(NotRegisteredError):
                ranges.find(DRAM, row)
            with pytest.raises(NotRegisteredError):
                ranges.locate(DRAM, address, nbytes, device)
            continue
        found = ranges.find(DRAM, row)
        one = found.ranges[int(found.which[0])]
        assert one in holding
        assert one.address + int(found.offsets[0]) == address
        assert ranges.locate(DRAM, address, nbytes, device) == (one, address - one.address)


def test_ranges_at_the_end_of_the_address_space_do_not_wrap() -> None:
    ranges: Ranges[None] = Ranges(lambda: "agent x")
    top = (1 << 64) - 1
    ranges.replace([Range(DRAM, top - 100, 100, 0, None)])
    assert ranges.find(DRAM, np.array([[top - 1, 1, 0]], np.uint64)).offsets.tolist() == [99]
    for row in ([top - 1, 2, 0], [top - 50, top, 0], [0, top, 0], [top, 1, 0]):
        with pytest.raises(NotRegisteredError):
            ranges.find(DRAM, np.array([row], np.uint64))
        with pytest.raises(NotRegisteredError):
            ranges.locate(DRAM, row[0], row[1])


@pytest.mark.parametrize("seed", range(10))
def test_pieces_cover_every_byte_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 5000, random.integers(1, 60)).astype(np.uint64)
    counts = [np.zeros(int(n), int) for n in lengths]
    for block, chosen, inner in _pieces(lengths):
        for at, start in zip(chosen, inner, strict=True):
            assert int(start) + block <= int(lengths[at])
            counts[at][int(start) : int(start) + block] += 1
    assert all((one == 1).all() for one in counts)


def test_lists_are_made_changed_and_compared() -> None:
    made = nixl.nixlXferDList(DRAM, [(1, 2, 3), (4, 5, 6)])
    assert (made.descCount(), made.isEmpty(), made.getType()) == (2, False, DRAM)
    assert list(made) == [(1, 2, 3), (4, 5, 6)]
    for at in range(100):
        made.append((at, 1, 0)) if at % 2 else made.addDesc((at, 1, 0))
    made.remDesc(0)
    made[0] = (1 << 63, 7, 8)
    assert list(made) == [(1 << 63, 7, 8)] + [(at, 1, 0) for at in range(100)]
    assert made.index((50, 1, 0)) == 51
    same = nixl.nixlXferDList(DRAM, np.array(list(made), np.uint64))
    assert made == same
    assert made != nixl.nixlXferDList(VRAM, np.array(list(made), np.uint64))
    for bad in (-1, 101):
        with pytest.raises(IndexError):
            made[bad]
    with pytest.raises(nixl.nixlNotFoundError):
        made.index((9, 9, 9))
    with pytest.raises(ValueError, match="exactly 3"):
        nixl.nixlXferDList(DRAM, [(1, 2, 3, "")])
    with pytest.raises(ValueError, match="negative"):
        nixl.nixlXferDList(DRAM, np.array([[1, -2, 3]]))
    made.clear()
    assert made.isEmpty()
    assert nixl.nixlXferDList(DRAM, 5).descCount() == 5


def test_registrations_keep_their_meta_data() -> None:
    made = nixl.nixlRegDList(VRAM, [(1, 2, 3, "as text"), (4, 5, 6, b"\xff\x00")])
    assert list(made) == [(1, 2, 3, b"as text"), (4, 5, 6, b"\xff\x00")]
    made.append((7, 8, 9, ""))
    assert made[2] == (7, 8, 9, b"")
    assert made.trim() == nixl.nixlXferDList(VRAM, [(1, 2, 3), (4, 5, 6), (7, 8, 9)])
    assert nixl.nixlRegDList(DRAM, np.array([[1, 2, 3]]))[0] == (1, 2, 3, b"")
    bad: Any = None  # refused before anything changes
    with pytest.raises(TypeError):
        made.append((10, 11, 12, bad))
    with pytest.raises(TypeError):
        made[0] = (10, 11, 12, bad)
    assert list(made) == [(1, 2, 3, b"as text"), (4, 5, 6, b"\xff\x00"), (7, 8, 9, b"")]


@pytest.mark.parametrize(
    "made",
    [
        nixl.nixlXferDList(DRAM, [(1, 2, 3), ((1 << 64) - 1, 5, 6)]),
        nixl.nixlXferDList(VRAM),
        nixl.nixlRegDList(VRAM, [(1, 2, 3, b"\xff"), (4, 5, 6, "")]),
        nixl.nixlRemoteDList(DRAM, [(1, 2, 3, "agent")]),
    ],
)
def test_lists_survive_serialisation(made: Any) -> None:
    assert restore(pickle.dumps(made)) == made
    assert type(restore(pickle.dumps(made))) is type(made)


class _Harmful:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_serialised_lists_make_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    for bad in (pickle.dumps(_Harmful()), pickle.dumps([1]), b"", b"junk", pickle.dumps(nixl.nixlXferDList(DRAM))[:-3]):
        with pytest.raises(nixl.nixlMismatchError):
            restore(bad)
    assert capsys.readouterr().out == ""


def test_frames_of_several_messages_may_alternate() -> None:
    random = np.random.default_rng(4)
    messages = {
        number: random.integers(0, 256, length, dtype=np.uint8).tobytes()
        for number, length in enumerate([0, 1023, 1024, 9000, 5055])
    }
    all = [frame for number, message in messages.items() for frame in wire.frames(wire.NOTIFY, message, number)]
    assert all[0] == b"\0"
    assert max(map(len, all)) <= 1024
    assembler = wire.Assembler()
    got = [assembler.add(all[at]) for at in random.permutation(len(all))]
    assert sorted(message for one in got if one is not None for message in one[1:]) == sorted(messages.values())


def test_broken_frames_are_ignored() -> None:
    random = np.random.default_rng(5)
    assembler = wire.Assembler()
    for length in range(40):
        for _ in range(200):
            got = assembler.add(random.integers(0, 256, length, dtype=np.uint8).tobytes())
            assert got is None or got[0] in (0, 1, 2, 3)
    good = wire.frames(wire.METADATA, bytes(range(256)) * 8, 1)
    assert assembler.add(good[0]) is None or len(assembler._open) == 64


class _Arrived:
    """Stands in for a wait for notifications."""

    def __init__(self, *frames: bytes) -> None:
        self.frames = [(None, one) for one in frames]
        self.done = bool(frames)

    def error(self) -> None:
        return None

    def _take(self) -> list[tuple[None, bytes]]:
        return self.frames

    def add_done_callback(self, callback: Any) -> None:
        pass


def test_an_interrupt_of_a_program_that_takes_messages_does_not_end_their_arrival() -> None:
    waits = iter([_Arrived(b"\0first", b"\0second"), _Arrived(b"\0third"), _Arrived()])
    peer: Any = SimpleNamespace(_inotifications=lambda timeout: next(waits))
    got: list[bytes] = []

    def deliver(peer: Any, kind: int, message: bytes) -> None:
        got.append(message)
        if message == b"first":
            raise KeyboardInterrupt

    inlet = _Inlet(peer, deliver, lambda inlet: None)
    with pytest.raises(KeyboardInterrupt):
        inlet.drain()
    inlet.drain()
    assert got == [b"first", b"second", b"third"]


def test_a_peer_that_sends_without_a_pause_does_not_hold_a_caller() -> None:
    waits = (_Arrived(f"\0{number}".encode()) for number in range(1000))
    peer: Any = SimpleNamespace(_inotifications=lambda timeout: next(waits))
    got: list[bytes] = []
    inlet = _Inlet(peer, lambda peer, kind, message: got.append(message), lambda inlet: None)
    for _ in range(5):
        inlet.drain()
    assert 5 <= len(got) <= 20
    assert got == [str(number).encode() for number in range(len(got))]


def test_memory_with_a_page_that_is_not_mapped_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    libc.mmap.restype, libc.munmap.restype = ctypes.c_void_p, ctypes.c_int
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    start = libc.mmap(None, 16 * page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert libc.munmap(start + 9 * page, page) == 0
    for part in (1 << 28, 4 * page, page):
        monkeypatch.setattr(shared_memory, "_PART", part)
        with pytest.raises(TransportError, match="not mapped as a whole"):
            cpu_bytes(start, 16 * page)
        with pytest.raises(TransportError):
            cpu_bytes(start + 9 * page - 1, 2)
        for address, nbytes in (
            (start, 9 * page),
            (start + 5, 9 * page - 5),
            (start + 10 * page, 6 * page),
            (start + 10 * page, 1),
        ):
            assert not cpu_bytes(address, nbytes).any()
    assert libc.munmap(start, 9 * page) == libc.munmap(start + 10 * page, 6 * page) == 0


class _Slow:
    """A peer that takes one message each time it reads."""

    def __init__(self) -> None:
        self.name, self.alive = "slow", True
        self.got: list[bytes] = []
        self.unread: list[Any] = []

    def _inotify(self, frame: bytes, timeout: None) -> Any:
        self.got.append(frame[1:])
        return SimpleNamespace(add_done_callback=self.unread.append)

    def read(self) -> None:
        self.unread.pop(0)(None)


def test_a_peer_that_asks_and_does_not_read_holds_one_answer(caplog: pytest.LogCaptureFixture) -> None:
    peer: Any = _Slow()

    def answer(request: bytes) -> bytes:
        if request == b"15":
            raise ValueError("no such thing")
        return b"to " + request

    answers = Answers(answer, logging.getLogger("test"), most=8)
    for number in range(20):
        answers.ask(peer, b"%d" % number)
    assert len(peer.got) == len(peer.unread) == 1
    while peer.unread:
        peer.read()
    assert peer.got == [b"to %d" % number for number in (0, 12, 13, 14, 16, 17, 18, 19)]
    assert "no such thing" in caplog.text
    for _ in range(3):
        answers.ask(peer, b"again")
    peer.alive = False
    peer.read()
    assert not peer.unread
    assert not answers._waiting


@pytest.mark.parametrize("key", ["", "secret", "x" * 100])
def test_metadata_survives(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("HMC_JOB_KEY", key)
    entries = [Entry(DRAM, 5, (1 << 63), 0, b"d" * 70), Entry(VRAM, 0, 0, 7, b"")]
    made = Metadata("agent é", "0123", "host", ["unix:/a b", "tcp://[::1]:5"], entries)
    assert Metadata.decode(made.encode()) == made
    assert Metadata.decode(Metadata("x", "1", "").encode()) == Metadata("x", "1", "")


def test_metadata_of_another_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {}
    for key in ("", "one", "two"):
        monkeypatch.setenv("HMC_JOB_KEY", key)
        made[key] = Metadata("x", "1", "h").encode()
    for key, text in (("", "without one"), ("one", "damaged|without")):
        monkeypatch.setenv("HMC_JOB_KEY", key)
        for other in made.keys() - {key}:
            with pytest.raises(nixl.nixlNotAllowedError, match=text if other == "two" else "HMC_JOB_KEY"):
                Metadata.decode(made[other])
