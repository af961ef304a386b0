"""Where vLLM keeps which expert, and the numbers that hmc.experts has for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hmc.errors import InvalidArgumentError


class ExpertPlaces:
    """The experts of a layer for a group of ranks that exchange rows, which may be a part of all that have experts.

    vLLM places experts one behind the other, as many on each rank of ``owners``, and one more on the first where they do not come
    out even. In hmc.experts each rank of ``group`` has ``slots`` numbers; those of a rank that has fewer experts are not used.
    """

    def __init__(self, experts: int, owners: Sequence[int], group: Sequence[int], rank: int) -> None:
        least, more = divmod(experts, len(owners))
        self.slots = least + (more > 0)
        self._experts = experts
        self._numbers = torch.full((experts,), -1)
        self._first = self._end = 0  # of this rank
        self._place = rank
        start = 0
        for at, owner in enumerate(owners):
            count = least + (at < more)
            if owner in group:
                place = group.index(owner)
                self._numbers[start : start + count] = torch.arange(place * self.slots, place * self.slots + count)
                if place == rank:
                    self._first, self._end = start, start + count
            start += count

    def numbers(self, ids: torch.Tensor) -> torch.Tensor:
        """By vLLM's numbers of experts: those of hmc.experts, -1 for what is on no rank of the group. In CPU memory."""
        ids = ids.to("cpu", torch.int64)
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self._experts:
            raise InvalidArgumentError(f"experts {int(ids.min())} to {int(ids.max())} of a model that has {self._experts}")
        return self._numbers[ids]

    def local(self, ids: torch.Tensor) -> torch.Tensor:
        """By vLLM's numbers: those among this rank's experts, -1 for the others. In CPU memory."""
        numbers = self.numbers(ids) - self._place * self.slots
        return torch.where((numbers >= 0) & (numbers < self.slots), numbers, -1)

    def ids(self, local: torch.Tensor) -> torch.Tensor:
        """By numbers among this rank's experts, -1 for none: vLLM's numbers. One of another rank's experts stands for none."""
        elsewhere = self._first - 1 if self._first > 0 else self._end % self._experts
        return torch.where(local < 0, elsewhere, local + self._first)
