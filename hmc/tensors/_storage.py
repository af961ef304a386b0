"""Tensors of torch whose storage was resized under them, as FSDP does to free parameters."""

from __future__ import annotations

from typing import Any

from hmc.errors import InvalidArgumentError


def check_storage(tensor: Any) -> None:
    """InvalidArgumentError where a torch tensor's storage does not hold all of its elements: torch itself does not look."""
    elements = tensor.numel()
    try:
        if elements and not tensor.is_contiguous():
            elements = 1 + sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
        end, held = (tensor.storage_offset() + elements) * tensor.element_size(), tensor.untyped_storage().nbytes()
    except RuntimeError:  # a sparse tensor has no storage: the caller refuses it
        return
    if elements and end > held:
        raise InvalidArgumentError(
            f"a {type(tensor).__name__} whose elements end at byte {end} of its storage of {held} bytes, which was resized: "
            "resize it back before passing the tensor"
        )
