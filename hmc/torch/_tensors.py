"""Tensors as the arrays of HMC's calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hmc.errors import InvalidArgumentError, UnsupportedError

Tensors = Sequence[torch.Tensor]
Item = TypeVar("Item")

_OPERATIONS = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "avg"),
    (dist.ReduceOp.PRODUCT, "product"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.BAND, "band"),
    (dist.ReduceOp.BOR, "bor"),
    (dist.ReduceOp.BXOR, "bxor"),
)
# Of truth values, which are bytes of 0 and 1. As NCCL does it, a sum says whether any is true.
_OF_BOOL = {"sum": "bor", "max": "bor", "bor": "bor", "product": "band", "min": "band", "band": "band", "bxor": "bxor"}


def device_types() -> list[str]:
    """Kinds of devices whose tensors are taken: the CPU's, and those of the accelerator that this torch is for."""
    found = ["cpu", "cuda"]
    here = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return found if here is None or here.type in found else [*found, here.type]


def one(items: Sequence[Item]) -> Item:
    """The only entry of a list that once held one per device of the process."""
    if len(items) != 1:
        raise InvalidArgumentError(f"one tensor, or list of tensors, per call and rank, not {len(items)}")
    return items[0]


def bare(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as an array that HMC takes: without gradients; truth values are bytes."""
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"a tensor of layout {tensor.layout}; make it dense first")
    if not tensor.is_contiguous():
        raise InvalidArgumentError("a tensor that is not contiguous; pass .contiguous()")
    tensor = tensor.detach()
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def reduced(tensor: torch.Tensor, opts: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """The array to reduce, with op= and factor= of HMC's call."""
    asked = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    if asked == dist.ReduceOp.PREMUL_SUM:
        factor = asked.factor
        return bare(tensor), {"op": "premul_sum", "factor": factor.item() if isinstance(factor, torch.Tensor) else factor}
    op = next((name for known, name in _OPERATIONS if asked == known), None)
    if op is not None and tensor.dtype == torch.bool:
        op = _OF_BOOL.get(op)
    if op is None:
        raise UnsupportedError(f"no reduction {asked} of {tensor.dtype}")
    return bare(tensor), {"op": op}


class Packed:
    """A list of tensors as one array: the memory itself where they lie in it one after the other, else a copy."""

    def __init__(self, blocks: Tensors) -> None:
        self.blocks = [block.detach() for block in blocks]
        self.counts = [block.numel() for block in blocks]
        found = self._whole()
        self._copied = found is None
        self.flat = blocks[0].new_empty(sum(self.counts)) if found is None else found

    def _whole(self) -> torch.Tensor | None:
        first = self.blocks[0]
        storage, at = first.untyped_storage().data_ptr(), first.storage_offset()
        for block, count in zip(self.blocks, self.counts, strict=True):
            same = block.dtype == first.dtype and block.is_contiguous() and block.untyped_storage().data_ptr() == storage
            if not same or block.storage_offset() != at:
                return None
            at += count
        return first.as_strided((sum(self.counts),), (1,))

    def _pieces(self) -> Sequence[torch.Tensor]:
        return list(self.flat.split(self.counts))

    def load(self) -> None:
        if self._copied:
            for piece, block in zip(self._pieces(), self.blocks, strict=True):
                piece.copy_(block.reshape(-1))

    def unload(self) -> None:
        if self._copied:
            for piece, block in zip(self._pieces(), self.blocks, strict=True):
                block.copy_(piece.view(block.shape))


def check_blocks(blocks: Tensors, size: int, what: str) -> None:
    if len(blocks) != size:
        raise InvalidArgumentError(f"{what}: a list of {len(blocks)} tensors for {size} ranks")
    if any(block.dtype != blocks[0].dtype or block.device != blocks[0].device for block in blocks):
        raise InvalidArgumentError(f"{what}: tensors of one list with different types or devices")


def check_equal(blocks: Tensors, other: torch.Tensor, size: int, what: str) -> None:
    check_blocks(blocks, size, what)
    for at, block in enumerate(blocks):
        if block.numel() != other.numel() or block.dtype != other.dtype:
            raise InvalidArgumentError(
                f"{what}: tensor {at} of the list has {block.numel()} elements of {block.dtype}, "
                f"and that of this rank {other.numel()} of {other.dtype}"
            )


def elements(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Elements for each rank: of `splits` rows, or of equal parts where there are none."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size != 0:
            raise InvalidArgumentError(f"{rows} rows cannot be split equally among {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise InvalidArgumentError(f"splits {list(splits)} of a tensor of {rows} rows for {size} ranks")
    row = tensor.numel() // rows if rows else 0
    return [split * row for split in splits]


def check_tag(tag: int) -> None:
    if tag < 0:  # HMC's -1 is any
        raise InvalidArgumentError(f"tag {tag}; tags are not negative")
