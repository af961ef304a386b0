"""Transfers of the NIXL drop-in between two processes, every byte compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from nixl_process import SIZE, Mine, contents, this_process

from hmc.integrations.nixl import _bindings as nixl
from hmc.integrations.nixl._request import Request


@pytest.fixture(params=["shm", "tcp"])
def mine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mine]:
    monkeypatch.setenv("HMC_TRANSPORTS", request.param)
    with this_process(capture_telemetry=True) as one:
        yield one


def scattered(seed: int, sizes: Any) -> tuple[Any, Any]:
    """Offsets of blocks of these sizes, in one order here and in another there, with gaps; none overlap on a side."""
    random = np.random.default_rng(seed)
    sizes = np.asarray(sizes, np.int64)

    def side() -> Any:
        order = random.permutation(len(sizes))
        spare = SIZE - int(sizes.sum())
        gaps = random.multinomial(spare, np.full(len(sizes) + 1, 1 / (len(sizes) + 1)))[:-1]
        offsets = np.empty(len(sizes), np.int64)
        offsets[order] = np.cumsum(gaps) + np.concatenate([[0], np.cumsum(sizes[order])[:-1]])
        return offsets

    return side(), side()


def rows(base: int, offsets: Any, sizes: Any) -> Any:
    return np.stack([np.asarray(offsets) + base, np.asarray(sizes), np.zeros(len(offsets), np.int64)], axis=1).astype(np.int64)


def moved(target: Any, source: Any, pairs: Any) -> Any:
    expected = target.copy()
    for into, out, size in pairs:
        expected[into : into + size] = source[out : out + size]
    return expected


SIZES = {
    "one": [1],
    "pages": [16384] * 200,
    "two lengths": [4097, 511] * 300,
    "odd lengths": np.random.default_rng(1).integers(0, 1500, 4000),
    "all of it": [SIZE],
}


@pytest.mark.parametrize("way", ["WRITE", "READ"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_scattered_descriptors_move_and_nothing_else_changes(mine: Mine, way: str, sizes: Any) -> None:
    other = mine.start()
    here, there = scattered(len(sizes), sizes)
    handle = mine.transfer(way, rows(mine.address, here, sizes), rows(other.address, there, sizes), message=b"moved")
    assert mine.run(handle) == "DONE"
    theirs, ours = contents(7), contents(3)
    if way == "WRITE":
        theirs = moved(theirs, ours, zip(there, here, sizes, strict=True))
    else:
        ours = moved(ours, theirs, zip(here, there, sizes, strict=True))
    assert other.notifs(1) == [("mine", b"moved")]
    assert np.array_equal(other.memory(), theirs)
    assert np.array_equal(mine.memory, ours)


def test_prepared_lists_serve_many_transfers_by_index(mine: Mine) -> None:
    other = mine.start()
    block, count = 4099, 500
    local = mine.agent.prep_xfer_dlist("NIXL_INIT_AGENT", rows(mine.address, np.arange(count) * block, [block] * count), "DRAM")
    remote = mine.agent.prep_xfer_dlist("other", rows(other.address, np.arange(count) * 2 * block, [block] * count), "DRAM")
    theirs = contents(7)
    random = np.random.default_rng(5)
    for round in range(20):
        chosen, places = random.permutation(count)[:37], random.permutation(count)[:37].astype(np.int32)
        handle = mine.agent.make_prepped_xfer("WRITE", local, chosen.tolist(), remote, places, b"%d" % round)
        assert mine.run(handle) == "DONE"
        mine.agent.release_xfer_handle(handle)
        theirs = moved(
            theirs, mine.memory, [(2 * block * int(b), block * int(a), block) for a, b in zip(chosen, places, strict=True)]
        )
    assert other.notifs(20) == [("mine", b"%d" % round) for round in range(20)]
    assert np.array_equal(other.memory(), theirs)


def test_a_transfer_is_posted_again(mine: Mine) -> None:
    other = mine.start()
    handle = mine.transfer("WRITE", [(mine.address, 5000, 0)], [(other.address + 1, 5000, 0)], message=b"first")
    for message, told in ((b"", b"first"), (b"second", b"second"), (b"", b"second")):
        mine.memory[:5000] = contents(len(told), 5000)
        assert mine.run(handle, message) == "DONE"
        assert other.notifs(1) == [("mine", told)]
        assert np.array_equal(other.memory()[1:5001], mine.memory[:5000])


def test_registrations_may_overlap(mine: Mine) -> None:
    agent = mine.agent
    inner = agent.register_memory([(mine.address + 1000, 2000, 0, ""), (mine.address, 10, 0, "")], "DRAM")
    again = agent.register_memory([(mine.address, SIZE, 0, "")], "DRAM")
    other = mine.start()
    handle = mine.transfer("WRITE", [(mine.address + 900, 3000, 0)], [(other.address, 3000, 0)])
    assert mine.run(handle) == "DONE"
    agent.deregister_memory(mine.registered)  # `again` holds the same bytes
    mine.memory[900:3900] = contents(8, 3000)
    assert mine.run(handle) == "DONE"
    assert np.array_equal(other.memory()[:3000], contents(8, 3000))
    agent.deregister_memory(again)
    with pytest.raises(nixl.nixlNotFoundError, match="no registration of agent mine"):
        agent.transfer(handle)
    inside = mine.transfer("READ", [(mine.address + 1000, 2000, 0)], [(other.address, 2000, 0)])
    assert mine.run(inside) == "DONE"
    assert np.array_equal(mine.memory[1000:3000], contents(8, 3000)[:2000])
    agent.deregister_memory(inner)
    with pytest.raises(nixl.nixlNotFoundError):
        agent.deregister_memory(inner)


def test_both_agents_write_at_once(mine: Mine) -> None:
    other = mine.start()
    other.ask(f"agent.add_remote_agent(bytes.fromhex('{mine.agent.get_agent_metadata().hex()}')).decode()")
    size = SIZE // 2
    there = f"agent.initialize_xfer('WRITE', agent.get_xfer_descs([(memory.ctypes.data, {size}, 0)], 'DRAM'), "
    there += f"agent.get_xfer_descs([({mine.address}, {size}, 0)], 'DRAM'), 'mine', b'back')"
    other.start(f"(lambda h: (agent.transfer(h), until(lambda: agent.check_xfer_state(h) == 'DONE'))[1])({there})")
    handle = mine.transfer("WRITE", [(mine.address + size, size, 0)], [(other.address + size, size, 0)], message=b"forth")
    assert mine.run(handle) == "DONE"
    assert other.answer() is True
    assert np.array_equal(mine.memory[:size], contents(7)[:size])
    assert np.array_equal(other.memory()[size:], contents(3)[size:])
    assert other.notifs(1) == [("mine", b"forth")]


def test_threads_share_an_agent_while_registrations_come_and_go(mine: Mine) -> None:
    other = mine.start()
    agent, part = mine.agent, SIZE // 8
    problems: list[Any] = []
    ended = threading.Event()

    def work(thread: int) -> None:
        near = rows(mine.address + thread * part, np.arange(50) * 1000, [999] * 50)
        far = rows(other.address + thread * part, np.arange(50)[::-1] * 1000, [999] * 50)
        try:
            for round in range(60):
                mine.memory[thread * part : (thread + 1) * part] = contents(thread * 100 + round, part)
                assert mine.run(mine.transfer("WRITE", near, far, message=b"%d" % thread)) == "DONE"
                back = near.copy()
                back[:, 0] += part // 2
                assert mine.run(mine.transfer("READ", back, far)) == "DONE"
                whole = mine.memory[thread * part : (thread + 1) * part]
                assert np.array_equal(whole[part // 2 :][:49_999].reshape(-1)[:999], whole[:999])
                sent, got = (np.lib.stride_tricks.as_strided(one, (50, 999), (1000, 1)) for one in (whole, whole[part // 2 :]))
                assert np.array_equal(sent, got)
        except BaseException as error:
            problems.append(error)

    rounds: list[int] = []

    def churn() -> None:
        try:
            while not (ended.is_set() and len(rounds) >= 10):
                agent.deregister_memory(agent.register_memory([(mine.address, SIZE, 0, "")], "DRAM"))
                rounds.append(1)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in range(4)]
    churning = threading.Thread(target=churn)
    for one in (*threads, churning):
        one.start()
    for one in threads:
        one.join(90)
    ended.set()
    churning.join(20)
    assert not problems
    assert len(rounds) >= 10
    assert sorted(other.notifs(240)) == sorted([("mine", b"%d" % one) for one in range(4)] * 60)


def test_a_registration_that_ends_during_a_post_gives_way_to_another(mine: Mine, monkeypatch: pytest.MonkeyPatch) -> None:
    other = mine.start()
    newer = mine.agent.register_memory([(mine.address, SIZE, 0, "")], "DRAM")
    handle = mine.transfer("WRITE", [(mine.address, SIZE, 0)], [(other.address, SIZE, 0)])
    start, ended = Request._start, []

    def late(request: Request, message: bytes) -> None:
        if not ended:
            ended.append(mine.agent.deregister_memory(newer))
        start(request, message)

    monkeypatch.setattr(Request, "_start", late)
    assert mine.run(handle) == "DONE"
    assert ended
    assert np.array_equal(other.memory(), contents(3))


def test_an_agent_reaches_itself(mine: Mine) -> None:
    agent = mine.agent
    local = agent.prep_xfer_dlist("", [(mine.address, 7001, 0), (mine.address + 8000, 0, 0)], "DRAM")
    target = agent.prep_xfer_dlist("mine", [(mine.address + 100_001, 7001, 0), (mine.address, 0, 0)], "DRAM")
    handle = agent.make_prepped_xfer("WRITE", local, [0, 1], target, [0, 1], b"to myself")
    assert mine.run(handle) == "DONE"
    assert np.array_equal(mine.memory, moved(contents(3), contents(3), [(100_001, 0, 7001)]))
    assert agent.check_xfer_state(handle) == "DONE"
    until = time.monotonic() + 20
    while not (got := agent.get_new_notifs()):
        assert time.monotonic() < until
        time.sleep(0.001)
    assert got == {"mine": [b"to myself"]}


def test_strided_runs_are_lists_of_blocks(mine: Mine) -> None:
    other = mine.start()
    local = mine.agent.prep_xfer_dlist("", np.array([[mine.address, 33, 0, 100, 7], [mine.address + 5000, 33, 0, 33, 3]]), "DRAM")
    remote = mine.agent.prep_xfer_dlist("other", np.array([[other.address, 33, 0, 64, 10]]), "DRAM")
    handle = mine.agent.make_prepped_xfer("WRITE", local, np.arange(10), remote, np.arange(10))
    assert mine.run(handle) == "DONE"
    starts = [100 * at for at in range(7)] + [5000 + 33 * at for at in range(3)]
    assert np.array_equal(other.memory(), moved(contents(7), contents(3), [(64 * at, s, 33) for at, s in enumerate(starts)]))


def test_telemetry_and_states(mine: Mine) -> None:
    other = mine.start()
    handle = mine.transfer("READ", [(mine.address, 9, 0), (mine.address + 9, 1, 0)], [(other.address, 9, 0), (other.address, 1, 0)])
    with pytest.raises(nixl.nixlNotPostedError):
        mine.agent.check_xfer_state(handle)
    with pytest.raises(nixl.nixlNotPostedError):
        mine.agent.get_xfer_telemetry(handle)
    assert mine.run(handle) == "DONE"
    told = mine.agent.get_xfer_telemetry(handle)
    assert (told.totalBytes, told.descCount) == (10, 2)
    assert 0 <= told.postDuration <= told.xferDuration < 20e6
    assert mine.agent.query_xfer_backend(handle) == "UCX"
    handle.release()
    with pytest.raises(nixl.nixlInvalidParamError, match="released"):
        mine.agent.transfer(handle)


@pytest.mark.parametrize(
    ("mine_rows", "their_rows", "error", "text"),
    [
        ([(0, 10, 0)], [(0, 11, 0)], nixl.nixlInvalidParamError, "10 bytes here and 11"),
        ([(0, 10, 0)], [(0, 10, 0)] * 2, nixl.nixlInvalidParamError, "equally many"),
        ([(SIZE - 1, 2, 0)], [(0, 2, 0)], nixl.nixlNotFoundError, "agent mine"),
        ([(0, 2, 0)], [(SIZE - 1, 2, 0)], nixl.nixlNotFoundError, "agent other"),
        ([(0, 2, 1)], [(0, 2, 0)], nixl.nixlNotFoundError, "device 1"),
        ([(0, 2, 0)], [(0, (1 << 63) + 5, 0)], nixl.nixlNotFoundError, "agent other"),
    ],
)
def test_descriptors_that_do_not_fit_are_refused(mine: Mine, mine_rows: Any, their_rows: Any, error: Any, text: str) -> None:
    other = mine.start()
    near = mine.agent.get_xfer_descs([(mine.address + at, n, d) for at, n, d in mine_rows], "DRAM")
    far = mine.agent.get_xfer_descs([(other.address + at, n, d) for at, n, d in their_rows], "DRAM")
    with pytest.raises(error, match=text):
        mine.agent.initialize_xfer("WRITE", near, far, "other")


def test_storage_is_refused_by_name(mine: Mine) -> None:
    agent = mine.agent
    for kind in ("FILE", "OBJ", "BLOCK"):
        with pytest.raises(nixl.nixlNotSupportedError, match="files"):
            agent.register_memory([(0, 10, 5, "name")], kind)
    for backend in ("GDS", "POSIX", "OBJ"):
        with pytest.raises(nixl.nixlNotSupportedError, match=backend):
            agent.create_backend(backend)
    with pytest.raises(nixl.nixlNotSupportedError, match="etcd"):
        agent.send_local_metadata()
    with pytest.raises(nixl.nixlBackendError, match="not mapped"):
        agent.register_memory([(0, 10, 0, "")], "DRAM")
    with pytest.raises(KeyError, match="GDS"):
        agent.register_memory([(mine.address, 10, 0, "")], "DRAM", backends=["GDS"])


def test_query_memory_says_what_is_registered(mine: Mine) -> None:
    asked = [(mine.address + 5, 10, 0, ""), (mine.address + SIZE, 1, 0, "")]
    assert mine.agent.query_memory(asked, "UCX", "DRAM") == [{"device": "cpu"}, None]
