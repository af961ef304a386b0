"""A group of vLLM's ranks that exchange rows of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hmc.errors import HmcError, PeerLostError, UnsupportedError
from hmc.experts import Buffer, Handle
from hmc.integrations.vllm._expert_places import ExpertPlaces
from hmc.integrations.vllm._experts_config import ExpertsConfig
from hmc.integrations.vllm._log import logger
from hmc.torch._meeting import meet


class _Sent:
    """A dispatch by hmc.experts."""

    def __init__(self, buffer: Buffer, handle: Handle, rows: torch.Tensor) -> None:
        self.buffer = buffer
        self.handle = handle
        self.rows = rows


class _Gathered:
    """A dispatch of all rows to all ranks."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes


class ExpertGroup:
    """Made by all ranks of a group at once, at their first exchange. One thread; each dispatch is followed by its combine."""

    def __init__(self, group: Any, places: ExpertPlaces, config: ExpertsConfig) -> None:
        from torch.distributed import PrefixStore
        from torch.distributed.distributed_c10d import _get_default_store, _world

        if _world.pg_map.get(group.cpu_group) is None:
            raise UnsupportedError(f"all2all by HMC: the ranks of {group.unique_name} have no store of torch's to meet by")
        # All groups of a kind have one unique_name.
        store = PrefixStore(f"hmc.vllm.experts/{group.unique_name}/{group.ranks}", _get_default_store())
        self._config = config
        self._places = places
        self._comm = meet(store, group.rank_in_group, group.world_size, config.timeout, group.ranks)
        self._buffers: dict[tuple[int, int, str], Buffer] = {}
        self._pending: _Sent | _Gathered | None = None

    def send(self, rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, weights and numbers of the experts, (tokens, ...) each: those of the tokens that come to this rank.

        The rows belong to hmc.experts until the second send after this one.
        """
        _wait_for(rows)
        buffer = self._buffer(rows, ids.shape[1])
        numbers = self._places.numbers(ids)
        found, handle = buffer.dispatch(rows, numbers, weights, timeout=self._config.timeout)
        self._check(buffer.alive)
        self._pending = _Sent(buffer, handle, found)
        local = torch.from_numpy(handle.experts)
        to_weigh = torch.from_numpy(handle.weights)
        if not len(found):  # vLLM's kernels take at least one row
            found = rows.new_zeros((1, rows.shape[1]))
            local = torch.full((1, ids.shape[1]), -1)
            to_weigh = torch.zeros(local.shape)
        return found, to_weigh.to(weights), self._ids(local).to(ids)

    def of_this_rank(self, weights: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of all ranks' weights and numbers of experts: those that this rank's kernels take."""
        if not self._config.local_ids or not self._config.experts:
            return weights, ids
        local = self._places.local(ids)
        return torch.where(local.to(weights.device) < 0, 0, weights), self._ids(local).to(ids)

    def _ids(self, local: torch.Tensor) -> torch.Tensor:
        """Weights of what is not here are 0, whichever expert stands for it."""
        return local.clamp(min=0) if self._config.local_ids else self._places.ids(local)

    def gather(self, tensors: list[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """All ranks' tensors, (tokens, ...) each, one behind the other. ``sizes``: tokens of each rank."""
        self._pending = _Gathered(list(sizes))
        return [self._gather(tensor.contiguous(), sizes) for tensor in tensors]

    def _gather(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        _wait_for(tensor)
        found = tensor.new_empty((sum(sizes), *tensor.shape[1:]))
        row = tensor.element_size() * tensor[:1].numel() if len(tensor) else tensor.element_size() * found[:1].numel()
        counts = [size * row for size in sizes]
        self._comm.all_gather(_bytes_of(found), _bytes_of(tensor), counts=counts, timeout=self._config.timeout)
        return found

    def results(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """Memory for the results of the pending dispatch, which combine does not copy; None where there is none."""
        sent = self._pending
        if not isinstance(sent, _Sent) or tuple(sent.rows.shape) != tuple(shape) or not len(sent.rows):
            return None
        if (sent.rows.dtype, sent.rows.device) != (dtype, device):
            return None
        found: torch.Tensor = sent.buffer.results(sent.handle, timeout=self._config.timeout)
        return found

    def combine(self, results: torch.Tensor) -> torch.Tensor:
        """The sums for this rank's tokens. ``results``: a row for each that came."""
        pending, self._pending = self._pending, None
        assert pending is not None
        _wait_for(results)
        if isinstance(pending, _Gathered):
            mine = results.new_empty((pending.sizes[self._comm.rank], *results.shape[1:]))
            counts = [size * results[:1].numel() for size in pending.sizes]
            self._comm.reduce_scatter(mine, results.contiguous(), counts=counts, timeout=self._config.timeout)
            return mine
        kept = results[: len(pending.rows)].contiguous()
        sums: torch.Tensor = pending.buffer.combine(kept, pending.handle, timeout=self._config.timeout)
        if pending.handle.lost.any():
            self._check(pending.buffer.alive)
        return sums

    def close(self) -> None:
        """Not collective. Errors are logged: other ranks may be gone."""
        for closes in (*(buffer.close for buffer in self._buffers.values()), self._comm.close):
            try:
                closes()
            except HmcError as error:
                logger.warning("leaving the group of experts: %s", error)

    def _buffer(self, rows: torch.Tensor, topk: int) -> Buffer:
        key = (rows.shape[1], topk, str(rows.dtype).removeprefix("torch."))
        buffer = self._buffers.get(key)
        if buffer is None:
            hidden, _, dtype = key
            buffer = self._buffers[key] = Buffer(
                self._comm,
                self._places.slots * self._comm.size,
                hidden,
                self._config.tokens,
                topk=topk,
                dtype=dtype,
                once=True,
                device=str(rows.device),
                timeout=self._config.timeout,
            )
        return buffer

    def _check(self, alive: Sequence[bool]) -> None:
        """Sums without a rank's experts would be wrong."""
        lost = [rank for rank, is_alive in enumerate(alive) if not is_alive]
        if lost:
            raise PeerLostError(f"ranks {lost} of the group of experts are gone")


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Of a contiguous tensor. One of a single element may have any stride."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _wait_for(tensor: torch.Tensor) -> None:
    """Until what is queued on the tensor's device has written it."""
    if tensor.device.type != "cpu":
        torch.accelerator.current_stream(tensor.device).synchronize()
