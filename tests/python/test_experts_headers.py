"""hmc.experts: routes of tokens against NumPy, and headers of peers, which may hold anything and change at any time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hmc import _core
from hmc.errors import ClosedError, InvalidArgumentError, PeerLostError, ProtocolError

Words = NDArray[np.int64]
DISPATCH, COMBINE = 0, 1


def layout_of(rank: int, **changes: Any) -> _core.ExpertLayout:
    sizes: dict[str, Any] = {"ranks": 2, "experts": 8, "tokens": 4, "topk": 2, "once": False, **changes}
    return _core.ExpertLayout(rank=rank, **sizes)


class Rank:
    """One rank's side of dispatch and combine number 6, without a network."""

    number = 6

    def __init__(self, rank: int, ids: Any, weights: Any = None, **changes: Any) -> None:
        self.rank = rank
        self.layout = layout_of(rank, **changes)
        self.outbox, self.window = (np.zeros(self.layout.words, np.int64) for _ in range(2))
        ids = np.asarray(ids)
        self.routes = _core.ExpertRoutes(self.layout, ids, np.ones(ids.shape, np.float32) if weights is None else weights)
        self.received = _core.ExpertReceived(self.layout)
        arguments = self.routes, self.received, self.number, self.outbox, self.window
        self.dispatch, self.combine = _core.ExpertDispatch(*arguments), _core.ExpertCombine(*arguments)

    def header(self, step: int, rank: int) -> Words:
        """For a rank, in the outbox."""
        at, end = self.layout.place(step, self.number, rank), self.layout.place(step, self.number, rank + 1)
        return self.outbox[at:end]

    def arrives(self, step: int, rank: int, words: Words) -> Words:
        """Puts a rank's header into the window: where it lies."""
        at = self.layout.place(step, self.number, rank)
        self.window[at : at + len(words)] = words
        return self.window[at : at + len(words)]


def failed(found: list[Any], kind: type[Exception], rank: int = 1) -> str:
    [(where, error)] = found
    assert where == rank
    assert type(error) is kind, error
    return str(error)


def pair(**changes: Any) -> tuple[Rank, Words, Rank]:
    """(rank 0, the header that rank 1 has written for it, rank 1)."""
    here = Rank(0, [[0, 4], [5, -1]], **changes)
    there = Rank(1, [[1, 4], [-1, -1], [1, 3], [7, 0]], **changes)
    there.dispatch.write([0, 1])
    here.dispatch.write([0])
    here.arrives(DISPATCH, 0, here.header(DISPATCH, 0))
    assert here.dispatch.read([0]) == []
    return here, there.header(DISPATCH, 0), there


