"""Tensors as the arrays of HMC's calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hmc.errors import InvalidArgumentError, UnsupportedError
from hmc.tensors._storage import check_storage

Tensors = Sequence[torch.Tensor]
Item = TypeVar("Item")

_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
# Reductions by the number of torch's operation, which is found in a third of the time that the operation takes.
_OPERATIONS = {getattr(dist.ReduceOp, name).value: name.lower() for name in _NAMES}
# Of truth values, which are bytes of 0 and 1. As NCCL does it, a sum says whether any is true.
_OF_BOOL = {"sum": "bor", "max": "bor", "bor": "bor", "product": "band", "min": "band", "band": "band", "bxor": "bxor"}
# Types that HMC takes as they are. Tensors of others are passed as integers of their size, and the type by name.
_AS_THEY_ARE = {
    *(torch.float64, torch.float32, torch.float16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
}
# Other types that HMC reduces.
_BY_NAME = {
    *(torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2),
    *(torch.uint16, torch.uint32, torch.uint64),
}
_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_OF_COMPLEX = ("sum", "avg", "premul_sum")  # that are the same for real and imaginary parts


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


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, once a functional collective whose result it is has ended. UnsupportedError where it has no strides."""
    if type(tensor) is not torch.Tensor and hasattr(tensor, "trigger_wait"):
        tensor = tensor.trigger_wait()
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"a tensor of layout {tensor.layout}; make it dense first")
    return tensor


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    """A view without gradients, which keeps its memory where the tensor is given another one.

    Not NumPy's array of it: that would forbid for good that the tensor's storage is resized, as FSDP does to free parameters.
    """
    tensor = _dense(tensor)
    if not tensor.is_contiguous():
        raise InvalidArgumentError("a tensor that is not contiguous; pass .contiguous()")
    if tensor.is_cpu:
        check_storage(tensor)
    return tensor.detach()


def bare(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as an array that HMC takes: without gradients; of the same size, type and shape may differ."""
    array = _detached(tensor)
    if tensor.dtype in _AS_THEY_ARE or not (tensor.is_cpu or tensor.dtype == torch.bool):
        return array
    return array.view(_OF_SIZE[tensor.element_size()])


def reduction(tensor: torch.Tensor, opts: Any) -> tuple[str, Any, str | None]:
    """op, factor and dtype of HMC's reduction of reducible() of such tensors."""
    asked = dist.ReduceOp.SUM if opts is None else opts.reduceOp.op
    factor = None
    op = _OPERATIONS.get(asked.value)
    kind = tensor.dtype
    if op is None and asked == dist.ReduceOp.PREMUL_SUM:
        # torch 2.12 has no `factor`.
        op, factor = "premul_sum", opts.reduceOp.__getstate__()[1]
        if isinstance(factor, torch.Tensor):
            factor = factor.item()
    if kind.is_complex:
        if op in _OF_COMPLEX:
            return op, factor, None
    elif kind in _AS_THEY_ARE:
        if op is not None:
            return op, factor, None
    elif kind == torch.bool:
        if op in _OF_BOOL:
            return _OF_BOOL[op], None, None
    elif kind in _BY_NAME and op is not None:
        return op, factor, str(kind).removeprefix("torch.")
    raise UnsupportedError(f"no reduction {op.upper() if op else asked} of {kind}")


def reducible(tensor: torch.Tensor, dtype: str | None) -> torch.Tensor:
    """As bare(), in the type that is reduced: `dtype` where it is named; a complex number is two elements."""
    if tensor.is_complex():
        return torch.view_as_real(_detached(tensor))
    return bare(tensor) if dtype is None else _detached(tensor)


class Packed:
    """A list of tensors as one array: the memory itself where they lie in it one after the other, else a copy."""

    def __init__(self, blocks: Tensors) -> None:
        dense = [_dense(block) for block in blocks]
        for block in dense:
            check_storage(block)
        self.blocks = [block.detach() for block in dense]
        self.counts = [block.numel() for block in blocks]
        found = self._whole()
        self._copied = found is None
        self.flat = self.blocks[0].new_empty(sum(self.counts)) if found is None else found

    def _whole(self) -> torch.Tensor | None:
        first = self.blocks[0]
        storage, at = first.untyped_storage().data_ptr(), first.storage_offset()
        for block, count in zip(self.blocks, self.counts, strict=True):
            same = block.dtype == first.dtype and block.is_contiguous() and block.untyped_storage().data_ptr() == storage
            if not same or block.storage_offset() != at or block.is_conj() or block.is_neg():  # memory without the values it shows
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


def check_lists(lists: Sequence[Tensors], length: int, size: int, what: str) -> None:
    """A list for each rank, with a tensor for each that this rank passes."""
    if len(lists) != size:
        raise InvalidArgumentError(f"{what}: {len(lists)} lists of tensors for {size} ranks")
    for rank, tensors in enumerate(lists):
        if len(tensors) != length:
            raise InvalidArgumentError(f"{what}: the list of rank {rank} has {len(tensors)} tensors, and this rank passes {length}")


def check_types(tensors: Tensors, what: str) -> None:
    """What one call moves or reduces is of one type."""
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype:
            raise InvalidArgumentError(f"{what}: tensors of {tensors[0].dtype} and of {tensor.dtype} in one call")


def elements(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Elements for each rank: of `splits` rows, or of equal parts where there are none."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if len(splits) == 0:
        if rows % size != 0:
            raise InvalidArgumentError(f"{rows} rows cannot be split equally among {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise InvalidArgumentError(f"splits {list(splits)} of a tensor of {rows} rows for {size} ranks")
    row = tensor.numel() // rows if rows else 0
    return [split * row for split in splits]


def check_tag(tag: int) -> None:
    if not 0 <= tag < 1 << 31:  # HMC's -1 is any; those above torch's 31 bits are of this package
        raise InvalidArgumentError(f"tag {tag}; tags are from 0 to 2**31 - 1")
