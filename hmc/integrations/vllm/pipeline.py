"""Stages of a vLLM pipeline on cards of different vendors: groups of ranks that cross vendors use torch's backend "hmc".

vLLM gives all of its groups one backend, such as NCCL, which no second vendor has. It loads :func:`register` in each of its
processes (entry point group ``vllm.general_plugins``). Groups of one vendor keep vLLM's backend.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hmc.errors import UnsupportedError

__all__ = ["SUPPORTED", "register", "vendor"]

#: The releases of vLLM whose groups are known here.
SUPPORTED = ("0.32.0",)
_ARGUMENTS = {"group_ranks", "torch_distributed_backend", "use_device_communicator", "group_name"}
_KEY = "hmc.vllm.vendor"
_PATIENCE = timedelta(seconds=60)  # for all ranks to say who they are, as vLLM starts them together
_NAME = "hmc"


@dataclass(frozen=True)
class _Place:
    """What a rank computes on: the vendor, and torch's name of the device."""

    vendor: str
    device: str


def register() -> None:
    """Lets the groups that vLLM makes from now on, in this process, cross vendors. Idempotent.

    Does nothing in a release of vLLM that makes its groups otherwise: engines of one vendor start with any.
    """
    try:
        from vllm.distributed.parallel_state import GroupCoordinator
    except ImportError:
        return
    original = GroupCoordinator.__init__
    signature = inspect.signature(original)
    if getattr(original, "of_hmc", False) or not set(signature.parameters) >= _ARGUMENTS:
        return

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        _make(original, given)

    make.of_hmc = True  # type: ignore[attr-defined]
    GroupCoordinator.__init__ = make


def vendor() -> str:
    """The vendor of this process's cards as vLLM's platform has it: "nvidia", "amd", "cpu", or the platform's name."""
    from vllm.platforms import current_platform

    if current_platform.is_rocm():
        return "amd"
    return "nvidia" if current_platform.is_cuda() else str(current_platform.device_name)


def _make(original: Any, given: inspect.BoundArguments) -> None:
    """Makes a group of ranks, by vLLM's constructor with these arguments."""
    import torch.distributed as dist

    arguments = given.arguments
    own = dist.get_backend()
    places = _places()
    if not any(_crosses(ranks, places) for ranks in arguments["group_ranks"]):
        if arguments["torch_distributed_backend"] == _NAME:  # taken over from the group of all ranks, which crosses vendors
            arguments["torch_distributed_backend"] = own
        original(*given.args, **given.kwargs)
        return
    _check_version(places)
    import hmc.torch

    hmc.torch.register()
    wanted = arguments["use_device_communicator"]
    arguments["torch_distributed_backend"] = _NAME
    arguments["use_device_communicator"] = False  # of one vendor: it would wait for the other vendor's ranks
    original(*given.args, **given.kwargs)
    _adapt(arguments["self"], wanted, arguments["group_name"] == "world", places)


def _places() -> list[_Place]:
    """Of all ranks, by torch's store."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store
    from vllm.platforms import current_platform

    size = dist.get_world_size()
    mine = _Place(vendor(), str(current_platform.device_type))
    if size == 1:
        return [mine]
    store = _get_default_store()
    store.set(f"{_KEY}/{dist.get_rank()}", f"{mine.vendor}/{mine.device}")
    keys = [f"{_KEY}/{rank}" for rank in range(size)]
    try:
        store.wait(keys, _PATIENCE)
    except Exception as error:  # torch raises DistStoreError, or RuntimeError in older releases
        without = [rank for rank, key in enumerate(keys) if not store.check([key])]
        raise RuntimeError(
            f"HMC's plugin for pipelines of several vendors does not run on ranks {without} of vLLM: "
            "install hmc on all hosts, or on none, and give all the same VLLM_PLUGINS"
        ) from error
    return [_Place(*store.get(f"{_KEY}/{rank}").decode().split("/", 1)) for rank in range(size)]


def _crosses(ranks: Sequence[int], places: Sequence[_Place]) -> bool:
    return len({places[rank].vendor for rank in ranks}) > 1


def _check_version(places: Sequence[_Place]) -> None:
    import vllm

    version = str(vllm.__version__)
    if version.split("+")[0] not in SUPPORTED:
        vendors = ", ".join(sorted({place.vendor for place in places}))
        raise UnsupportedError(
            f"ranks with cards of {vendors} are in one group of vLLM {version}; HMC supports that with {', '.join(SUPPORTED)}: "
            "install it, or give each group cards of one vendor"
        )


def _adapt(group: Any, communicates: bool, world: bool, places: Sequence[_Place]) -> None:
    """Completes a group that crosses vendors, in the rank that it is made for."""
    from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

    if communicates and group.world_size > 1:
        group.device_communicator = DeviceCommunicatorBase(
            cpu_group=group.cpu_group, device=group.device, device_group=group.device_group, unique_name=group.unique_name
        )
    if world:
        return
    # vLLM sends tensors in CPU memory by the group for it. At the other end the tensor may be on a device: one group serves both.
    gloo, group.cpu_group = group.cpu_group, group.device_group
    kind = type(group)

    def destroy() -> None:
        if hasattr(group, "cpu_group"):  # vLLM deletes it, so that another destroy() does nothing
            group.cpu_group = gloo
        kind.destroy(group)

    group.destroy = destroy
    group.recv_object = lambda src: _here(kind.recv_object(group, src), group, places, src)
    group.broadcast_object = lambda obj=None, src=0: _here(kind.broadcast_object(group, obj, src), group, places, src)


def _here(found: Any, group: Any, places: Sequence[_Place], src: int) -> Any:
    """A list of what a sender's tensors are like, with tensors of its device on this rank's device."""
    from vllm.distributed.parallel_state import TensorMetadata

    if not isinstance(found, list) or src == group.rank_in_group:
        return found
    theirs, mine = places[group.ranks[src]].device, group.device.type

    def one(value: Any) -> Any:
        return value._replace(device=mine) if isinstance(value, TensorMetadata) and value.device == theirs else value

    return [(item[0], one(item[1])) if isinstance(item, tuple) and len(item) == 2 else item for item in found]