def test_rows_are_grouped_by_expert_then_source_then_token() -> None:
    here, header, _ = pair()
    here.arrives(DISPATCH, 1, header)
    assert here.dispatch.read([1]) == []
    here.received.arrange()
    assert here.dispatch.came([1, 0]) == [1, 0]
    assert here.received.counts().tolist() == [2, 2, 0, 1]
    assert here.received.sources().tolist() == [[0, 0], [1, 3], [1, 0], [1, 2], [1, 2]]
    assert here.received.rows_of(1).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_routes_are_those_of_numpy(ranks: int, once: bool) -> None:
    random = np.random.default_rng([ranks, once])
    for _ in range(40):
        experts, tokens = int(random.integers(1, 20)), int(random.integers(0, 12))
        topk = int(random.integers(1, min(experts, 5) + 1))
        ids = np.argsort(random.random((tokens, experts)), axis=1)[:, :topk]
        ids[random.random(ids.shape) < 0.3] = -1
        weights = random.random(ids.shape, np.float32)
        layout = layout_of(0, ranks=ranks, experts=experts, tokens=12, topk=5 if experts >= 5 else topk, once=once)
        routes = _core.ExpertRoutes(layout, ids.astype(random.choice(["i1", "i2", "i4", "i8"])), weights)
        owners = np.append(np.repeat(np.arange(ranks), np.diff(np.arange(ranks + 1) * experts // ranks)), -1)[ids]
        missing = [rank for rank in range(ranks) if random.random() < 0.3]
        assert np.array_equal(routes.lost(missing), np.isin(owners, missing))
        used = routes.used(missing)
        if used is None:
            used = np.ones((tokens, routes.width), bool)
        if once:
            sent = [sorted(set(row.tolist()) - {-1}) for row in owners]
            assert [routes.pairs_to(rank) for rank in range(ranks)] == [sum(rank in row for row in sent) for rank in range(ranks)]
            assert np.array_equal(routes.factors(), np.ones((tokens, routes.width)))
            wanted = [[k < len(row) and row[k] not in missing for k in range(routes.width)] for row in sent]
            assert np.array_equal(np.array(wanted, bool).reshape(tokens, routes.width), used)
        else:
            assert [routes.pairs_to(rank) for rank in range(ranks)] == [(owners == rank).sum() for rank in range(ranks)]
            assert np.array_equal(routes.factors(), weights)
            assert np.array_equal((ids >= 0) & ~np.isin(owners, missing), used)


def test_routes_keep_a_copy() -> None:
    ids, weights = np.array([[0, 4]]), np.ones((1, 2), np.float32)
    routes = _core.ExpertRoutes(layout_of(0), ids, weights)
    ids[:], weights[:] = -1, 7
    assert routes.lost([1]).tolist() == [[False, True]]
    assert routes.factors().tolist() == [[1, 1]]


def test_refused_ids_are_named() -> None:
    for ids, said in (
        (np.array([[0, 8]]), r"topk_ids\[0, 1\] is 8; experts are 0 to 7"),
        (np.array([[0, 1], [-2, 3]], np.int8), r"topk_ids\[1, 0\] is -2"),
        (np.array([[2**64 - 1]], np.uint64), r"topk_ids\[0, 0\] is 18446744073709551615"),
        (np.array([[0, 1], [3, 3]]), r"topk_ids\[1\] has expert 3 twice"),
        (np.zeros((5, 1), int), "at most 4 tokens and top 2"),
        (np.zeros(3, int), "pass integers of shape"),
        (np.zeros((1, 1)), "float64 of shape"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            _core.ExpertRoutes(layout_of(0), ids, np.zeros(ids.shape, np.float32))
    with pytest.raises(InvalidArgumentError, match=r"topk_weights: shape \(1, 2\); topk_ids has \(1, 1\)"):
        _core.ExpertRoutes(layout_of(0), np.zeros((1, 1), int), np.zeros((1, 2), np.float32))


def test_a_header_is_copied_before_it_is_checked() -> None:
    here, header, _ = pair()
    words = here.arrives(DISPATCH, 1, header)
    assert here.dispatch.read([1]) == []
    words[:] = 2**62
    assert here.dispatch.read([1]) == []  # read once
    here.received.arrange()
    assert here.received.sources().tolist() == [[0, 0], [1, 3], [1, 0], [1, 2], [1, 2]]


@pytest.mark.parametrize("once", [False, True])
def test_wrong_words_of_a_dispatch_are_refused(once: bool) -> None:
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(3000):
        here, header, _ = pair(once=once)
        wrong = header.copy()
        wrong[random.integers(1, len(wrong), 2)] = random.choice([-1, 4, 5, 2**40, -(2**63), 2**63 - 1], 2)
        here.arrives(DISPATCH, 1, wrong)
        if found := here.dispatch.read([1]):
            assert "rank 1" in failed(found, ProtocolError)
            assert here.dispatch.came([1]) == []
            refused += 1
            continue
        here.received.arrange()
        sources = here.received.sources()
        assert len(sources) == here.received.counts().sum() <= 9
        assert ((sources >= 0) & (sources < [2, 4])).all()
        experts, weights = here.received.facts()
        assert experts.shape == weights.shape == (len(sources), 2 if once else 0)
        assert ((experts >= -1) & (experts < 4)).all()
    assert refused > 300


def test_counts_that_sum_to_the_pairs_after_an_overflow_are_refused() -> None:
    here, header, _ = pair()
    wrong = header.copy()
    wrong[1:6] = 0, 2**63 - 1, 2**63 - 1, 2, 0
    here.arrives(DISPATCH, 1, wrong)
    assert "which its counts contradict" in failed(here.dispatch.read([1]), ProtocolError)


def test_a_header_of_another_call_is_refused() -> None:
    here, header, _ = pair()
    header = header.copy()
    header[0] = 8
    here.arrives(DISPATCH, 1, header)
    assert "rank 1 is at call 8, this rank at call 6" in failed(here.dispatch.read([1]), ProtocolError)


def test_ranks_that_closed_or_masked_this_one() -> None:
    here, header, _ = pair()
    words = here.arrives(DISPATCH, 1, header)
    words[0] = -1
    failed(here.dispatch.read([1]), ClosedError)
    here.dispatch.check_not_masked([0, 1])
    words[0] = -2
    assert "has masked this rank" in failed(here.dispatch.read([1]), PeerLostError)
    here.dispatch.check_not_masked([0])
    with pytest.raises(PeerLostError, match="rank 1 has masked this rank"):
        here.dispatch.check_not_masked([0, 1])


def test_wrong_words_of_a_combine_are_refused() -> None:
    here, header, there = pair()
    here.arrives(DISPATCH, 1, header)
    assert here.dispatch.read([1]) == []
    here.received.arrange()
    descriptor = bytes(range(70))
    here.combine.offer(descriptor)
    here.combine.write([1])
    words = here.header(COMBINE, 1)
    there.arrives(COMBINE, 0, words)
    assert there.combine.read([0]) == []
    assert there.combine.descriptor(0) == descriptor
    for at, value in ((0, 4), (1, -1), (1, 513), (1, 2**62), (3, -5), (3, 2**62), (2, -(2**63))):
        _, _, there = pair()
        wrong = words.copy()
        wrong[at] = value
        there.arrives(COMBINE, 0, wrong)
        assert "rank 0" in failed(there.combine.read([0]), ProtocolError, 0)


def test_headers_without_results_have_no_descriptor() -> None:
    here, header, there = pair()
    here.arrives(DISPATCH, 1, header)
    here.dispatch.read([1])
    here.received.arrange()
    here.combine.write([1])
    there.arrives(COMBINE, 0, here.header(COMBINE, 1))
    assert there.combine.read([0]) == []
    assert there.combine.descriptor(0) == b""


def test_facts_of_lost_ranks_are_none() -> None:
    here, header, _ = pair(once=True)
    here.arrives(DISPATCH, 1, header)
    assert here.dispatch.read([1]) == []
    here.received.arrange()
    assert here.received.facts()[0].tolist() == [[0, -1], [1, -1], [1, 3], [-1, 0]]
    assert here.received.facts()[1].tolist() == [[1, 0], [1, 0], [1, 1], [0, 1]]
    here.received.lose(1)
    assert here.received.facts()[0].tolist() == [[0, -1], [-1, -1], [-1, -1], [-1, -1]]


def test_ranks_and_memory_are_checked() -> None:
    here, _, _ = pair()
    for rank in (-1, 2):
        with pytest.raises(InvalidArgumentError, match="is none of 2"):
            here.dispatch.write([rank])
        assert "is none of 2" in failed(here.dispatch.read([rank]), InvalidArgumentError, rank)
        for call in (here.received.rows_of, here.received.lose, here.routes.pairs_to, lambda rank: here.routes.lost([rank])):
            with pytest.raises(IndexError):
                call(rank)
    with pytest.raises(InvalidArgumentError, match="bytes of CPU memory"):
        _core.ExpertDispatch(here.routes, here.received, 6, here.outbox[:-1], here.window)
