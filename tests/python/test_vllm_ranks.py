"""Which prefill workers a decode worker of the vLLM connector reads: every head and layer once, whatever the sizes."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from vllm_sides import two_sides

from hmc.errors import UnsupportedError
from hmc.integrations.vllm._params import Remote
from hmc.integrations.vllm._ranks import Grid, Source, heads_of

LAYERS = 6


def layers_of(rank: int, size: int) -> tuple[int, int]:
    return rank * LAYERS // size, (rank + 1) * LAYERS // size


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
@pytest.mark.parametrize("here", [1, 2, 4, 8])
@pytest.mark.parametrize("there", [1, 2, 4, 8])
@pytest.mark.parametrize(("stages_here", "stages_there"), [(1, 1), (1, 2), (3, 1), (2, 3)])
def test_every_worker_reads_all_it_needs_once(heads: int, here: int, there: int, stages_here: int, stages_there: int) -> None:
    remote = Remote("e", "r", "h", 1000, there, stages_there)
    places = {remote.address(pp, tp): (pp, tp) for pp in range(stages_there) for tp in range(there)}
    reads: Counter[str] = Counter()
    said: dict[str, set[int]] = {}
    released = []
    for pp in range(stages_here):
        for tp in range(here):
            seen = np.zeros((LAYERS, heads), int)
            for source in Grid(heads, here, stages_here, pp, tp).sources(remote, layers_of):
                if not source.read:
                    released.append(source.address)
                    continue
                reads[source.address] += 1
                said.setdefault(source.address, set()).add(source.readers)
                stage, rank = places[source.address]
                begin, end = layers_of(stage, stages_there)
                first, count = heads_of(heads, there, rank)
                seen[begin:end, first : first + count] += 1
            begin, end = layers_of(pp, stages_here)
            first, count = heads_of(heads, here, tp)
            assert (seen[begin:end, first : first + count] == 1).all()
    assert said == {address: {count} for address, count in reads.items()}
    assert sorted(released) == sorted(set(places) - set(reads)), "every worker is read or released, or it keeps its blocks"


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, LAYERS + 1), (1, 60_000), (3, 1), (6, 2)])
def test_sizes_that_do_not_fit_the_model_are_refused(tp_size: int, pp_size: int) -> None:
    asked: list[int] = []

    def count(rank: int, size: int) -> tuple[int, int]:
        asked.append(size)
        return layers_of(rank, size)

    with pytest.raises(UnsupportedError, match=f"tp_size {tp_size} and pp_size {pp_size}"):
        Grid(4, 2, 1, 0, 0).sources(Remote("e", "r", "h", 1000, tp_size, pp_size), count)
    assert pp_size not in asked or pp_size <= LAYERS, "vLLM computes all stages at each call"


def test_a_worker_without_readers_is_released() -> None:
    with two_sides() as sides:
        sides.sources = lambda remote: [Source(remote.address(0, 0), read=False)]
        sides.lender.keep("r", [1, 2], 40)
        # The layers that no source has are missing: the fetch fails.
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, {5, 6})
        assert sides.lender_ended() == {"r"}


def test_a_source_that_is_read_twice_is_refused() -> None:
    with two_sides() as sides:
        sides.sources = lambda remote: [Source(remote.address(0, 0), 2)] * 2
        sides.lender.keep("r", [1, 2], 40)
        assert sides.fetch(sides.remote, [5, 6], 40) == ({"local r"}, {5, 6})


def test_a_source_with_fewer_layers_is_refused() -> None:
    with two_sides() as sides, two_sides(layers=2) as fewer:
        fewer.lender.keep("r", [1, 2], 40)
        remote = dataclasses.replace(fewer.remote, request="r")
        assert sides.fetch(remote, [5, 6], 40) == ({"local r"}, {5, 6})
