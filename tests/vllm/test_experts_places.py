"""Where vLLM keeps which expert, against vLLM's own map."""

from __future__ import annotations

import pytest
import torch
from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

from hmc.errors import InvalidArgumentError
from hmc.integrations.vllm._expert_places import ExpertPlaces


@pytest.mark.parametrize(("experts", "owners", "group"), [(8, 2, [0, 1]), (13, 4, [0, 1, 2, 3]), (13, 4, [1, 3]), (3, 4, [2, 0])])
def test_numbers_are_those_of_vllms_map(experts: int, owners: int, group: list[int]) -> None:
    """Global ranks 10, 11, ...; a group of all owners, or of some, in any order."""
    ranks = [10 + owner for owner in range(owners)]
    for place, owner in enumerate(group):
        places = ExpertPlaces(experts, ranks, [10 + one for one in group], place)
        numbers = places.numbers(torch.arange(experts, dtype=torch.int32))
        local, of_vllm, _ = determine_expert_map(owners, owner, experts)
        assert of_vllm is not None
        mine = (numbers >= place * places.slots) & (numbers < (place + 1) * places.slots)
        assert torch.equal(mine, of_vllm >= 0)
        assert torch.equal(numbers[mine] - place * places.slots, of_vllm[mine].long())
        back = places.ids(torch.tensor([[slot, -1] for slot in range(local)], dtype=torch.int64).reshape(-1, 2))
        assert torch.equal(back[:, 0], torch.nonzero(mine).reshape(-1))
        assert (of_vllm[back[:, 1]] == -1).all()  # what stands for none is no expert of this rank
        own = places.local(torch.arange(experts))
        assert torch.equal(own, torch.where(mine, of_vllm.long(), -1))
        others = [one for one in range(owners) if one not in group]
        for other in others:
            _, theirs, _ = determine_expert_map(owners, other, experts)
            assert theirs is not None
            assert (numbers[theirs >= 0] == -1).all()


@pytest.mark.parametrize("bad", [-1, 8])
def test_an_expert_that_is_not_there_is_refused(bad: int) -> None:
    places = ExpertPlaces(8, [0, 1], [0, 1], 0)
    with pytest.raises(InvalidArgumentError, match="8"):
        places.numbers(torch.tensor([[0, bad]]))
    assert places.numbers(torch.empty(0, 2, dtype=torch.int64)).shape == (0, 2)
